"""What a model requires of any device at another batch size, context or data type.

Nothing is counted again. The static model gives the part of the work that belongs to attention (grows with the
context), to the output head, to routed experts (read as far as the batch chooses them) and to the cache; the
rest is linear in the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.analysis.static.counts import expected_distinct_experts
from llm_perf_opt.core.phases import BEFORE_PREFILL
from llm_perf_opt.core.units import canonical_dtype, dtype_bytes
from llm_perf_opt.summary import AttentionPart, KvPart, Scaling, Static
from llm_perf_opt.summary.static import Split, held_positions

_WEIGHT_ONLY = ("int8", "int4", "float4")
"""Types used for weights while keys and values stay in the run's own type."""
_SMALL_CACHE = 1.0
"""Bytes per cached element that only a choice of its own gives."""


@dataclass(frozen=True, slots=True)
class Point:
    """An operating point: data type of the weights, sequences per step, positions per sequence."""

    dtype: str
    batch_size: int
    context_tokens: int
    """Cached positions of the decode step."""
    prompt_tokens: int
    """Positions of the prefill."""
    compute_dtypes: tuple[str, ...] = ()
    """Types its products may run in, where weights are stored in another; empty: the data type itself."""
    tensor_parallel: int = 1
    """Devices that share every layer among them."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a point computes, moves and keeps, on any device."""

    first_token: tuple[tuple[float, float], ...] | None
    """(FLOPs, bytes) of each pass up to the first token, in sequence; ``None``: a pass was not counted."""
    step: tuple[float, float] | None
    """(FLOPs, bytes) of one decode step; ``None``: not counted."""
    resident_bytes: float
    step_cache_bytes: float = 0.0
    """Of the bytes of a step: the KV cache, the rest are weights."""
    prefill_link_bytes: float | None = None
    """What each of several devices sends in the prefill at least; ``None``: not known, or there is one."""
    step_link_bytes: float | None = None
    """The same of a decode step."""


def own_point(static: Static, dtype: str | None) -> Point | None:
    """Return the point the static model was made at; ``None`` when it has no decode step or no data type."""
    if dtype is None or dtype_bytes(dtype) is None or "decode" not in static.phases:
        return None
    scaling = static.scaling
    key, computing = _stored_and_computed(static, canonical_dtype(dtype))
    if scaling is not None:
        sequences, cached = max(round(scaling.batch_size), 1), round(scaling.context_tokens)
        return Point(key, sequences, cached, round(scaling.prompt_tokens), computing)
    decode, per_token = static.phases["decode"], static.kv_bytes_per_token
    cached = round((decode.kv_bytes or 0.0) / per_token) - 1 if per_token else 0
    prefill = static.phases.get("prefill")
    prompt = prefill.tokens if prefill is not None and prefill.tokens else cached
    return Point(key, 1, max(cached, 0), round(prompt), computing)


def _stored_and_computed(static: Static, run_dtype: str) -> tuple[str, tuple[str, ...]]:
    """Return the type weights are stored in, and the types their products may run in where those differ."""
    stored = static.quantisation
    if stored is None or stored.dtype is None:
        return run_dtype, ()
    return stored.dtype, compute_dtypes(static, run_dtype)


def compute_dtypes(static: Static | None, run_dtype: str) -> tuple[str, ...]:
    """Return the types a model's products may run in: the checkpoint's own where it quantises activations, the run's."""
    stored = static.quantisation if static is not None else None
    own = (stored.compute_dtype,) if stored is not None and stored.compute_dtype is not None else ()
    return tuple(dict.fromkeys((*own, canonical_dtype(run_dtype))))


def demand(static: Static, point: Point) -> Demand:
    """Return what a point requires of any device."""
    base = own_point(static, point.dtype)
    if base is None:
        raise ValueError("the static model has no decode step")
    scaling = static.scaling or _fixed(static, base)
    is_own = static.quantisation is not None and point.dtype == static.quantisation.dtype
    factor = 1.0 if is_own else _size_factor(point.dtype, _element_bytes(static, scaling))

    def sized(phase: str, stored: float) -> float:
        """Return weights of a phase in the wanted type."""
        return stored if is_own else stored * _unquantised_ratio(static, scaling, phase) * factor

    cache_factor = (
        1.0 if is_own or point.dtype in _WEIGHT_ONLY else _cache_factor(point.dtype, scaling, factor)
    )
    passes = []
    first = [name for name in BEFORE_PREFILL if name in static.phases]
    for name in first:
        inputs = point.batch_size / scaling.batch_size
        facts = static.phases[name]
        passes.append(((facts.least_flops or 0.0) * inputs, sized(name, facts.least_weight_bytes or 0.0)))
    weights = _weights(static, scaling, "prefill", point.batch_size * point.prompt_tokens)
    written = point.batch_size * (
        point.prompt_tokens * _kv_per_token(static, scaling) + _state_bytes(static, scaling)
    )
    moved = sized("prefill", weights) + written * cache_factor
    passes.append((_prefill_flops(static, scaling, point), moved))
    weights = _weights(static, scaling, "decode", point.batch_size)
    cache = point.batch_size * _kv_traffic(static, scaling, point.context_tokens)
    step = (_decode_flops(static, scaling, point), sized("decode", weights) + cache * cache_factor)
    kept = point.batch_size * _kv_held(static, scaling, point.context_tokens + 1) * cache_factor
    resident = sized("all", static.params.total * scaling.element_bytes) + kept
    # A part that was not counted must not be treated as free.
    before = ["prefill", *first]
    whole = Demand(
        tuple(passes) if all(_counted(static, n) for n in before) else None,
        step if _counted(static, "decode") else None,
        resident,
        cache * cache_factor,
    )
    if point.tensor_parallel == 1:
        return whole
    return _share_of_rank(whole, static, scaling, point, kept, written * cache_factor)


