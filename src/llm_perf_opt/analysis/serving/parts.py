"""Breakdown of a request's time: the parts of its TTFT and of its decode time.

Each instant belongs to one part, so that the parts of a request sum to what its client measured:

========================================  =====================================================================
scheduled → sent                          client
sent → arrival at the server              network
arrival → the scheduler's queue           what a running step does: decode or other_prefill; between the steps of
                                          running requests other; where the engine is idle network
in the scheduler's queue                  queue
scheduled → first token made              own_prefill, other_prefill, decode by share; between steps other
first token made → first token received   network
========================================  =====================================================================

A step with prompts and decodes is split: decode is what a step with the same number of decodes and no prompt takes (median), the
rest is shared by prompt tokens. Where too few such steps are known, all of it is shared by tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.serving.matching import Matches
from llm_perf_opt.captures.serving.records import Bool, Float64, Int64, Requests, Steps
from llm_perf_opt.core import units
from llm_perf_opt.summary.serving import PART_NAMES, SlowRequest, TimeParts

CLIENT, NETWORK, QUEUE, OWN, OTHER_PREFILL, DECODE, OTHER = range(len(PART_NAMES))
_LEAST_DECODE_STEPS = 5
_KV_FULL = 0.95
_SHOWN_CAUSE = 0.05
"""Causes of less than this share of a request's TTFT are not listed."""


@dataclass(slots=True, eq=False)
class RequestParts:
    """Parts of each request in seconds, in the order of ``PART_NAMES``."""

    ttft: Float64
    """(requests, parts)."""
    decode: Float64
    queued_s: Float64
    """When the request entered the scheduler's queue, on the server's clock."""
    scheduled_s: Float64
    preempted: Bool
    """Requests that lost their place after their first token."""


@dataclass(slots=True, eq=False)
class Timeline:
    """The steps of one engine without overlap, and running sums of what they did."""

    rows: Int64
    start_s: Float64
    end_s: Float64
    _time: Float64
    _prefill: Float64
    _decode: Float64
    _busy: Float64
    _host: Float64

    def prefill(self, low: Float64, high: Float64) -> Float64:
        """Seconds of prefill between two times."""
        return np.interp(high, self._time, self._prefill) - np.interp(low, self._time, self._prefill)

    def decode(self, low: Float64, high: Float64) -> Float64:
        """Seconds of decode between two times."""
        return np.interp(high, self._time, self._decode) - np.interp(low, self._time, self._decode)

    def gaps(self, low: Float64, high: Float64) -> Float64:
        """Seconds between two times in which no step ran."""
        busy = np.interp(high, self._time, self._busy) - np.interp(low, self._time, self._busy)
        return np.maximum(high - low - busy, 0.0)

    def host(self, low: Float64, high: Float64) -> Float64:
        """Seconds between two times in which no step ran although requests were running."""
        return np.interp(high, self._time, self._host) - np.interp(low, self._time, self._host)

    def next_start(self, at: Float64) -> Float64:
        """Start of the first step at or after a time: the scheduler admits new requests between steps."""
        place = np.searchsorted(self.start_s, at - 1e-9)
        return np.where(
            place < len(self.start_s), self.start_s[np.minimum(place, len(self.start_s) - 1)], np.inf
        )


def decode_seconds(steps: Steps) -> Float64:
    """Decode seconds of each step; the rest is prefill."""
    has_prefill, has_decode = steps.prefill_tokens > 0, steps.decode_requests > 0
    plain = has_decode & ~has_prefill
    tokens = np.maximum(steps.decode_tokens, steps.decode_requests)
    share = tokens / np.maximum(tokens + steps.prefill_tokens, 1)
    base = steps.duration_s * share
    bucket = np.floor(np.log2(np.maximum(steps.decode_requests, 1))).astype(np.int64)
    levels: list[tuple[float, float]] = []
    for value in np.unique(bucket[plain]).tolist():
        rows = plain & (bucket == value)
        if rows.sum() >= _LEAST_DECODE_STEPS:
            levels.append(
                (float(np.median(steps.decode_requests[rows])), float(np.median(steps.duration_s[rows])))
            )
    mixed = has_prefill & has_decode
    if levels and mixed.any():
        estimated = _along(np.array(levels), steps.decode_requests[mixed].astype(np.float64))
        base[mixed] = np.minimum(estimated, steps.duration_s[mixed])
    base[plain] = steps.duration_s[plain]
    base[~has_decode] = 0.0
    return base


