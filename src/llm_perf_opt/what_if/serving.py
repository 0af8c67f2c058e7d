"""A server on devices that were not measured: memory, latency and throughput at each load, capacity and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.roofline.demand import Point, demand
from llm_perf_opt.analysis.roofline.expected_calls import outputs_of_rank, reason_not_sharded
from llm_perf_opt.analysis.roofline.expected_times import Tables, at_point, target_of
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import ENCODE
from llm_perf_opt.summary.statistics import percentile
from llm_perf_opt.what_if.simulate import (
    BLOCK_TOKENS,
    Limits,
    Load,
    Outcome,
    StepTimes,
    mean,
    simulate,
)
from llm_perf_opt.what_if.step_times import End, EngineCosts, EngineTimes, OperatorSteps, UnknownTime

if TYPE_CHECKING:
    from llm_perf_opt.hardware.catalogue import Device
    from llm_perf_opt.summary import Static

GIB = 2**30
MEMORY_SHARE = 0.92
"""vLLM's ``gpu_memory_utilization``."""
_RUNTIME_BYTES = 1.5 * GIB
"""Driver context, graphs and libraries of one device; with several devices their communication buffers add as much again."""
_WITHIN_LIMITS = 0.9
"""Share of requests that must meet the limits at a sustained load."""
_MOST_RATE = 1e5


@dataclass(frozen=True, slots=True)
class ServingQuery:
    """The load, and the options of the engine; ``None``: vLLM's default for the device."""

    prompt_tokens: int
    new_tokens: int
    concurrency: Sequence[int] = ()
    rates_per_s: Sequence[float] = ()
    most_tokens: int | None = None
    most_sequences: int | None = None
    memory_share: float = MEMORY_SHARE
    cache_dtype: str | None = None
    price_per_hour: float | None = None
    slo: Mapping[str, float] = field(default_factory=dict)
    target_rate_per_s: float | None = None
    requests: int | None = None
    """Requests of each closed loop, as a benchmark sends them; ``None``: the steady state."""


@dataclass(slots=True)
class ServingMemory:
    """Memory of one device, in bytes."""

    weights_bytes: float
    activations_bytes: float
    """Of the largest step: the widest layer's inputs and outputs, and logits of every running request."""
    runtime_bytes: float
    kv_cache_bytes: float
    """What is left for the KV cache; 0: the weights do not fit."""
    fragmentation_bytes: float
    """Of it unused at the largest concurrency that fits, because blocks are not full."""
    kv_bytes_per_token: float
    kv_tokens: float
    total_bytes: float | None


@dataclass(slots=True)
class ServingRow:
    """Expected performance of a server at one load; ``…_low`` and ``…_high`` are the ends of the range."""

    device: str
    dtype: str
    tensor_parallel: int
    prompt_tokens: int
    new_tokens: int
    concurrency: int | None = None
    rate_per_s: float | None = None
    ttft_expected_s: float | None = None
    ttft_expected_low_s: float | None = None
    ttft_expected_high_s: float | None = None
    ttft_p99_s: float | None = None
    ttft_first_wave_s: float | None = None
    """Mean of the first requests when all are sent at once; closed loop."""
    itl_expected_s: float | None = None
    itl_expected_low_s: float | None = None
    itl_expected_high_s: float | None = None
    itl_p99_s: float | None = None
    e2e_expected_s: float | None = None
    e2e_expected_low_s: float | None = None
    e2e_expected_high_s: float | None = None
    tokens_per_s: float | None = None
    """Output tokens of the server per second."""
    tokens_per_s_low: float | None = None
    tokens_per_s_high: float | None = None
    requests_per_s: float | None = None
    requests_per_s_low: float | None = None
    requests_per_s_high: float | None = None
    goodput_per_s: float | None = None
    """Requests per second within the limits; ``None`` without limits."""
    goodput_per_s_low: float | None = None
    goodput_per_s_high: float | None = None
    fits: bool | None = None
    """Whether the KV cache holds every request of this load at its full length; ``None``: memory is not known."""
    largest_concurrency: int | None = None
    """Requests of full length that the KV cache holds."""
    is_sustained: bool | None = None
    """Open loop: ``False``: the server cannot keep up, and latencies grow as long as the load lasts."""
    preemptions_per_request: float | None = None
    cost_per_million_tokens: float | None = None
    """In the unit of ``--price``, per million output tokens."""
    cost_per_million_tokens_low: float | None = None
    cost_per_million_tokens_high: float | None = None
    joules_per_token: float | None = None
    """At the power limit of the devices: an upper bound of the device energy per output token."""
    memory: ServingMemory | None = None
    source: str = "expected operator times"
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Capacity:
    """Devices for a target load under the limits."""

    device: str
    dtype: str
    tensor_parallel: int
    target_rate_per_s: float | None
    rate_per_replica_s: float | None
    """Highest rate at which 90 % of the requests meet the limits, one server."""
    rate_per_replica_low_s: float | None = None
    rate_per_replica_high_s: float | None = None
    replicas: int | None = None
    devices: int | None = None
    devices_low: int | None = None
    devices_high: int | None = None
    note: str | None = None


