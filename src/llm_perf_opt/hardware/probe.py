"""Measured ceilings of this machine: a few seconds once, then from a cache.

The measurement runs in a process of its own (``probe_worker``): it does not disturb this program's torch
threads, and a processor that dies of an instruction set it only claims to have takes nothing else with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import InputError, ToolError
from llm_perf_opt.core.files import atomic_write_json, is_own_file
from llm_perf_opt.hardware.detect import DetectedCpu, detect_cpu
from llm_perf_opt.model.codec import decode_file
from llm_perf_opt.model.limits import Count, Rate, SummedSeconds
from llm_perf_opt.model.summary import Hardware, Peak

_BUSY_LOAD_PER_CORE = 0.75
PROBE_VERSION = 1
"""Raised when the measurement changes, so that old cache entries are not used."""
SOURCE = "measured on this machine"

_ISA_FALLBACKS = (None, "AVX512_CORE_BF16", "AVX512_CORE", "AVX2")
"""Values of ONEDNN_MAX_CPU_ISA to try, in turn, when a data type ends the process with SIGILL."""
_TIMEOUT_S = 120.0


@dataclass(slots=True)
class ProbeResult:
    """What was measured, and under which conditions."""

    device: str
    """``cpu`` or ``cuda:N``."""
    name: str
    threads: Count | None = None
    torch: str | None = None
    flops_per_s: dict[str, Rate] = field(default_factory=dict)
    """Data type → best rate of a large matrix product."""
    bandwidth_bytes_per_s: Rate | None = None
    conditions: dict[str, str] = field(default_factory=dict)
    """How each number was reached: matrix size, stream kind, instruction set."""
    notes: list[str] = field(default_factory=list)
    """What could not be measured, and why."""
    seconds: SummedSeconds | None = None
    cached: bool = False

    def peaks(self) -> dict[str, Peak]:
        """Return the rates as peaks that say where they come from."""
        return {
            dtype: Peak(rate, f"{SOURCE} ({self.conditions.get(dtype, 'matrix product')})")
            for dtype, rate in self.flops_per_s.items()
        }

    def bandwidth_source(self) -> str | None:
        """Say how the bandwidth was measured."""
        if self.bandwidth_bytes_per_s is None:
            return None
        return f"{SOURCE} ({self.conditions.get('bandwidth', 'streaming')})"


def cache_directory() -> Path:
    """Return where measurements are kept (``XDG_CACHE_HOME`` is honoured)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llm-perf-opt" / "probe"


def probe(
    device: str = "cpu",
    *,
    name: str | None = None,
    threads: int | None = None,
    dtypes: Sequence[str] | None = None,
    cache_dir: Path | None = None,
    refresh: bool = False,
) -> ProbeResult:
    """Return this machine's ceilings, measured now or before on the same machine with the same threads."""
    cpu = detect_cpu()
    wanted = tuple(dtypes) if dtypes is not None else _default_dtypes(device)
    label = name or (cpu.name if device == "cpu" else device)
    folder = cache_dir if cache_dir is not None else cache_directory()
    path = folder / f"{cache_key(device, label, cpu, threads, wanted)}.json"
    kept = None if refresh else _read_cache(path)
    if kept is not None:
        kept.cached = True
        return kept
    busy = machine_is_busy(cpu.cores)
    result = _measure(device, label, threads, wanted)
    # A ceiling measured beside other work is too low: good enough for now, not worth keeping.
    if not busy and (result.flops_per_s or result.bandwidth_bytes_per_s is not None):
        _write_cache(path, result)
    return result


