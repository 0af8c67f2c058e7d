"""Nsight Compute captures as facts."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.analysis.facts import Facts


def ncu_facts(path: Path) -> Facts:
    """Read a report, a table, or a folder of them."""
    from llm_perf_opt.ingest.ncu.reader import read_ncu

    capture = read_ncu(path)
    return Facts(sources={"ncu": (path,)}, counters=capture, notes=list(dict.fromkeys(capture.notes)))
