"""Which phase, module and range each device operation belongs to, and totals by any of them.

Ranges are many, but distinct *paths* of range names are few, so everything is resolved once per path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_perf_opt.analysis.timeline.range_names import RangeMeaning, RangeRule, meaning_of
from llm_perf_opt.captures.timeline import OpKind, Ranges, Timeline
from llm_perf_opt.core.arrays import distinct, exact_sums

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
NONE = -1


@dataclass(frozen=True, slots=True)
class RangePaths:
    """Distinct nestings of range names."""

    of_range: Int32
    """Path of every range."""
    parent: list[int]
    """Path → enclosing path; -1 at the top. A parent comes before its children."""
    name: list[int]
    """Path → innermost name (index into ``Timeline.names``)."""

    def ancestors(self, path: int) -> list[int]:
        """Return the path itself and everything around it, innermost first."""
        found = []
        while path != NONE:
            found.append(path)
            path = self.parent[path]
        return found


@dataclass(frozen=True, slots=True)
class Attribution:
    """The meaning of every path."""

    paths: RangePaths
    op_path: Int32
    """Path of every device operation; -1 outside all ranges."""
    phases: tuple[str, ...]
    """Phase names, in order of first appearance in time."""
    path_phase: Int32
    """Path → index into ``phases``; -1 when no range around it names a phase."""
    path_module: list[str | None]
    """Path → innermost module around it."""
    path_component: list[str | None]
    meanings: list[RangeMeaning]
    """Path → meaning of its innermost name."""

    @property
    def op_phase(self) -> Int32:
        """Phase of every device operation; -1 when not known."""
        return take_or_none(self.path_phase, self.op_path)


@dataclass(frozen=True, slots=True)
class Total:
    """Launches and device time of one group."""

    launches: int
    total_ns: int


def take_or_none(values: Int32, index: Int32) -> Int32:
    """``values[index]``, with -1 where the index is -1."""
    return np.append(values, np.int32(NONE)).astype(np.int32, copy=False)[index]


def _range_paths(ranges: Ranges, names: int) -> RangePaths:
    """Number the distinct paths, level by level from the top."""
    path = np.full(len(ranges), NONE, np.int32)
    parents: list[int] = []
    labels: list[int] = []
    level, waiting = np.flatnonzero(ranges.parent < 0), np.flatnonzero(ranges.parent >= 0)
    first = NONE  # number of the first path one level up; above the top there is only "none"
    while len(level):
        above = take_or_none(path, ranges.parent[level]).astype(np.int64)
        keys, code = distinct((above - first) * names + ranges.name[level])
        path[level] = code + len(labels)
        parents.extend((keys // names + first).tolist())
        first = len(labels)
        labels.extend((keys % names).tolist())
        ready = path[ranges.parent[waiting]] >= 0
        level, waiting = waiting[ready], waiting[~ready]
    return RangePaths(path, parents, labels)


def attribute(timeline: Timeline, rules: Sequence[RangeRule] | None = None) -> Attribution:
    """Decide the phase, component and module of every path; the innermost range that names one wins."""
    paths = _range_paths(timeline.ranges, max(1, len(timeline.names)))
    meaning_by_name = {name: meaning_of(timeline.names[name], rules) for name in set(paths.name)}
    meanings = [meaning_by_name[name] for name in paths.name]
    phase: list[str | None] = []
    module: list[str | None] = []
    component: list[str | None] = []
    for parent, meaning in zip(paths.parent, meanings, strict=True):
        inherited = (
            (phase[parent], module[parent], component[parent]) if parent != NONE else (None, None, None)
        )
        phase.append(meaning.phase or inherited[0])
        module.append(meaning.module or inherited[1])
        # A new phase inside a component (or the other way round) resets the other.
        component.append(meaning.component or (inherited[2] if meaning.phase is None else None))
    order = _phases_in_time(timeline.ranges, paths, phase)
    index = {name: number for number, name in enumerate(order)}
    return Attribution(
        paths=paths,
        op_path=take_or_none(paths.of_range, timeline.ops.range),
        phases=order,
        path_phase=np.array([index[name] if name is not None else NONE for name in phase], np.int32),
        path_module=module,
        path_component=component,
        meanings=meanings,
    )


def _phases_in_time(ranges: Ranges, paths: RangePaths, phase: list[str | None]) -> tuple[str, ...]:
    if not any(phase):
        return ()
    first = np.full(len(phase), np.iinfo(np.int64).max)
    # Ranges are in time order per thread only, so the minimum has to be taken.
    np.minimum.at(first, paths.of_range, ranges.start_ns)
    begin: dict[str, int] = {}
    for name, start in zip(phase, first.tolist(), strict=True):
        if name is not None:
            begin[name] = min(start, begin.get(name, start))
    return tuple(sorted(begin, key=lambda name: (begin[name], name)))


def totals(timeline: Timeline, keys: Int64, rows: npt.NDArray[np.bool_] | None = None) -> dict[int, Total]:
    """Sum launches and device time of operations by ``keys``; exact integers."""
    durations = timeline.ops.end_ns - timeline.ops.start_ns
    if rows is not None:
        keys, durations = keys[rows], durations[rows]
    groups, code = distinct(keys.astype(np.int64))
    launches = np.bincount(code, minlength=len(groups))
    total = exact_sums(code, durations, len(groups))
    return {
        key: Total(count, time)
        for key, count, time in zip(groups.tolist(), launches.tolist(), total.tolist(), strict=True)
    }


def by_path_and_name(
    timeline: Timeline, attribution: Attribution, kind: OpKind = OpKind.KERNEL
) -> dict[tuple[int, int], Total]:
    """Totals by (path, name); path -1 is "outside all ranges"."""
    names = max(1, len(timeline.names))
    keys = (attribution.op_path.astype(np.int64) + 1) * names + timeline.ops.name
    found = totals(timeline, keys, timeline.ops.kind == kind)
    return {(key // names - 1, key % names): total for key, total in found.items()}


def by_range_and_name(timeline: Timeline, attribution: Attribution) -> dict[tuple[str, str], Total]:
    """Totals of kernels by (range name, kernel name), counted in every range around the launch.

    A kernel inside two nested ranges of one name counts once for that name.
    """
    result: dict[tuple[str, str], Total] = {}
    around = [
        {attribution.paths.name[one] for one in attribution.paths.ancestors(path)}
        for path in range(len(attribution.paths.name))
    ]
    for (path, name), total in by_path_and_name(timeline, attribution).items():
        for label in around[path] if path != NONE else ():
            key = (timeline.names[label], timeline.names[name])
            before = result.get(key, Total(0, 0))
            result[key] = Total(before.launches + total.launches, before.total_ns + total.total_ns)
    return result
