"""The ``serving`` section of the summary, made from records: load points, parts, steps, the slowest requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from llm_perf_opt.analysis.roofline.demand import Point, compute_dtypes, demand, own_point
from llm_perf_opt.analysis.roofline.limits import fastest_dtype, floor_time, limits_for
from llm_perf_opt.analysis.serving.latency import describe_latency, find_knee, load_points, total_ttft
from llm_perf_opt.analysis.serving.matching import Matches, match_requests, merge_steps
from llm_perf_opt.analysis.serving.parts import (
    RequestParts,
    build_timeline,
    decode_seconds,
    mean_parts,
    occupancy_of,
    slowest_requests,
    split_requests,
)
from llm_perf_opt.analysis.serving.speculation import describe_speculation
from llm_perf_opt.captures.serving.records import Bool, Float64, Int64, Requests, ServingRecords, Steps
from llm_perf_opt.core import units
from llm_perf_opt.summary import Hardware, Static
from llm_perf_opt.summary.serving import (
    ClientUse,
    Disaggregation,
    LatencyStat,
    LoadPoint,
    Serving,
    StepGroup,
    StepStats,
    TimeParts,
)

_LEAST_COVERAGE = 0.5
"""Parts are given where at least this share of the requests was matched."""
_MOST_LANES = 12
_Kind = Literal["prefill", "decode", "mixed"]
_MOST_EVENTS = 400


@dataclass(slots=True, eq=False)
class Analysed:
    """The section, and the data that findings use."""

    serving: Serving
    requests: Requests | None = None
    steps: Steps | None = None
    matches: Matches | None = None
    parts: RequestParts | None = None
    ttft_s: Float64 = field(default_factory=lambda: np.empty(0))
    hit_ratio: float | None = None
    """Prefix-cache hits ÷ queries between the first and the last sample of ``/metrics``."""


def analyse_serving(records: ServingRecords, slo: Mapping[str, float] | None = None) -> Analysed:
    """Analyse records; anything from a summary of a tool to requests with steps gives a section."""
    serving = Serving(
        engine=records.engine,
        version=records.version,
        definitions=dict(records.definitions),
        notes=list(records.notes),
    )
    found = Analysed(serving, requests=records.requests)
    found.steps = merge_steps(records.steps)
    if len(records.steps) > 1 and found.steps is not None and len(found.steps) < sum(map(len, records.steps)):
        serving.notes.append("Step records without a clock are left out: the same steps are given with one.")
    serving.load = load_points(records.loads, records.requests, slo or records.slo)
    if records.requests is not None:
        found.ttft_s = total_ttft(records.requests, records.loads)
        if found.steps is not None:
            _add_parts(found)
        else:
            _add_stated_parts(found)
        serving.slowest = slowest_requests(
            records.requests, found.steps, found.matches, found.parts, found.ttft_s
        )
    if found.steps is not None:
        contexts = step_contexts(found.steps, found.requests, found.matches)
        _add_step_groups(found, found.steps, contexts)
        serving.steps = _step_stats(found.steps, contexts)
    columns = [(one.time_s, one.running, one.waiting, one.kv_ratio) for one in records.samples]
    serving.occupancy = occupancy_of(found.steps, columns)
    serving.timeline = _draw_slowest(found)
    serving.knee = find_knee(serving.load)
    serving.client = _client(records, serving.load)
    found.hit_ratio = _hit_ratio(records)
    serving.speculation = describe_speculation(found.steps, records.samples)
    serving.disaggregation = _disaggregation(records)
    return found


def _add_parts(found: Analysed) -> None:
    requests, steps, serving = found.requests, found.steps, found.serving
    if requests is None or steps is None:
        return
    if not steps.is_placed:
        serving.notes.append("The steps have no clock, so where the requests' time went cannot be decided.")
        _add_stated_parts(found)
        return
    matches = match_requests(requests, steps)
    serving.notes += matches.notes
    done = requests.completed
    if not done.any():
        return
    coverage = float(matches.matched[done].mean())
    serving.coverage_ratio = coverage
    if coverage < _LEAST_COVERAGE:
        serving.notes.append(
            f"Only {units.percent(coverage)} of the completed requests could be matched to a step, so the parts of their time are "
            "not given. The steps may be of another server, or of another time."
        )
        _add_stated_parts(found)
        return
    serving.clock_uncertainty_s, serving.clock_offset_s = matches.uncertainty_s, matches.offset_s
    decode_s = decode_seconds(steps)
    lines = {int(engine): build_timeline(steps, int(engine), decode_s) for engine in np.unique(steps.engine)}
    parts = split_requests(requests, steps, matches, lines, decode_s, found.ttft_s - requests.ttft_s)
    found.matches, found.parts = matches, parts
    undecided = np.where(matches.matched, 0.0, requests.ttft_s)
    rest = np.where(matches.matched | np.isnan(requests.e2e_s), 0.0, requests.e2e_s - requests.ttft_s)
    for number, point in enumerate(serving.load):
        chosen = done & (requests.load == number)
        if not chosen.any():
            continue
        point.parts_coverage_ratio = float(matches.matched[chosen].mean())
        if point.parts_coverage_ratio < _LEAST_COVERAGE:
            point.notes.append("Too few of its requests were matched to steps: no parts.")
            continue
        point.ttft_parts_s = mean_parts(parts.ttft, chosen, undecided=undecided)
        if point.ttft_parts_s is not None and np.isnan(requests.scheduled_s[chosen]).all():
            point.ttft_parts_s.client = None  # the client did not record when it meant to send
        point.decode_parts_s = mean_parts(parts.decode, chosen, undecided=np.maximum(rest, 0.0))
    if not np.isnan(matches.arrival_s[matches.matched]).all():
        return
    serving.notes.append(
        "The engine does not record when requests arrive: network time cannot be separated from the step or queue they wait for."
    )


def _add_stated_parts(found: Analysed) -> None:
    """Add parts from the server's own statements, without steps.

    Everything else is counted as other. The remainder of the TTFT is not the network: vLLM's queue time begins when the
    scheduler accepts the request, so waiting for a running step is in neither.
    """
    requests = found.requests
    if requests is None:
        return
    for number, point in enumerate(found.serving.load):
        chosen = requests.completed & (requests.load == number)
        stated = chosen & ~np.isnan(requests.server_queue_s)
        if not chosen.any() or stated.sum() < _LEAST_COVERAGE * chosen.sum() or point.ttft_s is None:
            continue
        queue = np.minimum(requests.server_queue_s, requests.ttft_s)[stated]
        client = (found.ttft_s - requests.ttft_s)[stated]
        parts = TimeParts(client=float(client.mean()), queue=float(queue.mean()))
        parts.other = max((point.ttft_s.mean or 0.0) - float(client.mean() + queue.mean()), 0.0)
        point.ttft_parts_s = parts
        point.notes.append(
            "Without step records only client and queue can be split off the TTFT; network, prompts and decode are under other."
        )


# Steps.


def _step_stats(steps: Steps, contexts: Float64 | None) -> StepStats:
    """Count and time the steps by kind and batch size, and the gaps between them while requests were running."""
    batch = steps.prefill_requests + steps.decode_requests
    kinds = _kinds(steps)
    stats = StepStats(
        count=len(steps),
        prefill=int(kinds["prefill"].sum()),
        decode=int(kinds["decode"].sum()),
        mixed=int(kinds["mixed"].sum()),
        duration_s=describe_latency(steps.duration_s),
        batch=float(batch[batch > 0].mean()) if (batch > 0).any() else None,
        groups=group_steps(steps, contexts),
    )
    if steps.is_placed:
        gaps, total = _step_gaps(steps)
        stats.gap_s = describe_latency(gaps)
        stats.gap_ratio = float(min(gaps.sum() / total, 1.0)) if total > 0 else None
    if (steps.running >= 0).any():
        stats.most_running = int(steps.running.max())
    if (steps.waiting >= 0).any():
        stats.most_waiting = int(steps.waiting.max())
    if not np.isnan(steps.kv_ratio).all():
        stats.kv_usage_max_ratio = float(min(np.nanmax(steps.kv_ratio), 1.0))
    stats.preemptions = int(steps.preempted.sum())
    return stats


def _kinds(steps: Steps) -> dict[_Kind, Bool]:
    prefill, decode = steps.prefill_requests > 0, steps.decode_requests > 0
    return {"prefill": prefill & ~decode, "decode": decode & ~prefill, "mixed": prefill & decode}


def group_steps(steps: Steps, contexts: Float64 | None, chosen: Bool | None = None) -> list[StepGroup]:
    """Return steps by kind and batch size; ``contexts``: see :func:`step_contexts`."""
    batch = steps.prefill_requests + steps.decode_requests
    bucket = np.floor(np.log2(np.maximum(batch, 1))).astype(np.int64)
    groups = []
    for kind, rows in _kinds(steps).items():
        of_kind = rows if chosen is None else rows & chosen
        for value in np.unique(bucket[of_kind]).tolist():
            held = of_kind & (bucket == value)
            durations, decoding = steps.duration_s[held], steps.decode_requests[held]
            group = StepGroup(
                kind, 1 << int(value), len(durations), float(np.median(durations)), float(durations.sum())
            )
            group.decoding, group.prompts = float(decoding.mean()), float(steps.prefill_requests[held].mean())
            if (steps.prefill_tokens[held] >= 0).all():
                group.prompt_tokens = float(steps.prefill_tokens[held].mean())
            if contexts is not None and decoding.sum() > 0 and (contexts[held] > 0).any():
                group.context_tokens = float(contexts[held].sum() / decoding[contexts[held] > 0].sum())
            groups.append(group)
    return groups


def step_contexts(steps: Steps, requests: Requests | None, matches: Matches | None) -> Float64 | None:
    """Return the cached positions of all requests that decode in each step; 0: not matched; ``None``: not known."""
    if requests is None or matches is None or len(np.unique(steps.engine)) != 1:
        return None
    first, last = _token_steps(requests, matches)
    known = matches.matched & (requests.prompt_tokens > 0) & (last > first)
    # A request that decodes in the steps after the one of its first token has ``prompt + step − first − 1`` cached positions.
    base, count = np.zeros(len(steps) + 1), np.zeros(len(steps) + 1)
    for values, into in ((requests.prompt_tokens - first, base), (np.ones(len(first)), count)):
        np.add.at(into, first[known] + 1, values[known])
        np.subtract.at(into, np.minimum(last[known] + 1, len(steps)), values[known])
    running = np.cumsum(count)[:-1]
    total = np.cumsum(base)[:-1] + running * (np.arange(len(steps)) - 1)
    # Steps of which not every request was matched.
    return np.where(running == steps.decode_requests, np.maximum(total, 0.0), 0.0)


def _token_steps(requests: Requests, matches: Matches) -> tuple[Int64, Int64]:
    """Return the steps of each request's first and last token."""
    first, last = matches.first_step, matches.last_step
    return first, np.where(last < first, first + np.maximum(requests.output_tokens, 1) - 1, last)


