"""Nsight Compute captures as facts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.facts import Capture, Facts

if TYPE_CHECKING:
    from llm_perf_opt.captures.ncu.launches import LaunchConfiguration


def ncu_facts(path: Path) -> Facts:
    """Read a report, a table, or a folder of them."""
    from llm_perf_opt.captures.ncu.reader import read_ncu

    capture = read_ncu(path)
    return Facts(sources={"ncu": (path,)}, counters=capture, notes=list(dict.fromkeys(capture.notes)))


def run_configurations(captures: Iterable[Capture]) -> list[LaunchConfiguration]:
    """Return grids and blocks of the kernels of nsys exports, to weight counters; empty if unknown.

    Read here and not with the timeline: only counters need them, and reading them costs half as much again.
    """
    from llm_perf_opt.analysis.captures import launch_configurations
    from llm_perf_opt.captures.nsys.sqlite import read_launch_shapes
    from llm_perf_opt.captures.timeline import Timeline

    found: list[LaunchConfiguration] = []
    for capture in captures:
        timeline, path = capture.found, capture.path
        if capture.tool != "nsys" or not isinstance(timeline, Timeline) or capture.attribution is None:
            continue
        shapes = read_launch_shapes(path) if path.is_file() else None
        if shapes is not None:
            found += launch_configurations(timeline, capture.attribution, *shapes) or []
    return found
