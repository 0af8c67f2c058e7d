"""Request → step → kernel: the trace of a profiled window joined with the engine's step records."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from llm_perf_opt.analysis.cpu import class_of
from llm_perf_opt.analysis.intervals import IntervalSet, complement, from_disjoint, intersect, union
from llm_perf_opt.analysis.kernels.families import family_of
from llm_perf_opt.analysis.serving.matching import Matches, match_requests
from llm_perf_opt.analysis.serving.section import group_steps, step_contexts
from llm_perf_opt.captures.serving.records import Bool, Requests, Steps
from llm_perf_opt.captures.timeline import OpKind, Timeline
from llm_perf_opt.summary.serving import FamilyTime, ProfiledRank, ProfiledRequest, ProfiledWindow

_STEP = re.compile(r"execute_(?:context_)?(\d+)\((\d+)[^)]*\)_generation_(\d+)\((\d+)[^)]*\)")
"""vLLM's mark of a step: requests (tokens) with prompt, requests (tokens) that decode."""
_COMMUNICATION = "communication"
_COLLECTIVE = re.compile(r"^(?:gloo|ucc|mpi):", re.IGNORECASE)
"""A collective of the host; its call is an operator of ``torch.distributed``."""
_COLLECTIVE_CALL = re.compile(
    r"^_?c10d(?:_functional)?::|^_C::shm_(?:all_?reduce|all_?gather|gather|send|recv)", re.IGNORECASE
)
"""Calls of ``torch.distributed``, and vLLM's own collectives over shared memory, which it uses where the CPU allows them."""
_LEAST_MATCHED = 0.5
COPIES = "copies"


@dataclass(slots=True)
class TraceStep:
    """One step in the trace of one rank."""

    start_s: float
    seconds: float
    prompts: int
    prompt_tokens: int
    decoding: int
    families: dict[str, float] = field(default_factory=dict)
    """Seconds by kernel family; without a device by class of operator."""
    row: int | None = None
    """Row among the step records; ``None``: not matched."""

    @property
    def tokens(self) -> int:
        """Positions computed."""
        return self.prompt_tokens + self.decoding

    @property
    def kind(self) -> str:
        """``prefill``, ``decode`` or ``mixed``."""
        if not self.prompts:
            return "decode"
        return "mixed" if self.decoding else "prefill"


def find_steps(timeline: Timeline) -> list[TraceStep]:
    """Return the steps of a trace in order, with the work of each; empty: the trace has no marks of steps."""
    ranges = timeline.ranges
    marks: dict[int, TraceStep] = {}
    for row in range(len(ranges)):
        found = _STEP.search(timeline.names[int(ranges.name[row])])
        if found is None:
            continue
        start, end = int(ranges.start_ns[row]), int(ranges.end_ns[row])
        marks[row] = TraceStep(start / 1e9, (end - start) / 1e9, int(found[1]), int(found[2]), int(found[3]))
    if not marks:
        return []
    if len(timeline.ops):
        _add_device_work(timeline, marks)
    else:
        _add_host_work(timeline, marks)
    return sorted(marks.values(), key=lambda step: step.start_s)


def _add_device_work(timeline: Timeline, marks: Mapping[int, TraceStep]) -> None:
    """Add kernels by the step in which they were launched, whenever they ran."""
    owner = np.full(len(timeline.ranges), -1, np.int64)
    for row in range(len(timeline.ranges)):
        parent = int(timeline.ranges.parent[row])
        owner[row] = row if row in marks else owner[parent] if parent >= 0 else -1
    ops = timeline.ops
    for place in range(len(ops)):
        held = int(ops.range[place])
        step = int(owner[held]) if held >= 0 else -1
        if step < 0:
            continue
        seconds = int(ops.end_ns[place] - ops.start_ns[place]) / 1e9
        is_kernel = int(ops.kind[place]) == OpKind.KERNEL
        family = family_of(timeline.names[int(ops.name[place])]) if is_kernel else COPIES
        families = marks[step].families
        families[family] = families.get(family, 0.0) + seconds