def _along(levels: Float64, batch: Float64) -> Float64:
    """Time of a decode step of a batch size, on the line through the known ones; beyond the largest with its last slope."""
    known, times = levels[:, 0], levels[:, 1]
    found = np.interp(batch, known, times)
    if len(known) > 1:
        slope = max((times[-1] - times[-2]) / (known[-1] - known[-2]), 0.0)
        found = np.where(batch > known[-1], times[-1] + slope * (batch - known[-1]), found)
    return found


def build_timeline(steps: Steps, engine: int, decode_s: Float64) -> Timeline:
    """Make the steps of an engine sequential; if two overlap in the record, the later one is shortened at its start."""
    rows = np.flatnonzero(steps.engine == engine)
    end = np.maximum.accumulate(steps.end_s[rows])
    start = end - steps.duration_s[rows]
    start[1:] = np.maximum(start[1:], end[:-1])
    length = np.maximum(end - start, 0.0)
    share = decode_s[rows] / np.maximum(steps.duration_s[rows], 1e-12)
    time = np.column_stack((start, end)).ravel()

    def running_sum(values: Float64) -> Float64:
        after = np.cumsum(values)
        return np.column_stack((after - values, after)).ravel()

    before = np.concatenate(([0.0], np.maximum(start[1:] - end[:-1], 0.0)))
    waited = np.cumsum(np.where(steps.decode_requests[rows] > 0, before, 0.0))
    return Timeline(
        rows=rows,
        start_s=start,
        end_s=end,
        _time=time,
        _prefill=running_sum(length * (1 - share)),
        _decode=running_sum(length * share),
        _busy=running_sum(length),
        _host=np.repeat(waited, 2),
    )


def split_requests(
    requests: Requests,
    steps: Steps,
    matches: Matches,
    timelines: dict[int, Timeline],
    decode_s: Float64,
    client_s: Float64,
) -> RequestParts:
    """Split the TTFT and the decode time of every matched request; ``client_s``: the part of the TTFT before sending."""
    size = len(requests)
    found = RequestParts(
        ttft=np.zeros((size, len(PART_NAMES))),
        decode=np.zeros((size, len(PART_NAMES))),
        queued_s=np.full(size, np.nan),
        scheduled_s=np.full(size, np.nan),
        preempted=np.zeros(size, bool),
    )
    rows_all = np.flatnonzero(matches.matched)
    engine_of = steps.engine[matches.first_step[rows_all]]
    own_s = _own_prefill_seconds(steps, matches, timelines, decode_s, size)
    for engine, line in timelines.items():
        rows = rows_all[engine_of == engine]
        if len(rows):
            _split_ttft(requests, steps, matches, line, rows, own_s, found)
            _split_decode(requests, steps, matches, line, rows, decode_s, found)
    found.ttft[:, CLIENT] = client_s
    return found


def _own_prefill_seconds(
    steps: Steps, matches: Matches, timelines: dict[int, Timeline], decode_s: Float64, size: int
) -> Float64:
    """Seconds of each request's own prompt: its share of the tokens of each step × the prefill time of the step."""
    length = np.zeros(len(steps))
    for line in timelines.values():
        length[line.rows] = line.end_s - line.start_s
    prefill = length * (1 - decode_s / np.maximum(steps.duration_s, 1e-12))
    step = matches.own_step
    share = np.minimum(matches.own_tokens / np.maximum(steps.prefill_tokens[step], 1), 1.0)
    weights = prefill[step] * share
    return np.bincount(matches.own_request, weights=weights, minlength=size).astype(np.float64)


