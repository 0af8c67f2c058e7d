"""The same model elsewhere: roofline floors on other devices, data types, batch sizes and contexts.

Nothing is counted again. The static model says which part of the work belongs to attention (grows with the
context), to the output head, to routed experts (read as far as the batch chooses them) and to the cache; the
rest is linear in the tokens. A row is a few dozen multiplications.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from llm_perf_opt import units
from llm_perf_opt.analysis.roofline import canonical_dtype, dtype_bytes
from llm_perf_opt.analysis.static_counts import expected_distinct_experts
from llm_perf_opt.summary.model import AttentionPart, KvPart, Peak, Scaling, Static, WhatIf

FOCUS = ("NVIDIA GeForce RTX 5090", "NVIDIA A100 SXM4 80GB", "NVIDIA H100 SXM5 80GB")
"""Devices that get the variations of batch, context and data type when the caller names none."""

_BATCHES = (1, 8, 32)
_CONTEXT_FACTORS = (1, 4)
_WEIGHT_ONLY = ("int8", "int4", "float4")
"""Types used for weights while keys and values stay in the run's own type."""


class DeviceLimits(Protocol):
    """What is needed of a catalogue entry."""

    @property
    def name(self) -> str:
        """Name for the table."""
        ...

    @property
    def peaks(self) -> Mapping[str, Peak]:
        """Data type → dense peak."""
        ...

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Memory bandwidth."""
        ...

    @property
    def memory_bytes(self) -> float | None:
        """Memory size."""
        ...


class Devices(Protocol):
    """A catalogue."""

    @property
    def devices(self) -> Sequence[DeviceLimits]:
        """Its entries."""
        ...


@dataclass(frozen=True, slots=True)
class Point:
    """What is asked: a data type of the weights, sequences per step, positions per sequence."""

    dtype: str
    batch_size: int
    context_tokens: int
    """Cached positions of the decode step."""
    prompt_tokens: int
    """Positions of the prefill."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a point computes, moves and keeps, on any device."""

    first_token: tuple[tuple[float, float], ...]
    """(FLOPs, bytes) of each pass up to the first token, in sequence."""
    step: tuple[float, float]
    """(FLOPs, bytes) of one decode step."""
    resident_bytes: float


def what_if(
    static: Static,
    catalogue: Devices,
    *,
    dtype: str | None,
    focus: Iterable[str] | None = None,
    batch_sizes: Sequence[int] = _BATCHES,
    dtypes: Sequence[str] = ("float8", "float4"),
    context_factors: Sequence[int] = _CONTEXT_FACTORS,
) -> list[WhatIf]:
    """Return the run's own point on every device, and variations of it on the devices in ``focus``."""
    base = own_point(static, dtype)
    if base is None:
        return []
    rows = price(static, catalogue.devices, [base])
    wanted = set(FOCUS if focus is None else focus)
    chosen = [device for device in catalogue.devices if device.name in wanted]
    varied = _variations(base, batch_sizes, dtypes, context_factors) if static.scaling is not None else []
    return rows + [row for device in chosen for row in price(static, [device], varied, only_known=True)]


def own_point(static: Static, dtype: str | None) -> Point | None:
    """Return the point the static model was made at; ``None`` when it has no decode step or no data type."""
    if dtype is None or dtype_bytes(dtype) is None or "decode" not in static.phases:
        return None
    scaling = static.scaling
    if scaling is not None:
        key = canonical_dtype(dtype)
        return Point(key, scaling.batch_size, round(scaling.context_tokens), round(scaling.prompt_tokens))
    decode, per_token = static.phases["decode"], static.kv_bytes_per_token
    cached = round((decode.kv_bytes or 0.0) / per_token) - 1 if per_token else 0
    prefill = static.phases.get("prefill")
    prompt = prefill.tokens if prefill is not None and prefill.tokens else cached
    return Point(canonical_dtype(dtype), 1, max(cached, 0), round(prompt))


def _variations(
    base: Point, batch_sizes: Sequence[int], dtypes: Sequence[str], factors: Sequence[int]
) -> list[Point]:
    types = dict.fromkeys((base.dtype, *(canonical_dtype(name) for name in dtypes)))
    points = [
        Point(kind, batch, base.context_tokens * factor, base.prompt_tokens * factor)
        for kind in types
        for factor in factors
        for batch in dict.fromkeys((base.batch_size, *batch_sizes))
    ]
    return [point for point in points if point != base]


