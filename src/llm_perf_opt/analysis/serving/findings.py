"""What limits a server under load: rules that report only what they have evidence for; gains are upper bounds per request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llm_perf_opt.analysis.serving.section import Analysed
from llm_perf_opt.captures.serving.records import Bool, Steps
from llm_perf_opt.core import units
from llm_perf_opt.summary import Finding
from llm_perf_opt.summary.serving import LoadPoint, TimeParts

_OPTIONS: dict[str, dict[str, str]] = {
    "queue": {
        "vllm": "More replicas (`--data-parallel-size`), or more prompt tokens per step (`--max-num-batched-tokens`).",
        "sglang": "More replicas (`--dp-size`), or more prompt tokens per step (`--chunked-prefill-size`, `--max-prefill-tokens`).",
    },
    "batch-limit": {
        "vllm": "Raise `--max-num-seqs`: the batch is at its limit while the KV cache has room.",
        "sglang": "Raise `--max-running-requests`: the batch is at its limit while the KV cache has room.",
    },
    "small-batches": {
        "vllm": "Let more requests into a step: `--max-num-seqs`, `--max-num-batched-tokens`.",
        "sglang": "Let more requests into a step: `--max-running-requests`, and a lower `--schedule-conservativeness` while the KV cache "
        "has room.",
        "transformers": "Let requests join a running batch: `--continuous-batching`, with more `--cb-num-blocks` and "
        "`--cb-max-batch-tokens`.",
    },
    "kv-full": {
        "vllm": "Make room in the KV cache: `--gpu-memory-utilization`, `--kv-cache-dtype fp8`, `--tensor-parallel-size`, "
        "or a shorter `--max-model-len`.",
        "sglang": "Make room in the KV cache: `--mem-fraction-static`, `--kv-cache-dtype fp8_e5m2`, `--tp-size`.",
    },
    "preemption": {
        "vllm": "Admit fewer requests (`--max-num-seqs`) or make room in the KV cache (`--gpu-memory-utilization`, "
        "`--kv-cache-dtype fp8`): a preempted request is computed again.",
        "sglang": "Raise `--schedule-conservativeness`, or make room in the KV cache (`--mem-fraction-static`).",
    },
    "prefill": {
        "vllm": "Smaller chunks (`--enable-chunked-prefill` with a smaller `--max-num-batched-tokens`), a limit for long prompts "
        "(`--long-prefill-token-threshold`), or prefill on servers of its own.",
        "sglang": "Smaller chunks (`--chunked-prefill-size`, `--enable-mixed-chunk`), or prefill on servers of its own "
        "(`--disaggregation-mode`).",
    },
    "host": {
        "vllm": "Let the host prepare the next step while the device works (`--async-scheduling`), capture graphs (no "
        "`--enforce-eager`), more API servers (`--api-server-count`), and CPU cores for the engine.",
        "sglang": "Keep the overlap scheduler and graphs on (no `--disable-overlap-schedule`, no `--disable-cuda-graph`), "
        "`--num-continuous-decode-steps`, and CPU cores for the scheduler.",
    },
    "front-end": {
        "vllm": "More API servers (`--api-server-count`), CPU cores of their own for them, and a client on a near network.",
        "sglang": "More tokenizer workers (`--tokenizer-worker-num`), CPU cores of their own for them, and a client on a near network.",
    },
    "speculation": {
        "vllm": "Draft fewer tokens (`num_speculative_tokens` in `--speculative-config`), or leave speculation out at this load.",
        "sglang": "Draft fewer tokens (`--speculative-num-draft-tokens`), or leave speculation out at this load.",
    },
    "prefix": {
        "vllm": "`--enable-prefix-caching`, and requests with a common prefix to the same replica.",
        "sglang": "Keep the radix cache on (no `--disable-radix-cache`), and route by prefix (`sglang-router`).",
    },
}
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "transformers": "transformers serve"}
_SHARE = 0.15
"""A part of less than this share of the latency it is in is not worth a finding."""
_LEAST_S = 0.005
_KV_FULL = 0.95
_KV_ROOM = 0.7
_GAPS = 0.15
_FAILED = 0.01
_FIXED_SHARE = 0.5
"""A decode step whose time is at least to this share independent of the batch has room for more requests."""
_FEW_REQUESTS: dict[Literal["low", "medium"], int] = {"low": 5, "medium": 20}
"""With fewer completed requests than this, a finding has at most this confidence: one unusual request decides the means."""
_TEMPLATE_TOKENS, _TEMPLATE_SHARE = 32, 0.3
"""A chat template that adds at least so many tokens, and at least this share of the prompt, is named."""
Rule = Callable[[Analysed, "Point"], list[Finding]]


class Point:
    """A load point with its means, as used by rules."""

    def __init__(self, found: Analysed, place: int) -> None:
        self.place = place
        self.load: LoadPoint = found.serving.load[place]
        self.completed = self.load.completed if self.load.completed is not None else self.load.requests or 0
        self.ttft = (self.load.ttft_s.mean if self.load.ttft_s else None) or 0.0
        whole = self.load.e2e_s.mean if self.load.e2e_s else None
        self.e2e = max(whole or 0.0, self.ttft)
        self.first: TimeParts = self.load.ttft_parts_s or TimeParts()
        self.rest: TimeParts = self.load.decode_parts_s or TimeParts()
        self.rows: Bool = (
            found.requests.completed & (found.requests.load == place)
            if found.requests is not None
            else np.zeros(0, bool)
        )

    @property
    def name(self) -> str:
        """The load as text."""
        if self.load.kind == "closed" and self.load.concurrency:
            return f"{units.number(self.load.concurrency)} requests in flight"
        return f"{units.number(self.load.rate_per_s)} requests/s" if self.load.rate_per_s else "this load"


def find_serving(found: Analysed) -> list[Finding]:
    """Apply every rule at every load point; of each finding, the load point where it costs most is kept."""
    best: dict[str, Finding] = {}
    for place, load in enumerate(found.serving.load):
        if load.requests is None and load.completed is None:
            continue
        point = Point(found, place)
        # Requests that wait in the server show that it is saturated, even where the client sent late.
        late: tuple[Rule, ...] = (_failures, _find_overload if _waiting(load) else _client)
        rules = late if load.client_bound else (*_RULES, _failures)
        for rule in rules:
            for finding in rule(found, point):
                held = best.get(finding.id)
                if held is None or (finding.gain_upper_s or 0.0) > (held.gain_upper_s or 0.0):
                    best[finding.id] = finding
    return sorted(best.values(), key=lambda one: (-(one.gain_upper_s or 0.0), one.id))


def _finding(
    name: str,
    title: str,
    point: Point,
    gain_s: float | None,
    of_s: float,
    of: str,
    evidence: list[str],
    arithmetic: str,
    advice: str,
    *,
    phase: str | None = None,
    confidence: Literal["high", "medium", "low"] = "high",
    of_completed: bool = True,
) -> Finding:
    few = next((least for least, number in _FEW_REQUESTS.items() if point.completed < number), None)
    if of_completed and few is not None and (few == "low" or confidence == "high"):
        confidence = few
        evidence = [*evidence, f"only {point.completed} completed requests"]
    return Finding(
        id=f"serving-{name}",
        title=title,
        phase=phase,
        evidence=[f"at {point.name}", *evidence],
        gain_upper_s=gain_s,
        arithmetic=arithmetic,
        advice=advice,
        confidence=confidence,
        gain_share_ratio=min(gain_s / of_s, 1.0) if gain_s is not None and of_s > 0 else None,
        gain_of=of,
    )


def _advice(found: Analysed, name: str) -> str:
    options = _OPTIONS[name]
    engine = (found.serving.engine or "").lower()
    known = next((options[one] for one in options if one in engine), None)
    return known or " ".join(f"{_ENGINES[one]}: {text}" for one, text in options.items())


def _matters(seconds: float | None, of: float, share: float = _SHARE) -> bool:
    return seconds is not None and seconds >= _LEAST_S and of > 0 and seconds >= share * of


# Waiting in the scheduler's queue.


def _steps_of(found: Analysed, point: Point) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows of the steps during a load point."""
    steps, requests, matches = found.steps, found.requests, found.matches
    if steps is None or requests is None or matches is None or not point.rows.any():
        return np.empty(0, np.int64)
    sent = requests.sent_s[point.rows] - matches.offset_s
    end = sent + np.nan_to_num(requests.e2e_s[point.rows], nan=0.0)
    return np.flatnonzero((steps.end_s >= sent.min()) & (steps.end_s <= end.max()))


