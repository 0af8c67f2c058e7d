"""Measured ceilings of this machine: a few seconds once, then from a cache.

The measurement runs in a process of its own (``worker``): it does not disturb this program's torch
threads, and a processor that dies of an instruction set it only claims to have takes nothing else with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.core.clock import now_text
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.hardware.contention.processor_load import machine_is_busy, machine_is_idle
from llm_perf_opt.hardware.detect import DetectedCpu, detect_cpu
from llm_perf_opt.hardware.probe.cache import cache_directory, cache_key, device_conditions, keep, read_kept
from llm_perf_opt.hardware.probe.measured import BANDWIDTH, OPERATOR, ProbeResult, best_of
from llm_perf_opt.model.summary import Hardware

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
    """Return this machine's ceilings: the best it was seen to do, with the same threads, in this run or before.

    A kept measurement is used as it is once a quiet one is among those that went in. One made beside other work is
    made again, and of each rate the better is kept; after some tries only when the processor is idle.
    """
    cpu = detect_cpu()
    wanted = tuple(dtypes) if dtypes is not None else _default_dtypes(device)
    label = name or (cpu.name if device == "cpu" else device)
    folder = cache_dir if cache_dir is not None else cache_directory()
    conditions = device_conditions() if device != "cpu" else []
    path = folder / f"{cache_key(device, label, cpu, threads, wanted, conditions)}.json"
    kept = None if refresh else read_kept(path)
    # Asked before: afterwards the measurement's own work is in it.
    busy = machine_is_busy(cpu.cores)
    if kept is not None and kept.settled and not (kept.under_load and device == "cpu" and machine_is_idle()):
        kept.cached = True
        return kept
    result = _measure(device, label, threads, wanted)
    result.judge_load(busy_otherwise=busy if device == "cpu" else None)
    if conditions:
        result.conditions["device"] = ", ".join(conditions)
    if kept is not None:
        result = best_of(kept, result)
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
    now = now_text()
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
    """Run one child, add what it printed to ``result``; say whether an illegal instruction ended it."""
    from llm_perf_opt.process.launch import run_probe

    argv = [
        sys.executable,
        "-m",
        "llm_perf_opt.hardware.probe.worker",
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
    """How it was timed: by host threads on a processor, by the device's own events elsewhere."""
    if result.device != "cpu":
        return ", device events"
    return f", {result.threads} thread{'' if result.threads == 1 else 's'}"
