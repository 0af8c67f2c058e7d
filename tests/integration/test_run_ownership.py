"""Two runs in one directory, one after the other and at the same time: nothing is mixed, nothing is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
import yaml

from llm_perf_opt.cli import main
from tests.support import cli, files_below, read_json
from tests.warm import warm_server

TINY = (
    "infer.max_new_tokens=3",
    "infer.warmup_rounds=0",
    "run.repeats=1",
    "dataset.synthetic_tokens=8",
    "hardware.probe=false",
)
STATIC = ("pipeline.torch_profiler.enable=false",)
DIRECT = (
    "pipeline.static_analysis.enable=false",
    "pipeline.torch_profiler.enable=false",
    "pipeline.direct_inference.enable=true",
)


def listed(run: Path) -> set[str]:
    manifest = read_json(run / "manifest.json")
    return {
        *manifest["files"],
        *(name for stage in manifest["stages"].values() for name in stage["artifacts"]),
    }


def own(run: Path) -> set[str]:
    return {name for name in files_below(run) if not name.startswith(("earlier-", "tmp/"))}


def test_another_model_in_the_same_directory_is_reported_as_itself(tmp_path: Path) -> None:
    """Seen: a run of Qwen titled Llama, with Llama's timings."""
    first = cli("run", "model=llama_tiny", *TINY, *DIRECT, "artifacts.runs_dir=run", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    run = tmp_path / "run"
    assert listed(run) == own(run), "the manifest lists everything"
    (run / "my-notes.txt").write_text("mine")
    second = cli("run", "model=qwen_moe_tiny", *TINY, *STATIC, "artifacts.runs_dir=run", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    (earlier,) = run.glob("earlier-*")
    assert earlier.name in second.stderr
    summary = read_json(run / "summary.json")
    assert "qwen" in summary["workload"]["model"].lower()
    assert summary["timings"]["tpot_s"] is None, "nothing was timed by this run"
    assert any(earlier.name in note for note in summary["notes"])
    assert earlier.name in (run / "run.log").read_text()
    assert list(summary["stages"]) == ["static_analysis"]
    assert not (run / "direct_inference").exists()
    assert (run / "my-notes.txt").read_text() == "mine"
    assert listed(run) == own(run) - {"my-notes.txt"}
    assert "llama" in read_json(earlier / "summary.json")["workload"]["model"].lower()
    assert main(["report", str(earlier), "--json"]) == 0, "what was moved aside is a run of its own"


def test_a_failing_run_does_not_show_the_numbers_of_the_one_before(tmp_path: Path) -> None:
    done = cli("run", "model=llama_tiny", *TINY, *DIRECT, "artifacts.runs_dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = cli(
        "run", "model=llama_tiny", *TINY[:3], *TINY[4:], *DIRECT, "dataset.synthetic_tokens=100000",
        "artifacts.runs_dir=run", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode != 0
    assert read_json(tmp_path / "run" / "summary.json")["timings"]["tpot_s"] is None


def test_a_second_run_at_the_same_time_is_refused_before_any_work(tmp_path: Path) -> None:
    command = ["run", "model=llama_tiny", *TINY[1:], *DIRECT]
    first = warm_server().start([*command, "infer.max_new_tokens=100000", "artifacts.runs_dir=run"], tmp_path)
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / "manifest.json").is_file():
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        second = cli("run", "model=qwen_moe_tiny", *TINY, *STATIC, "artifacts.runs_dir=run", cwd=tmp_path)
        assert second.returncode == 2, second.stderr
        assert f"process {first.pid} on " in second.stderr
        assert first.poll() is None, "the first is not disturbed"
        assert not list((tmp_path / "run").glob("earlier-*"))
        assert main(["report", str(tmp_path / "run")]) == 2, "nor are reports made meanwhile"
        os.kill(first.pid, signal.SIGKILL)
        first.wait(timeout=30)
        assert (tmp_path / "run" / "run.lock").is_file()
        third = cli("run", "model=qwen_moe_tiny", *TINY, *STATIC, "artifacts.runs_dir=run", cwd=tmp_path)
        assert third.returncode == 0, third.stderr
        assert re.search(rf"run\.lock\b.*\bprocess {first.pid}\b", third.stderr)
        assert not (tmp_path / "run" / "run.lock").exists()
    finally:
        first.kill()


def test_interrupted_predictions_are_continued_and_nothing_else(tmp_path: Path) -> None:
    done = cli(
        "run",
        "model=llama_tiny",
        *TINY,
        *DIRECT,
        "dataset.synthetic_count=3",
        "artifacts.runs_dir=run",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    path = run / "direct_inference" / "pred" / "predictions.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:1]))
    manifest = read_json(run / "manifest.json")
    manifest["status"] = "interrupted"
    manifest["stages"]["direct_inference"].update(status="failed", reason="interrupted")
    (run / "manifest.json").write_text(json.dumps(manifest))
    again = cli(
        "run",
        "model=llama_tiny",
        *TINY,
        *DIRECT,
        "dataset.synthetic_count=3",
        "artifacts.runs_dir=run",
        cwd=tmp_path,
    )
    assert again.returncode == 0, again.stderr
    assert re.search(r"\b1 of 3\b", again.stderr)
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [
        json.loads(line)["id"] for line in lines
    ]
    assert path.read_text().splitlines(keepends=True)[0] == lines[0]
    assert len(read_json(run / "direct_inference" / "timings.json")["samples"]) == 2, (
        "measured by this run alone"
    )
    finished = cli(
        "run",
        "model=llama_tiny",
        *TINY,
        *DIRECT,
        "dataset.synthetic_count=3",
        "artifacts.runs_dir=run",
        cwd=tmp_path,
    )
    assert finished.returncode == 0, finished.stderr
    assert len(read_json(run / "direct_inference" / "timings.json")["samples"]) == 3, (
        "a finished run is made again"
    )


def test_no_stage_is_a_mistake_with_the_toggles_named(tmp_path: Path) -> None:
    done = cli(
        "run", *STATIC, "pipeline.static_analysis.enable=false", "artifacts.runs_dir=run", cwd=tmp_path
    )
    assert done.returncode == 2
    message, _, hint = done.stderr.partition("fix:")
    assert "stage" in message and "pipeline.nsys.enable=true" in hint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("prompts", "batch", "ran", "expected"),
    [
        ("[a,b]", 4, 2, r"infer\.batch_size=4\b.*\b2\b"),
        ("[a,b,c]", 2, 1.5, r"infer\.batch_size=2\b.*\b2\D+1\b"),
        ("[a,b]", 2, 2, None),
    ],
)
def test_the_batch_size_is_what_ran(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    prompts: str,
    batch: int,
    ran: float,
    expected: str | None,
) -> None:
    overrides = [
        "model=llama_tiny",
        *TINY[:3],
        TINY[4],
        *DIRECT,
        f"infer.batch_size={batch}",
        f"dataset.prompts={prompts}",
    ]
    assert main(["run", *overrides, f"artifacts.runs_dir={tmp_path / 'run'}"]) == 0
    output = capsys.readouterr().err
    summary = read_json(tmp_path / "run" / "summary.json")
    assert summary["workload"]["batch_size"] == ran
    notes = [note for note in summary["notes"] if "infer.batch_size" in note]
    assert bool(notes) == bool(expected)
    assert expected is None or re.search(expected, notes[0]), "what was asked for, and what ran"
    assert ("infer.batch_size=" in output) == bool(expected)
    assert f"batch size {ran:g}" in (tmp_path / "run" / "report.md").read_text()


@pytest.mark.contract("A1")
def test_A1_a_static_run_names_its_shapes(tmp_path: Path) -> None:
    assert main(["run", "model=llama_tiny", *TINY, *STATIC, f"artifacts.runs_dir={tmp_path / 'run'}"]) == 0
    inputs = yaml.safe_load((tmp_path / "run" / "inputs.yaml").read_text())
    assert inputs["count"] == 0
    assert inputs["shapes"][0]["source"] == "configured"
    assert inputs["shapes"][0]["prompt_tokens"] > 0


@pytest.mark.contract("A1")
def test_A1_a_run_of_captures_alone_lists_the_samples(tmp_path: Path) -> None:
    """Without a GPU ncu is skipped; which samples it would have run is known all the same."""
    overrides = [
        "model=llama_tiny",
        *TINY,
        "pipeline.static_analysis.enable=false",
        *STATIC,
        "pipeline.ncu.enable=true",
    ]
    assert main(["run", *overrides, "infer.batch_size=4", f"artifacts.runs_dir={tmp_path / 'run'}"]) == 0
    inputs = yaml.safe_load((tmp_path / "run" / "inputs.yaml").read_text())
    assert inputs["count"] == len(inputs["samples"]) == 2
    summary = read_json(tmp_path / "run" / "summary.json")
    assert summary["workload"]["batch_size"] == 2
    assert any("gives 2 samples" in note for note in summary["notes"])