def steps_of_loads(found: Analysed) -> dict[int, Bool]:
    """Return the steps between the first prompt chunk and the last token of each load point; empty: not known."""
    requests, steps, matches = found.requests, found.steps, found.matches
    if requests is None or steps is None or matches is None or len(np.unique(steps.engine)) != 1:
        return {}
    first, last = _token_steps(requests, matches)
    row, rows = np.arange(len(steps)), {}
    for number in range(len(found.serving.load)):
        of_point = matches.matched & (requests.load == number)
        if of_point.any():
            chunks = matches.own_step[of_point[matches.own_request]]
            begin = min(int(first[of_point].min()), int(chunks.min(initial=len(steps))))
            rows[number] = (row >= begin) & (row <= int(last[of_point].max()))
    return rows


def _add_step_groups(found: Analysed, steps: Steps, contexts: Float64 | None) -> None:
    for number, rows in steps_of_loads(found).items():
        point = found.serving.load[number]
        if point.ttft_parts_s is not None:
            point.steps = group_steps(steps, contexts, rows)


# The roofline of steps.


def add_step_floors(serving: Serving, static: Static, hardware: Hardware, dtype: str) -> None:
    """Add the least time of each group's mean step, and how far its steps are from it.

    Weights are read once per step, the KV cache of requests that decode as well. Prompt chunks count as prompts without cached
    positions before them, so that the floor holds for later chunks too.
    """
    if not serving.has_counted_model or serving.speculation is not None:
        return
    limits = limits_for(hardware, fastest_dtype(hardware, compute_dtypes(static, dtype)))
    own = own_point(static, dtype)
    if limits.peak is None or limits.bandwidth is None or own is None:
        return
    groups = [group for point in serving.load for group in point.steps]
    groups += serving.steps.groups if serving.steps is not None else []
    groups += serving.profile.groups if serving.profile is not None else []
    for group in groups:
        work = _step_work(group, static, own)
        if work is None or not group.count:
            continue
        floor = floor_time(*work, limits.peak, limits.bandwidth)
        group.floor_s = floor.seconds
        group.floor_bound = "compute" if floor.bound == "compute" else "memory"
        group.floor_distance_ratio = group.total_s / group.count / floor.seconds if floor.seconds else None


