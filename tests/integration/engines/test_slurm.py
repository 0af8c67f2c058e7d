"""Eight jobs on a real Slurm with four devices: one crashes, two are stopped, the client dies, a node dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.engines.conftest import Slurm
from tests.integration.engines.support import (
    CHEAP,
    Client,
    Programs,
    all_measuring,
    assert_leases_hold,
    end_tree,
    has_status,
    manifest,
    statuses,
    wait_until,
)

pytestmark = [pytest.mark.needs("slurm"), pytest.mark.slow, pytest.mark.timeout(600)]

LAUNCHER = ("hydra/launcher=slurm", "hydra.launcher.timeout_min=10", "hydra.launcher.mem_gb=1")
VICTIM, CANCELLED, STAYING, CRASHING, PREEMPTED = 0, 1, (2, 3), 4, 5


def test_eight_jobs_and_everything_that_can_happen(slurm: Slurm, engine_python: Path, tmp_path: Path) -> None:
    client, sweep = Client(engine_python, tmp_path, slurm.env), tmp_path / "sweep"
    names = ["victim", "cancelled", "stay0", "stay1", "crash", "preempted", *(f"job{n}" for n in range(2))]
    programs = Programs(tmp_path, names)
    programs.hold(*names[:6])
    arguments = (*LAUNCHER, *CHEAP, programs.override, "hydra.sweep.dir=sweep")
    command = ("run", "--multirun", "--json")
    running = client.start(*command, *arguments)

    # All four devices are in use, each by one job; the others are queued.
    wait_until("four jobs measure", all_measuring(sweep, range(4)), by=running)
    assert len({manifest(sweep, job)["lease"]["device"] for job in range(4)}) == 4
    assert client.report()["counts"] == {"running": 4, "pending": 4}

    # One is cancelled, and one crashes on the device that this frees.
    slurm.command("scancel", _slurm_job(sweep, CANCELLED))
    wait_until("the cancelled job has told", has_status(sweep, CANCELLED, "interrupted"), by=running)
    wait_until("one crashed", has_status(sweep, CRASHING, "failed"), by=running)

    _preempt(slurm, sweep, running)  # the next one there

    for job in (CANCELLED, PREEMPTED):  # a status is there before its report is
        wait_until("its report is written", (sweep / str(job) / "report.html").is_file, by=running)

    # The client dies, then the node of one job.
    running.send_signal(signal.SIGKILL)
    running.wait()
    node = slurm.command("squeue", "-h", "-j", _slurm_job(sweep, VICTIM), "-o", "%N").strip()
    _end_node(slurm, node)
    code, out = client.run("sweep-report", "--json", "sweep")
    assert code == 1
    jobs = json.loads(out)["jobs"]
    assert len(jobs) == len(names)
    assert (jobs[VICTIM]["status"], jobs[CRASHING]["status"]) == ("killed", "failed")
    assert "ended without a word" in jobs[VICTIM]["reason"]
    assert "exit code" in jobs[CRASHING]["reason"]
    assert (jobs[CANCELLED]["status"], jobs[CANCELLED]["reason"]) == (
        "interrupted",
        "interrupted by SIGTERM; program: interrupted",
    )
    assert jobs[PREEMPTED]["reason"] == "interrupted by SIGUSR2; program: interrupted"
    for job in (CANCELLED, PREEMPTED):
        assert (sweep / jobs[job]["report"]).is_file()
    staying = [job for job in STAYING if jobs[job]["status"] == "running"]
    done = {name: (sweep / name / "manifest.json").read_bytes() for name in _done(sweep)}
    started = programs.starts()

    # Going on while jobs of the dead client are queued and running: none of those is started a second time.
    slurm.start_node(node)
    programs.release("victim", "cancelled", "crash", "preempted")
    again = client.start(*command, "--resume", *arguments)
    for job in staying:
        wait_until(
            "it is left alone", lambda job=job: f"job {job} is left alone" in client.errors(), by=again
        )
    programs.release("stay0", "stay1")
    again.communicate(timeout=250)
    wait_until("the queue is empty", lambda: _nothing_queued(slurm), 200)
    # What can execute code is not taken over from the plan in the directory: it is named again.
    code, out = client.run("run", "--resume=sweep", "--json", programs.override)
    assert code == 0, (out, client.errors())
    assert json.loads(out)["counts"] == {"ok": len(names)}

    # Nothing is lost, nothing was done twice, no device was shared.
    assert {name: (sweep / name / "manifest.json").read_bytes() for name in done} == done
    ended_early = {
        name for job, name in enumerate(names) if jobs[job]["status"] in ("killed", "failed", "interrupted")
    }
    assert set(programs.starts()) == set(names)
    for name, times in programs.starts().items():
        assert times == (started[name] + 1 if name in ended_early else 1), name
    assert programs.collisions() == ""
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


def test_a_node_without_the_package_is_named(slurm: Slurm, engine_python: Path, tmp_path: Path) -> None:
    """The package is on PYTHONPATH here, and not on the node."""
    client, programs = Client(engine_python, tmp_path, slurm.env), Programs(tmp_path, ["a", "b"])
    code, out = client.run(
        *("run", "--multirun", "--json", *_site(tmp_path, "export PYTHONPATH=/nowhere")),
        *(*LAUNCHER, *CHEAP, programs.override, "hydra.sweep.dir=sweep"),
    )
    assert code == 1, client.errors()
    for job in json.loads(out)["jobs"]:
        assert job["status"] == "failed"
        assert job["reason"].startswith("it did not begin where the engine put it: ModuleNotFoundError")
        assert "llm_perf_opt" in job["reason"]
    assert not (tmp_path / "starts").exists()


def _site(folder: Path, setup: str) -> tuple[str, ...]:
    """Write a preset of the user's own with a command for the nodes; return what chooses it."""
    preset = folder / "conf" / "site" / "own.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text(f"# @package _global_\nhydra:\n  launcher:\n    setup: ['{setup}']\n")
    return ("--config-dir", str(folder / "conf"), "+site=own")


