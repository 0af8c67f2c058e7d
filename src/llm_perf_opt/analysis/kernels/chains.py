"""Kernels that run one after the other between two heavy ones, and could be one: derived from the order on a stream.

Element-wise work, reductions, norms and copies between two products form a chain. A fused kernel has to read and write
the data once, as the longest of the chain does at least; the rest of the chain is what fusing can save.
A chain with a softmax between two products and nothing else is unfused attention: a fused
attention kernel has none of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_perf_opt.analysis.kernels.families import family_of
from llm_perf_opt.captures.timeline import Int32, Int64, OpKind, Timeline
from llm_perf_opt.core.arrays import by_stream, distinct_values

_FUSIBLE = (
    "elementwise",
    "reduce",
    "reduction",
    "norm",
    "activation",
    "rope",
    "copy",
    "softmax",
    "quantisation",
)
_PRODUCTS = ("gemm", "gemv")
_LEAST_CHAIN = 3
"""Two kernels between products (a norm and a rotary embedding) are what fused models have."""
_LONGEST_ATTENTION = 12
"""Kernels between the two products of attention: scale, mask, casts, softmax, dropout; more is something else."""
_LONG_NS = 1_000_000
"""In 1 ms a device of 1 to 3 TB/s streams over a gigabyte: such a kernel is no small piece of a chain."""
_FUSED_ALREADY = re.compile(
    r"multi_tensor_apply|multi_tensor_(?:adam|sgd|lamb|scale)|^triton_(?:poi|red|per|tem|for)_fused"
)
_NONE, _FUSES, _SOFTMAX, _PRODUCT = range(4)


@dataclass(frozen=True, slots=True)
class Chains:
    """What chains of kernels cost, in nanoseconds over all devices."""

    attention_ns: int = 0
    """Kernels between the two products of attention in pieces."""
    attention_launches: int = 0
    attention_softmax: int = 0
    """Softmax kernels in them: one per layer and pass."""
    attention_copy_ns: int = 0
    """Copies and casts among them."""
    chain_ns: int = 0
    """Kernels of other chains."""
    chain_launches: int = 0
    chain_saving_ns: int = 0
    """Of ``chain_ns``, without the longest kernel of every chain."""
    chain_copy_ns: int = 0
    chains: int = 0


def find_chains(timeline: Timeline) -> Chains:
    """Find chains on every stream of every device."""
    ops = timeline.ops
    rows = np.flatnonzero(ops.kind == OpKind.KERNEL)
    if not len(rows):
        return Chains()
    meaning, copies = _meanings(timeline, ops.name[rows])
    rows = rows[by_stream(ops.device[rows], ops.stream[rows])]
    name, stream, device = ops.name[rows], ops.stream[rows], ops.device[rows]
    kind, is_copy = meaning[name], copies[name]
    length = ops.end_ns[rows] - ops.start_ns[rows]
    fuses = (kind == _FUSES) | (kind == _SOFTMAX)
    switch = np.zeros(len(rows), bool)
    switch[1:] = (stream[1:] != stream[:-1]) | (device[1:] != device[:-1])
    return _sum_chains(kind, is_copy, length, fuses, switch)


def chain_metrics(found: Chains) -> dict[str, float | None]:
    """Return the sums as named scalars; they add up over captures."""
    return {
        "attention_pieces_s": found.attention_ns / 1e9,
        "attention_pieces_launches": float(found.attention_launches),
        "attention_pieces_softmax": float(found.attention_softmax),
        "attention_pieces_copy_s": found.attention_copy_ns / 1e9,
        "kernel_chain_s": found.chain_ns / 1e9,
        "kernel_chain_launches": float(found.chain_launches),
        "kernel_chain_saving_s": found.chain_saving_ns / 1e9,
        "kernel_chain_copy_s": found.chain_copy_ns / 1e9,
        "kernel_chains": float(found.chains),
    }


CHAIN_METRICS = tuple(chain_metrics(Chains()))


def is_fused_already(name: str) -> bool:
    """Whether a kernel is the result of fusing: many tensors in one launch, or made by a compiler."""
    return bool(_FUSED_ALREADY.search(name))


def _meanings(timeline: Timeline, used: Int32) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    meaning, copies = np.zeros(len(timeline.names) + 1, np.int8), np.zeros(len(timeline.names) + 1, bool)
    for name in distinct_values(used).tolist():
        family = family_of(timeline.names[name])
        meaning[name] = (
            _SOFTMAX
            if family == "softmax"
            else _FUSES
            if family in _FUSIBLE and not is_fused_already(timeline.names[name])
            else _PRODUCT
            if family in _PRODUCTS
            else _NONE
        )
        copies[name] = family == "copy"
    return meaning, copies


def _sum_chains(
    kind: npt.NDArray[np.int8],
    is_copy: npt.NDArray[np.bool_],
    length: Int64,
    fuses: npt.NDArray[np.bool_],
    switch: npt.NDArray[np.bool_],
) -> Chains:
    begins = fuses & (switch | ~np.concatenate(([False], fuses[:-1])))
    inside = np.flatnonzero(fuses)
    if not len(inside):
        return Chains()
    # The kernels of a chain follow one another: sums over stretches instead of sums by group.
    opens = np.flatnonzero(begins[inside])
    closes = np.append(opens[1:], len(inside))
    launches = closes - opens
    own, own_copy = length[inside], is_copy[inside]
    total = np.add.reduceat(own, opens)
    softmax = np.add.reduceat((kind[inside] == _SOFTMAX).astype(np.int64), opens)
    moved = np.add.reduceat(np.where(own_copy, own, 0), opens)
    longest = np.maximum(np.maximum.reduceat(own, opens), 0)
    first, last = inside[opens], inside[closes - 1]
    before = np.where(first > 0, kind[np.maximum(first - 1, 0)], _NONE) == _PRODUCT
    after = np.where(last + 1 < len(kind), kind[np.minimum(last + 1, len(kind) - 1)], _NONE) == _PRODUCT
    attention = (softmax == 1) & before & after & (launches <= _LONGEST_ATTENTION)
    # Attention over long contexts has long kernels, which are included; other chains consist of small kernels.
    chain = ~attention & (launches >= _LEAST_CHAIN) & (longest < _LONG_NS)
    return Chains(
        attention_ns=int(total[attention].sum()),
        attention_launches=int(launches[attention].sum()),
        attention_softmax=int(softmax[attention].sum()),
        attention_copy_ns=int(moved[attention].sum()),
        chain_ns=int(total[chain].sum()),
        chain_launches=int(launches[chain].sum()),
        chain_saving_ns=int((total - longest)[chain].sum()),
        chain_copy_ns=int(moved[chain].sum()),
        chains=int(chain.sum()),
    )
