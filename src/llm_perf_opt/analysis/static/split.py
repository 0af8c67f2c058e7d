"""Plan of a model over several ranks: what each holds, and what they must communicate.

The rules are those by which transformers implements the plan of an architecture. An unknown style, or a payload that
cannot be derived from the structure, is reported and not guessed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from llm_perf_opt.analysis.static.build import own_weight_bytes
from llm_perf_opt.analysis.static.counts import Causal, ModelTree, ParamInfo, PhaseCount
from llm_perf_opt.analysis.static.minimum import least_count
from llm_perf_opt.summary.static import Exchange, RankShare, Split

Kind = Literal["tensor", "tensor+expert"]
Collective = Literal["all_reduce", "all_gather", "all_to_all"]
Follows = Literal["positions", "sequences"]
_OUTPUTS = ("colwise", "colwise_gather_output", "colwise_rep")
_INPUTS = ("rowwise", "rowwise_rep", "rowwise_split_input")
_GATHERED = ("colwise_gather_output", "colwise_rep")
_SILENT = (
    "colwise", "packed_colwise", "packed_rowwise", "replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj", "grouped_gemm",
)  # fmt: skip
"""Styles of modules that say nothing in a forward pass."""
_WHOLE = (
    "replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj", "moe_tp_experts", "ep_dispatch_experts",
)  # fmt: skip
"""Styles whose parameters every rank has."""
_PACKED = 2
"""Products that are stored as one (gate and up): each of them is cut."""
_KEYS = ("k_proj", "qkv_proj", "query_key_value")
_PHASES = ("prefill", "decode")


class _NotKnownError(Exception):
    """What cannot be determined."""


@dataclass(frozen=True, slots=True)
class Plans:
    """How an architecture is split: generic name of a module or parameter → style."""

    tensor: Mapping[str, str]
    expert: Mapping[str, str]

    def of(self, kind: Kind) -> dict[str, str]:
        """Return the rules of a kind; experts belong to their own plan alone."""
        if kind == "tensor":
            return dict(self.tensor)
        kept = {
            name: style
            for name, style in self.tensor.items()
            if not any(name == one or name.startswith(f"{one}.") for one in self.expert)
        }
        return {**kept, **self.expert}


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of a model that a split needs."""

    tree: ModelTree
    counts: Mapping[str, PhaseCount]
    kv_bytes_per_token: float | None
    activation_bytes: float
    """Size of one element that ranks exchange."""
    causal: Causal


def split_model(counted: Counted, plans: Plans, ranks: int, kind: Kind) -> Split:
    """Return what each of several ranks holds and sends."""
    plan = plans.of(kind)
    try:
        held = [
            {param.name: elements_held(param, plan, ranks, rank) for param in counted.tree.params}
            for rank in range(ranks)
        ]
        exchanges = _exchanges(counted, plan, ranks)
    except _NotKnownError as error:
        return Split(kind, ranks, reason=str(error))
    tree = counted.tree
    sizes = {param.name: param.nbytes for param in tree.params}
    whole = [param for param in tree.params if all(own[param.name] == param.numel for own in held)]
    shares = [
        RankShare(
            rank,
            params=sum(own.values()),
            weight_bytes=sum(sizes[p.name] * own[p.name] / max(p.numel, 1) for p in tree.params),
            kv_bytes_per_token=_cached(counted, plan, ranks),
            experts=_whole_experts(tree, plan, ranks),
        )
        for rank, own in enumerate(held)
    ]
    return Split(
        kind,
        ranks,
        shares,
        replicated_bytes=sum(param.nbytes for param in whole),
        read_bytes=_read_bytes(counted, held[0], ranks),
        exchanges=exchanges,
        element_bytes=counted.activation_bytes,
    )


