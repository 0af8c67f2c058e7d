"""Measured ceilings of this machine: measured once in a few seconds, then cached.

The measurement runs in a process of its own (``worker``): it does not disturb this program's torch
threads, and a crash by an instruction set that the processor only claims to have affects nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import InputError, ToolError
from llm_perf_opt.core.files import atomic_write_json, is_own_file
from llm_perf_opt.core.limits import Count, Rate, Share, SummedSeconds
from llm_perf_opt.core.units import timestamp
from llm_perf_opt.hardware.contention import (
    UNDER_LOAD_RATIO,
    machine_is_busy,
    machine_is_idle,
    read_device_loads,
)
from llm_perf_opt.hardware.detect import DetectedCpu, detect_cpu, driver_versions
from llm_perf_opt.summary import Hardware, Peak
from llm_perf_opt.summary.codec import decode_file

# Result of a measurement of this machine's ceilings, and merging of two of them.


SOURCE = "measured on this machine"
BANDWIDTH = "bandwidth"
OPERATOR = "operator"
MOST_TRIES = 5
"""A machine that is never quiet is not measured again for ever."""


@dataclass(slots=True)
class ProbeResult:
    """Measured values and conditions."""

    device: str
    """``cpu`` or ``cuda:N``."""
    name: str
    threads: Count | None = None
    torch: str | None = None
    flops_per_s: dict[str, Rate] = field(default_factory=dict)
    """Data type → best rate of a large matrix product."""
    bandwidth_bytes_per_s: Rate | None = None
    operator_s: SummedSeconds | None = None
    """Shortest time of an operator on one element, called from Python."""
    conditions: dict[str, str] = field(default_factory=dict)
    """How each number was reached: matrix size, stream kind, instruction set."""
    notes: list[str] = field(default_factory=list)
    """What could not be measured, and why."""
    seconds: SummedSeconds | None = None
    cached: bool = False
    """Nothing was measured now."""
    measured_at: str | None = None
    """When the best of the rates was reached (ISO 8601 with time zone)."""
    under_load: bool | None = None
    """Whether other programs used the processor in every measurement that went in."""
    other_load_ratio: Share | None = None
    """Their share of the processor's time in the quietest of the measurements."""
    tries: Count = 1
    """Measurements that went in; of each rate the best counts."""
    settled: bool = False
    """Not measured again: one measurement was quiet, or there were enough of them."""

    @property
    def found(self) -> bool:
        """Whether anything was measured at all."""
        return bool(self.flops_per_s) or self.bandwidth_bytes_per_s is not None

    def has(self, item: str) -> bool:
        """Whether a quantity (a data type, or ``bandwidth``) was measured."""
        if item == OPERATOR:
            return self.operator_s is not None
        return self.bandwidth_bytes_per_s is not None if item == BANDWIDTH else item in self.flops_per_s

    def judge_load(self, *, busy_otherwise: bool | None) -> None:
        """Decide whether the measurement was disturbed; ``busy_otherwise`` is used if it cannot tell (a GPU)."""
        ratio = self.other_load_ratio
        self.under_load = busy_otherwise if ratio is None else ratio > UNDER_LOAD_RATIO
        self.settled = not self.under_load or self.tries >= MOST_TRIES

    def peaks(self) -> dict[str, Peak]:
        """Return the rates as peaks with their source."""
        return {
            dtype: Peak(rate, self._source(dtype, "matrix product"))
            for dtype, rate in self.flops_per_s.items()
        }

    def bandwidth_source(self) -> str | None:
        """Describe how the bandwidth was measured."""
        return None if self.bandwidth_bytes_per_s is None else self._source(BANDWIDTH, "streaming")

    def _source(self, item: str, otherwise: str) -> str:
        load = ", under load" if self.under_load else ""
        return f"{SOURCE} ({self.conditions.get(item, otherwise)}{load})"

    def describe(self, hardware: Hardware) -> None:
        """Add values, time and disturbance to the limits of a run."""
        hardware.measured_peak_flops_per_s = self.peaks()
        hardware.measured_bandwidth_bytes_per_s = self.bandwidth_bytes_per_s
        if not self.found:
            return
        hardware.measured_at = self.measured_at
        hardware.measured_under_load = self.under_load
        hardware.measured_other_load_ratio = self.other_load_ratio
        hardware.measurements = self.tries
        hardware.measured_operator_s = self.operator_s


