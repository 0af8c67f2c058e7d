"""The operators one rank runs in a pass, at any batch size, length, data type and number of ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from llm_perf_opt.hardware.silicon import AllReduce, Attention, Gemm, LatentBlock, MoeLayer, Operator
from llm_perf_opt.summary.static import AttentionShape, ExpertShape, OperatorShapes, ProductShape, SmallShape

# Roles of a decoder's modules by their usual names: which run as one product, which are split.
#
# Data, not code: the first pattern that matches the last part of a module's path decides.


Split = Literal["outputs", "inputs", "none"]
"""Which side of a weight ranks share among them; ``inputs`` leaves partial sums, which an all-reduce adds."""
_SPLITS: tuple[tuple[str, Split], ...] = (
    (r"o_proj|out_proj|down_proj|c_proj|dense_4h_to_h|fc2|wo|w2|w3_down|dense", "inputs"),
    (r"gate|router|shared_expert_gate|q_a_proj|kv_a_proj_with_mqa|wg", "none"),
    (r".*", "outputs"),
)
_FUSED: tuple[tuple[str, str], ...] = (
    (r"q_proj|k_proj|v_proj|query|key|value", "qkv"),
    (r"gate_proj|up_proj|w1|w3", "gate_up"),
    (r"q_a_proj|kv_a_proj_with_mqa", "qkv_a"),
)
Heads = Literal["queries", "cache", "both"]
"""Whose heads a projection makes: those that ask, those that are cached (keys or values), or all in one weight."""
_HEADS: tuple[tuple[str, Heads], ...] = (
    (r"q_proj|query", "queries"),
    (r"k_proj|v_proj|key|value", "cache"),
    (r"qkv_proj|qkv|Wqkv|c_attn|query_key_value", "both"),
)


def split_of(name: str) -> Split:
    """Return how tensor parallelism splits a module's weight."""
    last = name.rpartition(".")[2]
    return next(split for pattern, split in _SPLITS if re.fullmatch(pattern, last))


def fused_name(name: str) -> str:
    """Return the fused product that a module is part of; every serving engine runs these as one."""
    parent, _, last = name.rpartition(".")
    found = next((fused for pattern, fused in _FUSED if re.fullmatch(pattern, last)), last)
    return f"{parent}.{found}" if parent else found


def _heads_made_by(name: str) -> Heads | None:
    """Return which heads a module's outputs are; ``None``: not heads."""
    last = name.rpartition(".")[2]
    return next((heads for pattern, heads in _HEADS if re.fullmatch(pattern, last)), None)


# The part of a layer that one of several ranks holds, as serving engines split it.


def outputs_of_rank(group: Sequence[ProductShape], attention: Sequence[AttentionShape], ranks: int) -> int:
    """Return the outputs of one rank: whole heads for head projections, else an equal part."""
    by_heads = [_head_outputs(one, attention, ranks) for one in group]
    known = [outputs for outputs in by_heads if outputs is not None]
    rest = sum(one.outputs for one, own in zip(group, by_heads, strict=True) if own is None)
    return sum(known) + math.ceil(rest / ranks)


def _head_outputs(product: ProductShape, attention: Sequence[AttentionShape], ranks: int) -> int | None:
    """Return the outputs of one rank of a projection to heads; ``None``: not heads, or their number cannot be derived from the sizes."""
    made, parent = _heads_made_by(product.name), product.name.rpartition(".")[0]
    for one in attention if made is not None else ():
        heads, kv_heads = _heads_of_rank(one, ranks)
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


def _heads_of_rank(one: AttentionShape, ranks: int) -> tuple[int, int]:
    """Return the query heads and key-value heads of one rank; with fewer key-value heads than ranks, each rank has a
    copy of one.
    """
    return math.ceil(one.heads / ranks), max(1, math.ceil(one.kv_heads / ranks))


def reason_not_sharded(shapes: OperatorShapes, ranks: int) -> str | None:
    """Return why no engine splits a decoder over so many ranks; ``None``: its heads can be shared out evenly.

    Fewer key-value heads than ranks are allowed if each has the same number of copies.
    """
    for one in shapes.attention:
        if one.phase == "vision" or not one.causal:
            continue
        if one.heads % ranks:
            return f"{one.heads} heads cannot be shared out evenly among {ranks} devices"
        if one.latent is None and one.kv_heads % ranks and ranks % one.kv_heads:
            return f"{one.kv_heads} cached heads cannot be shared out evenly among {ranks} devices"
    return None


_ACTIVATION_BYTES = 2.0
_WHOLE_POSITIONS = re.compile(r"(?<!\.[qk]_)norm|rotary")


@dataclass(frozen=True, slots=True)
class Work:
    """Work without a measured table: element-wise work, convolutions."""

    flops: float
    moved_bytes: float
    dtype: str = "bfloat16"


