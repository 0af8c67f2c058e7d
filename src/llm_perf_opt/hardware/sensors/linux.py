"""Processor sensors of Linux: RAPL, cpufreq, thermal zones, throttle counters, /proc. A container hides much of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from llm_perf_opt.hardware.sensors.base import (
    CLOCK,
    ENERGY,
    MEMORY,
    POWER,
    TEMPERATURE,
    THROTTLED,
    DeviceLimits,
    Reading,
    plausible_temperature,
)

_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc-thermal")
_HWMON = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_MOST_CLOCKS = 8
"""Cores whose clock is read: each is a file, and a spread of them tells as much as all."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class LinuxSensor:
    """The processors of this machine, as far as visible to this process."""

    reader: ClassVar[str] = "linux"

    def __init__(
        self,
        name: str,
        *,
        root: Path = Path("/"),
        cores: Sequence[int] = (),
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Find the files; ``cores`` are those the work may run on."""
        self.device = name
        self.absent: dict[str, str] = {}
        self._now = now
        sys, cpu = root / "sys", root / "sys/devices/system/cpu"
        self._rapl = _RaplMeter(sys / "class/powercap")
        self._last_energy: tuple[float, float] | None = None
        chosen = _spread([cpu / f"cpu{core}" for core in cores], _MOST_CLOCKS)
        self._clocks = _readable([core / "cpufreq/scaling_cur_freq" for core in chosen])
        self._temperatures = _readable(_temperature_files(sys))
        self._memory = root / "proc/self/statm"
        self._counters = _throttle_counters(cpu, chosen, sys / "fs/cgroup")
        self._last_counts = {reason: read() for reason, read in self._counters.items()}
        self.limits = DeviceLimits(clock_max_hz=_max_clock(chosen))
        self._explain_absent(sys)

    def read(self) -> Reading:
        """Read every file found."""
        energy = self._rapl.joules()
        clocks = [value for path in self._clocks if (value := _integer(path)) is not None]
        degrees = [value / 1e3 for path in self._temperatures if (value := _integer(path)) is not None]
        return Reading(
            clock_hz=sum(clocks) / len(clocks) * 1e3 if clocks else None,
            power_w=self._power(energy),
            temperature_c=plausible_temperature(max(degrees)) if degrees else None,
            energy_j=energy,
            memory_bytes=self._resident(),
            throttled=self._reasons(),
        )

    def close(self) -> None:
        """Nothing is held open."""

    def _power(self, energy_j: float | None) -> float | None:
        if energy_j is None:
            return None
        before, self._last_energy = self._last_energy, (self._now(), energy_j)
        if before is None or self._last_energy[0] <= before[0]:
            return None
        return (energy_j - before[1]) / (self._last_energy[0] - before[0])

    def _resident(self) -> float | None:
        try:
            return float(int(self._memory.read_text().split()[1]) * _PAGE_BYTES)
        except (OSError, ValueError, IndexError):
            return None

    def _reasons(self) -> tuple[str, ...] | None:
        if not self._counters:
            return None
        found = {reason: read() for reason, read in self._counters.items()}
        before, self._last_counts = self._last_counts, found
        return tuple(reason for reason, count in found.items() if count > before[reason])

    def _explain_absent(self, sys: Path) -> None:
        power = self._rapl.reason
        if power is not None:
            self.absent |= {POWER: power, ENERGY: power}
        if not self._clocks:
            self.absent[CLOCK] = "there is no cpufreq in /sys (a virtual machine or a container)"
        if not self._temperatures:
            self.absent[TEMPERATURE] = "no thermal zone and no hwmon of the processor in /sys"
        if self._resident() is None:
            self.absent[MEMORY] = "/proc/self/statm cannot be read"
        if not self._counters:
            self.absent[THROTTLED] = "no throttle counter of the processor or its control group in /sys"


class _RaplMeter:
    """Energy of all packages; its counters wrap around to 0 after some minutes of full load."""

    def __init__(self, folder: Path) -> None:
        packages = [
            zone
            for zone in sorted(folder.glob("intel-rapl:[0-9]*"))
            if zone.name.count(":") == 1 and _line(zone / "name").startswith("package")
        ]
        self._files = _readable([zone / "energy_uj" for zone in packages])
        self._ranges = {path: _integer(path.with_name("max_energy_range_uj")) for path in self._files}
        self._last: dict[Path, int] = {}
        self._sum_uj = 0
        self.reason = None
        if not packages:
            self.reason = "there is no RAPL in /sys/class/powercap (another processor, a virtual machine or a container)"
        elif len(self._files) < len(packages):  # half of the sockets would be a wrong number
            self._files = []
            self.reason = f"{packages[0] / 'energy_uj'} is readable for root only"

    def joules(self) -> float | None:
        """Return the energy since the first call; ``None`` where the meter cannot be read."""
        for path in self._files:
            value = _integer(path)
            if value is None:
                return None
            before = self._last.get(path, value)
            step = value - before
            self._sum_uj += step if step >= 0 else step + (self._ranges[path] or before)
            self._last[path] = value
        return self._sum_uj / 1e6 if self._files else None


def _temperature_files(sys: Path) -> list[Path]:
    zones = [
        zone / "temp"
        for zone in sorted((sys / "class/thermal").glob("thermal_zone*"))
        if _line(zone / "type").lower() in _ZONES
    ]
    if zones:
        return zones
    chips = sorted((sys / "class/hwmon").glob("hwmon*"))
    return [chip / "temp1_input" for chip in chips if _line(chip / "name") in _HWMON]


def _throttle_counters(cpu: Path, cores: Sequence[Path], cgroup: Path) -> dict[str, Callable[[], int]]:
    """Return the throttle counters of the processor and of this container's quota."""
    found: dict[str, Callable[[], int]] = {}
    thermal = _readable([core / "thermal_throttle/package_throttle_count" for core in cores])
    if thermal:
        found["processor too hot"] = lambda: sum(_integer(path) or 0 for path in thermal)
    for path in (cgroup / "cpu.stat", cgroup / "cpu/cpu.stat"):
        if _throttled_periods(path) is not None:
            found["processor quota of the container"] = lambda path=path: _throttled_periods(path) or 0  # type: ignore[misc]
            break
    return found


def _throttled_periods(path: Path) -> int | None:
    """Return the number of throttled quota periods; ``None`` if there is no quota."""
    try:
        values = dict(line.split() for line in path.read_text().splitlines() if line.count(" ") == 1)
        return int(values["nr_throttled"])
    except (OSError, KeyError, ValueError):
        return None


def _max_clock(cores: Sequence[Path]) -> float | None:
    values = [v for core in cores if (v := _integer(core / "cpufreq/cpuinfo_max_freq")) is not None]
    return max(values) * 1e3 if values else None


def _spread(paths: Sequence[Path], most: int) -> list[Path]:
    step = max(1, -(-len(paths) // most))
    return list(paths[::step])


def _readable(paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if _integer(path) is not None]


def _integer(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