def _step_work(group: StepGroup, static: Static, own: Point) -> tuple[float, float] | None:
    """Return (FLOPs, bytes) of the mean step of a group; ``None``: not known."""
    flops = moved = 0.0
    if group.decoding:
        if group.context_tokens is None:
            return None
        batch = max(1, math.floor(group.decoding))
        needed = demand(
            static, replace(own, batch_size=batch, context_tokens=math.floor(group.context_tokens))
        )
        if needed.step is None:
            return None
        flops, moved = needed.step
        cache = needed.step_cache_bytes
    if group.prompts:
        if not group.prompt_tokens:
            return None
        batch = max(1, math.floor(group.prompts))
        length = max(1, math.floor(group.prompt_tokens / group.prompts))
        needed = demand(static, replace(own, batch_size=batch, prompt_tokens=length))
        if needed.first_token is None or len(needed.first_token) != 1:
            return None  # with an encoder
        prefill, read = needed.first_token[0]
        flops += prefill
        moved = read + cache if group.decoding else read
    return flops, moved


def _step_gaps(steps: Steps) -> tuple[Float64, float]:
    """Return (gaps before steps that go on with running requests, time in which requests were running)."""
    gaps, total = [], 0.0
    for engine in np.unique(steps.engine):
        rows = np.flatnonzero(steps.engine == engine)
        end = np.maximum.accumulate(steps.end_s[rows])
        start = np.maximum(end - steps.duration_s[rows], np.concatenate(([-np.inf], end[:-1])))
        between = np.maximum(start[1:] - end[:-1], 0.0)
        # Decodes continue requests of the step before: the engine had work and did not start.
        going_on = steps.decode_requests[rows][1:] > 0
        gaps.append(between[going_on])
        total += float((end - start).sum() + between[going_on].sum())
    return np.concatenate(gaps) if gaps else np.empty(0), total