def _split_ttft(
    requests: Requests,
    steps: Steps,
    matches: Matches,
    line: Timeline,
    rows: Int64,
    own_s: Float64,
    found: RequestParts,
) -> None:
    sent = requests.sent_s[rows] - matches.offset_s
    received = sent + requests.ttft_s[rows]
    place = np.searchsorted(line.rows, matches.first_step[rows])
    made = np.clip(line.end_s[place], sent, received)
    stated = matches.prefill_s[rows]
    begun = _first_own_start(matches, line, rows, place)
    scheduled = np.where(np.isnan(stated), begun, made - stated)
    arrival = matches.arrival_s[rows]
    if np.isnan(arrival).any():
        usual = np.minimum(sent + _usual_way(steps, line, sent, scheduled), scheduled)
        arrival = np.where(np.isnan(arrival), usual, arrival)
    arrival = np.clip(arrival, sent, made)
    scheduled = np.clip(scheduled, arrival, made)
    queue = matches.queue_s[rows]
    boundary = np.minimum(line.next_start(arrival), scheduled)
    queued = np.where(np.isnan(queue), boundary, np.clip(scheduled - queue, arrival, scheduled))
    found.queued_s[rows], found.scheduled_s[rows] = queued, scheduled
    parts = np.zeros((len(rows), len(PART_NAMES)))
    host = line.host(arrival, queued)
    parts[:, NETWORK] = (arrival - sent) + line.gaps(arrival, queued) - host + (received - made)
    parts[:, QUEUE] = scheduled - queued
    prefill = line.prefill(scheduled, made)
    own = np.minimum(own_s[rows], prefill)
    parts[:, OWN] = own
    parts[:, OTHER_PREFILL] = line.prefill(arrival, queued) + prefill - own
    parts[:, DECODE] = line.decode(arrival, queued) + line.decode(scheduled, made)
    parts[:, OTHER] = line.gaps(scheduled, made) + host
    found.ttft[rows] = np.maximum(parts, 0.0)


def _usual_way(steps: Steps, line: Timeline, sent: Float64, scheduled: Float64) -> float:
    """Time from sending to the engine where arrivals are not recorded: the median for requests that an idle engine started at once."""
    place = np.minimum(np.searchsorted(line.start_s, scheduled - 1e-9), len(line.start_s) - 1)
    before = np.where(place > 0, line.end_s[np.maximum(place - 1, 0)], -np.inf)
    idle = (steps.decode_requests[line.rows[place]] == 0) & (before < sent)
    return float(np.median(np.maximum(scheduled - sent, 0.0)[idle])) if idle.any() else 0.0


def _first_own_start(matches: Matches, line: Timeline, rows: Int64, place: Int64) -> Float64:
    """Start of the first step that computed a part of each request's prompt."""
    earliest = np.full(int(matches.first_step.shape[0]), np.iinfo(np.int64).max)
    np.minimum.at(earliest, matches.own_request, matches.own_step)
    first = np.minimum(
        np.searchsorted(line.rows, np.minimum(earliest[rows], matches.first_step[rows])), place
    )
    return np.asarray(line.start_s[first], np.float64)


def _split_decode(
    requests: Requests,
    steps: Steps,
    matches: Matches,
    line: Timeline,
    rows: Int64,
    decode_s: Float64,
    found: RequestParts,
) -> None:
    counts = np.diff(requests.token_offset)[rows]
    ends = requests.token_offset[1:][rows] - 1
    has_tokens = counts > 0
    last_s = requests.e2e_s[rows].copy()
    if has_tokens.any():
        last_s[has_tokens] = requests.token_s[ends[has_tokens]]
    span = np.maximum(last_s - requests.ttft_s[rows], 0.0)
    span = np.where(np.isnan(span), 0.0, span)
    begin = line.end_s[np.searchsorted(line.rows, matches.first_step[rows])]
    known = matches.last_step[rows] >= 0
    last_place = np.minimum(
        np.searchsorted(line.rows, np.maximum(matches.last_step[rows], 0)), len(line.rows) - 1
    )
    made_last = np.where(known, line.end_s[last_place], begin + span)
    stop = np.clip(made_last, begin, begin + span)
    parts = np.zeros((len(rows), len(PART_NAMES)))
    parts[:, NETWORK] = span - (stop - begin)
    parts[:, OTHER_PREFILL] = line.prefill(begin, stop)
    parts[:, DECODE] = line.decode(begin, stop)
    parts[:, OTHER] = line.gaps(begin, stop)
    found.decode[rows] = parts
    for number, made_before, place, generated in _preemption_waits(requests, steps, matches, line, rows):
        row = rows[number]
        # The step that made the next token computed the prompt, and what was generated, again.
        again = int(line.rows[place])
        low, high = float(line.end_s[made_before]), float(line.start_s[place])
        tokens = float(max(requests.prompt_tokens[row], 0) + generated)
        share = min(tokens / max(float(steps.prefill_tokens[again]), 1.0), 1.0)
        length = float(line.end_s[place] - line.start_s[place])
        own = share * length * (1 - float(decode_s[again]) / max(float(steps.duration_s[again]), 1e-12))
        found.decode[row, OWN] += own
        found.decode[row, OTHER_PREFILL] -= own
        edges = np.array([low, max(high, low)])
        prefill, decode = line.prefill(edges[:1], edges[1:])[0], line.decode(edges[:1], edges[1:])[0]
        found.decode[row, QUEUE] += edges[1] - edges[0]
        found.decode[row, OTHER_PREFILL] -= prefill
        found.decode[row, DECODE] -= decode
        found.decode[row, OTHER] -= line.gaps(edges[:1], edges[1:])[0]
        found.preempted[row] = True
    found.decode[rows] = np.maximum(found.decode[rows], 0.0)


