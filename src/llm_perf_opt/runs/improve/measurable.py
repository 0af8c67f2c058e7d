"""What this machine can measure, and so many pairs can show; asked before anything is loaded."""

from __future__ import annotations

from llm_perf_opt.analysis.improve.sequential import fewest_blocks
from llm_perf_opt.core import units
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.hardware.sensors.base import ENERGY
from llm_perf_opt.hardware.sensors.find import MonitoredDevice, find_sensor
from llm_perf_opt.model.improve import Metric


def refuse_unmeasured(metric: Metric, device: str) -> None:
    """Refuse energy as the metric on a device that does not tell it."""
    reason = no_energy(device) if metric == "energy" else None
    if reason is not None:
        raise ConfigError(
            f"--metric energy: {device} does not tell its energy: {reason}",
            hint="choose another --metric: total, ttft, tpot or tokens_per_s",
        )


def no_energy(device: str) -> str | None:
    """Say why the energy of a device is not known; ``None``: it is."""
    sensor = find_sensor(MonitoredDevice(device))
    if isinstance(sensor, str):
        return sensor
    told = sensor.read().energy_j
    reason = sensor.absent.get(ENERGY, "its counter gives no value")
    sensor.close()
    return None if told is not None else reason


def refuse_few_pairs(most_blocks: int, family_error_ratio: float, tests: int) -> None:
    """Refuse fewer pairs than it takes to show any gain: such a search could only drop everything."""
    fewest = fewest_blocks(family_error_ratio / max(1, tests))
    if most_blocks < fewest:
        raise ConfigError(
            f"{most_blocks} pairs of passes cannot show any gain: with an error of {units.percent(family_error_ratio)} over "
            f"{tests} tests it takes {fewest} at least",
            hint=f"--pairs {fewest} or more, a larger --error, or fewer remedies (--only)",
        )