_TimesOf = Callable[[End], StepTimes]


def _engine_limits(query: ServingQuery, device: Device, kv_tokens: float | None) -> Limits:
    """Return the limits given, otherwise vLLM's defaults of an API server on such a device."""
    memory = device.memory_bytes or 0.0
    is_large = memory >= 70 * GIB and "a100" not in device.name.lower()
    tokens = 16384 if memory >= 160 * GIB else 8192 if is_large else 2048
    sequences = 1024 if is_large else 256
    return Limits(query.most_tokens or tokens, query.most_sequences or sequences, kv_tokens)


def memory_of(static: Static, point: Point, device: Device, query: ServingQuery) -> ServingMemory | None:
    """Return how one device's memory is used; ``None``: its size is not known."""
    if device.memory_bytes is None or static.operators is None:
        return None
    length = query.prompt_tokens + query.new_tokens
    one, two = (
        demand(static, replace(point, batch_size=count, context_tokens=length, prompt_tokens=length))
        for count in (1, 2)
    )
    sequence = two.resident_bytes - one.resident_bytes
    weights = one.resident_bytes - sequence
    if query.cache_dtype is not None:
        cached = at_point(static, point).cache_dtype
        sequence *= (units.dtype_bytes(query.cache_dtype) or 2.0) / (units.dtype_bytes(cached) or 2.0)
    limits = _engine_limits(query, device, None)
    activations = _activation_bytes(static, point, limits)
    runtime = _RUNTIME_BYTES * (2 if point.tensor_parallel > 1 else 1)
    free = max(0.0, query.memory_share * device.memory_bytes - weights - activations - runtime)
    per_token = sequence / length
    held = math.floor(free / (sequence + per_token * BLOCK_TOKENS / 2)) if sequence else 0
    return ServingMemory(
        weights,
        activations,
        runtime,
        free,
        held * per_token * BLOCK_TOKENS / 2,
        per_token,
        free / per_token if per_token else 0.0,
        device.memory_bytes,
    )


def _activation_bytes(static: Static, point: Point, limits: Limits) -> float:
    shapes = static.operators
    products = [one for one in shapes.products if one.phase == "prefill"] if shapes is not None else []
    body = [one for one in products if one.rows_follow == "positions"]
    widths = (
        [outputs_of_rank([one], shapes.attention, point.tensor_parallel) for one in body] if shapes else []
    )
    # Gate and up are one product, and its activation lies next to it.
    widest = 3 * max(widths, default=0)
    hidden = (shapes.hidden or 0) if shapes is not None else 0
    vocabulary = max((one.outputs for one in products if one.rows_follow == "sequences"), default=0)
    return limits.most_tokens * (widest + 4 * hidden) * 2.0 + limits.most_sequences * vocabulary * 4.0 * 2


def serve_on(
    static: Static,
    devices: Iterable[Device],
    points: Sequence[Point],
    query: ServingQuery,
    tables: Tables | None,
    costs: EngineCosts | None = None,
) -> tuple[list[ServingRow], list[Capacity]]:
    """Return a row per device, point and load, and the capacity of each where a target or limits are given."""
    rows: list[ServingRow] = []
    capacities: list[Capacity] = []
    for device in devices:
        for point in points:
            server = _Server(static, device, point, query, tables, costs or EngineCosts())
            rows += server.rows()
            if query.target_rate_per_s is not None or query.slo:
                capacities.append(server.capacity())
    return rows, capacities