def _done(sweep: Path) -> list[str]:
    return [name for name, status in statuses(sweep).items() if status == "ok"]


def _slurm_job(sweep: Path, job: int) -> str:
    """Return Slurm's number of a job: that of its array, and its place in it."""
    arrays = [path.name for path in (sweep / ".submitit").iterdir() if path.name.isdecimal()]
    return f"{max(arrays, key=int)}_{job}"


def _preempt(slurm: Slurm, sweep: Path, client: subprocess.Popen[str]) -> None:
    """Tell a job that its time is up, by the signal that the preset asks Slurm for."""
    wait_until("the job measures", all_measuring(sweep, [PREEMPTED]), by=client)
    # To the step itself: of the whole job scancel says at times that it is over, though it runs.
    slurm.command("scancel", "--signal=USR2", f"{_slurm_job(sweep, PREEMPTED)}.0")
    wait_until("it has told", has_status(sweep, PREEMPTED, "interrupted"), by=client)


def _end_node(slurm: Slurm, node: str) -> None:
    """End a node as a power cut does: its daemon, its steps and their jobs, all at once."""
    steps = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            variables = set(path.read_bytes().split(b"\0"))
            if {
                f"SLURMD_NODENAME={node}".encode(),
                f"SLURM_CONF={slurm.env['SLURM_CONF']}".encode(),
            } <= variables:
                steps.append(int(path.parent.name))
    assert steps, f"nothing runs on {node}"
    parents = set()
    for pid in steps:
        with contextlib.suppress(OSError):  # over in the meantime
            parents.add(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]))
    keepers = [pid for pid in parents if pid not in steps and _name(pid) == "slurmstepd"]
    end_tree([slurm.pid(f"slurmd-{node}"), *keepers, *steps])


def _nothing_queued(slurm: Slurm) -> bool:
    """Look at the queue. Slurm lets a job of a node that died wait for two minutes before it starts it again: not here.

    It notices that only after a while, too, so that one look is not enough.
    """
    jobs = [line.split("|") for line in slurm.command("squeue", "-h", "-r", "-o", "%A|%r").splitlines()]
    for job, reason in jobs:
        if reason == "BeginTime":
            slurm.command("scontrol", "update", f"JobId={job}", "StartTime=now")
    return not jobs


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip() if os.path.exists(f"/proc/{pid}") else ""  # noqa: PTH110
