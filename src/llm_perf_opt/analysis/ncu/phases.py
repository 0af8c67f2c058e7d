"""In which phase a launch was profiled: from the ranges around it, else from the ranges ncu was told to profile in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.timeline.range_meaning import meaning_of

if TYPE_CHECKING:
    from llm_perf_opt.model.counters import NcuLaunch

_PATTERN_TAIL = re.compile(r"(\.\*|\.\+|\*|\?|\$)+$")


def profiled_phase(launch: NcuLaunch) -> str | None:
    """Return the phase of a launch; ``None`` when the capture does not tell."""
    for name in reversed(launch.ranges):
        phase = meaning_of(name).phase
        if phase is not None:
            return phase
    if launch.ranges or launch.settings is None:
        return None
    # A page without ranges: all launches are inside what ncu was told to look at, which may be one phase.
    phases = {phase_of_filter(expression) for expression in launch.settings.nvtx_include}
    return phases.pop() if len(phases) == 1 else None


def phase_of_filter(expression: str) -> str | None:
    """Return the phase a range filter of ncu selects: ``decode/``, ``regex:decode.*/``, ``LLM@prefill/``."""
    path = expression.removeprefix("regex:").rstrip("/]").removeprefix("[")
    name = re.split(r"(?<!\\)[/@]", path)[-1]
    return meaning_of(_PATTERN_TAIL.sub("", name).replace("\\", "")).phase
