"""Sweeps on Hydra's own launcher: what became of each job, the exit code, going on, being stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import cli

CHEAP = (
    "pipeline.static_analysis.enable=false",
    "pipeline.torch_profiler.enable=false",
    "hardware.probe=false",
    "pipeline.workload.repeats=1",
)
"""Jobs that time a small program: real runs without torch."""


def jobs(*programs: str) -> str:
    """Return the override that makes a job of each program text."""
    return "pipeline.workload.command=" + ",".join(f"[{sys.executable},-c,'{text}']" for text in programs)


def document(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out)  # one document alone
    return found


def test_a_failed_job_is_reported_and_resume_runs_it_alone(tmp_path: Path) -> None:
    flag = tmp_path / "fixed"
    flaky = f'import os, sys; sys.exit(0 if os.path.exists("{flag}") else 3)'
    programs = jobs("pass", flaky, "x = 1")
    command = ("run", "--multirun", "--json", *CHEAP, programs, "hydra.sweep.dir=s")
    done = cli(*command, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    found = document(done.stdout)
    assert [job["status"] for job in found["jobs"]] == ["ok", "failed", "ok"]
    assert "3" in found["jobs"][1]["reason"]
    assert found == json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert found["jobs"][0]["metrics"]["program_s"]["value"] > 0
    assert {path.name for path in (tmp_path / "s").iterdir()} == {
        *"012",
        "sweep.html",
        "sweep.json",
        "sweep.md",
        "sweep_plan.json",
    }

    again = cli(*command, cwd=tmp_path)
    assert again.returncode == 2
    assert "already contains a sweep" in document(again.stdout)["message"]

    kept = {name: (tmp_path / "s" / name / "manifest.json").read_bytes() for name in "02"}
    flag.touch()
    refused = cli("run", "--resume=s", "--json", cwd=tmp_path)  # programs of a file are not run unasked
    assert refused.returncode == 2
    resumed = cli("run", "--resume=s", "--json", programs, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stdout
    assert document(resumed.stdout)["counts"] == {"ok": 3}
    assert {name: (tmp_path / "s" / name / "manifest.json").read_bytes() for name in "02"} == kept
    assert [path.name[:8] for path in (tmp_path / "s" / "1").glob("earlier-*")] == ["earlier-"]


def test_resume_with_another_configuration_runs_every_job_again(tmp_path: Path) -> None:
    programs = jobs("pass", "x = 1")
    assert cli("run", "--multirun", *CHEAP, programs, "hydra.sweep.dir=s", "-q", cwd=tmp_path).returncode == 0
    done = cli("run", "--resume=s", "--json", programs, "run.threads=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "s").glob("*/earlier-*"))) == 2
    other = cli(
        "run", "--resume", "--multirun", *CHEAP, jobs("y = 2", "z = 3"), "hydra.sweep.dir=s", cwd=tmp_path
    )
    assert other.returncode == 2
    message, _, hint = other.stderr.partition("fix:")
    assert str(tmp_path / "s") in message and "2" in message and "hydra.sweep.dir=DIR" in hint


def test_a_stopped_sweep_lists_interrupted_jobs_and_those_that_never_began(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "llm_perf_opt", "run", "--multirun", *CHEAP),
            *(jobs("pass", "import time; time.sleep(100)", "x = 1"), "hydra.sweep.dir=s"),
        ],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    running = tmp_path / "s" / "1" / "program"
    end = time.monotonic() + 100
    while not running.is_dir() and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGUSR2)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGUSR2, errors
    found = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert [job["status"] for job in found["jobs"]] == ["ok", "interrupted", "pending"]
    assert found["jobs"][1]["reason"].startswith("interrupted by SIGUSR2")
    assert (tmp_path / "s" / "1" / "report.html").is_file()


def test_a_killed_sweep_is_reported_afterwards(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "llm_perf_opt", "run", "--multirun", *CHEAP),
            *(jobs("import time; time.sleep(100)", "x = 1"), "hydra.sweep.dir=s"),
        ],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ},
    )
    end = time.monotonic() + 100
    while not (tmp_path / "s" / "0" / "program").is_dir() and time.monotonic() < end:
        time.sleep(0.1)
    alive = document(cli("sweep-report", "--json", "s", cwd=tmp_path).stdout)
    assert [job["status"] for job in alive["jobs"]] == ["running", "pending"]
    process.kill()
    process.wait()
    done = cli("sweep-report", "s", cwd=tmp_path)
    assert done.returncode == 1
    assert "job 0 killed" in done.stdout
    assert "--resume=" in done.stdout

    # The same job as a reader on another machine finds it: no process to ask for, only how long it was silent.
    manifest = tmp_path / "s" / "0" / "manifest.json"
    shown = json.loads(manifest.read_text(encoding="utf-8"))
    shown["heartbeat"] |= {"machine": "another", "host": "node7"}
    manifest.write_text(json.dumps(shown), encoding="utf-8")
    for age_s, status, phrase in (
        (5, "running", r"\b\d+ s\b"),
        (600, "killed", r"\b10 min\b"),
    ):
        written = time.time() - age_s
        os.utime(manifest, (written, written))
        done = cli("sweep-report", "--json", "s", cwd=tmp_path)
        job = document(done.stdout)["jobs"][0]
        assert (job["status"], done.returncode) == (status, int(status == "killed"))
        assert re.search(phrase, job["reason"]) and "on node7" in job["reason"]
    page = (tmp_path / "s" / "sweep.md").read_text(encoding="utf-8")
    assert re.search(r"on node7\b.*\b10 min\b", page)


KILLED_WHILE_REPORTED = """
import os, signal, sys
from llm_perf_opt.__main__ import main
from llm_perf_opt.runs import finish
finish.assemble_run = lambda run_dir: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


