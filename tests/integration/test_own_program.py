"""A run of the user's own program speaks of that program alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from llm_perf_opt.config.schema import WorkloadCommandConfig
from llm_perf_opt.core import units
from llm_perf_opt.runs.checks import stages_of
from llm_perf_opt.stages.workload import program_name
from tests.support import cli, files_below, read_json

PROGRAM = """\
import sys, time
end = time.perf_counter() + 0.3
while time.perf_counter() < end:
    pass
print("served", sys.argv[1:])
sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""
ABOUT_A_MODEL = ("deepseek", "static model", "MFU", "random weights", "per output token", "tokens")


def run(tmp_path: Path, command: str, *more: str) -> int:
    (tmp_path / "serve_bench.py").write_text(PROGRAM)
    done = cli(
        "run",
        f"pipeline.workload.command={command}",
        *more,
        "artifacts.runs_dir=run",
        cwd=tmp_path,
        timeout_s=200,
    )
    (tmp_path / "said.txt").write_text(done.stdout + done.stderr)
    return done.returncode


@pytest.mark.needs("nsys")
def test_the_command_of_the_readme_reports_the_program_and_nothing_else(tmp_path: Path) -> None:
    code = run(
        tmp_path, "[python3,serve_bench.py]", "pipeline.nsys.enable=true", "pipeline.nsys.timeout_s=120"
    )
    assert code == 0, (tmp_path / "said.txt").read_text()
    folder = tmp_path / "run"
    summary = read_json(folder / "summary.json")
    assert summary["workload"]["model"] == "serve_bench.py"
    assert summary["workload"]["program"] == ["python3", "serve_bench.py"]
    assert [summary["workload"][name] for name in ("device", "dtype", "batch_size", "weights")] == [None] * 4
    assert {name: stage["status"] for name, stage in summary["stages"].items()} == {
        "program": "ok", "static_analysis": "skipped", "torch_profiler": "skipped", "nsys": "degraded",
    }  # fmt: skip
    assert summary["static"] is None
    assert summary["timings"]["program_s"]["n"] == 3
    assert 0.3 <= summary["timings"]["program_s"]["median"] < 30
    for page in ("report.md", "report.html", "stakeholder_summary.md"):
        text = (folder / page).read_text()
        body = text[text.index("<body") :] if page.endswith("html") else text
        assert "serve_bench.py" in body
        assert not [word for word in ABOUT_A_MODEL if f" {word} " in f" {body} "], page
    took = units.seconds(summary["timings"]["program_s"]["median"])
    for shown in (folder / "report.md", folder / "report.html", tmp_path / "said.txt"):
        assert took in shown.read_text(), "the wall-clock of the program"
    inputs = yaml.safe_load((folder / "inputs.yaml").read_text())
    assert inputs["program"]["argv"] == ["python3", "serve_bench.py"]
    assert inputs["program"]["cwd"] == str(tmp_path)
    assert "served []" in (folder / "program" / "run-1.stdout.log").read_text()
    assert (folder / "nsys" / "run.nsys-rep").is_file()
    assert "torch_profiler" not in {name.split("/")[0] for name in files_below(folder)}


def test_a_program_that_fails_is_reported_with_its_exit_code(tmp_path: Path) -> None:
    assert run(tmp_path, "[python3,serve_bench.py,7]", "pipeline.workload.name=my bench") == 1
    stage = read_json(tmp_path / "run" / "manifest.json")["stages"]["program"]
    assert stage["status"] == "failed"
    assert stage["exit_codes"] == {"run-1": 7}, "what failed once is not run again"
    assert re.match(r"my bench\b.*\b7\b", stage["reason"])
    assert "program/run-1.stderr.log" in stage["fix"]
    summary = read_json(tmp_path / "run" / "summary.json")
    assert summary["workload"]["model"] == "my bench"
    assert summary["timings"]["program_s"] is None


def test_the_time_limit_holds_for_the_program_alone(tmp_path: Path) -> None:
    assert run(tmp_path, "[sleep,'60']", "pipeline.workload.timeout_s=1") == 1
    stage = read_json(tmp_path / "run" / "manifest.json")["stages"]["program"]
    assert "pipeline.workload.timeout_s=1" in stage["reason"]
    assert stage["seconds"] < 20


def test_nothing_to_do_for_a_program_is_refused(tmp_path: Path) -> None:
    assert run(tmp_path, "[python3,serve_bench.py]", "pipeline.workload.repeats=0") == 2
    assert "pipeline.nsys.enable=true" in (tmp_path / "said.txt").read_text()
    assert not (tmp_path / "run").exists()


def test_a_program_that_is_not_there_is_found_before_any_work(tmp_path: Path) -> None:
    assert run(tmp_path, "[no-such-program]") == 2
    text = (tmp_path / "said.txt").read_text()
    assert "pipeline.workload.command" in text and "'no-such-program'" in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "name", "shown"),
    [
        (["python", "serve_bench.py", "--n", "3"], None, "serve_bench.py"),
        (["/usr/bin/python3.11", "-u", "dir/a.py"], None, "a.py"),
        (["python", "-m", "package.bench"], None, "package.bench"),
        (["python", "-c", "print(1)"], None, "python"),
        (["./bench", "x"], None, "bench"),
        (["./bench"], "nightly", "nightly"),
    ],
)
def test_what_a_program_is_called(command: list[str], name: str | None, shown: str) -> None:
    from llm_perf_opt.config.compose import compose_config

    config = compose_config([])
    config.workload_command = WorkloadCommandConfig(command=command, name=name)
    assert program_name(config) == shown
    assert next(stage.name for stage in stages_of(config)) == "program"
