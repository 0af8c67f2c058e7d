"""Wall-clock documents as facts."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.analysis.facts import Facts


def timings_facts(path: Path) -> Facts:
    """Return what was timed without a tool attached."""
    from llm_perf_opt.ingest.timings import load_timings

    return Facts(sources={"timings": (path,)}, wall_clock=load_timings(path))
