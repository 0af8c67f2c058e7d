"""Capabilities of this machine, stages that will run, and fixes for the rest; without importing torch."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.config.devices import (
    BUILD_NAMES,
    cuda_device_count,
    mps_device_count,
    resolve_device,
    rocm_device_count,
    torch_backends,
    torch_build,
    xpu_device_count,
)
from llm_perf_opt.core import units
from llm_perf_opt.core.console.command_line import verb_parser
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.hardware.detect import detect_gpus, driver_versions
from llm_perf_opt.hardware.mig import listed_slices
from llm_perf_opt.process.tools import ENGINE_INSTALL, counter_permission, find_program, missing_engine
from llm_perf_opt.runs.provenance import cpu_name, load_average, memory_bytes

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig


# The machine, its GPUs and the installed torch, as ``doctor`` shows them; without importing torch.


_FEWEST_SHOWN_APART = 4


def describe_machine() -> dict[str, Any]:
    """Return processor, memory, GPUs of all vendors with their slices, drivers, and the device a run would take."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "load_average": load_average(),
        "cuda_devices": cuda_device_count(),
        "gpus": [
            {"name": gpu.name, "memory_bytes": gpu.memory_bytes, "vendor": gpu.vendor, "source": gpu.source}
            for gpu in detect_gpus()
        ],
        "slices": [one.name for one in listed_slices()],
        "drivers": driver_versions(),
        "device": resolve_device("auto"),
    }


def _describe_torch() -> dict[str, Any]:
    """Return version and build, and what to install where the build is not for this machine's GPUs."""
    build = torch_build()
    if build is None:
        return {"version": None, "build": None, "backends": [], "fix": ENGINE_INSTALL}
    return {
        "version": build.version,
        "build": build.kind,
        "backends": torch_backends(),
        "fix": build_problem(build.kind),
    }


def build_problem(kind: str) -> str | None:
    """Return which build of torch this machine's GPUs need, if the installed one cannot use them."""
    there = {
        "cuda": cuda_device_count(),
        "rocm": rocm_device_count(),
        "xpu": xpu_device_count(),
        "mps": mps_device_count(),
    }
    wanted = [name for name, count in there.items() if count]
    if not wanted or kind in wanted:
        return None
    names = " or ".join(BUILD_NAMES[name] for name in wanted)
    article = "an" if kind in ("xpu", "mps") else "a"
    return f"this torch is {article} {BUILD_NAMES[kind]} build although the machine has a GPU: install a {names} build of torch"


def machine_lines(machine: dict[str, Any]) -> list[str]:
    """Lay the machine out as lines of the report."""
    lines = [
        f"device    {machine['device']}  (CPU: {machine['cpu']}, {machine['cores']} cores, "
        f"{units.size(machine['memory_bytes'])})"
    ]
    gpus = machine["gpus"]
    shown = gpus[: _FEWEST_SHOWN_APART if len(gpus) <= _FEWEST_SHOWN_APART else 1]
    lines += [
        f"GPU       {gpu['name']}, {units.size(gpu['memory_bytes'])} ({gpu['source']})" for gpu in shown
    ]
    if len(gpus) > len(shown):
        lines.append(
            f"          and {len(gpus) - len(shown)} more: {', '.join(sorted({gpu['name'] for gpu in gpus}))}"
        )
    if not gpus:
        lines.append("GPU       none found")
    lines += [f"slice     {name}" for name in machine["slices"]]
    if (
        gpus
        and all(gpu["vendor"] == "nvidia" for gpu in gpus)
        and find_program("nvidia-smi") is None
        and not machine["slices"]
    ):
        lines.append("          nvidia-smi is not there: whether the GPU is a MIG slice is not known")
    versions = ", ".join(f"{name} {number}" for name, number in machine["drivers"].items())
    return [*lines, f"driver    {versions or 'none'}"]


_TOOLS = ("nsys", "ncu")
_LOW_DISK_BYTES = 5 * 2**30


def main(arguments: Sequence[str]) -> int:
    """Command line of ``llm-perf-opt doctor``."""
    parser = verb_parser(
        "doctor",
        "Show what this machine can do, which stages will run, and how to fix the rest.",
        one="a check of --self-test failed",
    )
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.add_argument(
        "--clean", action="store_true", help="first end processes that earlier runs left behind"
    )
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="check clocks, profilers, counters and sensors with a known program (a few minutes), and write a bundle",
    )
    parser.add_argument(
        "--bundle",
        metavar="FILE",
        help="path of the self-test bundle (default: a new .zip in this directory)",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="configuration to check the stages with"
    )
    options = parser.parse_args(arguments)
    if options.clean:
        _clean()
    report = diagnose(options.overrides)
    if options.self_test:
        return _self_test(report, options)
    print(json.dumps(report, indent=2) if options.json else render(report))
    return 0


def _self_test(report: dict[str, Any], options: argparse.Namespace) -> int:
    """Run the checks, print and pack them; 1 when one failed."""
    from llm_perf_opt.core.units import timestamp
    from llm_perf_opt.self_test import bundle, command

    if (missing := missing_engine()) is not None:
        raise missing
    device = _config(options.overrides).resolved_device
    result = command.run_self_test(device, report=lambda text: print(f"… {text}", file=sys.stderr))
    text = command.render(result)
    stamp = "".join(letter for letter in timestamp()[:19] if letter.isdigit())
    path = Path(options.bundle or f"llm-perf-opt-self-test-{stamp}.zip")
    bundle.write_bundle(path, bundle.bundle_documents(result, text, report))
    print(json.dumps({**result, "bundle": str(path)}, indent=2) if options.json else text)
    print(
        f"bundle to send back: {path} (contains no path, host or user name; inspect it before sending)",
        file=sys.stderr,
    )
    return 1 if result["failed"] else 0