def _add_host_work(timeline: Timeline, marks: Mapping[int, TraceStep]) -> None:
    """Add the own time of operators on the step's thread: an engine on a CPU has no kernels.

    Collectives of the host (gloo) run on a thread of their own while the step's thread waits; they count where no operator works.
    """
    spans = timeline.operators
    is_call = np.array([_COLLECTIVE_CALL.match(name) is not None for name in timeline.names], bool)
    talking = _host_collectives(timeline, is_call)
    for row, step in marks.items():
        start, end = int(timeline.ranges.start_ns[row]), int(timeline.ranges.end_ns[row])
        inside = np.flatnonzero(
            (spans.thread == timeline.ranges.thread[row]) & (spans.start_ns >= start) & (spans.end_ns <= end)
        )
        open_spans: list[int] = []
        own: dict[int, int] = {}
        parents: set[int] = set()
        for place in inside.tolist():
            while open_spans and int(spans.end_ns[open_spans[-1]]) <= int(spans.start_ns[place]):
                open_spans.pop()
            length = int(spans.end_ns[place] - spans.start_ns[place])
            own[place] = length
            if open_spans:
                own[open_spans[-1]] -= length
                parents.add(open_spans[-1])
            open_spans.append(place)
        if len(talking):
            at_work = np.array(
                [at for at in own if at not in parents and not is_call[spans.name[at]]], np.int64
            )
            step_span = from_disjoint(np.array([start]), np.array([end]))
            working = union(spans.start_ns[at_work], spans.end_ns[at_work])
            talk = complement(working, intersect(talking, step_span)).length_ns
            if talk:
                step.families[_COMMUNICATION] = talk / 1e9
        for place, length in own.items():
            if is_call[spans.name[place]]:
                continue
            kind = class_of(timeline.names[int(spans.name[place])])
            step.families[kind] = step.families.get(kind, 0.0) + max(length, 0) / 1e9


def _host_collectives(timeline: Timeline, is_call: Bool) -> IntervalSet:
    """Return when a collective of the host ran or was being started."""
    ranges, spans = timeline.ranges, timeline.operators
    annotated = np.array([_COLLECTIVE.match(name) is not None for name in timeline.names], bool)
    rows = annotated[ranges.name] if len(ranges) else np.zeros(0, bool)
    calls = is_call[spans.name] if len(spans) else np.zeros(0, bool)
    return union(
        np.concatenate([ranges.start_ns[rows], spans.start_ns[calls]]),
        np.concatenate([ranges.end_ns[rows], spans.end_ns[calls]]),
    )


def match_trace(found: Sequence[TraceStep], steps: Steps) -> int:
    """Assign steps of the trace to rows of the records by the sequence of their sizes; return how many matched."""
    recorded = [
        (
            int(max(steps.prefill_requests[row], 0)),
            int(max(steps.prefill_tokens[row], 0)),
            int(steps.decode_requests[row]),
        )
        for row in range(len(steps))
    ]
    traced = [(one.prompts, one.prompt_tokens, one.decoding) for one in found]
    matcher = difflib.SequenceMatcher(None, traced, recorded, autojunk=False)
    for first, second, length in matcher.get_matching_blocks():
        for offset in range(length):
            found[first + offset].row = second + offset
    return sum(one.row is not None for one in found)


def describe_window(
    timelines: Sequence[Timeline], steps: Steps | None, requests: Requests | None, unprofiled: Steps | None
) -> ProfiledWindow:
    """Return what ran in the window, by kind of step and by request of the first rank, and the steps of each rank."""
    ranks = [find_steps(one) for one in timelines]
    window = ProfiledWindow(ranks=len(timelines))
    if len(timelines) > 1:
        window.by_rank = [_rank(one, found) for one, found in zip(timelines, ranks, strict=True)]
    lengths = sorted({len(found) for found in ranks})
    if len(lengths) > 1:
        window.notes.append(
            f"The ranks' traces contain different numbers of steps: {', '.join(map(str, lengths))}."
        )
    found = ranks[0] if ranks else []
    window.steps = len(found)
    if not found:
        window.notes.append(
            "The trace has no marks of engine steps, so that its kernels cannot be given to steps."
        )
        return window
    whole = _rank(timelines[0], found)
    window.seconds, window.host_gap_ratio = whole.seconds, whole.host_gap_ratio
    window.communication_ratio = whole.communication_ratio
    for kind in ("prefill", "decode", "mixed"):
        chosen = [one for one in found if one.kind == kind]
        if chosen:
            window.families[kind] = _families(chosen, [1.0] * len(chosen))
    if steps is None or not len(steps):
        window.notes.append(
            "There are no step records of the window, so that kernels cannot be given to requests."
        )
        return window
    window.matched_steps = match_trace(found, steps)
    window.cost_ratio = _cost_ratio(steps, unprofiled)
    if window.matched_steps < _LEAST_MATCHED * len(found):
        window.notes.append(
            f"Only {window.matched_steps} of {len(found)} traced steps match the records: the trace may be of another load."
        )
        return window
    matches = None
    if requests is not None and len(requests) and steps.is_placed:
        matches = match_requests(requests, steps)
        window.requests = _requests(found, matches, requests)
    window.groups = group_steps(steps, step_contexts(steps, requests, matches))
    return window


