"""The minimum work that gives the same result, derived from the count of the model's actual work.

Two things cost far more in plain model code than they must: experts that all run on every token, and latent attention that
expands its whole cache in every step. Both are recognised in the count, never by the name of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.analysis.static.counts import (
    AttentionUse,
    Causal,
    ExpertUse,
    LatentAttention,
    ModelTree,
    PhaseCount,
    attention_flops_under,
)


@dataclass(frozen=True, slots=True)
class LeastCount:
    """A count of the minimum work, and the excess work of the code."""

    count: PhaseCount
    reasons: tuple[str, ...]


def least_count(count: PhaseCount, tree: ModelTree, causal: Causal) -> LeastCount:
    """Return the count with routed experts and absorbed attention; the same count if there is no excess work."""
    least, reasons = _routed(count, tree)
    least, more = _absorbed(least, tree.latent, causal)
    return LeastCount(least, (*reasons, *more))


def _routed(count: PhaseCount, tree: ModelTree) -> tuple[PhaseCount, list[str]]:
    """Count only the experts chosen by the router, where every expert ran on every token."""
    tokens = count.batch_size * count.positions
    own, experts = dict(count.own_flops), dict(count.experts)
    changed: dict[tuple[int, int], int] = {}
    for path, top_k in tree.routed.items():
        held = [param for param in tree.params if param.module == path and param.experts]
        if path in experts or not held or not any(param.name in count.params_read for param in held):
            continue
        number = held[0].experts
        dense = 2 * tokens * sum(param.numel for param in held if len(param.shape) > 2)
        if top_k >= number or own.get(path, 0) < dense:
            continue
        own[path] = own[path] * top_k // number
        experts[path] = ExpertUse(tokens, top_k)
        changed[number, top_k] = changed.get((number, top_k), 0) + 1
    reasons = [
        f"all {number} experts run on every token in {modules} layers, the router chooses {top_k}"
        for (number, top_k), modules in changed.items()
    ]
    return (replace(count, own_flops=own, experts=experts), reasons) if changed else (count, [])


def _absorbed(
    count: PhaseCount, latent: Sequence[LatentAttention], causal: Causal
) -> tuple[PhaseCount, list[str]]:
    """Count latent attention on its compressed cache, where expanding it costs more."""
    own, attention = dict(count.own_flops), list(count.attention)
    layers = 0
    for one in latent:
        uses = [use for use in attention if use.module == one.path]
        if not uses or one.expansion not in own:
            continue
        absorbed = replace(uses[0], flops=_absorbed_attention(one, uses[0], count.batch_size))
        applied = 2 * count.batch_size * uses[0].query_length * one.heads * one.rank * (one.key + one.value)
        before = own[one.expansion] + sum(attention_flops_under(use, causal) for use in uses)
        if applied + attention_flops_under(absorbed, causal) >= before:
            continue
        own[one.expansion] = applied
        attention = [use for use in attention if use.module != one.path] + [absorbed]
        layers += 1
    if not layers:
        return count, []
    reason = (
        f"latent attention expands all cached positions in {layers} layers; absorbed into query and output, the "
        "expansion is applied to new positions only"
    )
    return replace(count, own_flops=own, attention=attention), [reason]


def _absorbed_attention(one: LatentAttention, use: AttentionUse, batch_size: int) -> int:
    """Scores over the compressed and the rotated part of a key, values from the compressed part."""
    pairs = batch_size * one.heads * use.query_length * use.key_length
    return 2 * pairs * (2 * one.rank + one.rotated)
