"""The operators of a counted model, grouped by shape; expected times are composed of them.

A module whose weight is a matrix is a product; its number of rows follows from its FLOPs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

from llm_perf_opt.analysis.static.build import own_flops
from llm_perf_opt.analysis.static.counts import AttentionUse, Conventions, ModelTree, ParamInfo, PhaseCount
from llm_perf_opt.analysis.static.minimum import least_count
from llm_perf_opt.summary.static import (
    AttentionShape,
    ExpertShape,
    LatentShape,
    OperatorShapes,
    ProductShape,
    SmallShape,
)

_INSIDE_ATTENTION = "softmax inside attention"
_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_MATRIX_AXES = 2
_STACK_AXES = 3
_Shape = TypeVar("_Shape", ProductShape, ExpertShape, AttentionShape, SmallShape)


def operator_shapes(
    tree: ModelTree, counts: Mapping[str, PhaseCount], conventions: Conventions, context_tokens: int
) -> OperatorShapes | None:
    """Return the operators of the counted phases; ``None`` without a prompt and a decode step."""
    prefill, decode = counts.get("prefill"), counts.get("decode")
    if prefill is None or decode is None:
        return None
    shapes = OperatorShapes(decode.batch_size, prefill.positions, context_tokens, _hidden(tree))
    for phase, as_run in counts.items():
        count = least_count(as_run, tree, conventions.causal).count
        own = {path: round(flops) for path, flops in count.own_flops.items()}
        own.update(_head_flops(tree, count, conventions, phase))
        for one in tree.latent:
            own[one.expansion] = 0  # part of latent attention: optimised engines do not run it separately
        products = list(_products(tree, count, phase, own))
        experts = list(_experts(tree, count, phase, own))
        shapes.products += _together(products)
        shapes.experts += _together(experts)
        shapes.attention += _together(list(_attention(tree, count, phase)))
        shapes.small += _together(list(_small(count, phase)))
        shapes.apart_bytes[phase] = float(as_run.moved_bytes)
        shapes.apart_operators[phase] = as_run.operators - as_run.products
        shapes.other_flops[phase] = float(sum(own.values()))
    return shapes


def _head_flops(tree: ModelTree, count: PhaseCount, conventions: Conventions, phase: str) -> dict[str, int]:
    """Return the FLOPs of the output head over the positions that need it."""
    found = own_flops(count, tree, conventions, phase).get(tree.head) if tree.head is not None else None
    return {tree.head: found} if tree.head is not None and found else {}


def pattern(path: str) -> str:
    """Return a module path with its layer numbers as ``*``."""
    return _LAYER_NUMBER.sub("*", path)


def _hidden(tree: ModelTree) -> int | None:
    """Return the width between layers: the input size of the output head."""
    head = next((p for p in tree.params if p.module == tree.head and len(p.shape) == _MATRIX_AXES), None)
    if head is None:  # a head tied to the embedding owns no weight
        head = next((p for p in tree.params if "embed_tokens" in p.name), None)
    return head.shape[1] if head is not None and len(head.shape) == _MATRIX_AXES else None


def _products(tree: ModelTree, count: PhaseCount, phase: str, own: dict[str, int]) -> Iterator[ProductShape]:
    """Yield the product of every module with one matrix, and take its FLOPs from ``own``."""
    named = {param.name: param for param in tree.params}
    for name, reader in count.params_read.items():
        param = named[name]
        module = reader or param.module
        if len(param.shape) != _MATRIX_AXES or param.experts or not own.get(module):
            continue
        outputs, inputs = param.shape
        rows = own[module] / (2 * outputs * inputs)
        if rows < 1 or rows != int(rows):
            continue  # several products in one module: the share of each is unknown
        own[module] = 0
        # The head and images process a fixed number of rows per sequence, independent of the prompt length.
        per_position = module != tree.head and phase != "vision"
        yield ProductShape(
            phase,
            pattern(module),
            1,
            rows,
            outputs,
            inputs,
            "positions" if per_position else "sequences",
        )


def _experts(tree: ModelTree, count: PhaseCount, phase: str, own: dict[str, int]) -> Iterator[ExpertShape]:
    for path, use in count.experts.items():
        stacks = [p for p in tree.params if p.module == path and p.experts and len(p.shape) == _STACK_AXES]
        sizes = _expert_sizes(stacks)
        if sizes is None:
            continue
        own[path] = 0
        hidden, inter = sizes
        yield ExpertShape(phase, pattern(path), 1, use.tokens, hidden, inter, stacks[0].experts, use.top_k)


def _expert_sizes(stacks: list[ParamInfo]) -> tuple[int, int] | None:
    """Return (hidden, inner) of stacked experts: gate and up together are twice as wide as down."""
    if len(stacks) not in (2, 3):
        return None
    numel = sum(param.numel for param in stacks) // stacks[0].experts
    sizes = {size for param in stacks for size in param.shape[1:]}
    for hidden in sorted(sizes, reverse=True):
        inter = numel // (3 * hidden)
        widths = {(hidden, inter), (hidden, 2 * inter), (inter, hidden), (2 * inter, hidden)}
        if inter * 3 * hidden == numel and all(tuple(p.shape[1:]) in widths for p in stacks):
            return hidden, inter
    return None


def _attention(tree: ModelTree, count: PhaseCount, phase: str) -> Iterator[AttentionShape]:
    latent = {one.path: one for one in tree.latent}
    for use in _whole_attention(count.attention):
        if not use.heads or not use.head_dim:
            continue
        one = latent.get(use.module)
        yield AttentionShape(
            phase,
            pattern(use.module),
            1,
            use.query_length,
            use.key_length,
            use.heads,
            use.kv_heads or use.heads,
            use.head_dim,
            use.causal or (phase == "decode" and use.query_length == 1),
            use.window,
            use.batch or 1,
            LatentShape(one.rank, one.rotated, one.value) if one is not None else None,
        )


def _whole_attention(uses: list[AttentionUse]) -> Iterator[AttentionUse]:
    """Yield one use per attention: in eager mode its two products were counted separately."""
    seen: set[tuple[str, int, int]] = set()
    for use in uses:
        key = (use.module, use.query_length, use.key_length)
        if use.written_out and key in seen:
            continue
        seen.add(key)
        yield use


def _small(count: PhaseCount, phase: str) -> Iterator[SmallShape]:
    """Yield one fused kernel per module: activations are part of the surrounding module, sums part of the following norm."""
    merged: dict[str, dict[str, int]] = {}
    for path, met in count.uncounted.items():
        last = path.rpartition(".")[2]
        owner = path.rpartition(".")[0] if last.startswith("act") else path
        into = merged.setdefault(owner, {})
        for name, elements in met.items():
            if name != _INSIDE_ATTENTION:
                into[name] = into.get(name, 0) + elements
    for path, met in merged.items():
        if path in count.experts:
            continue  # inside the experts' own kernels
        if met and set(met) - {"aten::add", "aten::add_"}:
            yield SmallShape(phase, pattern(path), 1, max(met.values()))


def _together(shapes: list[_Shape]) -> list[_Shape]:
    """Group identical shapes and count them."""
    found: dict[str, _Shape] = {}
    for shape in shapes:
        known = found.setdefault(repr(shape), shape)
        if known is not shape:
            known.calls += 1
    return list(found.values())