def diagnose(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Collect everything the report shows."""
    config = _config(overrides)
    return {
        "machine": describe_machine(),
        "torch": _describe_torch(),
        "tools": {name: _tool(name) for name in _TOOLS},
        "counter_permission": asdict(counter_permission()),
        "disk": _disk(Path.cwd()),
        "stages": _stages(config, overrides),
        "left_running": _left_running(),
    }


def _clean() -> None:
    """End leftover processes of earlier runs; messages go to standard error because of --json."""
    from llm_perf_opt.process.groups import end_orphans

    ended, files = end_orphans()
    for one in (*ended, *files):
        print(f"cleaned: {one}", file=sys.stderr)


def _left_running() -> dict[str, Any]:
    """Name programs of earlier runs that still run, and agents that disturb captures."""
    from llm_perf_opt.process.groups import advice, find_orphans

    orphans = find_orphans()
    return {"processes": [str(orphan) for orphan in orphans], "fix": advice(orphans) or None}


def _tool(name: str) -> dict[str, Any]:
    """Query the version of a tool; later checks of stages use the cached result."""
    from llm_perf_opt.process.tools import find_tool, missing_tool
    from llm_perf_opt.stages.ncu.probe import ncu_version
    from llm_perf_opt.stages.nsys.probe import nsys_version

    path = find_tool(name)
    if path is None:
        missing = missing_tool(name)
        not_run = None if "not installed" in missing.message else missing.message
        fix = f"{not_run}: {missing.hint}" if not_run else missing.hint
        return {"path": None, "version": None, "fix": fix}
    try:
        version = nsys_version(path) if name == "nsys" else ncu_version(path)
    except ToolError as error:
        return {"path": str(path), "version": None, "fix": f"{error.message}: {error.hint}"}
    return {"path": str(path), "version": version, "fix": None}


def _disk(where: Path) -> dict[str, Any]:
    free = shutil.disk_usage(where).free
    low = free < _LOW_DISK_BYTES
    return {
        "path": str(where),
        "free_bytes": free,
        "writable": os.access(where, os.W_OK),
        "fix": "captures can take gigabytes: free some space or set artifacts.runs_dir" if low else None,
    }


def _config(overrides: Sequence[str]) -> AppConfig:
    from llm_perf_opt.config.compose import compose_config

    return compose_config(overrides)


def _stages(config: AppConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Check every stage as if it were enabled."""
    from llm_perf_opt.core.artifacts import Artifacts
    from llm_perf_opt.core.console.progress import LogProgress
    from llm_perf_opt.core.stage import Problem
    from llm_perf_opt.stages.base import StageContext, all_stages

    result: dict[str, Any] = {}
    missing = missing_engine() if config.workload_command.command is None else None
    with tempfile.TemporaryDirectory(prefix="llm-perf-opt-doctor-") as scratch:
        context = StageContext(
            config=config,
            artifacts=Artifacts.for_run(scratch),
            progress=LogProgress(),
            overrides=tuple(overrides),
        )
        for name, stage in all_stages().items():
            problems = (
                stage.check(context)
                if missing is None
                else [Problem("error", missing.message, missing.hint or "")]
            )
            severities = {p.severity for p in problems}
            outlook = (
                "skipped"
                if "skip" in severities
                else "error"
                if "error" in severities
                else "degraded"
                if problems
                else "runs"
            )
            result[name] = {
                "enabled": config.pipeline[name].enable,
                "outlook": outlook,
                "problems": [{"message": p.message, "fix": p.fix} for p in problems],
            }
    return result


def render(report: dict[str, Any]) -> str:
    """Lay the diagnosis out as text."""
    machine, torch = report["machine"], report["torch"]
    lines = [
        *machine_lines(machine),
        f"torch     {torch['version'] or 'not installed'} ({torch['build'] or '-'} build)"
        + _fix(torch["fix"]),
    ]
    for name, tool in report["tools"].items():
        shown = f"{tool['version'] or 'unknown version'}  {tool['path']}" if tool["path"] else "not found"
        lines.append(f"{name:<9} {shown}" + _fix(tool["fix"]))
    permission = report["counter_permission"]
    state = {True: "yes", False: "no", None: "not applicable"}[permission["allowed"]]
    lines.append(f"counters  {state}: {permission['reason']}" + _fix(permission["fix"]))
    disk = report["disk"]
    lines.append(
        f"disk      {units.size(disk['free_bytes'])} free in "
        f"{disk['path']}{'' if disk['writable'] else ' (not writable: set artifacts.runs_dir)'}"
        + _fix(disk["fix"])
    )
    left = report["left_running"]
    if left["processes"]:
        lines.append(f"left      {', '.join(left['processes'])}" + _fix(left["fix"]))
    lines.append("\nstages")
    for name, stage in report["stages"].items():
        lines.append(f"  {name:<17} {'on ' if stage['enabled'] else 'off'}  {stage['outlook']}")
        lines.extend(f"      {p['message']}" + _fix(p["fix"], indent=6) for p in stage["problems"])
    return "\n".join(lines)


def _fix(text: str | None, indent: int = 10) -> str:
    return f"\n{' ' * indent}fix: {text}" if text else ""
