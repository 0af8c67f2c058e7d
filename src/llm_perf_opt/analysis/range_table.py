"""Range totals of captures without device work, such as captures on a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.facts import Capture
from llm_perf_opt.analysis.ranks import rank_of, ranks_in_names, without_rank
from llm_perf_opt.analysis.timeline.range_names import meaning_of
from llm_perf_opt.captures.timeline import KernelTotals, Timeline
from llm_perf_opt.core import units
from llm_perf_opt.summary import RankUse, Section, SectionTable

_MOST = 60


@dataclass(frozen=True, slots=True)
class RangeTotal:
    """All ranges of one name."""

    name: str
    count: int
    total_ns: int
    longest_ns: int | None

    @property
    def mean_ns(self) -> float:
        """Mean length."""
        return self.total_ns / self.count if self.count else 0.0


def range_totals(found: Timeline | KernelTotals) -> list[RangeTotal]:
    """Sum ranges by name, the longest first."""
    if isinstance(found, KernelTotals):
        rows = [RangeTotal(one.name, one.count, one.total_ns, one.max_ns) for one in found.ranges]
    else:
        lengths = found.ranges.end_ns - found.ranges.start_ns
        rows = []
        for name in np.unique(found.ranges.name).tolist():
            own = lengths[found.ranges.name == name]
            label = found.names[name] if name >= 0 else "(without a name)"
            rows.append(RangeTotal(label, len(own), int(own.sum()), int(own.max())))
    return sorted(rows, key=lambda row: (-row.total_ns, row.name))


def range_sections(captures: Sequence[Capture]) -> list[Section]:
    """Return a section per capture that holds ranges and no kernel; captures of one range on several ranks share one."""
    sections: list[Section | None] = []
    for group in _overlap(captures):
        ranked = _by_rank(group)
        alone = [one for one in group if not any(one is other for other in ranked.values())]
        sections += [_section_of_ranks(ranked), *map(_section, alone)]
    return [section for section in sections if section is not None]


def rank_rows(captures: Sequence[Capture]) -> list[RankUse]:
    """Return the ranks of captures without device work: only the time span of each rank's ranges is known."""
    rows: list[RankUse] = []
    for group in _overlap(captures):
        found = []
        for rank, capture in _by_rank(group).items():
            if isinstance(capture.found, Timeline):
                ranges = capture.found.ranges
                span = int(ranges.end_ns.max()) - int(ranges.start_ns.min())
                found.append(RankUse(rank=rank, span_s=span / 1e9, source=capture.path.name))
        rows = max(rows, found, key=len)
    return rows


def _overlap(captures: Sequence[Capture]) -> list[list[Capture]]:
    """Group captures without device work by tool and by their names without the rank."""
    groups: dict[tuple[str, str], list[Capture]] = {}
    for one in captures:
        if not one.facts.kernels:
            groups.setdefault((one.tool, without_rank(one.path)), []).append(one)
    return list(groups.values())


def _by_rank(captures: Sequence[Capture]) -> dict[int, Capture]:
    """Return rank → its capture, where there are several ranks; else nothing."""
    by_name = ranks_in_names([one.path for one in captures])
    found: dict[int, Capture] = {}
    for one in captures:
        rank = rank_of(one, by_name[one.path])
        if rank is not None and isinstance(one.found, Timeline) and len(one.found.ranges):
            found.setdefault(rank, one)
    return dict(sorted(found.items())) if len(found) > 1 else {}


def _section_of_ranks(ranked: Mapping[int, Capture]) -> Section | None:
    """Return a table of the ranges of all ranks, one column per rank."""
    totals: dict[str, dict[int, RangeTotal]] = {}
    for rank, capture in ranked.items():
        for row in range_totals(capture.found):
            totals.setdefault(row.name, {})[rank] = row
    if not totals:
        return None
    ordered = sorted(totals.items(), key=lambda item: (-_mean_ns(item[1]), item[0]))
    more = f" The {_MOST} longest of {len(ordered)} names." if len(ordered) > _MOST else ""
    return Section(
        stage=next(iter(ranked.values())).tool or "capture",
        title=f"Ranges of {len(ranked)} ranks: {without_rank(next(iter(ranked.values())).path)}",
        paragraphs=[
            "The captures contain no device work, so there are no kernels and no budget. These are their ranges, by host time of "
            f"each rank; a range inside another counts in both, and the tool that recorded them adds its own time.{more}"
        ],
        tables=[
            SectionTable(
                ["range", "phase", "count", "mean of the ranks", "shortest", "on rank", "longest", "on rank"],
                [_row_of_ranks(name, by_rank) for name, by_rank in ordered[:_MOST]],
            )
        ],
    )


def _mean_ns(by_rank: Mapping[int, RangeTotal]) -> float:
    return sum(row.total_ns for row in by_rank.values()) / len(by_rank)


def _row_of_ranks(name: str, by_rank: Mapping[int, RangeTotal]) -> list[str]:
    quickest = min(by_rank, key=lambda rank: (by_rank[rank].total_ns, rank))
    slowest = max(by_rank, key=lambda rank: (by_rank[rank].total_ns, -rank))
    counts = sorted({row.count for row in by_rank.values()})
    return [
        name,
        meaning_of(name).phase or units.MISSING,
        str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}",
        units.seconds(_mean_ns(by_rank) / 1e9),
        units.seconds(by_rank[quickest].total_ns / 1e9),
        str(quickest),
        units.seconds(by_rank[slowest].total_ns / 1e9),
        str(slowest),
    ]


def _section(capture: Capture) -> Section | None:
    rows = range_totals(capture.found)
    if not rows:
        return None
    shown = rows[:_MOST]
    more = f" The {len(shown)} longest of {len(rows)} names." if len(rows) > len(shown) else ""
    return Section(
        stage=capture.tool or "capture",
        title=f"Ranges of {capture.path.name}",
        paragraphs=[
            "The capture contains no device work, so there are no kernels and no budget. These are its ranges, by host "
            f"time; a range inside another counts in both, and the tool that recorded them adds its own time.{more}"
        ],
        tables=[
            SectionTable(
                ["range", "phase", "count", "total", "mean", "longest"],
                [
                    [
                        row.name,
                        meaning_of(row.name).phase or units.MISSING,
                        str(row.count),
                        units.seconds(row.total_ns / 1e9),
                        units.seconds(row.mean_ns / 1e9),
                        units.seconds(None if row.longest_ns is None else row.longest_ns / 1e9),
                    ]
                    for row in shown
                ],
            )
        ],
    )
