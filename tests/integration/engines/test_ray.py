"""Eight jobs on a real Ray cluster with four devices: one crashes, one is cancelled, a node dies, the client dies."""

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
    Programs,
    all_measuring,
    assert_leases_hold,
    end_tree,
    has_status,
    manifest,
    statuses,
    wait_until,
)
from tests.nsys_support import alive

pytestmark = [pytest.mark.needs("ray"), pytest.mark.slow, pytest.mark.timeout(600)]

VICTIM, CANCELLED, STAYING, CRASHING = 0, 1, (2, 3), 4


def launcher(ray: Ray) -> tuple[str, ...]:
    return ("hydra/launcher=ray_cluster", _address(ray), *CHEAP)


def _address(ray: Ray) -> str:
    return f"hydra.launcher.ray.init.address='{ray.address}'"


def test_jobs_that_ray_puts_on_one_device_wait_for_each_other(
    ray: Ray, engine_python: Path, tmp_path: Path
) -> None:
    client, programs = Client(engine_python, tmp_path, {}), Programs(tmp_path, [f"half{n}" for n in range(3)])
    code, out = client.run(
        *("run", "--multirun", "--json", *launcher(ray), "hydra.launcher.ray.remote.num_gpus=0.5"),
        *(programs.override, "hydra.sweep.dir=sweep"),
    )
    assert code == 0, client.errors()
    assert json.loads(out)["counts"] == {"ok": 3}
    assert len(programs.devices()) < 3, "Ray gave two jobs one device"
    assert programs.collisions() == ""
    assert_leases_hold(tmp_path / "sweep")


def test_eight_jobs_and_everything_that_can_happen(ray: Ray, engine_python: Path, tmp_path: Path) -> None:
    client, sweep = Client(engine_python, tmp_path, {}), tmp_path / "sweep"
    names = ["victim", "cancelled", "stay0", "stay1", "crash", *(f"job{n}" for n in range(3))]
    programs = Programs(tmp_path, names)
    programs.hold(*names[:5])
    arguments = (*launcher(ray), programs.override, "hydra.sweep.dir=sweep")
    command = ("run", "--multirun", "--json")
    running = client.start(*command, *arguments)

    # All four devices are in use, each by one job; the others are queued.
    wait_until("four jobs measure", all_measuring(sweep, range(4)), by=running)
    assert len({manifest(sweep, job)["lease"]["device"] for job in range(4)}) == 4
    assert client.report()["counts"] == {"running": 4, "pending": 4}

    # One is cancelled, one crashes on the device that this frees, and the node of a third dies.
    os.kill(manifest(sweep, CANCELLED)["heartbeat"]["pid"], signal.SIGTERM)
    wait_until("the cancelled job has told", has_status(sweep, CANCELLED, "interrupted"), by=running)
    wait_until("one crashed", has_status(sweep, CRASHING, "failed"), by=running)
    _end_node_of(manifest(sweep, VICTIM)["heartbeat"]["pid"])
    jobs = client.report()["jobs"]
    assert len(jobs) == len(names)
    assert (jobs[VICTIM]["status"], jobs[CRASHING]["status"]) == ("killed", "failed")
    assert "exit code" in jobs[CRASHING]["reason"]
    assert (jobs[CANCELLED]["status"], jobs[CANCELLED]["reason"]) == (
        "interrupted",
        "interrupted by SIGTERM; program: interrupted",
    )

    # A second client goes on while jobs of the first are queued and running: none of those is started a second time.
    staying = [job for job in STAYING if jobs[job]["status"] == "running"]
    started = programs.starts()
    programs.release("victim", "cancelled", "crash", *(names[job] for job in STAYING if job not in staying))
    second = client.start(*command, "--resume", *arguments)
    for job in staying:
        wait_until(
            "it is left alone", lambda job=job: f"job {job} is left alone" in client.errors(), by=second
        )
    if len(staying) == 2:  # both on the node that is left: one has to end for anything to go on
        programs.release(names[staying[0]])
        staying.pop(0)
    ended_early = {
        job for job in range(len(names)) if jobs[job]["status"] in ("killed", "failed", "interrupted")
    }
    for job in range(len(names)):
        if job not in staying:
            wait_until(f"job {job} is done", has_status(sweep, job, "ok"), 200)
            # A status is there before the report is; a job that is ended in between is run again.
            wait_until(
                f"job {job} is over", lambda job=job: not (sweep / str(job) / "run.lock").exists(), 200
            )

    # The first client dies, and with it what Ray ran for it; the second has nothing to do with that.
    running.send_signal(signal.SIGKILL)
    running.wait()
    for job in staying:
        wait_until("its job is ended", lambda job=job: not alive(manifest(sweep, job)["heartbeat"]["pid"]))
        programs.release(names[job])
    second.communicate(timeout=100)
    done = {name: (sweep / name / "manifest.json").read_bytes() for name in _done(sweep)}
    # What can execute code is not taken over from the plan in the directory: it is named again.
    code, out = client.run("run", "--resume=sweep", "--json", _address(ray), programs.override)
    assert code == 0, (out, client.errors())
    assert json.loads(out)["counts"] == {"ok": len(names)}

    # Nothing is lost, nothing was done twice, no device was shared.
    assert {name: (sweep / name / "manifest.json").read_bytes() for name in done} == done
    assert set(programs.starts()) == set(names)
    for job, name in enumerate(names):
        again = job in ended_early or job in staying
        assert programs.starts()[name] == (started[name] + 1 if again else 1), name
    assert programs.collisions() == ""
    assert_leases_hold(sweep)


def _done(sweep: Path) -> list[str]:
    return [name for name, status in statuses(sweep).items() if status == "ok"]


def _end_node_of(pid: int) -> None:
    """End the node of a job as a power cut does: its daemon, its workers and their programs, all at once."""
    raylet = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert "raylet" in Path(f"/proc/{raylet}/comm").read_text()
    end_tree([raylet])
