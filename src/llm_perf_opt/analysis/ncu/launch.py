"""One profiled launch, from raw metrics to checked quantities: SI values, work by precision, ceilings, doubts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.ncu.bound import vendor_waves
from llm_perf_opt.analysis.ncu.flops import Work, measured_work, peak_rates
from llm_perf_opt.analysis.ncu.identities import Violation, check, rounding_of
from llm_perf_opt.analysis.ncu.metrics import QUANTITIES, find

if TYPE_CHECKING:
    from llm_perf_opt.model.counters import NcuLaunch

_BLOCK_LIMITS = (
    "block_limit_registers",
    "block_limit_shared_memory",
    "block_limit_warps",
    "block_limit_sm",
    "block_limit_barriers",
)
_FP32_LANES = {"6.0": 64, "7": 64, "8.0": 64}
"""FP32 results per SM and cycle where it is not 128 (CUDA C++ Programming Guide, arithmetic instructions)."""


@dataclass(slots=True)
class LaunchFacts:
    """Everything one launch says."""

    launch: NcuLaunch
    values: dict[str, float]
    """Quantity (see ``ncu_metrics.QUANTITIES``) → SI value; what was not measured is absent."""
    work: list[Work]
    """Counted operations by precision, zeros included, largest first."""
    peak_flops_per_s: dict[str, float]
    """The device's own ceilings at this launch's clocks."""
    peak_bytes_per_s: float | None
    violations: list[Violation]
    notes: list[str] = field(default_factory=list)

    @property
    def refused(self) -> frozenset[str]:
        """Quantities that failed a check and must not be used."""
        return frozenset().union(*(violation.refused for violation in self.violations))

    def get(self, name: str) -> float | None:
        """Return a value that was measured and passed its checks."""
        return None if name in self.refused else self.values.get(name)


def analyse_launch(launch: NcuLaunch) -> LaunchFacts:
    """Resolve, complete and check the quantities of one launch."""
    values: dict[str, float] = {}
    rounding: dict[str, float] = {}
    for name in QUANTITIES:
        found = find(launch.metrics, name)
        if found is not None and found[1].value is not None:
            values[name] = found[1].value
            rounding[name] = rounding_of(found[1])
    notes = list(launch.notes)
    _complete_traffic(values, rounding, notes)
    frequency = values.get("roofline_frequency_hz") or values.get("sm_frequency_hz")
    duration = values.get("duration_s")
    _complete_waves(launch, values)
    violations = check(values, rounding)
    if launch.notes:
        violations.append(Violation("files of this launch contradict each other", frozenset()))
    bytes_per_cycle, clock = values.get("dram_peak_bytes_per_cycle"), values.get("dram_frequency_hz")
    return LaunchFacts(
        launch=launch,
        values=values,
        work=measured_work(launch.metrics, duration, frequency),
        peak_flops_per_s=peak_rates(launch.metrics, frequency),
        peak_bytes_per_s=bytes_per_cycle * clock if bytes_per_cycle and clock else None,
        violations=violations,
        notes=notes,
    )


def _complete_traffic(values: dict[str, float], rounding: dict[str, float], notes: list[str]) -> None:
    """Find the DRAM traffic: counted in all, as read plus write, or bandwidth × duration."""
    read, write = values.get("dram_read_bytes"), values.get("dram_write_bytes")
    if "dram_total_bytes" in values:
        values["dram_bytes"], rounding["dram_bytes"] = (
            values["dram_total_bytes"],
            rounding["dram_total_bytes"],
        )
    elif read is not None and write is not None:
        values["dram_bytes"] = read + write
        errors = read * rounding["dram_read_bytes"] + write * rounding["dram_write_bytes"]
        rounding["dram_bytes"] = errors / (read + write) if read + write else 0.0
    elif "dram_bytes_per_s" in values and "duration_s" in values:
        values["dram_bytes"] = values["dram_bytes_per_s"] * values["duration_s"]
        rounding["dram_bytes"] = rounding["dram_bytes_per_s"] + rounding["duration_s"]
        notes.append("DRAM bytes are bandwidth × duration: the byte counters were not collected")


def _complete_waves(launch: NcuLaunch, values: dict[str, float]) -> None:
    """Find SM count and waves from the roofline's per-cycle peak and the occupancy limits, where not given."""
    if "sm_count" not in values:
        peak = peak_rates(launch.metrics, 1.0).get("fp32")
        if peak:
            values["sm_count"] = float(round(peak / 2 / _fp32_lanes(launch.compute_capability)))
    limits = [values[name] for name in _BLOCK_LIMITS if values.get(name, 0) > 0]
    if "waves" not in values and launch.grid and limits and values.get("sm_count"):
        x, y, z = launch.grid
        values["waves"] = x * y * z / (values["sm_count"] * min(limits))
    if "waves" not in values:
        said = vendor_waves(launch.rules)
        if said is not None:
            values["waves"] = said


def _fp32_lanes(compute_capability: str | None) -> int:
    text = compute_capability or ""
    return _FP32_LANES.get(text) or _FP32_LANES.get(text.partition(".")[0], 128)