class _Server:
    """One point on one device."""

    def __init__(
        self,
        static: Static,
        device: Device,
        point: Point,
        query: ServingQuery,
        tables: Tables | None,
        costs: EngineCosts,
    ) -> None:
        self.device, self.point, self.query = device, point, query
        self.memory = memory_of(static, point, device, query)
        self.limits = _engine_limits(query, device, self.memory.kv_tokens if self.memory else None)
        self.power_w = tables.power_w(device.name) if tables is not None else None
        self.reason: str | None = None
        self.steps: OperatorSteps | None = None
        if static.operators is None:
            self.reason = "the model's operators were not counted by shape"
        elif ENCODE in static.phases:
            self.reason = "encoder-decoders are not estimated: their rows follow two lengths"
        elif (unshared := reason_not_sharded(static.operators, point.tensor_parallel)) is not None:
            self.reason = unshared
        else:
            at = at_point(static, point)
            if query.cache_dtype is not None:
                at = replace(at, cache_dtype=query.cache_dtype)
            link = device.link_bytes_per_s
            target = target_of(device.name, device.peaks, device.bandwidth_bytes_per_s, link, tables)
            self.steps = OperatorSteps(static.operators, at, target, tables, costs)

    def _blank(self) -> ServingRow:
        row = ServingRow(
            self.device.name,
            self.point.dtype,
            self.point.tensor_parallel,
            self.query.prompt_tokens,
            self.query.new_tokens,
            memory=self.memory,
        )
        row.largest_concurrency = largest_concurrency(self.memory, self.query)
        return row

    def times(self, end: End) -> StepTimes:
        """Return the step times of one end of the range."""
        if self.steps is None:
            raise UnknownTime(self.reason)
        return EngineTimes(self.steps, end)

    def rows(self) -> list[ServingRow]:
        """Return one row per load."""
        rows = []
        for load in loads_of(self.query):
            row = self._blank()
            row.concurrency, row.rate_per_s = load.concurrency, load.rate_per_s
            self._fill(row, load)
            rows.append(row)
        return rows

    def _fill(self, row: ServingRow, load: Load) -> None:
        most = row.largest_concurrency
        if load.concurrency is not None and most is not None:
            row.fits = load.concurrency <= most
        if most == 0:
            row.fits = False
            row.notes.append(
                "weights, activations and one request do not fit the memory: more devices or a smaller data type"
            )
            return
        if self.steps is None:
            row.notes.append(f"no expected time: {self.reason}")
            return
        try:
            fill_row(row, load, self.limits, self.times, self.query)
        except UnknownTime:
            row.notes.append("no expected time: an operator has neither a table nor limits on this device")
            return
        if self.steps.unknown:
            row.notes.append(
                "the error of some operators was never measured: −30 % to +50 % is assumed for them"
            )
        _add_costs(row, self.query.price_per_hour, self.power_w)

    def capacity(self) -> Capacity:
        """Return how many devices the target load needs."""
        found = Capacity(
            self.device.name, self.point.dtype, self.point.tensor_parallel, self.query.target_rate_per_s, None
        )
        if self.steps is None or largest_concurrency(self.memory, self.query) == 0:
            found.note = self.reason or "the model does not fit the memory"
            return found
        try:
            fill_capacity(found, self.limits, self.times, self.query)
        except UnknownTime:
            found.note = "an operator has neither a table nor limits on this device"
        return found


def loads_of(query: ServingQuery) -> list[Load]:
    """Return the loads of a query."""
    lengths = query.prompt_tokens, query.new_tokens
    closed = [Load(*lengths, concurrency=count, requests=query.requests) for count in query.concurrency]
    return closed + [Load(*lengths, rate_per_s=rate) for rate in query.rates_per_s]


def largest_concurrency(memory: ServingMemory | None, query: ServingQuery) -> int | None:
    """Return how many requests of full length the KV cache holds; ``None``: memory is not known."""
    if memory is None:
        return None
    blocks = math.ceil((query.prompt_tokens + query.new_tokens) / BLOCK_TOKENS)
    return math.floor(memory.kv_tokens / (blocks * BLOCK_TOKENS)) if memory.kv_tokens else 0


