"""Nsight Systems captures as facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from llm_perf_opt.analysis.facts import Capture, Facts


def nsys_facts(path: Path) -> Facts:
    """Read one SQLite export or kernel-summary table."""
    from llm_perf_opt.analysis.timeline.attribution import attribute
    from llm_perf_opt.analysis.timeline.engines import engine_facts
    from llm_perf_opt.analysis.timeline.summary import summarise_timeline, summarise_totals
    from llm_perf_opt.ingest.nsys.reader import read_nsys
    from llm_perf_opt.model.timeline import Timeline

    found = read_nsys(path)
    if isinstance(found, Timeline):
        attribution = attribute(found)
        facts = summarise_timeline(found, attribution=attribution, source=str(path))
        engine = engine_facts("nsys", found, attribution)
        said = Facts(metrics=engine.metrics, sections=engine.sections, notes=engine.notes)
    else:
        attribution, said = None, Facts()
        facts = summarise_totals(found, source=str(path))
    capture = Capture(path, found, facts, attribution, tool="nsys", covers_run=True, tables=True)
    return replace(said, sources={"nsys": (path,)}, captures=[capture])