@functools.lru_cache(maxsize=65_536)
def _generic(name: str) -> str:
    """Return a name with the numbers of layers as ``*``."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _style(parameter: str, plan: Mapping[str, str]) -> str | None:
    """Return the style of a parameter: its own, else that of its module."""
    name = _generic(parameter)
    return plan.get(name) or plan.get(name.rpartition(".")[0])


def elements_held(param: ParamInfo, plan: Mapping[str, str], ranks: int, rank: int) -> int:
    """Return the number of elements of a parameter that a rank holds."""
    style = _style(param.name, plan)
    if style is None or style in _WHOLE:
        return param.numel
    dimensions = len(param.shape)
    bias = param.name.endswith(".bias")
    if style in _OUTPUTS:
        return _cut(param, dimensions - 2, ranks, rank)
    if style in _INPUTS:
        return param.numel if bias else _cut(param, -1, ranks, rank)
    if style == "embedding_rowwise":
        return _cut(param, 0, ranks, rank)
    if style == "embedding_colwise":
        return _cut(param, 1, ranks, rank)
    if style == "packed_colwise":
        return _cut(param, dimensions - 2, ranks, rank, 1 if dimensions == 1 else _PACKED)
    if style == "packed_rowwise":
        return param.numel if dimensions == 1 else _cut(param, -1, ranks, rank, _PACKED)
    if style == "grouped_gemm":
        if param.shape[0] % ranks:
            raise _NotKnownError(f"{param.shape[0]} experts cannot be shared out evenly among {ranks} ranks")
        return param.numel // ranks
    raise _NotKnownError(f"the plan splits {_generic(param.name)} as '{style}', which is not known here")


def _cut(param: ParamInfo, dimension: int, ranks: int, rank: int, packed: int = 1) -> int:
    """Return a rank's part of a tensor that is split along one dimension; the last ranks have less if it is not divisible."""
    size = param.shape[dimension] // packed
    chunk = -(-size // ranks)
    mine = max(0, min(chunk, size - rank * chunk)) * packed
    return param.numel // max(param.shape[dimension], 1) * mine


def _cached(counted: Counted, plan: Mapping[str, str], ranks: int) -> float | None:
    """Return the cache of one rank: its own heads if keys are split, otherwise all."""
    if counted.kv_bytes_per_token is None or counted.tree.latent:
        return None
    split = any(name.rpartition(".")[2] in _KEYS and style == "colwise" for name, style in plan.items())
    return counted.kv_bytes_per_token / (ranks if split else 1)


def _whole_experts(tree: ModelTree, plan: Mapping[str, str], ranks: int) -> int | None:
    held = [p.shape[0] // ranks for p in tree.params if _style(p.name, plan) == "grouped_gemm"]
    return held[0] if held else None


def _read_bytes(counted: Counted, held: Mapping[str, int], ranks: int) -> dict[str, float]:
    """Return phase → weights that a rank reads at least; of a split table, its part of the looked-up rows."""
    tree = counted.tree
    own = replace(
        tree,
        params=tuple(
            replace(
                param,
                numel=held[param.name],
                stored_bytes=None
                if param.stored_bytes is None
                else round(param.stored_bytes * held[param.name] / max(param.numel, 1)),
            )
            for param in tree.params
        ),
    )
    whole = {param.name for param in tree.params if held[param.name] == param.numel}
    found = {}
    for phase in _PHASES:
        if phase not in counted.counts:
            continue
        least = least_count(counted.counts[phase], tree, counted.causal).count
        rows = {
            name: (module, count, size if name in whole else size / ranks)
            for name, (module, count, size) in least.rows_read.items()
        }
        found[phase] = sum(own_weight_bytes(replace(least, rows_read=rows), own).values())
    return found


def _exchanges(counted: Counted, plan: Mapping[str, str], ranks: int) -> list[Exchange]:
    """Return the collectives of every phase that was counted, grouped."""
    tree = counted.tree
    weights = {param.module: param for param in tree.params if param.name.endswith(".weight")}
    exchanged = [
        (module.name, name, width)
        for module in tree.modules
        if (style := plan.get(_generic(module.name))) is not None and style not in _SILENT
        for name, width in _collectives_of(counted, module.name, style, weights.get(module.name))
    ]
    calls: dict[tuple[str, Collective, Follows], int] = {}
    payloads: dict[tuple[str, Collective, Follows], float] = {}
    for phase in _PHASES:
        count = counted.counts.get(phase)
        if count is None:
            continue
        for path, name, width in exchanged:
            rows, follows = _rows(count, is_head=path == tree.head)
            # Ranks that send tokens to experts have an equal part of the tokens each.
            payload = rows * width * counted.activation_bytes / (ranks if name == "all_to_all" else 1)
            key = (phase, name, follows)
            calls[key] = calls.get(key, 0) + 1
            payloads[key] = payloads.get(key, 0.0) + payload
    return [
        Exchange(phase, name, calls[key], payload, link_bytes(name, payload, ranks), follows)
        for key, payload in payloads.items()
        for phase, name, follows in [key]
        if payload
    ]


def _rows(count: PhaseCount, *, is_head: bool) -> tuple[int, Follows]:
    """Return how many positions a module is run on in a pass and the quantity it scales with."""
    positions = count.batch_size * count.positions
    if not is_head:
        return positions, "positions"
    rows = count.head_rows or 0
    return rows, "positions" if rows == positions > count.batch_size else "sequences"


def _collectives_of(
    counted: Counted, module: str, style: str, weight: ParamInfo | None
) -> list[tuple[Collective, float]]:
    """Return the collectives of one forward call of a module, with the elements per position."""
    if style in _INPUTS and weight is not None:
        return [("all_reduce", weight.shape[-2])]
    if style in _GATHERED:
        # A tied head has no weight of its own: it is the embedding's.
        weight = weight or _embedding(counted)
        return [("all_gather", weight.shape[-2])]
    if style == "embedding_rowwise" and weight is not None:
        return [("all_reduce", weight.shape[-1])]
    if style == "embedding_colwise" and weight is not None:
        return [("all_gather", weight.shape[-1])]
    if style == "moe_tp_experts":
        return [("all_reduce", _embedding(counted).shape[-1])]
    if style == "ep_dispatch_experts":
        width = _embedding(counted).shape[-1]
        chosen = _chosen(counted, module)
        # To the experts and back; then every rank receives the results of the others.
        return [("all_to_all", chosen * width), ("all_to_all", chosen * width), ("all_gather", width)]
    raise _NotKnownError(f"what ranks say after {_generic(module)} ('{style}') is not known here")


def _embedding(counted: Counted) -> ParamInfo:
    """Return the table that positions are looked up in."""
    looked_up = {name for count in counted.counts.values() for name in count.rows_read}
    found = next((param for param in counted.tree.params if param.name in looked_up), None)
    if found is None or len(found.shape) != 2:
        raise _NotKnownError(
            "the table of embeddings was not seen, and so the width of the model is not known"
        )
    return found


def _chosen(counted: Counted, module: str) -> int:
    """Return how many experts a token is sent to."""
    seen = (count.experts[module].top_k for count in counted.counts.values() if module in count.experts)
    chosen = counted.tree.routed.get(module) or next(seen, None)
    if not chosen:
        raise _NotKnownError(f"how many experts {_generic(module)} chooses for a token is not known")
    return chosen


def link_bytes(name: Collective, payload: float, ranks: int) -> float:
    """Return the minimum bytes over the links of one of several ranks in one direction, for any algorithm.

    In an all-reduce every rank must send its own part: a ring sends 2(n−1)/n of it, an in-network reduction sends it once.
    """
    return payload if name == "all_reduce" else (ranks - 1) / ranks * payload