def _share_of_rank(
    whole: Demand, static: Static, scaling: Scaling, point: Point, kept: float, written: float
) -> Demand:
    """Return the minimum work of one of several devices, and what it sends to the others.

    ``kept`` and ``written`` are the cache bytes that stay, and that the prefill writes. If the split of the model is
    known, a device has its part of weights and cache, whole layers included; otherwise an equal part of everything.
    """
    ranks = point.tensor_parallel
    split = next((s for s in static.splits if (s.kind, s.ranks, s.reason) == ("tensor", ranks, None)), None)
    share = RankRatios(static, split, ranks)

    tokens = {"prefill": point.batch_size * point.prompt_tokens, "decode": point.batch_size}

    def of(phase: str, work: tuple[float, float], cache: float) -> tuple[float, float]:
        part = share.read(phase)
        facts = static.phases.get(phase)
        if facts is not None and facts.least_weight_bytes:
            # The rank's part was counted at the run's own batch. What another batch reads besides are experts and rows of the
            # embedding: they are cut, while whole layers are read once by every rank whatever the batch.
            grown = _weights(static, scaling, phase, tokens[phase]) / facts.least_weight_bytes
            part = (part + (grown - 1) / ranks) / grown
        return work[0] / ranks, (work[1] - cache) * part + cache * share.cache

    passes = whole.first_token
    if passes is not None:
        passes = (*(of("", one, 0.0) for one in passes[:-1]), of("prefill", passes[-1], written))
    return Demand(
        passes,
        None if whole.step is None else of("decode", whole.step, whole.step_cache_bytes),
        (whole.resident_bytes - kept) * share.held + kept * share.cache,
        whole.step_cache_bytes * share.cache,
        None if split is None else _link_bytes(split, "prefill", scaling, point),
        None if split is None else _link_bytes(split, "decode", scaling, point),
    )


class RankRatios:
    """How much of the whole model one rank holds, reads and caches; an equal part if the split is unknown."""

    def __init__(self, static: Static, split: Split | None, ranks: int) -> None:
        self._static, self._split, self._equal = static, split, 1.0 / ranks
        first = split.shares[0] if split is not None and split.shares else None
        weights = static.resident_bytes.get("weights")
        self.held = self._ratio(first.weight_bytes if first is not None else None, weights)
        self.cache = self._ratio(
            first.kv_bytes_per_token if first is not None else None, static.kv_bytes_per_token
        )

    def read(self, phase: str) -> float:
        """Return the part of a phase's weights that the rank reads."""
        facts = self._static.phases.get(phase)
        own = self._split.read_bytes.get(phase) if self._split is not None else None
        return self._ratio(own, facts.least_weight_bytes if facts is not None else None)

    def _ratio(self, part: float | None, whole: float | None) -> float:
        return self._equal if part is None or not whole else min(1.0, max(self._equal, part / whole))


def _link_bytes(split: Split, phase: str, scaling: Scaling, point: Point) -> float:
    """Return what a rank's links carry in a pass: activations stay wide whatever the type of the weights."""
    sequences = point.batch_size / scaling.batch_size
    growth = (
        point.prompt_tokens / scaling.prompt_tokens if phase == "prefill" and scaling.prompt_tokens else 1.0
    )
    wide = (4.0 if point.dtype == "float32" else 2.0) / split.element_bytes if split.element_bytes else 1.0
    return sum(
        one.link_bytes * sequences * (growth if one.follows == "positions" else 1.0) * wide
        for one in split.exchanges
        if one.phase == phase
    )


def _counted(static: Static, phase: str) -> bool:
    facts = static.phases.get(phase)
    return facts is not None and facts.least_flops is not None and facts.least_weight_bytes is not None


def _fixed(static: Static, base: Point) -> Scaling:
    """Return the fallback without scaling facts: only the run's own point can be estimated."""
    size = static.resident_bytes.get("weights", 0.0) / max(static.params.total, 1)
    own = dtype_bytes(base.dtype) or 1.0
    return Scaling(base.batch_size, base.prompt_tokens, base.context_tokens, size or own)