def price(
    static: Static, devices: Sequence[DeviceLimits], points: Sequence[Point], *, only_known: bool = False
) -> list[WhatIf]:
    """Return one row per device and point; ``only_known`` leaves out types a device has no peak for."""
    demands = [(point, demand(static, point)) for point in points]
    return [
        _row(device, point, needed)
        for device in devices
        for point, needed in demands
        if not only_known or point.dtype in device.peaks
    ]


def demand(static: Static, point: Point) -> Demand:
    """Return what a point asks of any device."""
    base = own_point(static, point.dtype)
    if base is None:
        raise ValueError("the static model has no decode step")
    scaling = static.scaling or _fixed(static, base)
    factor = _weight_factor(point.dtype, scaling)
    cache_factor = 1.0 if point.dtype in _WEIGHT_ONLY else factor
    passes = []
    vision = static.phases.get("vision")
    if vision is not None:
        images = point.batch_size / scaling.batch_size
        passes.append(((vision.flops or 0.0) * images, (vision.weight_bytes or 0.0) * factor))
    weights = _weights(static, scaling, "prefill", point.batch_size * point.prompt_tokens)
    written = point.batch_size * point.prompt_tokens * _kv_per_token(static, scaling)
    passes.append((_prefill_flops(static, scaling, point), weights * factor + written * cache_factor))
    weights = _weights(static, scaling, "decode", point.batch_size)
    cache = point.batch_size * _kv_traffic(static, scaling, point.context_tokens)
    step = (_decode_flops(static, scaling, point), weights * factor + cache * cache_factor)
    kept = point.batch_size * _kv_held(static, scaling, point.context_tokens + 1) * cache_factor
    resident = static.params.total * scaling.element_bytes * factor + kept
    return Demand(tuple(passes), step, resident)


def memory_curve(
    static: Static, batch_size: int, contexts: Sequence[int], dtype: str | None = None
) -> list[tuple[float, float]]:
    """Return (context, resident bytes of weights and cache) for a chart; in the run's own type by default."""
    scaling = static.scaling
    size = (
        scaling.element_bytes
        if scaling is not None
        else static.resident_bytes.get("weights", 0.0) / max(static.params.total, 1)
    )
    factor = (dtype_bytes(dtype) or size) / size if dtype and size else 1.0
    weights = static.params.total * size * factor
    return [
        (float(context), weights + batch_size * _kv_held(static, scaling, context) * factor)
        for context in contexts
    ]


def _row(device: DeviceLimits, point: Point, needed: Demand) -> WhatIf:
    peak, bandwidth = device.peaks.get(point.dtype), device.bandwidth_bytes_per_s
    fits = None if device.memory_bytes is None else needed.resident_bytes <= device.memory_bytes
    notes = []
    ttft = tpot = None
    if peak is not None and bandwidth is not None:
        ttft = sum(max(flops / peak.dense, moved / bandwidth) for flops, moved in needed.first_token)
        tpot = max(needed.step[0] / peak.dense, needed.step[1] / bandwidth)
        notes.append(
            "compute-bound" if needed.step[0] / peak.dense > needed.step[1] / bandwidth else "memory-bound"
        )
    else:
        notes.append(f"no {point.dtype} peak is known" if peak is None else "no bandwidth is known")
    notes.append(f"needs {units.size(needed.resident_bytes)}")
    if device.memory_bytes is not None:
        notes[-1] += f" of {units.size(device.memory_bytes)}"
    return WhatIf(
        device=device.name,
        dtype=point.dtype,
        batch_size=point.batch_size,
        context_tokens=point.context_tokens,
        ttft_floor_s=ttft,
        tpot_floor_s=tpot,
        tokens_per_s=point.batch_size / tpot if tpot else None,
        fits=fits,
        note=", ".join(notes),
    )


def _fixed(static: Static, base: Point) -> Scaling:
    """Stand in for absent scaling facts: only the run's own point can then be priced."""
    size = static.resident_bytes.get("weights", 0.0) / max(static.params.total, 1)
    own = dtype_bytes(base.dtype) or 1.0
    return Scaling(base.batch_size, base.prompt_tokens, base.context_tokens, size or own)