@dataclass(frozen=True, slots=True)
class Call:
    """An operator and how often a pass runs it."""

    name: str
    operator: Operator | Work
    times: int
    overlaps_experts: bool = False
    """Runs at the same time as the routed experts: shared experts of a decode step, on a stream of their own."""


@dataclass(frozen=True, slots=True)
class At:
    """The point for which a time is estimated."""

    batch_size: int
    prompt_tokens: int
    context_tokens: int
    """Cached positions of the decode step."""
    dtype: str = "bfloat16"
    """Of weights and their products; a table's own name (``fp8_block``) is taken as it is."""
    cache_dtype: str = "bfloat16"
    tensor_parallel: int = 1

    @property
    def wide_dtype(self) -> str:
        """Type of the parts that are not quantised: attention, heads, element-wise work."""
        return "float32" if self.dtype == "float32" else "bfloat16"


def calls(shapes: OperatorShapes, phase: str, at: At) -> list[Call]:
    """Return what one rank runs in a pass of a phase, in groups."""
    products = [_moved(product, shapes, at) for product in shapes.products if product.phase == phase]
    attention = [one for one in shapes.attention if one.phase == phase]
    latent = {one.name for one in attention if one.latent is not None}
    blocks = [_latent_block(one, products, shapes, at) for one in attention if one.latent is not None]
    inside = {one.name for one, block in zip(_latents(attention), blocks, strict=True) if block is not None}
    products = [one for one in products if one.name.rpartition(".")[0] not in inside]
    timed = [block for block in blocks if block is not None]
    found = [*_products(products, attention, at), *timed]
    found += [_attention(one, shapes, at) for one in attention if one.name not in latent]
    experts = [one for one in shapes.experts if one.phase == phase]
    found += [_experts(one, shapes, at) for one in experts]
    small = [one for one in shapes.small if one.phase == phase]
    found += [_small(one, shapes, at) for one in small if not _is_inside(one.name, inside)]
    other = shapes.other_flops.get(phase)
    if other:
        grown = other * _growth(shapes, at, "sequences" if phase == "vision" else "positions", phase)
        found.append(
            Call("convolutions and other products", Work(grown / at.tensor_parallel, 0.0, at.wide_dtype), 1)
        )
    return [*found, *_exchanges(products, timed, experts, shapes, at)]


def unfused_elementwise_work(shapes: OperatorShapes, phase: str, at: At) -> tuple[Work, int] | None:
    """Return element-wise work of a pass as code that fuses nothing runs it, and how many kernels that is.

    ``None``: not counted. Ranks share as much of it as they share of the fused work.
    """
    if phase not in shapes.apart_bytes:
        return None
    here, alone = (
        sum(call.operator.moved_bytes * call.times for call in _small_calls(shapes, phase, one))
        for one in (at, replace(at, tensor_parallel=1))
    )
    follows = "sequences" if phase == "vision" else "positions"
    moved = shapes.apart_bytes[phase] * _growth(shapes, at, follows, phase)
    share = here / alone if alone else 1.0
    return Work(0.0, moved * share, at.wide_dtype), shapes.apart_operators.get(phase, 0)


def _small_calls(shapes: OperatorShapes, phase: str, at: At) -> list[Call]:
    return [_small(one, shapes, at) for one in shapes.small if one.phase == phase]


def _latents(attention: list[AttentionShape]) -> list[AttentionShape]:
    return [one for one in attention if one.latent is not None]


def _is_inside(name: str, paths: set[str]) -> bool:
    return any(name == path or name.startswith(f"{path}.") for path in paths)


def _growth(shapes: OperatorShapes, at: At, follows: str, phase: str) -> float:
    """Return how many more rows there are than were counted."""
    sequences = at.batch_size / max(shapes.batch_size, 1)
    if follows == "sequences" or phase == "decode":
        return sequences
    return sequences * at.prompt_tokens / max(shapes.prompt_tokens, 1)


def _moved(product: ProductShape, shapes: OperatorShapes, at: At) -> ProductShape:
    rows = product.rows * _growth(shapes, at, product.rows_follow, product.phase)
    return replace(product, rows=max(round(rows), 1))


def _products(products: list[ProductShape], attention: list[AttentionShape], at: At) -> Iterator[Call]:
    """Yield products with products of one input fused, each with the share of one rank."""
    groups: dict[tuple[str, float, int, int], list[ProductShape]] = {}
    for one in products:
        groups.setdefault((fused_name(one.name), one.rows, one.inputs, one.calls), []).append(one)
    for (name, rows, inputs, times), group in groups.items():
        split = split_of(group[0].name)
        outputs = sum(one.outputs for one in group)
        if split == "outputs":
            outputs = outputs_of_rank(group, attention, at.tensor_parallel)
        elif split == "inputs":
            inputs = math.ceil(inputs / at.tensor_parallel)
        overlapped = group[0].phase == "decode" and ".shared_expert" in group[0].name
        yield Call(name, Gemm(round(rows), outputs, inputs, _product_dtype(group[0], at)), times, overlapped)


