"""Nsight Systems captures as facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.facts import Capture, Facts

if TYPE_CHECKING:
    from llm_perf_opt.model.captured import CapturedRange
    from llm_perf_opt.model.timeline import KernelTotals


def nsys_facts(path: Path) -> Facts:
    """Read one SQLite export or kernel-summary table."""
    from llm_perf_opt.analysis.captures.captured_range import captured_range, place_in_range, split_by_phase
    from llm_perf_opt.analysis.timeline.attribution import attribute
    from llm_perf_opt.analysis.timeline.engines import engine_facts
    from llm_perf_opt.analysis.timeline.summary import summarise_timeline, summarise_totals
    from llm_perf_opt.ingest.nsys.capture_configuration import read_capture_configuration
    from llm_perf_opt.ingest.nsys.reader import read_nsys
    from llm_perf_opt.model.timeline import Timeline

    found = read_nsys(path)
    if isinstance(found, Timeline):
        attribution = attribute(found)
        facts = summarise_timeline(found, attribution=attribution, source=str(path))
        captures = [Capture(path, found, facts, attribution, tool="nsys", covers_run=True, tables=True)]
        engine = engine_facts("nsys", found, attribution)
        said = Facts(metrics=engine.metrics, sections=engine.sections, notes=engine.notes)
    else:
        of, said = captured_range(path, read_capture_configuration(path)), Facts()
        parts: list[tuple[KernelTotals, CapturedRange | None]] = [*split_by_phase(found)]
        captures = []
        for table, part in parts or [(found, of)]:
            facts = summarise_totals(table, source=str(path))
            place_in_range(facts, part)
            captures.append(
                Capture(path, table, facts, tool="nsys", covers_run=True, tables=not captures, range=part)
            )
    return replace(said, sources={"nsys": (path,)}, captures=captures)