def machine_is_busy(cores: int) -> bool:
    """Tell whether other programs have been using the processor in the last minute."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > _BUSY_LOAD_PER_CORE * cores


def forget_measurements(cache_dir: Path | None = None) -> None:
    """Drop kept measurements: a run that beat its ceiling proves them too low."""
    folder = cache_dir if cache_dir is not None else cache_directory()
    for path in folder.glob("*.json"):
        path.unlink(missing_ok=True)


def cpu_hardware(result: ProbeResult, cpu: DetectedCpu) -> Hardware:
    """Return measured ceilings of the processor as the limits of a run."""
    known = bool(result.flops_per_s) or result.bandwidth_bytes_per_s is not None
    return Hardware(
        name=cpu.name,
        kind="cpu",
        peak_flops_per_s=result.peaks(),
        bandwidth_bytes_per_s=result.bandwidth_bytes_per_s,
        source="probe" if known else "none",
        memory_bytes=cpu.memory_bytes,
        reason="; ".join(result.notes) or None,
        bandwidth_source=result.bandwidth_source(),
        measured_peak_flops_per_s=result.peaks(),
        measured_bandwidth_bytes_per_s=result.bandwidth_bytes_per_s,
    )


def cache_key(device: str, name: str, cpu: DetectedCpu, threads: int | None, dtypes: Sequence[str]) -> str:
    """Return a name that changes with everything a measurement depends on."""
    facts = [PROBE_VERSION, device, name, cpu.name, cpu.cores, torch_version(), threads, list(dtypes)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def torch_version() -> str | None:
    """Return the installed torch's version without importing it (an import takes a second)."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def _default_dtypes(device: str) -> tuple[str, ...]:
    # Riskiest last: what was printed before a crash is kept.
    if device == "cpu":
        return ("bandwidth", "float32", "bfloat16")
    return ("bandwidth", "float32", "tf32", "bfloat16", "float16")


def _measure(device: str, name: str, threads: int | None, wanted: tuple[str, ...]) -> ProbeResult:
    result = ProbeResult(device=device, name=name, seconds=0.0)
    left = list(wanted)
    for isa in _ISA_FALLBACKS if device == "cpu" else (None,):
        crashed = _run_worker(result, left, threads, isa)
        left = [item for item in left if not _is_measured(result, item)]
        if not left or not crashed:
            break
    for item in left:
        if not any(note.startswith(f"{item}:") for note in result.notes):
            result.notes.append(f"{item}: could not be measured on this machine")
    return result


def _is_measured(result: ProbeResult, item: str) -> bool:
    return result.bandwidth_bytes_per_s is not None if item == "bandwidth" else item in result.flops_per_s


def _run_worker(result: ProbeResult, items: Sequence[str], threads: int | None, isa: str | None) -> bool:
    """Run one child, add what it printed to ``result``; say whether an illegal instruction ended it."""
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
        missing = next((item for item in items if not _is_measured(result, item)), "probe")
        result.notes.append(f"{missing}: {last}")
    return illegal


def _apply_measurement(result: ProbeResult, row: dict[str, Any], isa: str | None) -> None:
    limited = f", ONEDNN_MAX_CPU_ISA={isa}" if isa else ""
    if row["kind"] == "start":
        result.threads, result.torch = int(row["threads"]), str(row["torch"])
    elif row["kind"] == "bandwidth":
        result.bandwidth_bytes_per_s = float(row["bytes_per_s"])
        result.conditions["bandwidth"] = f"{row['how']}, {result.threads} threads"
    elif row["kind"] == "gemm":
        side = int(row["side"])
        result.flops_per_s[row["dtype"]] = float(row["flops_per_s"])
        threads = f", {result.threads} threads" if result.device == "cpu" else ""
        result.conditions[row["dtype"]] = f"matrix product {side} × {side}{threads}{limited}"


def _read_cache(path: Path) -> ProbeResult | None:
    """Return a kept measurement; one that is damaged, or that somebody else can write, is measured again."""
    if not is_own_file(path):
        return None
    try:
        return decode_file(path, ProbeResult)
    except InputError:
        return None


def _write_cache(path: Path, result: ProbeResult) -> None:
    try:
        atomic_write_json(path, asdict(result))
    except (ToolError, OSError) as error:
        # A cache that cannot be written costs seconds next time, not the result.
        result.notes.append(f"the measurement could not be kept: {error}")