def _client(records: ServingRecords, points: list[LoadPoint]) -> ClientUse | None:
    lags = [one.lag_s for one in points if one.lag_s is not None and not one.client_bound]
    if not lags and records.client_capacity_per_s is None and not any(one.client_bound for one in points):
        return None
    return ClientUse(
        capacity_per_s=records.client_capacity_per_s,
        lag_s=max(lags, default=None),
        # Requests that wait in the server: the server is the limit, and the client's limit of requests in flight is secondary.
        bottleneck=any(one.client_bound and one.server.get("mean_waiting", 0.0) < 1 for one in points),
    )


def _disaggregation(records: ServingRecords) -> Disaggregation | None:
    """Return transfers between prefill and decode workers; ``None`` where none are reported."""
    if records.disaggregated:
        return Disaggregation(
            "Dynamo request trace",
            records.disaggregated,
            describe_latency(np.array(records.transfers_s, np.float64)),
        )
    found = {name: _transfer_mean(records, f"sglang:kv_transfer_{name}") for name in _TRANSFER_UNITS}
    if all(value is None for value in found.values()):
        return None
    known = {name: value * _TRANSFER_UNITS[name] for name, value in found.items() if value is not None}
    latency = known.get("latency_ms")
    return Disaggregation(
        "SGLang metrics",
        transfer_s=LatencyStat(mean=latency) if latency is not None else None,
        bytes_per_s=known.get("speed_gb_s"),
        transfer_bytes=known.get("total_mb"),
        alloc_s=known.get("alloc_ms"),
        bootstrap_s=known.get("bootstrap_ms"),
    )


_TRANSFER_UNITS = {
    "latency_ms": 1e-3,
    "speed_gb_s": 1e9,
    "total_mb": 1e6,
    "alloc_ms": 1e-3,
    "bootstrap_ms": 1e-3,
}