def _product_dtype(product: ProductShape, at: At) -> str:
    """Return the type a product runs in: heads and routers are kept in 16 bits whatever the rest is in."""
    keeps = product.rows_follow == "sequences" or split_of(product.name) == "none"
    is_router = keeps and not product.name.endswith(("q_a_proj", "kv_a_proj_with_mqa"))
    return at.wide_dtype if is_router and product.phase != "vision" else at.dtype


def _attention(one: AttentionShape, shapes: OperatorShapes, at: At) -> Call:
    heads, kv_heads = _heads_of_rank(one, at.tensor_parallel)
    batch = max(round(one.batch * at.batch_size / max(shapes.batch_size, 1)), 1)
    if one.phase == "vision" or not one.causal:
        attention = Attention("encoder", batch, one.keys, heads, heads, one.head_dim)
    elif one.phase == "decode":
        tokens = at.context_tokens + 1
        attention = Attention("generation", batch, tokens, heads, kv_heads, one.head_dim)
    else:
        attention = Attention("context", batch, at.prompt_tokens, heads, kv_heads, one.head_dim)
    window = one.window if one.window is not None and one.window < attention.tokens else 0
    cache = at.wide_dtype if at.cache_dtype == "bfloat16" else at.cache_dtype
    attention = replace(attention, window=window, dtype=at.wide_dtype, cache_dtype=cache)
    return Call(one.name, attention, one.calls)


def _latent_block(
    one: AttentionShape, products: list[ProductShape], shapes: OperatorShapes, at: At
) -> Call | None:
    """Return latent attention with its projections; ``None`` if they are non-standard."""
    inner = {p.name.rpartition(".")[2]: p for p in products if p.name.rpartition(".")[0] == one.name}
    query = inner.get("q_a_proj")
    if one.latent is None or query is None or "o_proj" not in inner:
        return None
    is_decode = one.phase == "decode"
    block = LatentBlock(
        "generation" if is_decode else "context",
        max(round(one.batch * at.batch_size / max(shapes.batch_size, 1)), 1),
        at.context_tokens + 1 if is_decode else at.prompt_tokens,
        math.ceil(one.heads / at.tensor_parallel),
        query.inputs,
        query.outputs,
        one.latent.rank,
        one.latent.rotated,
        one.head_dim - one.latent.rotated,
        one.latent.value_dim,
        at.dtype,
        at.cache_dtype,
    )
    return Call(one.name, block, one.calls)


def _expert_tokens(one: ExpertShape, shapes: OperatorShapes, at: At) -> int:
    return max(round(one.tokens * _growth(shapes, at, "positions", one.phase)), 1)


def _experts(one: ExpertShape, shapes: OperatorShapes, at: At) -> Call:
    tokens = _expert_tokens(one, shapes, at)
    layer = MoeLayer(
        tokens, one.hidden, one.inter, one.top_k, one.experts, at.tensor_parallel, dtype=at.dtype
    )
    return Call(one.name, layer, one.calls)


def _small(one: SmallShape, shapes: OperatorShapes, at: At) -> Call:
    follows = "sequences" if one.phase == "vision" else "positions"
    elements = one.elements * _growth(shapes, at, follows, one.phase)
    # Norms of whole positions run on every rank; what lies between split products is split.
    ranks = at.tensor_parallel if _WHOLE_POSITIONS.search(one.name) is None else 1
    work = Work(elements / ranks, 2.0 * elements / ranks * _ACTIVATION_BYTES, at.wide_dtype)
    return Call(one.name, work, one.calls, one.phase == "decode" and ".shared_expert" in one.name)


def _exchanges(
    products: list[ProductShape],
    blocks: list[Call],
    experts: list[ExpertShape],
    shapes: OperatorShapes,
    at: At,
) -> list[Call]:
    """Return the all-reduces: one after every product that leaves partial sums, experts and shared experts together."""
    if at.tensor_parallel == 1:
        return []
    summed: dict[int, int] = {}

    def add(elements: float, times: int) -> None:
        summed[round(elements)] = summed.get(round(elements), 0) + times

    for product in products:
        if split_of(product.name) == "inputs" and ".shared_expert" not in product.name:
            add(product.rows * product.outputs, product.calls)
    for one in experts:
        add(_expert_tokens(one, shapes, at) * one.hidden, one.calls)
    for block in blocks:
        if isinstance(block.operator, LatentBlock):
            positions = 1 if block.operator.phase == "generation" else block.operator.tokens
            add(block.operator.batch * positions * block.operator.hidden, block.times)
    # Links carry bytes: tables have sums of 16 bits, of which one of 32 is two.
    width = 2 if at.wide_dtype == "float32" else 1
    return [
        Call("all-reduce", AllReduce(width * elements, at.tensor_parallel), times)
        for elements, times in summed.items()
    ]
