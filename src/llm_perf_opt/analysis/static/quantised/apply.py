"""A model's parameters at the size a quantised checkpoint stores them, and its cache at another type's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llm_perf_opt.analysis.static.counts import ModelTree, ParamInfo, PhaseCount
from llm_perf_opt.analysis.static.quantised.formats import Matrix
from llm_perf_opt.analysis.static.quantised.rules import Target
from llm_perf_opt.analysis.static.quantised.scheme import Scheme
from llm_perf_opt.core.dtypes import dtype_bytes
from llm_perf_opt.model.static.split import Split
from llm_perf_opt.model.static.work import Quantisation
from llm_perf_opt.model.summary import Static

_MATRIX_AXES = 2
_STACK_AXES = 3
_TRANSPOSED = ("GptOssExperts", "Llama4TextExperts")
"""Stacks kept as ``[experts, inputs, outputs]``."""


def quantise(tree: ModelTree, scheme: Scheme) -> tuple[ModelTree, Quantisation]:
    """Return the tree with stored sizes, and what was found; a scheme that is not known changes nothing."""
    if scheme.reason is not None:
        return tree, Quantisation(scheme.method, cache_dtype=scheme.cache_dtype, reason=scheme.reason)
    types = {module.name: module.type for module in tree.modules}
    params: list[ParamInfo] = []
    by_dtype: dict[str, int] = {}
    computed: dict[str | None, int] = {}
    blocks: dict[tuple[int, int] | None, int] = {}
    modules: set[str] = set()
    stored_bytes = 0
    for param in tree.params:
        kind = types.get(param.module, "")
        matrix = _matrix(param, kind)
        name = param.name.rpartition(".")[2]
        target = Target(param.module, name, kind, bool(param.experts) and len(param.shape) == _STACK_AXES)
        found = scheme.format_of(target) if matrix is not None else None
        if found is None or matrix is None:
            params.append(param)
            continue
        size = found.nbytes(matrix)
        params.append(replace(param, stored_bytes=size))
        stored_bytes += size
        modules.add(param.module)
        by_dtype[found.dtype] = by_dtype.get(found.dtype, 0) + param.numel
        computed[found.compute_dtype] = computed.get(found.compute_dtype, 0) + param.numel
        blocks[found.block] = blocks.get(found.block, 0) + param.numel
    total = sum(by_dtype.values())
    if not total:
        reason = "no module of this model is one that the method converts"
        return tree, Quantisation(scheme.method, cache_dtype=scheme.cache_dtype, reason=reason)
    block = max(blocks, key=lambda shape: blocks[shape])
    facts = Quantisation(
        method=scheme.method,
        dtype=max(by_dtype, key=lambda kind: by_dtype[kind]),
        compute_dtype=max(computed, key=lambda kind: computed[kind]),
        params=total,
        weight_bytes=stored_bytes,
        bytes_per_param=stored_bytes / total,
        modules=len(modules),
        cache_dtype=scheme.cache_dtype,
        block=list(block) if block is not None else None,
    )
    return replace(tree, params=tuple(params)), facts


def _matrix(param: ParamInfo, module_type: str) -> Matrix | None:
    """Return a parameter as the matrix (or stack of experts' matrices) it is; biases and norms are none."""
    if len(param.shape) == _MATRIX_AXES:
        return Matrix(param.shape[0], param.shape[1])
    if param.experts and len(param.shape) == _STACK_AXES:
        stack, rows, columns = param.shape
        return Matrix(columns, rows, stack) if module_type in _TRANSPOSED else Matrix(rows, columns, stack)
    return None


def with_cache_dtype(count: PhaseCount, dtype: str, element_bytes: float) -> PhaseCount:
    """Return a count whose cache is kept in another type; scales of the cache are left out."""
    size = dtype_bytes(dtype)
    if size is None:
        return count
    ratio = size / element_bytes
    cache = {
        layer: replace(use, written_bytes=use.written_bytes * ratio, read_bytes=use.read_bytes * ratio)
        for layer, use in count.cache.items()
    }
    return replace(count, cache=cache)


def forget_weight_bytes(static: Static) -> None:
    """Take back every size of weights: the checkpoint keeps them in a format that is not known."""
    for phase in static.phases.values():
        phase.weight_bytes = None
        if phase.minimum is not None:
            phase.minimum.weight_bytes = None
        phase.intensity = None
    for module in static.modules:
        module.weight_bytes = {}
    static.scaling = None
    for name in ("weights", "total"):
        static.resident_bytes.pop(name, None)
    forget_weights_of_ranks(static.splits)


def forget_weights_of_ranks(splits: Sequence[Split]) -> None:
    """Take back what ranks hold and read; how many parameters they have, and what they say, stays."""
    for split in splits:
        split.replicated_bytes, split.read_bytes = None, {}
        for share in split.shares:
            share.weight_bytes = None