def test_a_job_that_is_killed_while_it_is_reported_is_not_done(tmp_path: Path) -> None:
    sweep = ("run", "--multirun", *CHEAP, jobs("pass", "x = 1"), "hydra.sweep.dir=s")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_REPORTED, *sweep], cwd=tmp_path, capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert json.loads((tmp_path / "s" / "0" / "manifest.json").read_text())["status"] == "ok"
    found = document(cli("sweep-report", "--json", "s", cwd=tmp_path).stdout)
    assert [job["status"] for job in found["jobs"]] == ["killed", "pending"]
    assert "report" in found["jobs"][0]["reason"]
    resumed = cli("run", "--resume=s", "--json", jobs("pass", "x = 1"), cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stdout
    assert all(job["metrics"]["program_s"]["value"] > 0 for job in document(resumed.stdout)["jobs"])


def test_all_jobs_are_checked_before_the_first_starts_whatever_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm_perf_opt.core.errors import ConfigError
    from llm_perf_opt.sweep.plan import check_sweep

    monkeypatch.chdir(tmp_path)
    seen: list[tuple[str, ...]] = []
    sizes = ",".join(map(str, [*range(1, 12), 0]))
    with pytest.raises(ConfigError, match=r"infer\.batch_size=0"):
        check_sweep(
            [f"infer.batch_size={sizes}", *CHEAP[1:]],
            config_dir=None,
            config_name="config",
            each=lambda job: seen.append(job.overrides),
        )
    assert len(seen) == 11
    assert list(tmp_path.iterdir()) == []


def test_a_directory_for_two_jobs_is_refused(tmp_path: Path) -> None:
    done = cli("run", "--multirun", "--plan", "infer.batch_size=1,2", "hydra.sweep.subdir=x", cwd=tmp_path)
    assert done.returncode == 2
    message, _, hint = done.stderr.partition("fix:")
    assert re.search(r"\b0 and 1\b.*\bx\b", message) and "hydra.sweep.subdir" in hint


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--resume", "--multirun", "infer.batch_size=1,2"], "--resume"),
        (["--resume=nowhere"], "sweep_plan.json"),
        (["--multirun", "infer.batch_size=1,2", "sweep.objective=[tpott]"], "'tpot_s'"),
        (["--multirun", "hydra/launcher=slurm", "infer.batch_size=1,2"], "llm-perf-opt[slurm]"),
    ],
)
def test_mistakes_are_one_message(arguments: list[str], expected: str, tmp_path: Path) -> None:
    done = cli("run", *arguments, cwd=tmp_path)
    assert done.returncode in (2, 3), done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
