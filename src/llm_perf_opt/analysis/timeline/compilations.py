"""Compilations by ``torch.compile`` inside a torch trace: start, duration, and whether the code was in its steady state."""

from __future__ import annotations

import re

import numpy as np

from llm_perf_opt.analysis.intervals import EMPTY, IntervalSet, union
from llm_perf_opt.analysis.timeline.idle import is_warm_up
from llm_perf_opt.captures.compile_logs import CompileEvent
from llm_perf_opt.captures.timeline import Timeline

_WHOLE_COMPILATION = (
    "entire_frame_compile",
    "_compile.compile_inner (dynamo_timed)",
    "_compile.compile_inner",
)
"""Names of one compilation as a whole, the newest first: each release has others, and newer ones several at once."""
_DATA = re.compile(r"^entire_frame_compile_data: .*compile_id=(?:!\d+/)?(\d+/\d+)")
_REGION = re.compile(r"^Torch-Compiled Region: (?:!\d+/)?(\d+)/(\d+)")
_INTERNAL = re.compile(r"\(dynamo_timed\)|_data: |^ProfilerStep|^entire_frame_compile")
_SETTLED_CALLS = 2
"""Runs of the compiled function before a recompilation that make it one of the steady state."""


def trace_compilations(timeline: Timeline) -> list[CompileEvent]:
    """Return the compilations that a torch trace holds, in order; nothing where it holds none."""
    spans, names = timeline.operators, timeline.names
    known = {name: index for index, name in enumerate(names) if name in _WHOLE_COMPILATION}
    chosen = next(
        (known[name] for name in _WHOLE_COMPILATION if name in known and (spans.name == known[name]).any()),
        None,
    )
    if chosen is None:
        return []
    rows = np.flatnonzero(spans.name == chosen)
    rows = rows[np.argsort(spans.start_ns[rows], kind="stable")]
    origin = _origin(timeline)
    identified, runs = _ids(timeline), _region_starts(timeline)
    found = []
    for row in rows.tolist():
        start, end = int(spans.start_ns[row]), int(spans.end_ns[row])
        compile_id = next((one for at, one in identified if start <= at <= end), None)
        place = _range_around(timeline, int(spans.thread[row]), start)
        before = [at for at in runs.get(compile_id.partition("/")[0], ()) if at < start] if compile_id else []
        found.append(
            CompileEvent(
                "compilation",
                compile_id,
                place,
                at_s=(start - origin) / 1e9,
                seconds=(end - start) / 1e9,
                steady=len(before) >= _SETTLED_CALLS and not (place and is_warm_up(place))
                if compile_id
                else None,
            )
        )
    return found


def _ids(timeline: Timeline) -> list[tuple[int, str]]:
    """Times and ids of the annotations that newer releases write inside each compilation."""
    matched = {index: found[1] for index, name in enumerate(timeline.names) if (found := _DATA.match(name))}
    ranges = timeline.ranges
    rows = np.flatnonzero(np.isin(ranges.name, list(matched))).tolist() if matched else []
    return sorted((int(ranges.start_ns[row]), matched[int(ranges.name[row])]) for row in rows)


def _region_starts(timeline: Timeline) -> dict[str, list[int]]:
    """Frame → when its compiled code ran."""
    frames = {index: named[1] for index, name in enumerate(timeline.names) if (named := _REGION.match(name))}
    found: dict[str, list[int]] = {}
    for table in (timeline.operators, timeline.ranges):
        for row in np.flatnonzero(np.isin(table.name, list(frames))).tolist() if frames else ():
            found.setdefault(frames[int(table.name[row])], []).append(int(table.start_ns[row]))
    return found


def _range_around(timeline: Timeline, thread: int, at: int) -> str | None:
    ranges = timeline.ranges
    first, last = (int(one) for one in np.searchsorted(ranges.thread, (thread, thread + 1)))
    row = first + int(np.searchsorted(ranges.start_ns[first:last], at, side="right")) - 1
    while row >= first:
        name = timeline.names[ranges.name[row]]
        if ranges.end_ns[row] >= at and not _INTERNAL.search(name):
            return f"in range {name}"
        row = int(ranges.parent[row])
    return None


def steady_compilations(timeline: Timeline) -> IntervalSet:
    """Return recompilations of functions in their steady state: this cost recurs."""
    spans = timeline.operators
    if not len(spans):
        return EMPTY
    origin = _origin(timeline)
    found = [one for one in trace_compilations(timeline) if one.steady and one.is_recompilation]
    start = np.array([origin + round((one.at_s or 0.0) * 1e9) for one in found], np.int64)
    length = np.array([round((one.seconds or 0.0) * 1e9) for one in found], np.int64)
    return union(start, start + length) if found else EMPTY


def _origin(timeline: Timeline) -> int:
    first = int(timeline.operators.start_ns.min())
    return min(first, int(timeline.ops.start_ns.min())) if len(timeline.ops) else first