def _find_queue(found: Analysed, point: Point) -> list[Finding]:
    steps, rows = found.steps, _steps_of(found, point)
    queue = point.first.queue
    again = (point.rest.queue or 0.0) + (point.rest.own_prefill or 0.0)
    preempted = int(steps.preempted[rows].sum()) if steps is not None and len(rows) else 0
    completed = max(point.load.completed or 0, 1)
    findings: list[Finding] = []
    kv_full = _kv_full_ratio(steps, rows)
    thrash = preempted >= max(1.0, 0.02 * completed)
    if thrash and steps is not None:
        unknown = bool(np.isnan(steps.kv_ratio[rows]).all())
        others = _recomputed_ratio(found, rows) * (point.rest.other_prefill or 0.0)
        gain = again + others + ((queue or 0.0) if kv_full > 0.3 or unknown else 0.0)
        if _matters(gain, point.e2e, 0.03):
            findings.append(
                _finding(
                    "preemption",
                    "Requests are preempted: the KV cache is too small for the batch",
                    point,
                    gain,
                    point.e2e,
                    "the mean latency of a request",
                    [
                        f"{preempted} preemptions, {completed} completed requests",
                        f"KV cache usage up to {units.percent(_most_kv(steps, rows))}",
                        f"preempted requests wait {units.seconds(point.rest.queue)} and are computed again for "
                        f"{units.seconds(point.rest.own_prefill)} (mean over all requests)",
                    ],
                    f"{units.seconds(again)} of waiting and recomputing + {units.seconds(others)} while others are recomputed"
                    + (
                        f" + {units.seconds(queue)} in the queue of a full cache"
                        if gain > again + others
                        else ""
                    ),
                    _advice(found, "preemption"),
                )
            )
    if not _matters(queue, point.ttft) or queue is None:
        return findings + _find_overload(found, point)
    evidence = [
        f"{units.seconds(queue)} of the mean TTFT of {units.seconds(point.ttft)} in the scheduler's queue"
    ]
    if steps is not None and len(rows):
        evidence.append(
            f"up to {int(steps.waiting[rows].max())} requests waiting, {int(steps.running[rows].max())} running"
        )
    name, title = _queue_cause(found, rows, kv_full)
    if findings and (name == "kv-full" or (steps is not None and np.isnan(steps.kv_ratio[rows]).all())):
        return findings
    knee = found.serving.knee
    if (
        knee is not None
        and knee.rate_per_s
        and point.load.rate_per_s
        and point.load.rate_per_s > knee.rate_per_s
    ):
        evidence.append(f"beyond the knee at {units.number(knee.rate_per_s)} requests/s")
    if name == "prefill":
        return findings
    batching = _small_batches(steps, rows) if name in ("queue", "batch-limit") else None
    if batching is not None:
        evidence += batching.describe()
        if name == "queue" and _matters(min(queue, batching.gain_ratio * point.e2e), point.e2e):
            return [*findings, _small_batch_finding(found, point, queue, batching, evidence)]
    findings.append(
        _finding(
            name,
            title,
            point,
            queue,
            point.ttft,
            "the mean TTFT",
            evidence,
            f"mean queue time {units.seconds(queue)} ÷ mean TTFT {units.seconds(point.ttft)}",
            _advice(found, name),
        )
    )
    return findings