def _preemption_waits(
    requests: Requests, steps: Steps, matches: Matches, line: Timeline, rows: Int64
) -> list[tuple[int, int, int, int]]:
    """Waits of preempted requests: gaps between their tokens in which the engine preempted and then made several steps.

    Returns (place in ``rows``, place of the step that made the token before the gap, of the one that made that after it,
    tokens made before).
    """
    at = line.end_s[steps.preempted[line.rows] > 0]
    if not len(at):
        return []
    found = []
    typical = float(np.median(steps.duration_s[line.rows]))
    stated = (matches.preemptions[rows] >= 0).any()
    for number, row in enumerate(rows.tolist()):
        if stated and matches.preemptions[row] == 0:
            continue
        low, high = requests.token_offset[row], requests.token_offset[row + 1]
        times = requests.token_s[low:high] + requests.sent_s[row] - matches.offset_s
        if len(times) < 2:
            continue
        gaps = np.diff(times)
        often = int(matches.preemptions[row])
        long = (
            np.argsort(-gaps, kind="stable")[:often]
            if often > 0
            else np.flatnonzero(gaps > 4 * max(typical, float(np.median(gaps))))
        )
        for place in long.tolist():
            begin, stop = float(times[place]), float(times[place + 1])
            first, after = np.searchsorted(at, (begin - 2 * typical, stop))
            # The tokens around the gap were made by the last steps that ended before they were received.
            made = np.searchsorted(line.end_s, (begin + 1e-9, stop + 1e-9)) - 1
            if after > first and made[0] >= 0 and made[1] - made[0] >= (2 if often > 0 else 3):
                found.append((number, int(made[0]), int(made[1]), place + 1))
    return found


def mean_parts(parts: Float64, mask: Bool, *, undecided: Float64 | None = None) -> TimeParts | None:
    """Means over the chosen requests; ``undecided``: seconds of unmatched requests, counted as other."""
    if not mask.any():
        return None
    means = parts[mask].mean(axis=0)
    if undecided is not None:
        means[OTHER] += undecided[mask].mean()
    return TimeParts(**{name: float(value) for name, value in zip(PART_NAMES, means, strict=True)})


# The slowest requests and the requests that delayed them.


def slowest_requests(
    requests: Requests,
    steps: Steps | None,
    matches: Matches | None,
    parts: RequestParts | None,
    ttft: Float64,
    *,
    most: int = 5,
) -> list[SlowRequest]:
    """Return the requests with the longest TTFT and what each waited for, the largest cause first."""
    done = np.flatnonzero(requests.completed)
    order = done[np.argsort(-ttft[done], kind="stable")][:most]
    found = []
    for row in order.tolist():
        slow = SlowRequest(requests.id[row][:200], int(requests.load[row]), float(ttft[row]))
        if steps is not None and matches is not None and parts is not None and matches.matched[row]:
            slow.parts_s = TimeParts(
                **{name: float(value) for name, value in zip(PART_NAMES, parts.ttft[row], strict=True)}
            )
            slow.delayed_by = _causes(row, requests, steps, matches, parts, float(ttft[row]))
        found.append(slow)
    return found


