"""The tables of the extra, as expected times use them, and what the summary says of them."""

from __future__ import annotations

from llm_perf_opt.analysis.expected.estimate import Tables
from llm_perf_opt.hardware.silicon import Silicon
from llm_perf_opt.hardware.silicon.lookup import DEFAULT_FRAMEWORK
from llm_perf_opt.model.summary import SiliconUse


def tables_of(silicon: Silicon | None, framework: str = DEFAULT_FRAMEWORK) -> Tables | None:
    """Return tables with one framework's kernels first; ``None`` without the extra."""
    if silicon is None:
        return None

    def power_w(device: str) -> float | None:
        system = silicon.system(device)
        return system.power_w if system is not None else None

    return Tables(silicon, framework, power_w, lambda device: silicon.system(device) is not None)


def silicon_use(silicon: Silicon | None, framework: str = DEFAULT_FRAMEWORK) -> SiliconUse:
    """Return what was used: its version, and what of it was left out."""
    if silicon is None:
        return SiliconUse(None)
    return SiliconUse(silicon.version, framework, list(silicon.problems))