def _best_of(kept: ProbeResult, new: ProbeResult) -> ProbeResult:
    """Join two measurements of the same machine: a ceiling is the best value ever measured."""
    flops, conditions = dict(kept.flops_per_s), {**new.conditions, **kept.conditions}
    rose = False
    for dtype, rate in new.flops_per_s.items():
        if rate > flops.get(dtype, 0.0):
            flops[dtype], rose = rate, True
            conditions[dtype] = new.conditions.get(dtype, "")
    bandwidth = kept.bandwidth_bytes_per_s
    if new.bandwidth_bytes_per_s is not None and new.bandwidth_bytes_per_s > (bandwidth or 0.0):
        bandwidth, rose = new.bandwidth_bytes_per_s, True
        conditions[BANDWIDTH] = new.conditions.get(BANDWIDTH, "")
    costs = [cost for cost in (kept.operator_s, new.operator_s) if cost is not None]
    loads = [load for load in (kept.other_load_ratio, new.other_load_ratio) if load is not None]
    tries = kept.tries + new.tries
    under_load = (
        None if kept.under_load is new.under_load is None else bool(kept.under_load and new.under_load)
    )
    return replace(
        new,
        flops_per_s=flops,
        bandwidth_bytes_per_s=bandwidth,
        operator_s=min(costs, default=None),
        conditions=conditions,
        measured_at=new.measured_at if rose else kept.measured_at,
        under_load=under_load,
        other_load_ratio=min(loads, default=None),
        tries=tries,
        settled=under_load is not True or tries >= MOST_TRIES,
    )


# Measurements kept from run to run: the best of each machine, with time and disturbance.


_PROBE_VERSION = 5
"""Raised when the measurement changes, so that old cache entries are not used."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def cache_directory() -> Path:
    """Return the cache directory (``XDG_CACHE_HOME`` is honoured)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llm-perf-opt" / "probe"


def cache_key(
    device: str,
    name: str,
    cpu: DetectedCpu,
    threads: int | None,
    dtypes: Sequence[str],
    conditions: Sequence[str] = (),
) -> str:
    """Return a key of everything a measurement depends on; ``conditions``: driver, power limits."""
    facts = [_PROBE_VERSION, device, name, cpu.name, cpu.cores, torch_version(), threads, list(dtypes)]
    # torch takes its threads from these by default; a launcher of several ranks sets them.
    facts += [
        [name, os.environ[name]] for name in _THREAD_VARIABLES if threads is None and name in os.environ
    ]
    facts += [list(conditions)] if conditions else []
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def device_conditions() -> list[str]:
    """Return what a GPU's rates depend on besides the GPU: driver versions and power limits."""
    versions = [f"{name} {number}" for name, number in sorted(driver_versions().items())]
    return [*versions, *read_device_loads().power_limits()]


