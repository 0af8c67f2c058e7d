"""Latency at each load point: percentiles with intervals, goodput under limits, failures listed separately, and the knee."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np

from llm_perf_opt.captures.serving.records import (
    CANCELLED,
    OK,
    STATUS_NAMES,
    Bool,
    Float64,
    Int64,
    LoadRecord,
    Requests,
    is_late,
)
from llm_perf_opt.core import units
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.limits import MOST_SECONDS
from llm_perf_opt.summary.serving import Knee, LatencyStat, LoadPoint

_SLO_NAMES = ("ttft", "tpot", "itl", "e2e")
_SLO = re.compile(r"(?P<name>\w+):(?P<value>\d+(?:\.\d+)?|\.\d+)(?P<unit>us|ms|s|)")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}
_CONFIDENCE = 0.95
_KNEE_SLOWDOWN = 3.0
"""A load is beyond the knee when its median or p99 TTFT is this many times that of the lightest load."""
_KNEE_SUSTAINED = 0.9
"""… or when fewer than this share of the offered requests are completed per second."""
_CONTRADICTION = 1.25
_LEAST_SPAN_S = 1e-6
"""A shorter measurement is none."""
_BLOCKS, _LEAST_PER_BLOCK = 10, 10
_SEVERAL_TOKENS = 1.1
"""Tokens per chunk from which gaps are also given per token."""


def parse_slo(text: str) -> dict[str, float]:
    """Parse ``ttft:500ms,tpot:50ms``; raises :class:`ConfigError` that names the mistake."""
    found: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = _SLO.fullmatch(part)
        if match is None or match["name"] not in _SLO_NAMES:
            raise ConfigError(
                f"--slo {part!r} is not NAME:TIME",
                hint=f"for example ttft:500ms,tpot:50ms; names: {', '.join(_SLO_NAMES)}",
            )
        value = float(match["value"]) * _UNITS[match["unit"]]
        if not 0 < value <= MOST_SECONDS:
            raise ConfigError(f"--slo {part!r}: the limit must be more than 0 and at most a week")
        found[match["name"]] = value
    if not found:
        raise ConfigError("--slo is empty", hint="for example ttft:500ms,tpot:50ms")
    return found


def describe_latency(values: Float64) -> LatencyStat | None:
    """Return percentiles of values (interpolated as NumPy and the load tools do), with an interval of the p99."""
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return None
    p50, p90, p95, p99 = (float(value) for value in np.quantile(known, (0.5, 0.9, 0.95, 0.99)))
    low, high = quantile_ranks(len(known), 0.99)
    return LatencyStat(
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        mean=float(known.mean()),
        n=len(known),
        p99_low=float(known[low - 1]) if low is not None else None,
        p99_high=float(known[high - 1]) if high is not None else None,
    )


def quantile_ranks(n: int, q: float, confidence: float = _CONFIDENCE) -> tuple[int | None, int | None]:
    """Return the ranks (from 1) of the order statistics that enclose a quantile; ``None``: no such value exists.

    The number of values below the quantile is binomial (n, q). An end is ``None`` where even the extreme value is not outside
    with enough confidence: for the upper end of a p99 below 368 values.
    """
    tail = (1 - confidence) / 2
    if n < 1:
        return None, None
    if n * q * (1 - q) > 50:  # the normal approximation is sufficiently exact, and fast
        spread = NormalDist().inv_cdf(1 - tail) * math.sqrt(n * q * (1 - q))
        return max(1, math.floor(n * q - spread)), min(n, math.ceil(n * q + spread) + 1)
    cumulative = 0.0
    low: int | None = None
    high: int | None = None
    log_q, log_p = math.log(q), math.log1p(-q)
    for k in range(n + 1):
        log_mass = (
            math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * log_q + (n - k) * log_p
        )
        before = cumulative
        cumulative += math.exp(log_mass)
        if before <= tail and k >= 1:
            low = k
        if high is None and cumulative >= 1 - tail and k + 1 <= n:
            high = k + 1
    return low, high


# One load point from its requests.


def _tpot_of(requests: Requests) -> Float64:
    """Time per output token of each request: (last − first token) ÷ (tokens − 1), else as reported by its tool."""
    counts = np.diff(requests.token_offset)
    last = np.where(
        counts > 0,
        requests.token_s[np.maximum(requests.token_offset[1:] - 1, 0)] if len(requests.token_s) else 0.0,
        np.nan,
    )
    last = np.where(np.isnan(last), requests.e2e_s, last)
    steps = requests.output_tokens - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        computed = np.where(steps > 0, (last - requests.ttft_s) / np.maximum(steps, 1), np.nan)
    computed = np.where(computed >= 0, computed, np.nan)
    return np.where(np.isnan(requests.tpot_s), computed, requests.tpot_s)


def _gaps_of(requests: Requests, mask: Bool) -> Float64:
    """All gaps between two chunks of the chosen requests."""
    if len(requests.token_s) < 2:
        return np.empty(0)
    gaps = np.diff(requests.token_s)
    inside = np.ones(len(gaps), bool)
    inner = requests.token_offset[1:-1]
    inside[inner[(inner > 0) & (inner <= len(gaps))] - 1] = False
    owner = np.repeat(np.arange(len(requests)), np.diff(requests.token_offset))[:-1]
    return gaps[inside & mask[owner]]


def _token_gaps(requests: Requests, done: Bool) -> LatencyStat | None:
    """Return the gaps per token where chunks hold several: a gap before three tokens is not the latency of one."""
    chunks = np.diff(requests.token_offset)
    known = done & (chunks > 1) & (requests.output_tokens > 1)
    if not known.any() or requests.output_tokens[known].sum() < _SEVERAL_TOKENS * chunks[known].sum():
        return None
    tokens = np.where(known, (requests.output_tokens - 1) / np.maximum(chunks - 1, 1), 1.0)
    gaps = [_gaps_of(requests, np.arange(len(chunks)) == row) / tokens[row] for row in np.flatnonzero(known)]
    return describe_latency(np.concatenate(gaps))


def _late_by(requests: Requests) -> Float64:
    """How late each request was sent; never negative."""
    return np.maximum(requests.sent_s - requests.scheduled_s, 0.0)


def total_ttft(requests: Requests, loads: Sequence[LoadRecord]) -> Float64:
    """TTFT as reported: from the scheduled time of sending where the record has it, else from sending."""
    from_schedule = np.array([one.from_schedule for one in loads] or [False])[requests.load]
    late = _late_by(requests)
    return requests.ttft_s + np.where(from_schedule & ~np.isnan(late), late, 0.0)


def load_points(
    loads: Sequence[LoadRecord], requests: Requests | None, slo: Mapping[str, float]
) -> list[LoadPoint]:
    """Return every load point: computed from its requests where they are kept, else as reported by its tool."""
    points = []
    for number, load in enumerate(loads):
        chosen = requests.load == number if requests is not None else np.zeros(0, bool)
        if load.point.seconds is not None and load.point.seconds < _LEAST_SPAN_S:
            load.point.seconds = None
        if requests is not None and chosen.any():
            _fill_from_requests(load, requests, chosen, slo)
        elif (
            slo and load.point.goodput_per_s is None and load.point.requests is not None and load.point.ttft_s
        ):
            load.point.notes.append("No goodput: the record keeps percentiles, not single requests.")
        _check_consistency(load.point)
        _mark_small_samples(load.point)
        point = load.point
        first = point.ttft_s.p99 if point.ttft_s is not None else None
        if point.kind != "closed" and is_late(point.lag_s, first) and not point.client_bound:
            point.client_bound = True
            point.notes.append(
                f"The client sent late (99th percentile {units.seconds(point.lag_s)}), so this is not the requested load"
                + (
                    "."
                    if load.from_schedule
                    else ", and latencies that begin at sending leave that wait out."
                )
            )
        point.is_complete = load.is_complete
        if not load.is_complete:
            point.notes.append(
                f"The measurement did not finish ({load.incomplete_reason or 'is_complete is false'}): not to be compared."
            )
        points.append(point)
    return points


def _fill_from_requests(load: LoadRecord, requests: Requests, chosen: Bool, slo: Mapping[str, float]) -> None:
    point = load.point
    done = chosen & requests.completed
    late = _late_by(requests)
    shift = np.where(np.isnan(late), 0.0, late) if load.from_schedule else np.zeros(len(requests))
    ttft, e2e = requests.ttft_s + shift, requests.e2e_s + shift
    tpot = _tpot_of(requests)
    stated = point.ttft_s
    point.requests = int(chosen.sum())
    point.completed = int(done.sum())
    point.failures = {
        STATUS_NAMES[code]: int(count)
        for code in range(1, len(STATUS_NAMES))
        if (count := (requests.status[chosen] == code).sum())
    }
    empty = int((chosen & (requests.status == OK) & ~done).sum())
    if empty:
        point.failures["error"] = point.failures.get("error", 0) + empty
    point.failed = point.requests - point.completed - point.failures.get(STATUS_NAMES[CANCELLED], 0)
    point.ttft_s = describe_latency(ttft[done])
    point.tpot_s = describe_latency(tpot[done])
    point.itl_s = describe_latency(_gaps_of(requests, done))
    point.token_itl_s = _token_gaps(requests, done)
    point.e2e_s = describe_latency(e2e[done])
    if not np.isnan(requests.answer_ttft_s[done]).all():
        answer = np.where(np.isnan(requests.answer_ttft_s), requests.ttft_s, requests.answer_ttft_s) + shift
        point.answer_ttft_s = describe_latency(answer[done])
    point.prompt_tokens = _mean_count(requests.prompt_tokens[done])
    point.output_tokens = _mean_count(requests.output_tokens[done])
    cached, prompt = requests.cached_tokens[done], requests.prompt_tokens[done]
    known = (cached >= 0) & (prompt > 0)
    if known.any() and prompt[known].sum():
        point.cached_ratio = float(min(cached[known].sum() / prompt[known].sum(), 1.0))
    if not np.isnan(late[chosen]).all():
        point.lag_s = float(np.nanquantile(late[chosen], 0.99))
    _fill_rates(point, requests, chosen, done)
    if slo:
        _fill_goodput(point, slo, ttft[done], tpot[done], _longest_gap(requests)[done], e2e[done])
    point.blocks = _blocks(requests, np.flatnonzero(chosen), {"ttft": ttft, "tpot": tpot, "e2e": e2e}, slo)
    _compare_with_stated(point, stated)


def _blocks(
    requests: Requests, rows: Int64, latencies: Mapping[str, Float64], slo: Mapping[str, float]
) -> dict[str, list[float]]:
    """Return metrics of each tenth of the requests: the variation within one measurement limits what can be compared."""
    rows = rows[requests.completed[rows]]
    rows = rows[np.argsort(requests.sent_s[rows], kind="stable")]
    if len(rows) < _BLOCKS * _LEAST_PER_BLOCK:
        return {}
    found: dict[str, list[float]] = {}
    for part in np.array_split(rows, _BLOCKS):
        for name, values in latencies.items():
            known = values[part][~np.isnan(values[part])]
            if len(known):
                found.setdefault(f"{name}_p50", []).append(float(np.quantile(known, 0.5)))
                found.setdefault(f"{name}_p99", []).append(float(np.quantile(known, 0.99)))
        sent = requests.sent_s[part]
        span = float(sent[-1] - sent[0])
        if slo and span >= _LEAST_SPAN_S:
            good = np.ones(len(part), bool)
            for name, values in latencies.items():
                if name in slo:
                    good &= np.isnan(values[part]) | (values[part] <= slo[name])
            found.setdefault("goodput", []).append(float(good.sum()) / span)
    return {name: values for name, values in found.items() if len(values) == _BLOCKS}


def _mean_count(values: Int64) -> float | None:
    known = values[values >= 0]
    return float(known.mean()) if len(known) else None


def _longest_gap(requests: Requests) -> Float64:
    """Longest gap between chunks of each request; NaN without any."""
    found = np.full(len(requests), np.nan)
    counts = np.diff(requests.token_offset)
    rows = np.flatnonzero(counts > 1)
    if len(rows):
        gaps = np.append(np.diff(requests.token_s), 0.0)
        gaps[requests.token_offset[1:][counts > 0] - 1] = 0.0
        found[rows] = np.maximum.reduceat(gaps, requests.token_offset[rows])
    return found


def _fill_rates(point: LoadPoint, requests: Requests, chosen: Bool, done: Bool) -> None:
    sent = requests.sent_s[chosen]
    ends = (requests.sent_s + requests.e2e_s)[chosen]
    if not np.isnan(sent).all() and not np.isnan(ends).all():
        span = float(np.nanmax(ends) - np.nanmin(sent))
        if _LEAST_SPAN_S <= span <= MOST_SECONDS:
            point.seconds = point.seconds or span
            if point.concurrency is None:
                point.concurrency = float(np.nansum(requests.e2e_s[done]) / span)
        sending = float(np.nanmax(sent) - np.nanmin(sent))
        if not np.isnan(requests.scheduled_s[chosen]).any() and point.kind == "open" and len(sent) > 1:
            offered = float(np.ptp(requests.scheduled_s[chosen]))
            point.offered_per_s = (len(sent) - 1) / offered if offered >= _LEAST_SPAN_S else None
        if point.rate_per_s is None and point.kind != "closed" and sending >= _LEAST_SPAN_S and len(sent) > 1:
            point.rate_per_s = (len(sent) - 1) / sending
    if point.seconds:
        point.completed_per_s = (point.completed or 0) / point.seconds
        tokens = requests.output_tokens[done]
        if len(tokens) and (tokens >= 0).all():
            point.tokens_per_s = float(tokens.sum() / point.seconds)


def _fill_goodput(
    point: LoadPoint, slo: Mapping[str, float], ttft: Float64, tpot: Float64, itl: Float64, e2e: Float64
) -> None:
    """Count what met every limit. A request of one token has no TPOT and meets that limit."""
    good = np.ones(len(ttft), bool)
    for name, values in (("ttft", ttft), ("tpot", tpot), ("itl", itl), ("e2e", e2e)):
        if name in slo:
            good &= np.isnan(values) | (values <= slo[name])
    point.slo = dict(slo)
    point.goodput_per_s = float(good.sum() / point.seconds) if point.seconds else None


def _compare_with_stated(point: LoadPoint, stated: LatencyStat | None) -> None:
    ours = point.ttft_s
    if stated is None or ours is None or stated.mean is None or ours.mean is None:
        return
    if abs(ours.mean - stated.mean) > max(0.01 * stated.mean, 1e-4):
        point.notes.append(
            f"Mean TTFT of the requests is {units.seconds(ours.mean)}; the tool states {units.seconds(stated.mean)}."
        )


def _check_consistency(point: LoadPoint) -> None:
    """Replace a TPOT that contradicts E2E, TTFT and the number of tokens: it counts something else (chunks)."""
    if point.tpot_s is None or point.ttft_s is None or point.e2e_s is None or point.output_tokens is None:
        return
    stated, first, whole = point.tpot_s.mean, point.ttft_s.mean, point.e2e_s.mean
    if not stated or first is None or whole is None or point.output_tokens <= 1.5 or whole <= first:
        return
    computed = (whole - first) / (point.output_tokens - 1)
    if max(stated / computed, computed / stated) > _CONTRADICTION and point.tool in (
        "inference-perf",
        "genai-perf",
    ):
        point.notes.append(
            f"The file's time per output token ({units.seconds(stated)}) contradicts its own latencies: (E2E − TTFT) ÷ (tokens − 1) "
            f"= {units.seconds(computed)}. It counts chunks, not tokens: the computed mean is used, and no ITL."
        )
        point.tpot_s, point.itl_s = LatencyStat(mean=computed, n=point.completed), None


def _mark_small_samples(point: LoadPoint) -> None:
    stat = point.ttft_s
    if stat is None or stat.n is None or stat.p99 is None or not 0 < stat.n < 100:
        return
    point.notes.append(
        f"The p99 of {stat.n} requests is their maximum (100 are needed for more); it has no upper limit."
    )


# The knee: the highest load that is sustained.


def find_knee(points: Sequence[LoadPoint]) -> Knee | None:
    """Return the highest load before latency or throughput degrades; ``None`` without two loads to compare."""
    measured = [one for one in points if one.ttft_s is not None and one.ttft_s.p50 and one.completed]
    opened = [one for one in measured if one.kind != "closed" and one.rate_per_s]
    closed = [one for one in measured if one.kind == "closed" and one.concurrency]
    if len({one.rate_per_s for one in opened}) > 1:
        return _open_knee(sorted(opened, key=lambda one: one.rate_per_s or 0.0))
    if len({one.concurrency for one in closed}) > 1:
        return _closed_knee(sorted(closed, key=lambda one: one.concurrency or 0.0))
    return None


def _open_knee(points: Sequence[LoadPoint]) -> Knee:
    for number, point in enumerate(points):
        reason = _beyond(point, points[0]) if number or not _sustains(point) else None
        if reason is None:
            continue
        if number == 0:
            return Knee(None, f"Even the lightest load, {_rate(point)}, is beyond the knee: {reason}.")
        before = points[number - 1]
        return Knee(before.rate_per_s, f"Sustained; at {_rate(point)} {reason}.")
    return Knee(
        None,
        f"No load up to {_rate(points[-1])} is beyond the knee: the server keeps up, and TTFT stays below "
        f"{_KNEE_SLOWDOWN:g} times that of the lightest load.",
    )


def _rate(point: LoadPoint) -> str:
    return f"{units.number(point.rate_per_s)} requests/s"


def _sustains(point: LoadPoint) -> bool:
    if point.completed_per_s is None or point.rate_per_s is None or point.e2e_s is None or not point.seconds:
        return True
    # The last answers arrive after the last request was sent, so a short measurement completes less than was offered.
    tail = point.e2e_s.p99 or point.e2e_s.mean or 0.0
    expected = (
        (point.offered_per_s or point.rate_per_s)
        * max(point.seconds - tail, 0.5 * point.seconds)
        / point.seconds
    )
    return point.completed_per_s >= _KNEE_SUSTAINED * expected


def _beyond(point: LoadPoint, lightest: LoadPoint) -> str | None:
    if not _sustains(point):
        return f"only {units.number(point.completed_per_s)} requests/s are completed"
    if point.client_bound and not lightest.client_bound:
        return f"the client sends up to {units.seconds(point.lag_s)} late"
    for name in ("p50", "p99"):
        before = getattr(lightest.ttft_s, name)
        now = getattr(point.ttft_s, name)
        if before and now and now > _KNEE_SLOWDOWN * before:
            label = "median" if name == "p50" else "p99"
            return f"the {label} TTFT is {units.seconds(now)}, {now / before:.1f} times that of the lightest load"
    return None


def _closed_knee(points: Sequence[LoadPoint]) -> Knee:
    """Return the knee of a closed loop: where throughput stops growing with the number of requests in flight."""
    for before, after in itertools.pairwise(points):
        if (
            not before.completed_per_s
            or not after.completed_per_s
            or not before.concurrency
            or not after.concurrency
        ):
            continue
        grown = after.completed_per_s / before.completed_per_s - 1
        added = after.concurrency / before.concurrency - 1
        if grown < 0.1 * added:
            return Knee(
                before.completed_per_s,
                f"With {units.number(after.concurrency)} requests in flight instead of {units.number(before.concurrency)} the "
                f"throughput changes by {100 * grown:+.0f} %.",
                before.concurrency,
            )
    return Knee(None, f"Throughput still grows at {units.number(points[-1].concurrency)} requests in flight.")
