"""What lies in the directory of a sweep: jobs, halves of jobs, other tools' files, other sweeps' jobs."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hydra.core.utils import JobReturn, JobStatus

from llm_perf_opt.cli import main
from llm_perf_opt.config.hydra_bridge.launch import reason_lost
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.runs.app import RunOptions
from llm_perf_opt.runs.heartbeat import new_heartbeat
from llm_perf_opt.sweep.collect import MOST_NAMED, collect, exit_code, read_sweep, write_sweep
from llm_perf_opt.sweep.launch import SweepCommand, SweepOptions, adopt_plan, record_lost
from llm_perf_opt.sweep.metrics import objective_values
from llm_perf_opt.sweep.plan import PlannedJob, new_plan, read_plan, write_plan


def a_plan(folder: Path, jobs: int) -> str:
    planned = [PlannedJob(n, str(n), [f"infer.batch_size={n + 1}"], "hash") for n in range(jobs)]
    plan = new_plan("slurm", ["infer.batch_size=…"], [], planned)
    write_plan(folder, plan)
    return plan.id


def a_job(
    folder: Path, sweep: str | None, status: str = "ok", tpot: float | None = None, **fields: Any
) -> None:
    folder.mkdir()
    manifest = {
        "run_id": folder.name,
        "started": "2026-01-01T00:00:00+00:00",
        "command": ["llm-perf-opt", "run", f"infer.batch_size={folder.name}"],
        "status": status,
        "sweep": None if sweep is None else {"id": sweep, "directory": folder.name},
        **fields,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if status == "ok":
        stat = {"median": tpot, "p5": tpot, "p95": tpot, "mean": tpot, "std": 0.0, "n": 5}
        timings = {"tpot_s": stat} if tpot is not None else {}
        (folder / "summary.json").write_text(
            json.dumps({"schema_version": "1.1", "timings": timings, "kernels": [{"name": "x"}]})
        )


def test_every_planned_job_is_reported(tmp_path: Path) -> None:
    sweep = a_plan(tmp_path, 5)
    a_job(tmp_path / "0", sweep, tpot=0.5)
    failed = {"nsys": {"status": "failed", "reason": "it broke"}}
    a_job(tmp_path / "1", sweep, "failed", stages=failed)
    a_job(tmp_path / "2", sweep, "running", heartbeat=asdict(new_heartbeat()))
    dead = {**asdict(new_heartbeat()), "process_started": 1}
    a_job(tmp_path / "3", sweep, "running", heartbeat=dead)

    jobs = collect(tmp_path).jobs

    assert [job.status for job in jobs] == ["ok", "failed", "running", "killed", "pending"]
    assert jobs[0].metrics["tpot_s"].value == 0.5
    assert jobs[1].reason == "nsys: it broke"
    assert "ended without a word" in (jobs[3].reason or "")
    assert jobs[2].host and jobs[2].pid == os.getpid()


def test_a_job_without_its_summary_is_not_done_whatever_its_stages_report(tmp_path: Path) -> None:
    sweep = a_plan(tmp_path, 2)
    for name, started in (("0", {}), ("1", {"process_started": 1})):
        a_job(tmp_path / name, sweep, heartbeat={**asdict(new_heartbeat()), **started})
        (tmp_path / name / "summary.json").unlink()
    alive, dead = collect(tmp_path).jobs
    assert (alive.status, dead.status) == ("running", "killed")
    # That the process is gone is not all: a job whose stages were not done either says less.
    assert "report" in (dead.reason or "") and "report" not in (alive.reason or "")
    assert exit_code(read_sweep(tmp_path), finished=False) == 1


def test_what_is_no_job_of_this_sweep_is_named_left_out_and_counted(tmp_path: Path) -> None:
    sweep = a_plan(tmp_path, 3)
    a_job(tmp_path / "0", sweep)
    a_job(tmp_path / "1", "another")
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "manifest.json").write_text('{"run_id": "2", "sta')  # half of it
    (tmp_path / "wandb").mkdir()
    a_job(tmp_path / "stray", None)

    found = collect(tmp_path)

    assert [job.status for job in found.jobs] == ["ok", "pending", "failed"]
    assert "not valid JSON" in (found.jobs[2].reason or "")
    assert found.left_out_count == 3
    reasons = {item.path: item.reason for item in found.left_out}
    assert set(reasons) == {"1", "stray", "wandb"}
    assert len(set(reasons.values())) == 3, "of another sweep, of none, and no run at all"
    assert reasons["1"] in (found.jobs[1].reason or "")


def test_without_a_plan_the_larger_sweep_is_reported(tmp_path: Path) -> None:
    for n in range(3):
        a_job(tmp_path / str(n), "one")
    a_job(tmp_path / "3", "two")
    (tmp_path / "notes").mkdir()
    found = collect(tmp_path)
    assert [job.run_dir for job in found.jobs] == ["0", "1", "2"]
    assert found.jobs[2].overrides == ["infer.batch_size=2"]
    assert {item.path for item in found.left_out} == {"3", "notes"}


def test_old_sweeps_without_marks_are_read_too(tmp_path: Path) -> None:
    for n in (10, 9):
        a_job(tmp_path / str(n), None)
    assert [job.run_dir for job in collect(tmp_path).jobs] == ["9", "10"]


def test_so_much_is_named_and_the_rest_counted(tmp_path: Path) -> None:
    a_plan(tmp_path, 1)
    for n in range(MOST_NAMED + 5):
        (tmp_path / f"other{n}").mkdir()
    found = collect(tmp_path)
    assert (len(found.left_out), found.left_out_count) == (MOST_NAMED, MOST_NAMED + 5)


def test_a_directory_without_a_sweep_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no sweep"):
        collect(tmp_path)
    with pytest.raises(InputError, match="not a directory"):
        collect(tmp_path / "none")


def test_versions_that_differ_are_reported(tmp_path: Path) -> None:
    sweep = a_plan(tmp_path, 2)
    a_job(tmp_path / "0", sweep, version="0.1.0")
    a_job(tmp_path / "1", sweep, version="0.2.0")
    assert any("0.1.0, 0.2.0" in note for note in collect(tmp_path).notes)


def test_the_documents_and_the_exit_code_come_from_the_files(tmp_path: Path) -> None:
    sweep = a_plan(tmp_path, 2)
    a_job(tmp_path / "0", sweep, tpot=0.5)
    read = read_sweep(tmp_path)
    assert (exit_code(read, finished=False), exit_code(read, finished=True)) == (0, 1)
    a_job(tmp_path / "1", sweep, tpot=0.6)
    read = read_sweep(tmp_path)
    assert exit_code(read, finished=True) == 0
    page = write_sweep(read, tmp_path)
    document = json.loads((tmp_path / "sweep.json").read_text())
    assert document["counts"] == {"ok": 2}
    assert set(document) >= {"jobs", "keys", "pareto"}
    assert set(document["jobs"][0]) >= {"overrides", "status", "reason", "run_dir", "metrics"}
    assert page.read_text().startswith("<!doctype html>") or "<html" in page.read_text()


def test_text_of_users_is_escaped(tmp_path: Path) -> None:
    plan = new_plan("basic", [], [], [PlannedJob(n, str(n), [f"model.name=<script>{n}"]) for n in range(2)])
    write_plan(tmp_path, plan)
    for n in range(2):
        a_job(tmp_path / str(n), plan.id, "failed", reason="<script>alert(1)</script>|`x")
    page = write_sweep(read_sweep(tmp_path), tmp_path).read_text()
    assert "<script>alert" not in page
    assert "<script>0" not in page
    assert "<script>alert" not in (tmp_path / "sweep.md").read_text()


def test_secrets_in_the_plan_are_masked(tmp_path: Path) -> None:
    write_plan(tmp_path, new_plan("basic", ["+env.HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345"], [], []))
    plan = read_plan(tmp_path)
    assert plan is not None and "hf_abcdefghijklmnopqrstuvwxyz012345" not in str(plan)


def test_a_node_whose_clock_is_wrong_is_named(tmp_path: Path) -> None:
    sweep = a_plan(tmp_path, 2)
    ahead = datetime.fromtimestamp(time.time() + 7200, UTC).isoformat()
    beat = {**asdict(new_heartbeat()), "host": "node7", "machine": "another", "at": ahead}
    a_job(tmp_path / "0", sweep, "running", heartbeat=beat)
    a_job(tmp_path / "1", sweep)
    found = collect(tmp_path)
    assert found.jobs[0].status == "running"  # by the file system's clock, not the node's
    (note,) = [note for note in found.notes if "node7" in note]
    assert re.search(r"\b7\d\d\d s ahead\b", note)


def test_two_sweeps_in_one_directory_stay_apart(tmp_path: Path) -> None:
    """The second is refused; jobs of the first are neither overwritten nor told of as the second's."""
    sweep = a_plan(tmp_path, 1)
    a_job(tmp_path / "0", sweep, tpot=0.5)
    before = (tmp_path / "0" / "manifest.json").read_bytes()
    options = SweepOptions("another", RunOptions())
    record_lost(tmp_path, "0", [], options, "it never came back")
    assert (tmp_path / "0" / "manifest.json").read_bytes() == before
    write_plan(tmp_path, new_plan("basic", [], [], [PlannedJob(0, "0", [])]))
    found = collect(tmp_path)
    assert (found.jobs[0].status, found.jobs[0].metrics) == ("pending", {})
    (other,) = found.left_out
    assert other.path == "0" and other.reason in (found.jobs[0].reason or "")


