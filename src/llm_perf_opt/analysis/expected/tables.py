"""The tables of the extra, as expected times use them, and what the summary says of them."""

from __future__ import annotations

from llm_perf_opt.analysis.expected.estimate import Tables
from llm_perf_opt.hardware.silicon import Silicon
from llm_perf_opt.hardware.silicon.locate import absent_words
from llm_perf_opt.model.summary import SiliconUse


def tables_of(silicon: Silicon | None, framework: str | None = None) -> Tables | None:
    """Return tables with one framework's kernels first (default: the one they were opened with); ``None`` without the extra."""
    if silicon is None:
        return None

    def power_w(device: str) -> float | None:
        system = silicon.system(device)
        return system.power_w if system is not None else None

    def devices_per_machine(device: str) -> int | None:
        system = silicon.system(device)
        return system.devices_per_node if system is not None else None

    return Tables(
        silicon,
        framework or silicon.framework,
        power_w,
        lambda device: silicon.system(device) is not None,
        devices_per_machine,
    )


def silicon_use(silicon: Silicon | None, framework: str | None = None) -> SiliconUse:
    """Return what was used: its version, and what of it was left out; without tables why there are none."""
    if silicon is None:
        return SiliconUse(None, reason=absent_words())
    return SiliconUse(silicon.version, framework or silicon.framework, list(silicon.problems))
