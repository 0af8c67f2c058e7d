"""Twelve jobs on a real Ray cluster with four devices: one crashes, one is cancelled, a node dies; then the client."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.integration.engines.conftest import Ray
from tests.integration.engines.support import (
    CHEAP,
    Client,
    assert_leases_hold,
    manifest,
    stage_is_running,
    statuses,
    sweep_document,
    wait_until,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]


def test_twelve_jobs_and_everything_that_can_happen(ray: Ray, engine_python: Path, tmp_path: Path) -> None:
    client, sweep = Client(engine_python, tmp_path, {}), tmp_path / "sweep"
    flags = {name: tmp_path / f"{name}.flag" for name in ("cancelled", "victim")}
    for flag in flags.values():
        flag.touch()
    program = tmp_path / "program.py"
    program.write_text(
        "import pathlib, sys, time\n"
        "name = sys.argv[1]\n"
        f"flag = pathlib.Path({str(tmp_path)!r}) / f'{{name}}.flag'\n"
        "sys.exit('planned to crash') if name == 'crash' else None\n"
        "while flag.exists(): time.sleep(0.1)\n"
    )
    names = ["cancelled", "victim", "crash", *(f"job{n}" for n in range(9))]
    commands = ",".join(f"[{engine_python},{program},{name}]" for name in names)
    arguments = (
        "hydra/launcher=ray_cluster",
        f"hydra.launcher.ray.init.address='{ray.address}'",
        *CHEAP,
        f"pipeline.workload.command={commands}",
        "hydra.sweep.dir=sweep",
    )
    running = client.start("run", "--multirun", "--json", *arguments)
    slow = {0, 1}
    first = _the_first(sweep, slow)
    if first == 1:  # the device goes to whoever comes first: end them in that order
        _end_node_of(sweep, 1)
        wait_until("the other measures", stage_is_running(sweep, 0))
        os.kill(manifest(sweep, 0)["heartbeat"]["pid"], signal.SIGTERM)
    else:
        os.kill(manifest(sweep, 0)["heartbeat"]["pid"], signal.SIGTERM)
        wait_until("the other measures", stage_is_running(sweep, 1))
        _end_node_of(sweep, 1)
    out, _ = running.communicate(timeout=250)

    assert running.returncode == 1, client.errors()
    document = json.loads(out)
    jobs = document["jobs"]
    assert len(jobs) == 12
    assert (jobs[0]["status"], jobs[0]["reason"]) == (
        "interrupted",
        "interrupted by SIGTERM; program: interrupted",
    )
    assert jobs[1]["status"] == "killed"
    assert jobs[2]["status"] == "failed"
    # A job that waited for its device on the node that died is lost with it; every other one is done.
    assert all(job["status"] in ("ok", "killed") for job in jobs[3:])
    assert sum(job["status"] == "ok" for job in jobs) >= 7
    assert_leases_hold(sweep)

    # The client dies in the middle of going on; after that --resume finishes what is left.
    flags["victim"].unlink()
    before = {
        name: (sweep / name / "manifest.json").read_bytes()
        for name, s in statuses(sweep).items()
        if s == "ok"
    }
    again = client.start("run", "--multirun", "--json", "--resume", *arguments)
    wait_until("the slow job measures", stage_is_running(sweep, 0), by=again)
    job = manifest(sweep, 0)["heartbeat"]["pid"]
    os.kill(again.pid, signal.SIGKILL)
    again.wait()
    wait_until("Ray ends the jobs of a client that died", lambda: not _lives(job))
    client.run("sweep-report", "-q", "sweep")
    assert sweep_document(sweep)["jobs"][0]["status"] in ("killed", "interrupted")
    flags["cancelled"].unlink()
    program.write_text("")  # nothing crashes any more
    code, out = client.run("run", "--resume=sweep", "--json")
    assert code == 0, client.errors()
    assert json.loads(out)["counts"] == {"ok": 12}
    assert {name: (sweep / name / "manifest.json").read_bytes() for name in before} == before


def _the_first(sweep: Path, jobs: set[int]) -> int:
    found: list[int] = []

    def any_runs() -> bool:
        found.extend(job for job in jobs if stage_is_running(sweep, job)())
        return bool(found)

    wait_until("a slow job measures", any_runs)
    return found[0]


def _end_node_of(sweep: Path, job: int) -> None:
    """End the node of a job as a power cut does: its daemon, then the job."""
    pid = manifest(sweep, job)["heartbeat"]["pid"]
    raylet = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for each in (raylet, pid):
        os.kill(each, signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
