"""What the profiled launches of a kernel stand for, and under which conditions they were measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_perf_opt.model.limits import Count, Ratio, Share


@dataclass(slots=True)
class ProfiledLaunches:
    """The launches behind the counters of a kernel, next to the launches of the run."""

    launches: Count
    """Launches that were profiled and count for this row."""
    phase: str | None
    """Phase they were profiled in; ``None`` when the counters' capture does not tell."""
    representative: bool | None
    """Whether they stand for the run's launches; ``None`` when no timeline says how long those last. Counters that do
    not are kept, and left out of verdicts, findings and gains."""
    duration_ratio: Ratio | None = None
    """Their duration ÷ the run's mean for the same launches."""
    configurations: Count | None = None
    """Different grids and blocks the run launches this kernel with; ``None`` when no timeline tells."""
    profiled_configurations: Count | None = None
    """Those of them that were profiled."""
    covered_ratio: Share | None = None
    """Share of this row's time in launches of those configurations."""
    remark: str | None = None
    """Why they are not representative, or what is not known."""


@dataclass(slots=True)
class CounterConditions:
    """How the counters were measured, all captures together."""

    launches: Count
    """Profiled launches."""
    clock_control: str | None = None
    """``base``: clocks locked to base; ``none``: left alone; ``None``: not recorded. Several captures: all, with a comma."""
    cache_control: str | None = None
    """``all``: caches flushed before every replay; ``none``: left alone; ``None``: not recorded."""
    source: str | None = None
    """File that says so."""
    phases: list[str] = field(default_factory=list)
    """Phases with a profiled launch; empty when the capture does not tell."""
    not_representative: Count = 0
    """Rows of ``kernels`` whose counters do not stand for the run."""