def _causes(
    row: int, requests: Requests, steps: Steps, matches: Matches, parts: RequestParts, ttft: float
) -> list[str]:
    values = parts.ttft[row]
    texts = {
        CLIENT: "the client sent it late",
        NETWORK: "network, HTTP server and tokenising",
        QUEUE: _describe_queue(row, steps, matches, parts),
        OWN: f"its own prompt of {requests.prompt_tokens[row]} tokens"
        if requests.prompt_tokens[row] >= 0
        else "its own prompt",
        OTHER_PREFILL: f"prompts of {_others(row, requests, steps, matches, parts)}",
        DECODE: "decode steps of other requests",
        OTHER: "time between steps",
    }
    order = np.argsort(-values, kind="stable").tolist()
    return [
        f"{texts[k]}: {units.seconds(float(values[k]))}" for k in order if values[k] > _SHOWN_CAUSE * ttft
    ]


def _window(row: int, steps: Steps, matches: Matches, low: float, high: float) -> Int64:
    engine = steps.engine[matches.first_step[row]]
    first, after = np.searchsorted(steps.end_s, (low, high + 1e-9))
    rows = np.arange(first, min(after + 1, len(steps)))
    return np.asarray(rows[steps.engine[rows] == engine], np.int64)


def _describe_queue(row: int, steps: Steps, matches: Matches, parts: RequestParts) -> str:
    rows = _window(row, steps, matches, float(parts.queued_s[row]), float(parts.scheduled_s[row]))
    if not len(rows):
        return "the scheduler's queue"
    kv = steps.kv_ratio[rows]
    if (kv >= _KV_FULL).mean() > 0.5:
        return f"the scheduler's queue (KV cache full, {units.percent(float(np.nanmax(kv)))})"
    most = int(steps.running.max())
    if most > 0 and (steps.running[rows] >= most).mean() > 0.5:
        return f"the scheduler's queue (batch limit, {most} running)"
    tokens = int(steps.prefill_tokens[rows].sum())
    return f"the scheduler's queue behind {tokens} prompt tokens" if tokens else "the scheduler's queue"


def _others(row: int, requests: Requests, steps: Steps, matches: Matches, parts: RequestParts) -> str:
    """Name the requests whose prompts were computed while this one waited for its first token."""
    sent = float(requests.sent_s[row]) - matches.offset_s
    rows = _window(row, steps, matches, sent, float(steps.end_s[matches.first_step[row]]))
    if not len(rows):
        return "other requests"
    inside = (matches.own_step >= rows[0]) & (matches.own_step <= rows[-1]) & (matches.own_request != row)
    if not inside.any():
        return f"other requests ({int(steps.prefill_tokens[rows].sum())} tokens)"
    tokens = np.bincount(matches.own_request[inside], weights=matches.own_tokens[inside])
    order = np.argsort(-tokens, kind="stable")
    order = order[tokens[order] > 0]
    named = [f"{requests.id[k][:80]} ({tokens[k]:.0f} tokens)" for k in order[:3].tolist()]
    more = len(order) - len(named)
    return " and ".join(filter(None, (", ".join(named), f"{more} more" if more > 0 else "")))


def occupancy_of(
    steps: Steps | None, samples: Sequence[tuple[Float64, Float64, Float64, Float64]], most: int = 400
) -> list[tuple[float, float | None, float | None, float | None]]:
    """(Seconds, running, waiting, KV usage) over time, thinned; from the steps, else from samples of ``/metrics``."""
    if steps is not None and steps.is_placed and (steps.running >= 0).any():
        running = np.where(steps.running >= 0, steps.running, np.nan).astype(np.float64)
        waiting = np.where(steps.waiting >= 0, steps.waiting, np.nan).astype(np.float64)
        columns = (steps.end_s, running, waiting, steps.kv_ratio)
    elif samples:
        columns = max(samples, key=lambda one: len(one[0]))
    else:
        return []
    time = columns[0]
    keep = ~np.isnan(time)
    picked = np.flatnonzero(keep)[:: max(1, -(-int(keep.sum()) // most))]
    if not len(picked):
        return []
    start = float(time[picked[0]])

    def value(column: Float64, row: int) -> float | None:
        return None if np.isnan(column[row]) or column[row] < 0 else float(column[row])

    return [
        (
            max(float(time[row]) - start, 0.0),
            value(columns[1], row),
            value(columns[2], row),
            value(columns[3], row),
        )
        for row in picked.tolist()
    ]
