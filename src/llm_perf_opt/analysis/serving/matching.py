"""Which step made the first token of which request: by ids where the engine gives them, else by time, order and counts.

The clocks of client and server may differ. A token cannot arrive before its step ended, and a request cannot reach the server
before it was sent: both bound the clock offset from each side, and half the distance of the bounds is its uncertainty.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from llm_perf_opt.captures.serving.records import Bool, Finished, Float64, Int64, Requests, Steps
from llm_perf_opt.core import units

_NO_STEP = -1
_SAME_ARRIVAL_S = 2e-3
_MOST_DISAGREEMENT_S = 0.25
_LATE_RECORDS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_PREFIX = re.compile(r"^(?:cmpl|chatcmpl|resp|req|request)-")
_SUFFIX = re.compile(r"-\d{1,3}$|-\d{1,3}-[0-9a-f]{8}$|-[0-9a-f]{8}$")


@dataclass(slots=True, eq=False)
class Matches:
    """For each request its place among the steps; times are on the server's clock."""

    first_step: Int64
    """Step that made the first token; −1: not matched."""
    last_step: Int64
    """Step that made the last token, where the engine names it; −1: not known."""
    arrival_s: Float64
    """At the server; NaN: not recorded."""
    queue_s: Float64
    """In the scheduler's queue, as the engine states it; NaN: not stated."""
    prefill_s: Float64
    """From being scheduled to the first token, as the engine states it; NaN: not stated."""
    cached_tokens: Int64
    preemptions: Int64
    """−1: not stated."""
    own_step: Int64
    """Prefill steps of requests: rows of (step, request, prompt tokens)."""
    own_request: Int64
    own_tokens: Float64
    offset_s: float = 0.0
    """Client clock − server clock."""
    uncertainty_s: float | None = None
    by_id: int = 0
    """Requests that were matched by their id."""
    notes: list[str] = field(default_factory=list)

    @property
    def matched(self) -> Bool:
        """Requests whose first token has a step."""
        return self.first_step >= 0