def _transfer_mean(records: ServingRecords, name: str) -> float | None:
    """Return the mean of a metric during the samples: of a histogram by its sums, of a gauge over its values above zero."""
    total = count = 0.0
    values: list[float] = []
    for one in records.samples:
        sums, counts = (one.transfers.get(f"{name}_{part}") for part in ("sum", "count"))
        if sums is not None and counts is not None:
            known = np.flatnonzero(~np.isnan(sums) & ~np.isnan(counts))
            if len(known):
                first = known[0] if len(known) > 1 else None
                total += float(sums[known[-1]]) - (float(sums[first]) if first is not None else 0.0)
                count += float(counts[known[-1]]) - (float(counts[first]) if first is not None else 0.0)
        elif name in one.transfers:
            gauge = one.transfers[name]
            values += gauge[gauge > 0].tolist()
    if count > 0 and total >= 0:
        return total / count
    return float(np.mean(values)) if values else None


def _hit_ratio(records: ServingRecords) -> float | None:
    hits = queries = 0.0
    for one in records.samples:
        known = np.flatnonzero(~np.isnan(one.prefix_queries) & ~np.isnan(one.prefix_hits))
        if not len(known):
            continue
        first, last = known[0], known[-1]
        base = (0.0, 0.0) if first == last else (one.prefix_hits[first], one.prefix_queries[first])
        hits += max(float(one.prefix_hits[last] - base[0]), 0.0)
        queries += max(float(one.prefix_queries[last] - base[1]), 0.0)
    return hits / queries if queries > 0 else None


# The picture of the slowest request: steps of the engine, and requests in lanes.


def _draw_slowest(found: Analysed) -> dict[str, Any]:
    requests, steps, matches, parts = found.requests, found.steps, found.matches, found.parts
    if requests is None or steps is None or matches is None or parts is None or not matches.matched.any():
        return {}
    done = np.flatnonzero(matches.matched & requests.completed)
    row = int(done[np.argmax(found.ttft_s[done])])
    sent = requests.sent_s - matches.offset_s
    low, high = float(sent[row]), float(sent[row] + requests.ttft_s[row])
    margin = 0.15 * (high - low)
    low, high = low - margin, high + margin
    begin = steps.end_s - steps.duration_s
    shown = np.flatnonzero((steps.end_s > low) & (begin < high))[:_MOST_EVENTS]
    engine_events = [
        {
            "name": _step_name(steps, k),
            "start_s": float(max(begin[k] - low, 0.0)),
            "end_s": float(min(steps.end_s[k], high) - low),
            "family": _step_kind(steps, k),
        }
        for k in shown.tolist()
    ]
    overlapping = np.flatnonzero(
        matches.matched & (sent < high) & (sent + np.nan_to_num(requests.e2e_s, nan=0.0) > low)
    )
    # The slowest request first, then those that got their first token nearest to it.
    near = overlapping[
        np.argsort(np.abs(matches.first_step[overlapping] - matches.first_step[row]), kind="stable")
    ]
    chosen = [row, *(k for k in near.tolist() if k != row)][:_MOST_LANES]
    lanes: list[dict[str, Any]] = [{"name": "engine steps", "events": engine_events}]
    for k in chosen:
        made = float(steps.end_s[matches.first_step[k]])
        marks = [
            ("to the server and in its queue", float(sent[k]), float(parts.scheduled_s[k]), "queue"),
            ("prefill", float(parts.scheduled_s[k]), made, "prefill"),
            ("delivery", made, float(sent[k] + requests.ttft_s[k]), "network"),
            ("decode", float(sent[k] + requests.ttft_s[k]), float(sent[k] + requests.e2e_s[k]), "decode"),
        ]
        events = [
            {"name": name, "start_s": max(a, low) - low, "end_s": min(b, high) - low, "family": family}
            for name, a, b, family in marks
            if min(b, high) > max(a, low)
        ]
        lanes.append({"name": requests.id[k][:60] + (" (slowest)" if k == row else ""), "events": events})
    return {"phase": None, "span_s": high - low, "lanes": lanes}


def _step_kind(steps: Steps, row: int) -> str:
    if steps.prefill_requests[row] and steps.decode_requests[row]:
        return "mixed"
    return "prefill" if steps.prefill_requests[row] else "decode"


def _step_name(steps: Steps, row: int) -> str:
    return (
        f"{_step_kind(steps, row)}: {steps.prefill_requests[row]} prompts ({steps.prefill_tokens[row]} tokens), "
        f"{steps.decode_requests[row]} decodes"
    )