@dataclass(frozen=True, slots=True)
class _Batching:
    """Decode steps while requests wait, and what a larger batch would cost: step time = fixed + per request × batch."""

    batch: float
    possible: float
    """Requests that could be in a step: all in flight, as far as the KV cache has room."""
    fixed_s: float
    request_s: float

    def step_s(self, batch: float) -> float:
        return self.fixed_s + self.request_s * batch

    @property
    def gain_ratio(self) -> float:
        """Share of the latency that steps with all possible requests would save, with the same number in flight (Little's law)."""
        return 1 - (self.batch / self.possible) * self.step_s(self.possible) / self.step_s(self.batch)

    def describe(self) -> list[str]:
        now, then = self.step_s(self.batch), self.step_s(self.possible)
        return [
            f"decode steps have {units.number(self.batch)} requests (mean while others wait), {units.number(self.possible)} were there "
            "and fit the KV cache",
            f"{units.seconds(self.fixed_s)} of a decode step of {units.seconds(now)} do not depend on the batch; with "
            f"{units.number(self.possible)} requests a step takes {units.seconds(then)} (line through the measured batch sizes)",
        ]


def _small_batches(steps: Steps | None, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> _Batching | None:
    """Return how decode steps are filled while requests wait; ``None`` if a larger batch is not shown to be cheaper per request."""
    if steps is None or not len(rows) or len(np.unique(steps.engine[rows])) > 1:
        return None
    plain = rows[(steps.prefill_requests[rows] == 0) & (steps.decode_requests[rows] > 0)]
    if len(plain) < 20 or steps.duration_s[plain].sum() < 0.5 * steps.duration_s[rows].sum():
        return None
    size, counts = np.unique(steps.decode_requests[plain], return_counts=True)
    size, counts = size[counts >= 3], counts[counts >= 3]
    if len(size) < 2:
        return None
    median = [float(np.median(steps.duration_s[plain][steps.decode_requests[plain] == one])) for one in size]
    slope, fixed = np.polyfit(size, median, 1, w=np.sqrt(counts))
    slope = max(float(slope), 0.0)
    fixed = float(np.average(np.array(median) - slope * size, weights=counts))
    waiting = plain[(steps.waiting[plain] > 0) & (steps.running[plain] >= 0)]
    if len(waiting) < 20:
        return None
    took = steps.duration_s[waiting]
    batch = float(np.average(steps.decode_requests[waiting], weights=took))
    present = float(np.average(steps.running[waiting] + steps.waiting[waiting], weights=took))
    kv = _most_kv(steps, rows)
    found = _Batching(batch, min(present, batch / kv) if kv else present, fixed, slope)
    if found.possible < 1.5 * batch or fixed < _FIXED_SHARE * found.step_s(batch):
        return None
    return found


def _small_batch_finding(
    found: Analysed, point: Point, queue: float, batching: _Batching, evidence: list[str]
) -> Finding:
    gain = min(queue, batching.gain_ratio * point.e2e)
    return _finding(
        "small-batches",
        "Batches are too small: requests wait although a larger step would take hardly longer",
        point,
        gain,
        point.e2e,
        "the mean latency of a request",
        evidence,
        f"{units.percent(batching.gain_ratio)} of the mean latency of {units.seconds(point.e2e)} (the same requests in flight, "
        f"{units.number(batching.possible)} per step), at most the queue time of {units.seconds(queue)}",
        _advice(found, "small-batches"),
        confidence="medium",
    )


def _recomputed_ratio(found: Analysed, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """Share of the prompt tokens of the steps that no prompt needed: preempted requests that are computed again."""
    steps, matches = found.steps, found.matches
    if steps is None or matches is None or not len(rows):
        return 0.0
    total = float(steps.prefill_tokens[rows].sum())
    needed = float(matches.own_tokens[np.isin(matches.own_step, rows)].sum())
    return max(0.0, 1.0 - needed / total) if total > 0 and matches.matched.mean() > 0.9 else 0.0


def _kv_full_ratio(steps: Steps | None, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """Share of the steps with waiting requests in which the KV cache was full."""
    if steps is None or not len(rows):
        return 0.0
    waiting = rows[steps.waiting[rows] > 0]
    return float((steps.kv_ratio[waiting] >= _KV_FULL).mean()) if len(waiting) else 0.0


def _most_kv(steps: Steps, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float | None:
    values = steps.kv_ratio[rows]
    return float(np.nanmax(values)) if len(values) and not np.isnan(values).all() else None


def _queue_cause(
    found: Analysed, rows: np.ndarray[tuple[int], np.dtype[np.int64]], kv_full: float
) -> tuple[str, str]:
    steps = found.steps
    if kv_full > 0.5:
        return "kv-full", "Requests wait for room in the KV cache"
    if steps is not None and len(rows):
        waiting = rows[steps.waiting[rows] > 0]
        most, kv = int(steps.running[rows].max()), _most_kv(steps, rows)
        # Requests leave with a step and others enter with the next, so "at the limit" means at most one below it.
        room = len(waiting) > 0 and most > 0 and kv is not None and kv < _KV_ROOM
        if room and (steps.running[waiting] >= most - max(1, most // 20)).mean() > 0.7:
            return "batch-limit", f"The batch is limited to {most} requests while others wait"
        if len(waiting):
            # A queue that comes and goes with prompts is interference by prompts; a persistent one is overload.
            span = steps.duration_s[rows].sum()
            if (steps.prefill_tokens[waiting] > 0).mean() > 0.7 and steps.duration_s[
                waiting
            ].sum() < 0.5 * span:
                return "prefill", "Requests wait until the prompts of others are computed"
    return "queue", "Requests queue: more arrive than the server can serve"


def _waiting(load: LoadPoint) -> bool:
    return load.server.get("mean_waiting", 0.0) >= 1


def _saturated_batch(found: Analysed) -> list[str]:
    """Requests that decode at once at every load with waiting requests (Little's law), where that number does not grow."""
    held = []
    for load in found.serving.load:
        whole, first = (load.e2e_s.mean if load.e2e_s else None), (load.ttft_s.mean if load.ttft_s else None)
        if _waiting(load) and load.completed_per_s and whole is not None and first is not None:
            held.append((load, load.completed_per_s * (whole - first)))
    batches = [batch for _, batch in held]
    if len(held) < 2 or min(batches) < 2 or max(batches) > 1.3 * min(batches):
        return []
    done = [load.completed_per_s or 0.0 for load, _ in held]
    return [
        f"{units.number(min(done))} to {units.number(max(done))} requests/s are completed at all {len(held)} loads with waiting "
        f"requests, {units.number(min(batches))} to {units.number(max(batches))} decoding at once (throughput × time after the "
        "first token): the batch does not grow with the load"
    ]


def _find_overload(found: Analysed, point: Point) -> list[Finding]:
    """Report a load point beyond the knee without parts, using the server's own metrics."""
    knee, load = found.serving.knee, point.load
    if point.load.ttft_parts_s is not None or knee is None or not knee.rate_per_s or not load.rate_per_s:
        return []
    if load.rate_per_s <= knee.rate_per_s or load.kind == "closed":
        return []
    lightest = min(
        (one for one in found.serving.load if one.rate_per_s and one.ttft_s is not None and one.ttft_s.mean),
        key=lambda one: one.rate_per_s or 0.0,
    )
    base = (lightest.ttft_s.mean if lightest.ttft_s else None) or 0.0
    gain = point.ttft - base
    if not _matters(gain, point.ttft):
        return []
    waiting, kv = load.server.get("mean_waiting"), load.server.get("kv_usage_ratio")
    evidence = [
        f"mean TTFT {units.seconds(point.ttft)}, {units.seconds(base)} at {units.number(lightest.rate_per_s)} requests/s"
    ]
    if waiting is not None:
        evidence.append(f"{units.number(waiting)} requests wait in the server (mean)")
    if kv:
        evidence.append(f"KV cache usage {units.percent(kv)} (mean)")
    if load.client_bound:
        evidence.append(
            f"the client sent up to {units.seconds(load.lag_s)} late (its limit of requests in flight); that wait is not in the TTFT"
        )
    evidence += _saturated_batch(found)
    limited = waiting is not None and waiting > 0 and kv is not None and 0 < kv < 0.5
    name = "batch-limit" if limited else "queue"
    title = (
        "Requests queue while the KV cache is nearly empty: the batch is limited"
        if limited
        else "Requests queue: more arrive than the server can serve"
    )
    return [
        _finding(
            name,
            title,
            point,
            gain,
            point.ttft,
            "the mean TTFT",
            evidence,
            f"{units.seconds(point.ttft)} − {units.seconds(base)} of the lightest load",
            _advice(found, name),
            confidence="medium",
        )
    ]


# Other requests' prompts, the host, the way to the engine, the client.


def _find_prefill(found: Analysed, point: Point) -> list[Finding]:
    first, rest = point.first.other_prefill, point.rest.other_prefill
    if first is None or rest is None:
        return []
    rows = _steps_of(found, point)
    if found.steps is not None and found.steps.preempted[rows].any():
        rest *= 1.0 - _recomputed_ratio(found, rows)
    itl = point.load.itl_s
    spikes = itl is not None and bool(itl.p99) and bool(itl.p50) and (itl.p99 or 0.0) > 3 * (itl.p50 or 0.0)
    queue = point.first.queue or 0.0
    behind = (
        queue
        if queue and _queue_cause(found, rows, _kv_full_ratio(found.steps, rows))[0] == "prefill"
        else 0.0
    )
    in_ttft = _matters(first + behind, point.ttft, 0.25)
    # Prompts in nearly every step lengthen the median gap as well: no spikes then.
    in_decode = _matters(rest, point.e2e - point.ttft, 0.2 if spikes else 0.5)
    if not in_ttft and not in_decode:
        return []
    gain = (first if in_ttft else 0.0) + (rest if in_decode else 0.0) + behind
    evidence = [
        f"{units.seconds(first)} of the mean TTFT of {units.seconds(point.ttft)}",
        f"{units.seconds(rest)} of the {units.seconds(point.e2e - point.ttft)} from the first to the last token",
    ]
    if behind:
        evidence.append(f"{units.seconds(behind)} in the queue while prompts of others filled the steps")
    if spikes and itl is not None:
        evidence.append(f"gaps between tokens: median {units.seconds(itl.p50)}, p99 {units.seconds(itl.p99)}")
    return [
        _finding(
            "prefill",
            "Prompts of other requests delay first tokens and stall decodes",
            point,
            gain,
            point.e2e,
            "the mean latency of a request",
            evidence,
            "prefill of other requests while this one waited, in steps shared by tokens",
            _advice(found, "prefill"),
        )
    ]


def _find_host(found: Analysed, point: Point) -> list[Finding]:
    steps = found.serving.steps
    first, rest = point.first.other, point.rest.other
    if steps is None or steps.gap_ratio is None or steps.gap_ratio < _GAPS or first is None or rest is None:
        return []
    coverage = point.load.parts_coverage_ratio or 0.0
    gain = first + rest
    if coverage < 0.9 or not _matters(gain, point.e2e, 0.1):
        return []
    return [
        _finding(
            "host",
            "The engine pauses between steps: the host is the limit",
            point,
            gain,
            point.e2e,
            "the mean latency of a request",
            [
                f"{units.percent(steps.gap_ratio)} of the time with running requests is between steps",
                f"gap between steps: median {units.seconds(steps.gap_s.p50 if steps.gap_s else None)}, step: median "
                f"{units.seconds(steps.duration_s.p50 if steps.duration_s else None)}",
            ],
            "time between steps while the request was running",
            _advice(found, "host"),
            phase=None,
        )
    ]


def _find_stalls(found: Analysed, point: Point) -> list[Finding]:
    """Single decode steps that take many times as long as others of their batch size."""
    steps, rows, requests, matches = found.steps, _steps_of(found, point), found.requests, found.matches
    if steps is None or requests is None or matches is None or len(rows) < 20:
        return []
    plain = rows[(steps.prefill_requests[rows] == 0) & (steps.decode_requests[rows] > 0)]
    bucket = np.floor(np.log2(np.maximum(steps.decode_requests[plain], 1)))
    excess = np.zeros(len(plain))
    for value in np.unique(bucket):
        own = bucket == value
        median = float(np.median(steps.duration_s[plain][own]))
        over = steps.duration_s[plain][own] - median
        excess[own] = np.where(over > max(5 * median, 0.05), over, 0.0)
    if not excess.any() or (excess > 0).mean() > 0.1:
        return []
    running = np.concatenate(([0.0], np.cumsum(excess)))
    sent = requests.sent_s[point.rows] - matches.offset_s
    end = sent + np.nan_to_num(requests.e2e_s[point.rows], nan=0.0)
    low, high = np.searchsorted(steps.end_s[plain], sent), np.searchsorted(steps.end_s[plain], end)
    gain = float((running[high] - running[low]).mean())
    if not _matters(gain, point.e2e, 0.1):
        return []
    return [
        _finding(
            "stalls",
            "Single decode steps stall",
            point,
            gain,
            point.e2e,
            "the mean latency of a request",
            [
                f"{int((excess > 0).sum())} of {len(plain)} decode steps take more than five times the median of their batch size",
                f"the longest {units.seconds(float(steps.duration_s[plain].max()))}",
            ],
            "time of such steps beyond the median, mean over the requests that were running",
            "Look at what else runs at those times: compilation or graph capture of a new shape, garbage collection, other "
            "processes on the CPU, power or clock limits (`llm-perf-opt doctor`, a profile of such a step).",
            confidence="medium",
        )
    ]


def _find_front_end(found: Analysed, point: Point) -> list[Finding]:
    network = point.first.network
    if network is None or not _matters(network, point.ttft, 0.35) or network < 0.02:
        return []
    unsure = (found.serving.clock_uncertainty_s or 0.0) > network
    return [
        _finding(
            "front-end",
            "Requests take long to reach the engine and back",
            point,
            network,
            point.ttft,
            "the mean TTFT",
            [
                f"{units.seconds(network)} of the mean TTFT of {units.seconds(point.ttft)} outside the engine, which was not busy "
                "with others then",
                f"clock uncertainty {units.seconds(found.serving.clock_uncertainty_s)}",
            ],
            "network, HTTP server, tokenising and delivery of the first token",
            _advice(found, "front-end"),
            confidence="low" if unsure else "medium",
        )
    ]


def _client(found: Analysed, point: Point) -> list[Finding]:
    load, client = point.load, point.first.client
    lag = load.lag_s or 0.0
    late = client if client else lag
    if not load.client_bound or not _matters(late, point.ttft or late, 0.1):
        return []
    evidence = [f"requests are sent up to {units.seconds(lag)} late (99th percentile)"]
    advice = (
        "Give the client more processes or connections, or CPU cores of its own, and measure this load again."
    )
    return [
        _finding(
            "client",
            "The load client does not keep its schedule",
            point,
            late if client else None,
            max(point.ttft, late),
            "the mean TTFT",
            [*evidence, "this load point is left out of other conclusions"],
            "sent − scheduled",
            advice,
        )
    ]


def _failures(found: Analysed, point: Point) -> list[Finding]:
    load = point.load
    total, failed = load.requests or 0, load.failed or 0
    if not total or failed < max(1, _FAILED * total):
        return []
    kinds = ", ".join(f"{count} {name}" for name, count in load.failures.items()) or f"{failed} failed"
    advice = "Look at the server's log for these requests; latencies are of completed requests only, so they look better than they are."
    if load.failures.get("rejected"):
        advice = "The server rejects load (429): offer less, raise its limit, or add replicas. " + advice
    return [
        _finding(
            "failures",
            f"{units.percent(failed / total)} of the requests failed",
            point,
            None,
            1.0,
            "the requests",
            [f"{failed} of {total} requests: {kinds}"],
            f"{failed} ÷ {total}",
            advice,
            of_completed=False,
        )
    ]


def _find_prefix_misses(found: Analysed, point: Point) -> list[Finding]:
    hit, own = found.hit_ratio, point.first.own_prefill
    if (
        hit is None
        or hit >= 0.05
        or not _matters(own, point.ttft, 0.4)
        or (point.load.prompt_tokens or 0.0) < 512
    ):
        return []
    return [
        _finding(
            "prefix",
            "The prefix cache is rarely hit",
            point,
            own,
            point.ttft,
            "the mean TTFT",
            [
                f"{units.percent(hit)} of the prompt tokens looked up were cached",
                f"prompts have {units.number(point.load.prompt_tokens)} tokens (mean)",
            ],
            "own prefill; how much of it is shared with other prompts is not known",
            _advice(found, "prefix"),
            confidence="low",
        )
    ]


def _find_speculation(found: Analysed, point: Point) -> list[Finding]:
    """Verifying drafts costs more than it saves at the batch size of this load."""
    held = found.serving.speculation
    rest = point.e2e - point.ttft
    if held is None or held.position_s is None or held.step_s is None or not held.batch or rest <= 0:
        return []
    # At the lower end of the cost of a position it must still not pay.
    low = max(held.position_low_s or 0.0, 0.0)
    drafted = 1 + (held.draft_length or 0.0)
    ratio = (
        held.accepted_length * (held.step_s + low * held.batch) / (held.step_s + low * held.batch * drafted)
    )
    if ratio >= 1 or held.speedup_ratio is None:
        return []
    gain = (1 - held.speedup_ratio) * rest
    if not _matters(gain, point.e2e, 0.05):
        return []
    return [
        _finding(
            "speculation",
            "Speculative decoding costs more than it saves at this batch size",
            point,
            gain,
            point.e2e,
            "the mean latency of a request",
            [
                f"{units.number(held.accepted_length)} tokens per verification of {units.number(drafted)} positions",
                f"a verified position costs {units.seconds(held.position_s)}, a step {units.seconds(held.step_s)} without any",
                f"{units.number(held.batch)} requests per step; break-even at {units.number(held.break_even_batch)}",
            ],
            "(1 − tokens per second with ÷ without drafts, by the fitted step times) × time after the first token",
            _advice(found, "speculation"),
            phase="decode",
            confidence="medium",
        )
    ]


def _find_template(found: Analysed, point: Point) -> list[Finding]:
    """The chat template adds more tokens than the messages have."""
    sent, counted, own = point.load.planned_prompt_tokens, point.load.prompt_tokens, point.first.own_prefill
    if not sent or not counted or counted - sent < max(_TEMPLATE_TOKENS, _TEMPLATE_SHARE * counted):
        return []
    added = counted - sent
    gain = own * added / counted if own is not None else None
    if gain is not None and not _matters(gain, point.ttft, 0.05):
        return []
    return [
        _finding(
            "template",
            f"The chat template adds {units.number(added)} tokens to every prompt",
            point,
            gain,
            point.ttft,
            "the mean TTFT",
            [f"{units.number(sent)} tokens per message are sent, the server counts {units.number(counted)}"],
            f"own prefill × {units.number(added)} ÷ {units.number(counted)} tokens",
            "Shorten the default system prompt or tool descriptions of the chat template (`--chat-template`); with a prefix cache the "
            "part that all prompts share is computed once.",
            confidence="medium",
        )
    ]


_RULES: tuple[Rule, ...] = (
    _find_template,
    _find_queue,
    _find_prefill,
    _find_host,
    _find_stalls,
    _find_front_end,
    _find_prefix_misses,
    _find_speculation,
)