def merge_steps(tables: Sequence[Steps]) -> Steps | None:
    """Return the steps of all files in time order; files without a clock are used only if no file has one."""
    placed = [one for one in tables if one.is_placed]
    chosen = placed or list(tables[:1])
    if not chosen:
        return None
    if len(chosen) == 1:
        return chosen[0]
    end = np.concatenate([one.end_s for one in chosen])
    order = np.argsort(end, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    bases = np.cumsum([0, *(len(one) for one in chosen)])[:-1]

    def joined(name: str) -> npt.NDArray[np.float64]:
        return np.concatenate([getattr(one, name) for one in chosen])[order]

    def rows(name: str) -> Int64:
        parts = [getattr(one, name) + base for one, base in zip(chosen, bases, strict=True)]
        return place[np.concatenate(parts).astype(np.int64)]

    # Each file is a separate engine unless its lines state otherwise.
    numbers = [one.engine for one in chosen]
    if len({int(value) for each in numbers for value in np.unique(each)}) < len(chosen):
        numbers = [np.full(len(one), index, np.int32) for index, one in enumerate(chosen)]
    ends = [one.finished for one in chosen]

    def ended(name: str) -> npt.NDArray[np.float64]:
        return np.concatenate([getattr(one, name) for one in ends])

    return Steps(
        engine=np.concatenate(numbers)[order],
        end_s=end[order],
        duration_s=joined("duration_s"),
        kv_ratio=joined("kv_ratio"),
        prefill_requests=joined("prefill_requests").astype(np.int64),
        prefill_tokens=joined("prefill_tokens").astype(np.int64),
        decode_requests=joined("decode_requests").astype(np.int64),
        decode_tokens=joined("decode_tokens").astype(np.int64),
        running=joined("running").astype(np.int64),
        waiting=joined("waiting").astype(np.int64),
        preempted=joined("preempted").astype(np.int64),
        cached_tokens=joined("cached_tokens").astype(np.int64),
        first_tokens=joined("first_tokens").astype(np.int64),
        wait_step=rows("wait_step"),
        wait_s=np.concatenate([one.wait_s for one in chosen]),
        member_step=rows("member_step"),
        member_id=[name for one in chosen for name in one.member_id],
        member_tokens=np.concatenate([one.member_tokens for one in chosen]),
        spec_step=rows("spec_step"),
        spec_counts=np.concatenate([one.spec_counts for one in chosen]),
        finished=Finished(
            id=[name for one in ends for name in one.id],
            step=place[
                np.concatenate([one.step + base for one, base in zip(ends, bases, strict=True)]).astype(
                    np.int64
                )
            ],
            e2e_s=ended("e2e_s"),
            queue_s=ended("queue_s"),
            prefill_s=ended("prefill_s"),
            decode_s=ended("decode_s"),
            prompt_tokens=ended("prompt_tokens").astype(np.int64),
            cached_tokens=ended("cached_tokens").astype(np.int64),
            output_tokens=ended("output_tokens").astype(np.int64),
            preemptions=ended("preemptions").astype(np.int64),
        ),
    )


def match_requests(requests: Requests, steps: Steps) -> Matches:
    """Match the first tokens of completed requests to steps; what cannot be decided stays unmatched."""
    size = len(requests)
    found = Matches(
        first_step=np.full(size, _NO_STEP),
        last_step=np.full(size, _NO_STEP),
        arrival_s=np.full(size, np.nan),
        queue_s=requests.server_queue_s.copy(),
        prefill_s=requests.server_prefill_s.copy(),
        cached_tokens=requests.cached_tokens.copy(),
        preemptions=np.full(size, -1),
        own_step=np.empty(0, np.int64),
        own_request=np.empty(0, np.int64),
        own_tokens=np.empty(0, np.float64),
    )
    usable = requests.completed & ~np.isnan(requests.sent_s)
    if not usable.any() or not steps.is_placed:
        return found
    known = _known_ids(requests)
    slot_step, slot_arrival = _first_token_slots(steps)
    free = np.ones(len(slot_step), bool)
    _match_members(requests, steps, known, found, free, slot_step)
    _match_finished(steps, known, found, free, slot_step, slot_arrival)
    found.first_step[~usable] = _NO_STEP
    found.by_id = int(found.matched.sum())
    _match_by_time(requests, steps, usable, found, free, slot_step, slot_arrival)
    _estimate_clock(requests, steps, found)
    _assign_prompts(requests, steps, found)
    return found


# By id.


def _known_ids(requests: Requests) -> dict[str, int]:
    """Every form in which a request's id may come back → its row; an ambiguous form is left out."""
    found: dict[str, int] = {}
    ambiguous: set[str] = set()
    for row, name in enumerate(requests.id):
        for form in _forms(name):
            if found.setdefault(form, row) != row:
                ambiguous.add(form)
    for form in ambiguous:
        del found[form]
    return found


def _forms(name: str) -> tuple[str, ...]:
    """The id, and without the prefix of servers (``cmpl-``)."""
    bare = _PREFIX.sub("", name)
    return (name,) if bare == name else (name, bare)


def _row_of(name: str, known: dict[str, int]) -> int:
    """Row of the request that the engine calls ``name``: vLLM adds the prefix ``cmpl-`` and the suffix ``-0`` to the client's id."""
    for _ in range(3):
        for form in _forms(name):
            if form in known:
                return known[form]
        shorter = _SUFFIX.sub("", name)
        if shorter == name:
            break
        name = shorter
    return _NO_STEP


def _match_members(
    requests: Requests, steps: Steps, known: dict[str, int], found: Matches, free: Bool, slot_step: Int64
) -> None:
    """Steps that name their requests: the first token is made by the step that completes the prompt."""
    if not steps.member_id:
        return
    cache: dict[str, int] = {}
    rows = np.array(
        [cache[n] if n in cache else cache.setdefault(n, _row_of(n, known)) for n in steps.member_id],
        np.int64,
    )
    own = rows >= 0
    prefill = np.flatnonzero(own & (steps.member_tokens > 0))
    prefill = prefill[np.lexsort((steps.member_step[prefill], rows[prefill]))]
    owner, tokens = rows[prefill], steps.member_tokens[prefill].astype(np.float64)
    done = np.cumsum(tokens)
    begins = np.concatenate(([True], owner[1:] != owner[:-1])) if len(owner) else np.zeros(0, bool)
    before = np.maximum.accumulate(np.where(begins, done - tokens, 0.0))
    need = np.maximum(requests.prompt_tokens - np.maximum(requests.cached_tokens, 0), 1)[owner]
    # Prompt tokens after the whole prompt belong to a preempted request that is recomputed.
    first = prefill[done - before - tokens < need - 0.5]
    np.maximum.at(found.first_step, rows[first], steps.member_step[first])
    np.maximum.at(found.last_step, rows[own], steps.member_step[own])
    found.own_step = steps.member_step[first]
    found.own_request = rows[first]
    found.own_tokens = steps.member_tokens[first].astype(np.float64)
    for step in found.first_step[found.matched].tolist():
        _take_slot(step, free, slot_step)


def _take_slot(step: int, free: Bool, slot_step: Int64) -> None:
    low, high = np.searchsorted(slot_step, (step, step + 1))
    place = low + int(np.argmax(free[low:high])) if high > low else -1
    if place >= 0 and free[place]:
        free[place] = False


def _match_finished(
    steps: Steps, known: dict[str, int], found: Matches, free: Bool, slot_step: Int64, slot_arrival: Float64
) -> None:
    """Requests that the engine names when they finish: arrival = end − E2E identifies their first token."""
    ended = steps.finished
    by_arrival = np.argsort(slot_arrival, kind="stable")
    arrivals = slot_arrival[by_arrival]
    for place, name in enumerate(ended.id):
        row = _row_of(name, known)
        if row < 0:
            continue
        _take_statement(steps, ended, place, row, found)
        if found.first_step[row] >= 0:
            continue
        slot = _nearest(arrivals, float(found.arrival_s[row]))
        last = int(ended.step[place])
        if slot >= 0 and free[by_arrival[slot]]:
            found.first_step[row] = slot_step[by_arrival[slot]]
            free[by_arrival[slot]] = False
        elif not np.isnan(ended.decode_s[place]):
            first = _prefill_near(steps, steps.end_s[last] - ended.decode_s[place], last)
            found.first_step[row] = first
            if first >= 0:
                _take_slot(first, free, slot_step)


def _take_statement(steps: Steps, ended: Finished, place: int, row: int, found: Matches) -> None:
    """Copy what the engine reports about a finished request."""
    last = int(ended.step[place])
    found.last_step[row] = last
    found.arrival_s[row] = steps.end_s[last] - ended.e2e_s[place]
    for target, value in ((found.queue_s, ended.queue_s[place]), (found.prefill_s, ended.prefill_s[place])):
        if not np.isnan(value):
            target[row] = value
    for counts, count in (
        (found.preemptions, ended.preemptions[place]),
        (found.cached_tokens, ended.cached_tokens[place]),
    ):
        if count >= 0:
            counts[row] = count


def _nearest(ordered: Float64, value: float) -> int:
    """Return the index of the closest value (within the allowed difference of two records of one arrival); −1 for none."""
    if not len(ordered) or value != value:
        return -1
    place = int(np.searchsorted(ordered, value))
    choices = [
        k for k in (place - 1, place) if 0 <= k < len(ordered) and abs(ordered[k] - value) <= _SAME_ARRIVAL_S
    ]
    return min(choices, key=lambda k: abs(float(ordered[k]) - value), default=-1)


def _prefill_near(steps: Steps, end_s: float, last: int) -> int:
    rows = np.flatnonzero(steps.prefill_requests[: last + 1] > 0)
    if not len(rows):
        return _NO_STEP
    best = int(rows[np.argmin(np.abs(steps.end_s[rows] - end_s))])
    return (
        best if abs(float(steps.end_s[best]) - end_s) <= max(0.1, float(steps.duration_s[best])) else _NO_STEP
    )


# By time, order and counts.


def _first_token_slots(steps: Steps) -> tuple[Int64, Float64]:
    """Return the slots for first tokens, in the order of the steps: (step, arrival of the request where recorded)."""
    if (steps.first_tokens >= 0).all() and len(steps.wait_s):
        order = np.lexsort((-steps.wait_s, steps.wait_step))
        step = steps.wait_step[order]
        return step, steps.end_s[step] - steps.wait_s[order]
    counts = np.where(steps.first_tokens >= 0, steps.first_tokens, steps.prefill_requests)
    step = np.repeat(np.arange(len(steps)), np.maximum(counts, 0))
    return step, np.full(len(step), np.nan)


def _match_by_time(
    requests: Requests,
    steps: Steps,
    usable: Bool,
    found: Matches,
    free: Bool,
    slot_step: Int64,
    slot_arrival: Float64,
) -> None:
    rows = np.flatnonzero(usable & ~found.matched)
    slots = np.flatnonzero(free)
    if not len(rows) or not len(slots):
        return
    order = np.argsort(requests.sent_s[rows] + requests.ttft_s[rows], kind="stable")
    rows = rows[order]

    def best_of(offsets: Sequence[float]) -> _Pairs | None:
        pairs = [_pair(requests, steps, rows, slots, slot_step, slot_arrival, one) for one in offsets]
        return max(pairs, key=lambda one: one.rank(len(rows)), default=None)

    offsets = _rough_offsets(requests, steps, found, rows, slot_step[slots])
    best = best_of(offsets)
    if best is not None and best.consistent < 0.98 * len(rows):
        # Records that are placed by when they were received or logged lie slightly after the tokens of their step.
        best = best_of([offset - late for offset in offsets for late in (0.0, *_LATE_RECORDS_S)])
    if best is None or not len(best.rows):
        found.notes.append(
            "No time at which the clocks of client and server agree: steps are not matched to requests."
        )
        return
    found.first_step[best.rows] = slot_step[best.slots]
    unknown = np.isnan(found.arrival_s[best.rows])
    found.arrival_s[best.rows[unknown]] = slot_arrival[best.slots[unknown]]


@dataclass(slots=True, eq=False)
class _Pairs:
    """Requests and first-token slots that match at an assumed clock offset."""

    rows: Int64
    slots: Int64
    delay_s: float
    """Median time from the end of the step to the token's arrival."""
    consistent: int
    """Pairs whose step ended between sending and the token's arrival."""

    def rank(self, requests: int) -> tuple[float, float, float]:
        return (round(len(self.rows) / requests, 2), round(self.consistent / requests, 2), -self.delay_s)


def _pair(
    requests: Requests,
    steps: Steps,
    rows: Int64,
    slots: Int64,
    slot_step: Int64,
    slot_arrival: Float64,
    offset: float,
) -> _Pairs:
    first = requests.sent_s[rows] + requests.ttft_s[rows]
    # As many tokens as slots: match in order, which is robust against delayed tokens.
    in_order = len(rows) == len(slots)
    chosen = (
        np.arange(len(rows)) if in_order else _latest_before(first, steps.end_s[slot_step[slots]] + offset)
    )
    ok = chosen >= 0
    rows, chosen = rows[ok], slots[chosen[ok]]
    # Requests of one step are distinguished by their arrival: the request sent first arrived first.
    rows = rows[np.lexsort((requests.sent_s[rows], slot_step[chosen]))]
    chosen = chosen[np.lexsort((slot_arrival[chosen], slot_step[chosen]))]
    step = slot_step[chosen]
    delay = requests.sent_s[rows] + requests.ttft_s[rows] - steps.end_s[step] - offset
    early = steps.end_s[step] + offset < requests.sent_s[rows] - _MOST_DISAGREEMENT_S
    arrived = slot_arrival[chosen] + offset < requests.sent_s[rows] - _MOST_DISAGREEMENT_S
    possible = (delay >= -_MOST_DISAGREEMENT_S) & ~early & ~arrived
    consistent = (
        possible & (delay >= -_SAME_ARRIVAL_S) & (steps.end_s[step] + offset >= requests.sent_s[rows])
    )
    median = float(np.median(delay[possible])) if possible.any() else np.inf
    return _Pairs(rows[possible], chosen[possible], median, int(consistent.sum()))


def _latest_before(times: Float64, ends: Float64) -> Int64:
    """For each time, in ascending order, the latest unused slot that ended before it; −1 for none."""
    places = np.searchsorted(ends, times + 1e-3, side="right") - 1
    parent = list(range(-1, len(ends)))  # parent[k + 1]: the latest unused slot up to k, as its place + 1
    parent[0] = 0
    for k in range(len(ends)):
        parent[k + 1] = k + 1
    found = np.full(len(times), -1)
    for number, place in enumerate(places.tolist()):
        root = place + 1
        path = []
        while parent[root] != root:
            path.append(root)
            root = parent[root]
        for node in path:
            parent[node] = root
        if root == 0:
            continue
        found[number] = root - 1
        parent[root] = root - 1
    return found


def _rough_offsets(
    requests: Requests, steps: Steps, found: Matches, rows: Int64, slot_step: Int64
) -> list[float]:
    """First guesses of client clock − server clock: those of matched requests, of equal clocks, of matching in order, of the most
    frequent difference."""
    done = np.flatnonzero(found.matched)
    if len(done):
        step = found.first_step[done]
        high = float(np.min(requests.sent_s[done] + requests.ttft_s[done] - steps.end_s[step]))
        low = float(np.max(requests.sent_s[done] - (steps.end_s[step] - steps.duration_s[step])))
        return [0.0 if low <= 0.0 <= high else (low + high) / 2]
    first, ends = requests.sent_s[rows] + requests.ttft_s[rows], steps.end_s[slot_step]
    guesses = [0.0] if _same_clock(first, steps) else []
    if len(first) == len(ends):
        return [*guesses, float(np.quantile(first - ends, 0.05))]
    frequent = _most_frequent_difference(first, ends)
    return guesses if frequent is None else [*guesses, frequent]


def _same_clock(first: Float64, steps: Steps) -> bool:
    """Whether most first tokens lie within the time of the steps, so that both clocks show the same time."""
    margin = 1.0
    inside = (first >= steps.end_s[0] - margin) & (first <= steps.end_s[-1] + margin)
    return bool(inside.mean() > 0.5)


def _most_frequent_difference(first: Float64, ends: Float64, most: int = 1500) -> float | None:
    """The difference at which most first tokens follow the end of a step; ``None`` if no difference is dominant."""
    a = first[:: max(1, len(first) // most)]
    b = ends[:: max(1, len(ends) // most)] if len(ends) > most else ends
    differences = (a[:, None] - b[None, :]).ravel()
    width = 0.005
    places = np.floor((differences - differences.min()) / width).astype(np.int64)
    values, counts = np.unique(places, return_counts=True)
    best = int(np.argmax(counts))
    if counts[best] < max(5, 0.3 * len(a)) or counts[best] < 2 * np.median(counts):
        return None
    return float(differences.min() + values[best] * width)


# The clocks.


def _estimate_clock(requests: Requests, steps: Steps, found: Matches) -> None:
    """Bound the clock offset (client − server) from both sides by causality."""
    rows = np.flatnonzero(found.matched)
    if not len(rows):
        return
    first = requests.sent_s[rows] + requests.ttft_s[rows]
    step = found.first_step[rows]
    reached = np.where(
        np.isnan(found.arrival_s[rows]), steps.end_s[step] - steps.duration_s[step], found.arrival_s[rows]
    )
    highs, lows = first - steps.end_s[step], requests.sent_s[rows] - reached
    high, low = float(highs.min()), float(lows.max())
    if low > high and len(rows) >= 20:  # a few wrong matches must not determine the result
        high, low = float(np.quantile(highs, 0.1)), float(np.quantile(lows, 0.9))
    placement = _overlap(steps)
    if low <= 0.0 <= high:
        found.offset_s = 0.0
        found.uncertainty_s = max(high, -low, placement)
        # A bound of seconds is useless; the remaining uncertainty is that of the step times.
        if found.uncertainty_s > 1.0:
            found.notes.append("The records bound the difference of the clocks only loosely; 0 is assumed.")
    else:
        found.offset_s = (low + high) / 2
        found.uncertainty_s = max(abs(high - low) / 2, placement)
    if low > high + _MOST_DISAGREEMENT_S:
        found.notes.append(
            f"The clocks of client and server disagree by up to {units.seconds(low - high)} during the measurement "
            "(a clock was set, or requests are matched wrongly)."
        )
    bad = (highs < found.offset_s - _MOST_DISAGREEMENT_S) | (lows > found.offset_s + _MOST_DISAGREEMENT_S)
    found.first_step[rows[bad]] = _NO_STEP


def _overlap(steps: Steps) -> float:
    """Return the 95th percentile of the overlap of neighbouring steps of an engine, which cannot overlap in reality."""
    worst = 0.0
    for engine in np.unique(steps.engine):
        rows = steps.engine == engine
        end, duration = steps.end_s[rows], steps.duration_s[rows]
        over = end[:-1] - (end[1:] - duration[1:])
        over = over[over > 0]
        if len(over):
            worst = max(worst, float(np.quantile(over, 0.95)))
    return worst


# Prompt tokens of a request in each step, where the engine does not report them.


def _assign_prompts(requests: Requests, steps: Steps, found: Matches) -> None:
    """Distribute the prompt tokens of steps: a step's first tokens belong to prompts that end there; the remainder is a
    chunk of a later prompt.
    """
    have = np.zeros(len(requests), bool)
    have[found.own_request] = True
    rows = np.flatnonzero(found.matched & ~have)
    if not len(rows):
        return
    need = np.maximum(requests.prompt_tokens[rows] - np.maximum(found.cached_tokens[rows], 0), 1).astype(
        np.float64
    )
    order = np.lexsort((requests.sent_s[rows], found.first_step[rows]))
    rows, need = rows[order], need[order]
    step_of = found.first_step[rows]
    own: list[tuple[int, int, float]] = []
    begun: list[tuple[int, float]] = []  # chunks of the prompt that is not complete yet: (step, tokens)
    heads = np.flatnonzero(np.concatenate(([True], step_of[1:] != step_of[:-1])))
    tails = np.append(heads[1:], len(rows))
    groups = {int(step_of[a]): (int(a), int(b)) for a, b in zip(heads, tails, strict=True)}
    prefill_tokens = steps.prefill_tokens
    for step in np.flatnonzero(prefill_tokens > 0).tolist():
        available = float(prefill_tokens[step])
        group = groups.get(step)
        if group is None:
            begun.append((step, available))
            continue
        low, high = group
        begun = _plausible_chunks(begun, float(need[low]), float(found.arrival_s[rows[low]]), steps)
        earlier = sum(tokens for _, tokens in begun)
        wanted = float(need[low:high].sum()) - earlier
        scale = min(1.0, available / wanted)
        own += [(chunk, int(rows[low]), tokens) for chunk, tokens in begun]
        for k in range(low, high):
            # First come, first served: the prompt that was started earlier is the first of those that end here.
            own.append((step, int(rows[k]), (float(need[k]) - (earlier if k == low else 0.0)) * scale))
        begun = [(step, available - wanted)] if available - wanted > 0.5 else []
    if own:
        table = np.array(own, np.float64)
        found.own_step = np.concatenate((found.own_step, table[:, 0].astype(np.int64)))
        found.own_request = np.concatenate((found.own_request, table[:, 1].astype(np.int64)))
        found.own_tokens = np.concatenate((found.own_tokens, table[:, 2]))


def _plausible_chunks(
    begun: list[tuple[int, float]], need: float, arrival_s: float, steps: Steps
) -> list[tuple[int, float]]:
    """Return the prompt tokens without a first token that can be chunks of a prompt: the latest since its arrival."""
    kept: list[tuple[int, float]] = []
    left = need - 1.0
    for step, tokens in reversed(begun):
        if tokens > left or (arrival_s == arrival_s and steps.end_s[step] < arrival_s):
            break
        kept.append((step, tokens))
        left -= tokens
    return kept[::-1]