def _rank(timeline: Timeline, found: Sequence[TraceStep]) -> ProfiledRank:
    """Return the steps of one rank as a whole."""
    number = timeline.facts.get("rank")
    one = ProfiledRank(number if isinstance(number, int) else None, len(found))
    one.seconds = sum(step.seconds for step in found)
    if one.seconds:
        busy = sum(sum(step.families.values()) for step in found)
        talk = sum(step.families.get(_COMMUNICATION, 0.0) for step in found)
        one.host_gap_ratio = max(0.0, 1 - busy / one.seconds)
        one.communication_ratio = min(talk / one.seconds, 1.0)
    return one


def _families(steps: Sequence[TraceStep], shares: Sequence[float]) -> list[FamilyTime]:
    """Return seconds by family, the longest first."""
    total: dict[str, float] = {}
    for step, share in zip(steps, shares, strict=True):
        for family, seconds in step.families.items():
            total[family] = total.get(family, 0.0) + share * seconds
    whole = sum(total.values())
    ordered = sorted(total.items(), key=lambda item: (-item[1], item[0]))
    return [FamilyTime(name, seconds, seconds / whole if whole else None) for name, seconds in ordered]


def _requests(found: Sequence[TraceStep], matches: Matches, requests: Requests) -> list[ProfiledRequest]:
    """Return for each request the steps it was in, and its share of their kernels by tokens."""
    by_row = {one.row: one for one in found if one.row is not None}
    described = []
    for place, name in enumerate(requests.id):
        tokens = _tokens_by_step(place, matches, requests)
        held = [(by_row[row], count) for row, count in tokens.items() if row in by_row]
        if not held:
            continue
        shares = [min(1.0, count / max(step.tokens, 1)) for step, count in held]
        chosen = [step for step, _ in held]
        described.append(
            ProfiledRequest(
                name,
                len(tokens),
                len(held),
                sum(step.seconds for step in chosen),
                sum(share * step.seconds for step, share in zip(chosen, shares, strict=True)),
                _families(chosen, shares),
            )
        )
    return described


def _tokens_by_step(place: int, matches: Matches, requests: Requests) -> dict[int, float]:
    """Return (row of a step → tokens of the request in it): its prompt chunks, then one a step."""
    tokens: dict[int, float] = {}
    for row in np.flatnonzero(matches.own_request == place).tolist():
        step = int(matches.own_step[row])
        tokens[step] = tokens.get(step, 0.0) + float(matches.own_tokens[row])
    first, last = int(matches.first_step[place]), int(matches.last_step[place])
    if first < 0:
        return tokens
    if last < first and requests.output_tokens[place] > 0:
        last = first + int(requests.output_tokens[place]) - 1
    for step in range(first + 1, last + 1):
        tokens.setdefault(step, 1.0)
    return tokens


def _cost_ratio(steps: Steps, unprofiled: Steps | None) -> float | None:
    """Return profiled ÷ unprofiled time of decode steps of the same size, weighted by their number."""
    if unprofiled is None:
        return None
    ratios, weights = [], []
    for batch in np.unique(steps.decode_requests[steps.prefill_tokens <= 0]).tolist():
        sides = [
            one.duration_s[(one.decode_requests == batch) & (one.prefill_tokens <= 0)]
            for one in (steps, unprofiled)
        ]
        if batch > 0 and all(len(side) >= 3 for side in sides):
            usual = [float(np.median(side)) for side in sides]
            if usual[1] > 0:
                ratios.append(usual[0] / usual[1])
                weights.append(len(sides[0]))
    return float(np.average(ratios, weights=weights)) if ratios else None
