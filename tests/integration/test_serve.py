"""``llm-perf-opt serve`` with real engines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.needs import environment_program
from tests.support import read_json

LIMIT_S = 1100
"""Most of it is the start of an engine on a busy machine."""


def serve(root: Path, *arguments: str) -> dict[str, Any]:
    """Run the verb and return the ``serving`` section."""
    command = [
        sys.executable,
        "-m",
        "llm_perf_opt",
        "serve",
        "--out",
        str(root),
        "--quiet",
        *arguments,
        "hardware.probe=false",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=root.parent
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = read_json(root / "summary.json")["serving"]
    return found


def left_running(folder: Path) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command and int(file.parent.name) != os.getpid():
            found.append(command)
    return found


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.needs("serving")
def test_transformers_serve_under_two_loads(tmp_path: Path) -> None:
    """The default engine with a checkpoint made from a preset: exact lengths, nothing left."""
    root = tmp_path / "run"
    serving = serve(
        root, "--model", "llama_tiny", "--rate", "2", "--concurrency", "2", "--requests", "8", "--prompt-tokens", "40",
        "--new-tokens", "6", "--slo", "ttft:60s,tpot:60s",
    )  # fmt: skip
    assert serving["engine"] == "transformers"
    assert [point["kind"] for point in serving["load"]] == ["open", "closed"]
    for point in serving["load"]:
        assert (point["completed"], point["failed"]) == (8, 0)
        assert (point["prompt_tokens"], point["output_tokens"]) == (40, 6)
        assert point["goodput_per_s"] > 0
        parts = point["ttft_parts_s"]
        assert sum(parts.values()) == pytest.approx(point["ttft_s"]["mean"], rel=1e-3)
        assert parts["own_prefill"] > 0
    assert serving["coverage_ratio"] == 1.0
    assert serving["steps"]["count"] > 2 * 6
    assert serving["cold_start"]["imports_s"] > 0
    assert serving["client"]["capacity_per_s"] > 0
    assert (root / "tmp" / "serve" / "checkpoint" / "model.safetensors").is_file()
    assert not left_running(root)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.needs("serving", "vllm")
def test_vllm_with_its_step_records(tmp_path: Path) -> None:
    """The real CPU build: steps from the plug-in, and parts that sum to the measured time to first token."""
    root = tmp_path / "run"
    serving = serve(
        root, "--engine", "vllm", "--executable", str(environment_program("vllm", "vllm")), "--model", "llama_tiny",
        "--rate", "2", "--concurrency", "4", "--requests", "12", "--prompt-tokens", "100", "--new-tokens", "8",
        "--profile",
    )  # fmt: skip
    assert [point["kind"] for point in serving["load"]] == ["open", "closed"]
    window = serving["profile"]
    assert window["steps"] >= 8 and window["matched_steps"] >= window["steps"] - 2 and window["notes"] == []
    assert [one["id"] for one in window["requests"]] == [f"profiled-{place}" for place in range(8)]
    assert window["families"]["decode"][0]["seconds"] > 0 and not window["is_salvaged"]
    start = serving["cold_start"]
    parts = [start[name] for name in ("imports_s", "weights_s", "kv_cache_s", "other_s")]
    assert all(part is not None and part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(start["total_s"])
    assert (serving["engine"], serving["version"][:2]) == ("vllm", "0.")
    assert serving["steps"]["count"] > 20
    assert serving["coverage_ratio"] > 0.9
    for point in serving["load"]:
        assert (point["completed"], point["prompt_tokens"], point["output_tokens"]) == (12, 100, 8)
        parts = point["ttft_parts_s"]
        total = sum(value for value in parts.values() if value is not None)
        assert total == pytest.approx(point["ttft_s"]["mean"], abs=max(serving["clock_uncertainty_s"], 1e-3))
        assert parts["own_prefill"] > 0
    assert len(serving["occupancy"]) >= 2
    assert not left_running(root)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.needs("serving", "vllm")
def test_a_profiled_window_of_two_ranks(tmp_path: Path) -> None:
    """Tensor parallelism on the CPU build: a trace of each rank, and the time in which they talk."""
    root = tmp_path / "run"
    serving = serve(
        root, "--engine", "vllm", "--executable", str(environment_program("vllm", "vllm")), "--model", "llama_tiny",
        "--env", "VLLM_CPU_OMP_THREADS_BIND=0|1", "--concurrency", "4", "--requests", "8", "--prompt-tokens", "100",
        "--new-tokens", "8", "--profile", "pipeline.serve.args=[--tensor-parallel-size,'2']",
    )  # fmt: skip
    window = serving["profile"]
    assert window["ranks"] == 2 and window["notes"] == []
    assert [one["rank"] for one in window["by_rank"]] == [0, 1]
    for one in window["by_rank"]:
        assert one["steps"] == window["steps"] >= 8
        assert 0 < one["communication_ratio"] < 1
    assert window["matched_steps"] >= window["steps"] - 2
    assert [one["id"] for one in window["requests"]] == [f"profiled-{place}" for place in range(8)]
    assert not left_running(root)
