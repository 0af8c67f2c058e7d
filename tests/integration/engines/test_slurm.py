"""Twelve jobs on a real Slurm with four devices: one crashes, one is cancelled, a node dies, the client dies."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.integration.engines.conftest import Slurm
from tests.integration.engines.support import (
    CHEAP,
    Client,
    assert_leases_hold,
    manifest,
    stage_is_running,
    statuses,
    sweep_document,
    swept_programs,
    wait_until,
)

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(400)]

LAUNCHER = ("hydra/launcher=slurm", "hydra.launcher.timeout_min=5", "hydra.launcher.mem_gb=1")


def test_twelve_jobs_of_which_one_crashes_and_one_is_cancelled(
    slurm: Slurm, engine_python: Path, tmp_path: Path
) -> None:
    client, sweep = Client(engine_python, tmp_path, slurm.env), tmp_path / "sweep"
    names = ["slow-cancelled", "crash", *(f"job{n}" for n in range(10))]
    running = client.start(
        "run", "--multirun", "--json", *LAUNCHER, *CHEAP, swept_programs(names), "hydra.sweep.dir=sweep"
    )
    wait_until("the slow job measures", stage_is_running(sweep, 0), by=running)
    meanwhile, _ = client.run("sweep-report", "-q", "sweep")
    assert meanwhile in (0, 1)
    seen = {job["number"]: job["status"] for job in sweep_document(sweep)["jobs"]}
    assert len(seen) == 12
    assert seen[0] == "running"

    slurm.command("scancel", _slurm_job(sweep, 0))
    out, _ = running.communicate(timeout=200)

    assert running.returncode == 1, client.errors()
    document = json.loads(out)  # one document alone, whatever the launcher logs
    assert document["counts"] == {"ok": 10, "failed": 1, "interrupted": 1}
    cancelled, crashed = document["jobs"][0], document["jobs"][1]
    assert (cancelled["status"], cancelled["reason"]) == (
        "interrupted",
        "interrupted by SIGTERM; program: interrupted",
    )
    assert cancelled["report"] == "0/report.html"
    assert (sweep / "0" / "report.html").is_file()
    assert "planned to crash" in crashed["reason"] or "exit code" in crashed["reason"]
    assert all("program_s" in job["metrics"] for job in document["jobs"][2:])
    assert_leases_hold(sweep)


def test_a_node_dies_and_resume_finishes(slurm: Slurm, engine_python: Path, tmp_path: Path) -> None:
    client, sweep = Client(engine_python, tmp_path, slurm.env), tmp_path / "sweep"
    (tmp_path / "flag").write_text("wait")
    program = tmp_path / "program.py"
    program.write_text(
        "import pathlib, sys, time\n"
        f"while sys.argv[1] == 'victim' and pathlib.Path({str(tmp_path / 'flag')!r}).exists(): time.sleep(0.1)\n"
    )
    commands = ",".join(f"[{engine_python},{program},{name}]" for name in ("victim", "a", "b", "c"))
    arguments = (*LAUNCHER, *CHEAP, f"pipeline.workload.command={commands}", "hydra.sweep.dir=sweep")
    running = client.start("run", "--multirun", "--json", *arguments)
    wait_until("the victim measures", stage_is_running(sweep, 0), by=running)

    job = _slurm_job(sweep, 0)
    node = slurm.command("squeue", "-h", "-j", job, "-o", "%N").strip()
    _kill_node(slurm, node, [manifest(sweep, 0)["heartbeat"]["pid"]])
    running.send_signal(signal.SIGKILL)  # and the client dies with it
    running.wait()

    code, out = client.run("sweep-report", "--json", "sweep")
    assert code == 1
    victim = json.loads(out)["jobs"][0]
    assert victim["status"] == "killed"
    assert "ended without a word" in victim["reason"]

    slurm.start_node(node)
    (tmp_path / "flag").unlink()
    wait_until("both nodes are back", lambda: _idle_or_mixed(slurm) == 2)
    wait_until("what was queued is done", lambda: slurm.command("squeue", "-h").strip() == "")
    before = {
        n: (sweep / str(n) / "manifest.json").read_bytes() for n, s in statuses(sweep).items() if s == "ok"
    }
    code, out = client.run("run", "--multirun", "--json", "--resume", *arguments)
    assert code == 0, client.errors()
    assert json.loads(out)["counts"] == {"ok": 4}
    after = {n: (sweep / n / "manifest.json").read_bytes() for n in before}
    assert after == before, "jobs that were done are kept as they are"
    assert_leases_hold(sweep)


def test_a_sweep_is_submitted_from_a_machine_without_the_device(
    slurm: Slurm, engine_python: Path, tmp_path: Path
) -> None:
    client = Client(engine_python, tmp_path, slurm.env)
    common = (*LAUNCHER, "model=llama_tiny", "hydra.sweep.dir=sweep", "run.device=cuda:7")
    code, _ = client.run("run", "--multirun", *common, "infer.max_new_tokens=2,0")
    assert code == 2  # what is wrong with the configuration itself is found before anything is submitted
    assert "infer.max_new_tokens=0 is out of range" in client.errors()
    assert not (tmp_path / "sweep").exists()

    code, out = client.run("run", "--multirun", "--json", *common, "infer.max_new_tokens=2,3")
    assert code == 1
    for job in json.loads(out)["jobs"]:
        assert job["status"] == "failed"
        assert "run.device=cuda:7 is not available" in job["reason"]


def _slurm_job(sweep: Path, job: int) -> str:
    """Return Slurm's number of a job: that of its array, and its place in it."""
    arrays = [path.name for path in (sweep / ".submitit").iterdir() if path.name.isdecimal()]
    return f"{max(arrays, key=int)}_{job}"


def _kill_node(slurm: Slurm, node: str, jobs: list[int]) -> None:
    """End a node as a power cut does: its daemon, its steps and their jobs, all at once."""
    os.kill(slurm.pid(f"slurmd-{node}"), signal.SIGKILL)
    for pid in jobs:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        for each in (parent, pid):  # the step that would report the end, then the job
            os.kill(each, signal.SIGKILL)


def _idle_or_mixed(slurm: Slurm) -> int:
    return sum(
        state in ("idle", "mix", "alloc") for state in slurm.command("sinfo", "-hN", "-o", "%t").split()
    )