def _size_factor(dtype: str, element_bytes: float) -> float:
    """Return new ÷ old bytes per element; a run that is already in this type keeps its exact size."""
    size = dtype_bytes(dtype)
    if size is None or not element_bytes:
        return 1.0
    # A few fp32 tensors (a router, norms) make the mean size slightly more than the type's.
    return 1.0 if abs(size / element_bytes - 1) < 0.05 else size / element_bytes


def _element_bytes(static: Static, scaling: Scaling) -> float:
    """Return the mean size of a parameter before it was quantised."""
    whole = scaling.unquantised_bytes.get("all")
    return whole / static.params.total if whole and static.params.total else scaling.element_bytes


def _unquantised_ratio(static: Static, scaling: Scaling, phase: str) -> float:
    """Return unquantised ÷ stored bytes of a phase's weights: unquantised modules have a different weight in each."""
    wide = scaling.unquantised_bytes.get(phase)
    facts = static.phases.get(phase)
    stored = (
        static.params.total * scaling.element_bytes
        if phase == "all"
        else facts.least_weight_bytes
        if facts
        else None
    )
    return wide / stored if wide and stored else 1.0


def _cache_factor(dtype: str, scaling: Scaling, weight_factor: float) -> float:
    """Return new ÷ old bytes per cached element; a cache that was chosen to be small stays so."""
    if scaling.cache_element_bytes is None:
        return weight_factor
    factor = _size_factor(dtype, scaling.cache_element_bytes)
    return min(1.0, factor) if scaling.cache_element_bytes <= _SMALL_CACHE else factor


def _weights(static: Static, scaling: Scaling, phase: str, tokens: int) -> float:
    """Return weights a pass over ``tokens`` reads: dense ones once, experts as far as they are chosen."""
    facts = static.phases.get(phase)
    if facts is None or facts.least_weight_bytes is None:
        return 0.0
    per_sequence = scaling.prompt_tokens if phase == "prefill" else 1
    counted = round(scaling.batch_size * per_sequence)
    rows = scaling.embedding_rows if scaling.embedding_rows is not None else max(tokens, counted)
    change = scaling.embedding_bytes_per_token * (min(tokens, rows) - min(counted, rows))
    for part in scaling.experts:
        now = expected_distinct_experts(part.experts, part.top_k, tokens)
        then = expected_distinct_experts(part.experts, part.top_k, counted)
        change += part.weight_bytes * (now - then) / part.experts
    return facts.least_weight_bytes + change


def _prefill_flops(static: Static, scaling: Scaling, point: Point) -> float:
    facts = static.phases.get("prefill")
    if facts is None or facts.least_flops is None:
        return 0.0
    sequences = point.batch_size / scaling.batch_size
    growth = point.prompt_tokens / scaling.prompt_tokens if scaling.prompt_tokens else 1.0
    attention = [part for part in scaling.attention if part.phase == "prefill"]
    head = scaling.head_flops.get("prefill", 0.0)
    halved = scaling.causal_halved
    linear = facts.least_flops - head - sum(part.flops for part in attention)
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
    rest = (facts.least_flops or 0.0) - sum(part.flops for part in attention)
    grown = sum(
        part.flops * _seen(point.context_tokens, part.window) / _seen(scaling.context_tokens, part.window)
        for part in attention
    )
    return point.batch_size / scaling.batch_size * (rest + grown)


def _seen(cached: float, window: int | None) -> float:
    """Return positions that a new token attends to, including itself."""
    return min(cached + 1, window) if window is not None else cached + 1


def _kv_parts(static: Static, scaling: Scaling | None) -> list[KvPart]:
    if scaling is not None and scaling.kv:
        return scaling.kv
    return [KvPart(1, static.kv_bytes_per_token)] if static.kv_bytes_per_token else []


def _kv_per_token(static: Static, scaling: Scaling | None) -> float:
    return sum(part.layers * part.bytes_per_token for part in _kv_parts(static, scaling))


def _state_bytes(static: Static, scaling: Scaling | None) -> float:
    return sum(part.layers * part.state_bytes for part in _kv_parts(static, scaling))


def _kv_held(static: Static, scaling: Scaling | None, positions: float) -> float:
    """Return cache bytes of one sequence with ``positions`` in it."""
    return sum(
        part.layers * (part.bytes_per_token * held_positions(positions, part.window) + part.state_bytes)
        for part in _kv_parts(static, scaling)
    )


def _kv_traffic(static: Static, scaling: Scaling, cached: float) -> float:
    """Return what one step of one sequence reads and writes: the visible cached positions and the new one.

    A state is read and written whole.
    """
    return sum(
        part.layers * (part.bytes_per_token * _seen(cached, part.window) + 2 * part.state_bytes)
        for part in _kv_parts(static, scaling)
    )