def _weight_factor(dtype: str, scaling: Scaling) -> float:
    """Return new ÷ old bytes per weight; a run that is already in this type keeps its exact size."""
    size = dtype_bytes(dtype)
    if size is None or not scaling.element_bytes:
        return 1.0
    # A few fp32 tensors (a router, norms) make the mean size slightly more than the type's.
    return 1.0 if abs(size / scaling.element_bytes - 1) < 0.05 else size / scaling.element_bytes


def _weights(static: Static, scaling: Scaling, phase: str, tokens: int) -> float:
    """Return weights a pass over ``tokens`` reads: dense ones once, experts as far as they are chosen."""
    facts = static.phases.get(phase)
    if facts is None or facts.weight_bytes is None:
        return 0.0
    per_sequence = scaling.prompt_tokens if phase == "prefill" else 1
    counted = round(scaling.batch_size * per_sequence)
    change = scaling.embedding_bytes_per_token * (tokens - counted)
    for part in scaling.experts:
        now = expected_distinct_experts(part.experts, part.top_k, tokens)
        then = expected_distinct_experts(part.experts, part.top_k, counted)
        change += part.weight_bytes * (now - then) / part.experts
    return facts.weight_bytes + change


def _prefill_flops(static: Static, scaling: Scaling, point: Point) -> float:
    facts = static.phases.get("prefill")
    if facts is None or facts.flops is None:
        return 0.0
    sequences = point.batch_size / scaling.batch_size
    growth = point.prompt_tokens / scaling.prompt_tokens if scaling.prompt_tokens else 1.0
    attention = [part for part in scaling.attention if part.phase == "prefill"]
    head = scaling.head_flops.get("prefill", 0.0)
    halved = scaling.causal_halved
    linear = facts.flops - head - sum(part.flops for part in attention)
    grown = sum(
        part.flops * _pairs(point.prompt_tokens, part, halved) / _pairs(scaling.prompt_tokens, part, halved)
        for part in attention
    )
    head_growth = growth if scaling.head_all_positions else 1.0
    return sequences * (linear * growth + grown + head * head_growth)


def _pairs(tokens: float, part: AttentionPart, halved: bool) -> float:
    """Return query-key pairs of a prompt, as the run's convention counts them."""
    if not halved:
        return max(tokens, 1) ** 2
    window = part.window
    if window is not None and window < tokens:
        return window * tokens - window * window / 2
    return max(tokens, 1) ** 2 / 2


def _decode_flops(static: Static, scaling: Scaling, point: Point) -> float:
    facts = static.phases["decode"]
    attention = [part for part in scaling.attention if part.phase == "decode"]
    rest = (facts.flops or 0.0) - sum(part.flops for part in attention)
    grown = sum(
        part.flops * _seen(point.context_tokens, part.window) / _seen(scaling.context_tokens, part.window)
        for part in attention
    )
    return point.batch_size / scaling.batch_size * (rest + grown)


def _seen(cached: float, window: int | None) -> float:
    """Return positions a new token attends to, itself included."""
    return min(cached + 1, window) if window is not None else cached + 1


def _kv_parts(static: Static, scaling: Scaling | None) -> list[KvPart]:
    if scaling is not None and scaling.kv:
        return scaling.kv
    return [KvPart(1, static.kv_bytes_per_token)] if static.kv_bytes_per_token else []


def _kv_per_token(static: Static, scaling: Scaling | None) -> float:
    return sum(part.layers * part.bytes_per_token for part in _kv_parts(static, scaling))


def _kv_held(static: Static, scaling: Scaling | None, positions: float) -> float:
    """Return cache bytes of one sequence with ``positions`` in it."""
    return sum(
        part.layers * part.bytes_per_token * min(positions, part.window or positions)
        for part in _kv_parts(static, scaling)
    )


def _kv_traffic(static: Static, scaling: Scaling, cached: float) -> float:
    """Return what one step of one sequence reads and writes: what is cached and can still be seen, and itself."""
    return sum(
        part.layers * part.bytes_per_token * _seen(cached, part.window) for part in _kv_parts(static, scaling)
    )
