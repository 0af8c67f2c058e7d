"""``llm-perf-opt serve`` with real engines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.what_if.recorded import RecordedTimes, fit_steps, read_run, recorded_limits
from llm_perf_opt.what_if.serving import ServingQuery
from llm_perf_opt.what_if.simulate import Load, Step, simulate
from tests.needs import environment_program
from tests.support import cli, read_json

LIMIT_S = 1100
"""Most of it is the start of an engine on a busy machine."""


def serve(root: Path, *arguments: str) -> dict[str, Any]:
    """Run the verb and return the ``serving`` section."""
    done = cli(
        "serve",
        *("--out", str(root), "--quiet", *arguments, "hardware.probe=false"),
        timeout_s=LIMIT_S,
        cwd=root.parent,
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
    check_simulation(root, serving["load"][1])


def check_simulation(root: Path, point: dict[str, Any]) -> None:
    """The simulator, fitted to the run, makes the steps that the server made: their sizes do not depend on the machine's load."""
    records = read_run(root)
    assert records is not None
    fit = fit_steps(records.steps[0])
    made: list[Step] = []

    class Times(RecordedTimes):
        def seconds(self, step: Step) -> float:
            made.append(step)
            return super().seconds(step)

    lengths = round(point["prompt_tokens"]), round(point["output_tokens"])
    load = Load(*lengths, concurrency=round(point["concurrency"]), requests=point["requests"])
    limits = recorded_limits(root, ServingQuery(*lengths))
    outcome = simulate(load, limits, Times(fit, "expected", 0.005))
    assert outcome.completed == point["completed"]
    prompts = [group for group in point["steps"] if group["prompts"]]
    tokens = sum(group["prompt_tokens"] * group["count"] for group in prompts)
    assert tokens == pytest.approx(lengths[0] * load.requests)
    # Requests of equal length stay in step: a wave takes a step for the first prompt, one for the others, and one per token.
    waves = load.requests / load.concurrency
    recorded = sum(group["count"] for group in point["steps"])
    simulated_prompts = sum(bool(step.chunks) and not step.arrivals for step in made)
    assert recorded == pytest.approx(waves * (lengths[1] + 1), rel=0.25)
    assert simulated_prompts == pytest.approx(
        sum(group["count"] for group in prompts), abs=0.5 * load.requests
    )


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


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.needs("serving", "vllm")
def test_improve_keeps_an_option_that_helps_and_drops_one_that_hurts(tmp_path: Path) -> None:
    """The real CPU build: a batch of one request against six, and prompts in 48 parts."""
    out = tmp_path / "search"
    helps, hurts = "--max-num-seqs=6", "--max-num-batched-tokens=8"
    command = [
        sys.executable, "-m", "llm_perf_opt", "improve", "--engine", "vllm", "--executable", str(environment_program("vllm", "vllm")),
        "--model", "llama_tiny", "--concurrency", "6", "--requests", "6", "--prompt-tokens", "384", "--new-tokens", "24", "--samples", "2",
        "--out", str(out), "--quiet", "--only", "batch-limit", "--try", hurts, "--budget", "16m", "hardware.probe=false",
        "pipeline.serve.certify=false", "--", "--max-num-seqs", "1",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = read_json(out / "improve.json")
    single = {tuple(one["overrides"]): one for one in found["tried"] if one["role"] == "single"}
    assert (single[(helps,)]["decision"], single[(helps,)]["output"]) == ("keep", "equal")
    assert (single[(hurts,)]["decision"], single[(hurts,)]["measured"]["verdict"]) == ("drop", "slower")
    assert found["best"]["overrides"] == [helps] and found["best"]["confirmed"]
    assert helps in (out / "best.sh").read_text()
    assert not left_running(out)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.needs("serving", "vllm")
def test_improve_of_transformers_serve(tmp_path: Path) -> None:
    """Prompts in 16 parts against 4; in the leg of vLLM, because blocks of load need a machine without other tests."""
    out = tmp_path / "search"
    command = [
        sys.executable, "-m", "llm_perf_opt", "improve", "--engine", "transformers", "--model", "llama_tiny", "--concurrency", "4",
        "--requests", "4", "--prompt-tokens", "256", "--new-tokens", "4", "--samples", "2", "--out", str(out), "--quiet", "--only", "step-tokens",
        "--budget", "12m", "hardware.probe=false", "pipeline.serve.certify=false", "--", "--cb-max-batch-tokens", "16",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = read_json(out / "improve.json")
    larger = "--cb-max-batch-tokens=64"
    (trial,) = [one for one in found["tried"] if one["role"] == "single"]
    assert (trial["overrides"], trial["decision"], trial["output"]) == ([larger], "keep", "equal")
    assert found["best"]["overrides"] == [larger] and found["best"]["confirmed"]
    command_line = (out / "best.sh").read_text()
    assert (
        larger in command_line
        and "--continuous-batching" in command_line
        and "--cb-num-blocks" in command_line
    )
    assert not left_running(out)