def fill_row(row: ServingRow, load: Load, limits: Limits, times: _TimesOf, query: ServingQuery) -> None:
    """Simulate a load at the expected step times and at both ends of their range."""
    found = _outcomes(load, limits, times)
    if load.rate_per_s is not None:
        row.is_sustained = all(one.is_sustained for one in found["expected"])
        _fill_open(row, load, found)
    if load.rate_per_s is None or row.is_sustained:
        _fill_latency(row, found)
    else:
        row.notes.append(
            "above the capacity: the queue grows, so that latency depends on how long the load lasts"
        )
        _fill_saturated(row, load, limits, times)
    if load.concurrency is not None:
        _fill_rates(row, found, load)
        waves = [one.burst_ttft_s for one in found["expected"][:1] if one.burst_ttft_s is not None]
        row.ttft_first_wave_s = waves[0] if waves else None
        if load.concurrency > limits.most_sequences:
            row.notes.append(
                f"the engine runs at most {limits.most_sequences} requests at a time; the rest wait"
            )
    elif row.largest_concurrency is not None:
        row.fits = max(one.most_running for one in found["expected"]) <= row.largest_concurrency
    completed = sum(one.completed for one in found["expected"])
    preempted = sum(one.preemptions for one in found["expected"])
    row.preemptions_per_request = preempted / completed if completed else None
    if row.fits is False:
        row.notes.append(
            "the requests do not all fit in the KV cache at full length: some wait or are preempted"
        )
    if query.slo and (row.is_sustained is not False):
        _fill_goodput(row, found, query.slo)


def _outcomes(load: Load, limits: Limits, times: _TimesOf) -> dict[End, list[Outcome]]:
    """Return simulations at each end of the range; closed loops also from a start that is spread out.

    Requests of equal length that start together stay in step for long, those that start apart stay apart. Benchmarks are
    between the two. The low end also computes one prompt a step: engines differ in how many prompts share one.
    """
    is_steady = (load.concurrency or 0) > 1 and load.requests is None
    starts = [load, replace(load, is_spread=True)] if is_steady else [load]
    found: dict[End, list[Outcome]] = {
        end: [simulate(one, limits, times(end)) for one in starts] for end in ("low", "expected", "high")
    }
    single = load.prompt_tokens + min(load.concurrency or BLOCK_TOKENS, limits.most_sequences)
    if single < limits.most_tokens:
        found["low"].append(simulate(starts[-1], replace(limits, most_tokens=single), times("low")))
    return found


def _values(
    found: dict[End, list[Outcome]], value: Callable[[Outcome], float | None]
) -> tuple[float, float, float] | None:
    """Return (expected, low, high) of a figure."""
    expected = [one for one in map(value, found["expected"]) if one is not None]
    every = [one for outcomes in found.values() for one in map(value, outcomes) if one is not None]
    middle = mean(expected)
    return None if middle is None else (middle, min(every), max(every))


def _fill_latency(row: ServingRow, found: dict[End, list[Outcome]]) -> None:
    for name, value in (
        ("ttft", lambda one: mean(one.ttft_s)),
        ("itl", lambda one: mean(one.tpot_s)),
        ("e2e", lambda one: mean(one.e2e_s)),
    ):
        ends = _values(found, value)
        if ends is not None:
            for key, one in zip(("", "_low", "_high"), ends, strict=True):
                setattr(row, f"{name}_expected{key}_s", one)
    tail = _values(found, lambda one: percentile(sorted(one.ttft_s), 0.99) if one.ttft_s else None)
    row.ttft_p99_s = tail[0] if tail is not None else None
    tail = _values(found, lambda one: one.itl_percentile(0.99))
    row.itl_p99_s = tail[0] if tail is not None else None


def _fill_rates(row: ServingRow, found: dict[End, list[Outcome]], load: Load) -> None:
    ends = _values(found, Outcome.requests_per_s)
    if ends is None:
        return
    row.requests_per_s, row.requests_per_s_low, row.requests_per_s_high = ends
    row.tokens_per_s, row.tokens_per_s_low, row.tokens_per_s_high = (one * load.new_tokens for one in ends)


