"""The ranges of a capture without device work: what a capture on a CPU has to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.facts import Capture
from llm_perf_opt.analysis.timeline.range_meaning import meaning_of
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Section, SectionTable
from llm_perf_opt.model.timeline import KernelTotals, Timeline

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
    """Return a section per capture that holds ranges and no kernel."""
    return [
        section
        for capture in captures
        if not capture.facts.kernels and (section := _section(capture)) is not None
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
            "The capture holds no device work, so there are no kernels and no budget. These are its ranges, by host "
            f"time; a range inside another counts in both, and the tool that recorded them adds time of its own.{more}"
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
