"""What of a layer one of several ranks has, as serving engines share it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_perf_opt.analysis.expected.roles import heads_made_by
from llm_perf_opt.model.static.operators import AttentionShape, OperatorShapes, ProductShape


def outputs_of_rank(group: Sequence[ProductShape], attention: Sequence[AttentionShape], ranks: int) -> int:
    """Return the outputs of one rank: whole heads where they are heads, else an equal part of them together."""
    by_heads = [_head_outputs(one, attention, ranks) for one in group]
    known = [outputs for outputs in by_heads if outputs is not None]
    rest = sum(one.outputs for one, own in zip(group, by_heads, strict=True) if own is None)
    return sum(known) + math.ceil(rest / ranks)


def _head_outputs(product: ProductShape, attention: Sequence[AttentionShape], ranks: int) -> int | None:
    """Return the outputs of one rank of a projection to heads; ``None``: it makes none, or sizes do not say how many."""
    made, parent = heads_made_by(product.name), product.name.rpartition(".")[0]
    for one in attention if made is not None else ():
        heads, kv_heads = heads_of_rank(one, ranks)
        queries, cached = one.heads * one.head_dim, one.kv_heads * one.head_dim
        if one.name != parent:
            continue
        if made == "queries" and product.outputs % queries == 0:  # twice as many where a gate comes with them
            return product.outputs // one.heads * heads
        if made == "cache" and product.outputs == cached:
            return kv_heads * one.head_dim
        if made == "both" and product.outputs == queries + 2 * cached:
            return (heads + 2 * kv_heads) * one.head_dim
    return None


def heads_of_rank(one: AttentionShape, ranks: int) -> tuple[int, int]:
    """Return the heads of one rank, and the cached ones: of fewer cached heads than ranks each has a copy of one."""
    return math.ceil(one.heads / ranks), max(1, math.ceil(one.kv_heads / ranks))


def why_not_shared(shapes: OperatorShapes, ranks: int) -> str | None:
    """Return why no engine splits a decoder over so many ranks; ``None``: its heads can be shared out evenly.

    Fewer cached heads than ranks are no hindrance where each has equally many copies.
    """
    for one in shapes.attention:
        if one.phase == "vision" or not one.causal:
            continue
        if one.heads % ranks:
            return f"{one.heads} heads cannot be shared out evenly among {ranks} devices"
        if one.latent is None and one.kv_heads % ranks and ranks % one.kv_heads:
            return f"{one.kv_heads} cached heads cannot be shared out evenly among {ranks} devices"
    return None