def _fill_open(row: ServingRow, load: Load, found: dict[End, list[Outcome]]) -> None:
    """Fill in an open load; a sustained rate is also the rate of answers."""
    if row.is_sustained and load.rate_per_s is not None:
        row.requests_per_s = row.requests_per_s_low = row.requests_per_s_high = load.rate_per_s
        tokens = load.rate_per_s * load.new_tokens
        row.tokens_per_s = row.tokens_per_s_low = row.tokens_per_s_high = tokens
        if not all(one.is_sustained for one in found["high"]):
            row.notes.append("at the slow end of the range the server cannot sustain this rate")


def _fill_saturated(row: ServingRow, load: Load, limits: Limits, times: _TimesOf) -> None:
    most = min(limits.most_sequences, row.largest_concurrency or limits.most_sequences)
    full = replace(load, rate_per_s=None, concurrency=max(most, 1))
    found: dict[End, list[Outcome]] = {
        end: [simulate(full, limits, times(end))] for end in ("low", "expected", "high")
    }
    _fill_rates(row, found, load)


def _fill_goodput(row: ServingRow, found: dict[End, list[Outcome]], slo: Mapping[str, float]) -> None:
    ends = _values(found, lambda one: one.good_ratio(slo))
    if ends is None or row.requests_per_s is None:
        return
    if row.rate_per_s is not None:
        goods = [row.requests_per_s * ratio for ratio in ends]
    else:
        measured = _values(found, lambda one: (one.good_ratio(slo) or 0.0) * (one.requests_per_s() or 0.0))
        goods = list(measured) if measured is not None else []
    if goods:
        row.goodput_per_s, row.goodput_per_s_low, row.goodput_per_s_high = goods


def _add_costs(row: ServingRow, price_per_hour: float | None, power_w: float | None) -> None:
    """Fill in cost and energy per token."""
    devices = row.tensor_parallel
    if price_per_hour is not None:
        for source, name in (
            (row.tokens_per_s, ""),
            (row.tokens_per_s_high, "_low"),
            (row.tokens_per_s_low, "_high"),
        ):
            if source:
                setattr(row, f"cost_per_million_tokens{name}", price_per_hour * devices / 3600 / source * 1e6)
    if power_w is not None and row.tokens_per_s:
        row.joules_per_token = power_w * devices / row.tokens_per_s


def fill_capacity(found: Capacity, limits: Limits, times: _TimesOf, query: ServingQuery) -> None:
    """Search the highest rate one server sustains within the limits, and divide the target by it."""
    rates = {end: _highest_rate(limits, times(end), query) for end in ("low", "expected", "high")}
    found.rate_per_replica_s = rates["expected"]
    found.rate_per_replica_low_s, found.rate_per_replica_high_s = rates["high"], rates["low"]
    if not rates["expected"]:
        found.note = "the limits are not met even by one request at a time"
        return
    if query.target_rate_per_s is None:
        return

    def devices(rate: float) -> int:
        return (
            math.ceil(query.target_rate_per_s / rate) * found.tensor_parallel
            if query.target_rate_per_s
            else 0
        )

    found.replicas = math.ceil(query.target_rate_per_s / rates["expected"])
    found.devices = devices(rates["expected"])
    found.devices_low = devices(rates["low"]) if rates["low"] else None
    found.devices_high = devices(rates["high"]) if rates["high"] else None


def _highest_rate(limits: Limits, times: StepTimes, query: ServingQuery) -> float:
    lengths = query.prompt_tokens, query.new_tokens

    def is_met(rate: float) -> bool:
        outcome = simulate(Load(*lengths, rate_per_s=rate), limits, times)
        good = outcome.good_ratio(query.slo)
        return outcome.is_sustained and good is not None and good >= _WITHIN_LIMITS

    alone = simulate(Load(*lengths, concurrency=1), limits, times)
    whole = mean(alone.e2e_s)
    good = alone.good_ratio(query.slo)
    if not whole or good is None or good < _WITHIN_LIMITS:
        return 0.0
    low, high = 0.0, 1.0 / whole
    while high < _MOST_RATE and is_met(high):
        low, high = high, high * 2
    for _ in range(7):
        middle = (low + high) / 2
        low, high = (middle, high) if is_met(middle) else (low, middle)
    return low