def test_a_job_that_its_engine_lost_has_the_reason(tmp_path: Path) -> None:
    """A node without the package: the job could not leave a manifest of its own."""
    sweep = a_plan(tmp_path, 2)
    error = "Job failed with trace:\nTraceback …\n  File x\nModuleNotFoundError: No module named 'llm_perf_opt'\n----\nlogs at …"
    lost = JobReturn(_return_value=RuntimeError(error), status=JobStatus.FAILED)
    reason = reason_lost(lost)
    assert reason is not None and reason == error.splitlines()[3]
    assert reason_lost(JobReturn(_return_value=0.5, status=JobStatus.COMPLETED)) is None
    record_lost(tmp_path, "1", ["infer.batch_size=2"], SweepOptions(sweep, RunOptions()), reason)
    job = collect(tmp_path).jobs[1]
    assert (job.status, job.overrides) == ("failed", ["infer.batch_size=2"])
    assert job.reason is not None and job.reason.endswith(f": {reason}")
    assert exit_code(read_sweep(tmp_path), finished=False) == 1


def test_only_a_job_that_is_ok_has_an_objective(tmp_path: Path) -> None:
    """One that failed in a later stage has measured, and is a failed trial all the same."""
    a_job(tmp_path / "0", "sweep", tpot=0.5)
    a_job(tmp_path / "1", "sweep", "failed", tpot=0.1)
    a_job(tmp_path / "2", "sweep", "interrupted", tpot=0.1)
    found = [objective_values(tmp_path / str(number), ["tpot_s"]) for number in range(4)]
    assert found == [0.5, None, None, None]


def test_resume_does_not_repeat_a_masked_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "hf_" + "a1B2c3D4e5" * 4
    key = "+run.env.HF_TOKEN"
    write_plan(tmp_path, new_plan("basic", ["model=llama_tiny", f"{key}={secret}"], [], []))
    assert main(["run", f"--resume={tmp_path}"]) == 2
    output = capsys.readouterr().err
    assert key in output and secret not in output
    hint = output.partition("fix:")[2]
    assert f"cannot repeat {key}, because" in output
    assert f"{key}=<value>" in hint and "--resume" in hint and f"hydra.sweep.dir={tmp_path}" in hint
    command = SweepCommand(overrides=[f"{key}={secret}"], resume=True)
    adopt_plan(command, tmp_path)
    assert f"{key}={secret}" in command.overrides and "model=llama_tiny" in command.overrides