def torch_version() -> str | None:
    """Return the installed torch's version without importing it (an import takes a second)."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def read_kept(path: Path) -> ProbeResult | None:
    """Return a cached measurement; a damaged or foreign-writable one is ignored."""
    if not is_own_file(path):
        return None
    try:
        return decode_file(path, ProbeResult)
    except InputError:
        return None


def keep(path: Path, result: ProbeResult) -> None:
    """Store a measurement for the next run."""
    try:
        atomic_write_json(path, asdict(result))
    except (ToolError, OSError) as error:
        # An unwritable cache costs seconds next time, not the result.
        result.notes.append(f"the measurement could not be kept: {error}")


def distrust_measurements(folder: Path | None = None) -> None:
    """Invalidate cached measurements: a run that beat its ceiling proves them too low. The best value is kept."""
    for path in (folder if folder is not None else cache_directory()).glob("*.json"):
        kept = read_kept(path)
        if kept is None:
            path.unlink(missing_ok=True)
        elif kept.settled:
            kept.settled, kept.tries = False, 1
            keep(path, kept)


_ISA_FALLBACKS = (None, "AVX512_CORE_BF16", "AVX512_CORE", "AVX2")
"""Values of ONEDNN_MAX_CPU_ISA to try, in turn, when a data type ends the process with SIGILL."""
_TIMEOUT_S = 120.0


def probe(
    device: str = "cpu",
    *,
    name: str | None = None,
    threads: int | None = None,
    dtypes: Sequence[str] | None = None,
    cache_dir: Path | None = None,
    refresh: bool = False,
) -> ProbeResult:
    """Return this machine's ceilings: the best measured values, with the same threads, in this run or before.

    A cached measurement is used unchanged once it includes an undisturbed one. One made while other work ran is
    made again, and of each rate the better is kept; after some tries only when the processor is idle.
    """
    cpu = detect_cpu()
    wanted = tuple(dtypes) if dtypes is not None else _default_dtypes(device)
    label = name or (cpu.name if device == "cpu" else device)
    folder = cache_dir if cache_dir is not None else cache_directory()
    conditions = device_conditions() if device != "cpu" else []
    path = folder / f"{cache_key(device, label, cpu, threads, wanted, conditions)}.json"
    kept = None if refresh else read_kept(path)
    # Checked before: afterwards it includes the measurement's own work.
    busy = machine_is_busy(cpu.cores)
    if kept is not None and kept.settled and not (kept.under_load and device == "cpu" and machine_is_idle()):
        kept.cached = True
        return kept
    result = _measure(device, label, threads, wanted)
    result.judge_load(busy_otherwise=busy if device == "cpu" else None)
    if conditions:
        result.conditions["device"] = ", ".join(conditions)
    if kept is not None:
        result = _best_of(kept, result)
    if result.found:
        keep(path, result)
    return result


def cpu_hardware(result: ProbeResult, cpu: DetectedCpu) -> Hardware:
    """Return measured ceilings of the processor as the limits of a run."""
    hardware = Hardware(
        name=cpu.name,
        kind="cpu",
        peak_flops_per_s=result.peaks(),
        bandwidth_bytes_per_s=result.bandwidth_bytes_per_s,
        source="probe" if result.found else "none",
        memory_bytes=cpu.memory_bytes,
        reason="; ".join(result.notes) or None,
        bandwidth_source=result.bandwidth_source(),
    )
    result.describe(hardware)
    return hardware


def _default_dtypes(device: str) -> tuple[str, ...]:
    # Riskiest last: what was printed before a crash is kept.
    if device == "cpu":
        return (OPERATOR, BANDWIDTH, "float32", "bfloat16")
    return (BANDWIDTH, "float32", "tf32", "bfloat16", "float16")


def _measure(device: str, name: str, threads: int | None, wanted: tuple[str, ...]) -> ProbeResult:
    now = timestamp()
    result = ProbeResult(device=device, name=name, seconds=0.0, measured_at=now)
    left = list(wanted)
    for isa in _ISA_FALLBACKS if device == "cpu" else (None,):
        crashed = _run_worker(result, left, threads, isa)
        left = [item for item in left if not result.has(item)]
        if not left or not crashed:
            break
    for item in left:
        if not any(note.startswith(f"{item}:") for note in result.notes):
            result.notes.append(f"{item}: could not be measured on this machine")
    return result


def _run_worker(result: ProbeResult, items: Sequence[str], threads: int | None, isa: str | None) -> bool:
    """Run one child, add its output to ``result``; return whether an illegal instruction ended it."""
    from llm_perf_opt.process.launch import run_probe

    argv = [
        sys.executable,
        "-m",
        "llm_perf_opt.hardware.probe_worker",
        result.device,
        str(threads or 0),
        *items,
    ]
    env = dict(os.environ)
    if isa is not None:
        env["ONEDNN_MAX_CPU_ISA"] = isa
    try:
        ended = run_probe(argv, timeout_s=_TIMEOUT_S, env=env)
    except ToolError as error:
        result.notes.append(f"the measuring process could not be started: {error.message}")
        return False
    result.seconds = (result.seconds or 0.0) + ended.seconds
    for line in ended.stdout.splitlines():
        if line.startswith("{"):
            _apply_measurement(result, json.loads(line), isa)
    illegal = ended.returncode in (-signal.SIGILL, 128 + signal.SIGILL)
    if ended.returncode != 0 and not illegal:
        last = (ended.stderr.strip().splitlines() or [f"ended with {ended.ended} {ended.returncode}"])[-1]
        missing = next((item for item in items if not result.has(item)), "probe")
        result.notes.append(f"{missing}: {last}")
    return illegal


def _apply_measurement(result: ProbeResult, row: dict[str, Any], isa: str | None) -> None:
    limited = f", ONEDNN_MAX_CPU_ISA={isa}" if isa else ""
    if row["kind"] == "start":
        result.threads, result.torch = int(row["threads"]), str(row["torch"])
    elif row["kind"] == "load":
        result.other_load_ratio = float(row["other_load_ratio"])
    elif row["kind"] == "bandwidth":
        result.bandwidth_bytes_per_s = float(row["bytes_per_s"])
        result.conditions[BANDWIDTH] = f"{row['how']}{_threads(result)}"
    elif row["kind"] == "operator":
        result.operator_s = float(row["seconds"])
        result.conditions[OPERATOR] = str(row["how"])
    elif row["kind"] == "gemm":
        side = int(row["side"])
        result.flops_per_s[row["dtype"]] = float(row["flops_per_s"])
        result.conditions[row["dtype"]] = f"matrix product {side} × {side}{_threads(result)}{limited}"
    elif row["kind"] == "others":
        result.conditions["others"] = f"{row['programs']} other programs had the device open"


def _threads(result: ProbeResult) -> str:
    """Describe the timing: host threads on a CPU, device events elsewhere."""
    if result.device != "cpu":
        return ", device events"
    return f", {result.threads} thread{'' if result.threads == 1 else 's'}"
