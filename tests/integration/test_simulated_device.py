"""A second device: engine, clock, telemetry and profiler on it, and a whole run that chose it by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import need
from tests.simulated_device import PLUGIN
from tests.simulated_device.build import library_path
from tests.support import REPOSITORY, cli


@pytest.fixture(scope="module")
def device() -> Path:
    """The built device."""
    need("compiler")
    return library_path()


def test_engine_clock_memory_and_profiler_on_a_second_device(device: Path) -> None:
    cases = REPOSITORY / "tests" / "simulated_device" / "cases_simulated.py"
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-o",
        "addopts=",
        "-o",
        "python_files=cases_*.py",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(cases)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


def test_a_whole_run_takes_the_device_that_torch_offers(device: Path, tmp_path: Path) -> None:
    """``auto``, with torch loading the device as it loads any vendor's: timings, trace, telemetry, report."""
    path = os.pathsep.join(str(folder) for folder in (PLUGIN, REPOSITORY / "src", REPOSITORY))
    stages = [f"pipeline.{name}.enable=true" for name in ("telemetry", "nsys", "ncu")]
    done = cli(
        "run",
        "model=llama_tiny",
        f"artifacts.runs_dir={tmp_path / 'run'}",
        "infer.max_new_tokens=4",
        "infer.warmup_rounds=0",
        "run.repeats=1",
        "hardware.probe=false",
        *stages,
        env={"PYTHONPATH": path},
        cwd=tmp_path,
        anew=True,  # torch looks for devices while it is imported
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["workload"]["device"] == "sim:0"
    assert summary["workload"]["tokens_verified"] is True
    assert summary["hardware"]["name"] == "Simulated Accelerator"
    status = {name: stage["status"] for name, stage in summary["stages"].items()}
    assert status == {
        "static_analysis": "ok", "torch_profiler": "ok", "telemetry": "ok", "nsys": "skipped", "ncu": "skipped",
    }  # fmt: skip
    for tool in ("nsys", "ncu"):
        reason = summary["stages"][tool]["reason"]
        assert f"({tool})" in reason and "NVIDIA" in reason and "sim:0" in reason
    assert summary["memory"]["decode"]["counts"] == "allocator"
    assert {kernel["phase"] for kernel in summary["kernels"]} >= {"prefill", "decode"}
    parts = {part["name"]: part["seconds"] for part in summary["budget"]["decode"]["parts"]}
    assert parts["compute"] > 0
    for stage in ("torch_profiler", "telemetry"):
        released = json.loads((tmp_path / "run" / stage / "memory_release.json").read_text())
        assert released["proved"] is True and released["before"]["allocated_bytes"] > 1_000_000
