"""What the tests of all engines share: the jobs of a sweep, and reading what became of them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.nsys_support import alive
from tests.support import REPOSITORY, cli

PROGRAM = Path(__file__).with_name("program.py")
GPUS = tuple(f"GPU-{letter * 8}" for letter in "abcd")
"""UUIDs of the made-up GPUs."""
CHEAP = (
    "pipeline.static_analysis.enable=false",
    "pipeline.torch_profiler.enable=false",
    "hardware.probe=false",
    "pipeline.workload.repeats=1",
)


def write_driver(folder: Path) -> Path:
    """Write a stand-in for nvidia-smi, and return the folder to put on PATH.

    It knows four GPUs; on the second node of Slurm, which counts its own from zero, the last two.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tool = folder / "nvidia-smi"
    every, second = (
        "\\n".join(f"{number}, {uuid}" for number, uuid in enumerate(uuids)) for uuids in (GPUS, GPUS[2:])
    )
    tool.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f'*index,uuid*) if [ "$SLURMD_NODENAME" = n2 ]; then printf "{second}\\n"; else printf "{every}\\n"; fi;;\n'
        "*compute-apps*) ;;\n"
        "*) exit 9;;\n"
        "esac\n"
    )
    tool.chmod(0o755)
    return folder


class Programs:
    """The programs that a sweep measures, and what they saw."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self.names = folder, list(names)

    @property
    def override(self) -> str:
        """The override that makes one job for each name."""
        commands = (f"[{sys.executable},{PROGRAM},{self.folder},{name}]" for name in self.names)
        return f"pipeline.workload.command={','.join(commands)}"

    def hold(self, *names: str) -> None:
        """Let programs wait (or crash) until they are released."""
        for name in names:
            (self.folder / f"hold-{name}").touch()

    def release(self, *names: str) -> None:
        """Let programs go on."""
        for name in names:
            (self.folder / f"hold-{name}").unlink()

    def starts(self) -> Counter[str]:
        """Return how often each program was started."""
        return Counter(line.split()[0] for line in (self.folder / "starts").read_text().splitlines())

    def devices(self) -> set[str]:
        """Return the devices that were used."""
        return {line.split()[1] for line in (self.folder / "starts").read_text().splitlines()}

    def collisions(self) -> str:
        """Return which programs met another one on their device."""
        path = self.folder / "collisions"
        return path.read_text() if path.exists() else ""


class Client:
    """The command line of a user, in an environment that has the engine."""

    def __init__(self, python: Path, folder: Path, env: Mapping[str, str]) -> None:
        self.python, self.folder = python, folder
        own = [str(REPOSITORY / "src"), str(REPOSITORY)]
        self.env = {
            **os.environ,
            **env,
            "PYTHONPATH": os.pathsep.join(own),
            "PATH": os.pathsep.join([str(write_driver(folder / "driver")), os.environ["PATH"]]),
            "LLM_PERF_OPT_LEASES": str(folder / "leases"),
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command, in a process group of its own."""
        with (self.folder / "client.err").open("a") as errors:
            return subprocess.Popen(
                [str(self.python), "-m", "llm_perf_opt", *arguments],
                cwd=self.folder,
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def run(self, *arguments: str, timeout: float = 200) -> tuple[int, str]:
        """Run a command to its end; return exit code and standard output."""
        process = self.start(*arguments)
        out, _ = process.communicate(timeout=timeout)
        return process.returncode, out

    def report(self) -> dict[str, Any]:
        """Remake the report of the sweep, for which no engine is needed; return ``sweep.json``."""
        # PYTHONPATH as the server has it: what the jobs import is another matter.
        env = {name: value for name, value in self.env.items() if name != "PYTHONPATH"}
        cli("sweep-report", "-q", "sweep", cwd=self.folder, env=env)
        found: dict[str, Any] = json.loads((self.folder / "sweep" / "sweep.json").read_text())
        return found

    def errors(self) -> str:
        """Return what all commands said on standard error."""
        return (self.folder / "client.err").read_text()


def statuses(sweep: Path) -> dict[str, str]:
    """Return directory → status in its manifest; jobs without one are left out."""
    found = {}
    for path in sweep.glob("*/manifest.json"):
        try:
            found[path.parent.name] = str(json.loads(path.read_text())["status"])
        except (OSError, ValueError):  # being replaced right now
            continue
    return found


def manifest(sweep: Path, job: int) -> dict[str, Any]:
    """Return the manifest of a job."""
    found: dict[str, Any] = json.loads((sweep / str(job) / "manifest.json").read_text())
    return found


def wait_until(
    what: str, is_so: Callable[[], bool], limit_s: float = 120.0, by: subprocess.Popen[str] | None = None
) -> None:
    """Wait for something that another process does; ``by`` is a client without which it will not be."""
    end = time.monotonic() + limit_s
    while not is_so():
        if by is not None and by.poll() is not None:
            raise AssertionError(f"the client ended with {by.returncode} before: {what}")
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s:g} s: {what}")
        time.sleep(0.25)


def stage_is_running(sweep: Path, job: int) -> Callable[[], bool]:
    """Return whether a job holds its device and runs its program."""

    def running() -> bool:
        try:
            found = manifest(sweep, job)
        except (OSError, ValueError):
            return False
        return found["stages"].get("program", {}).get("status") == "running"

    return running


def all_measuring(sweep: Path, jobs: Iterable[int]) -> Callable[[], bool]:
    """Return whether jobs run their programs, all at the same time."""
    looks = [stage_is_running(sweep, job) for job in jobs]
    return lambda: all(look() for look in looks)


def has_status(sweep: Path, job: int, status: str) -> Callable[[], bool]:
    """Return whether a job's manifest says so."""
    return lambda: statuses(sweep).get(str(job)) == status


def assert_leases_hold(sweep: Path) -> None:
    """No two jobs held one device at the same time, earlier attempts included."""
    spans = []
    for path in (*sweep.glob("*/manifest.json"), *sweep.glob("*/earlier-*/manifest.json")):
        lease = json.loads(path.read_text()).get("lease")
        if lease and lease["exclusive"] and lease["ended"]:
            spans.append((lease["device"], lease["began"], lease["ended"], str(path.parent)))
    assert len(spans) > 1
    assert {device for device, *_ in spans} <= set(GPUS)
    spans.sort()
    for (device, _, ended, one), (other, began, _, two) in itertools.pairwise(spans):
        assert device != other or ended <= began, f"{one} and {two} shared {device}"


def end_tree(pids: Iterable[int]) -> None:
    """End processes and all below them as a power cut does: at once, without a word."""
    below: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            below.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(
                int(path.parent.name)
            )
    waiting, found = list(pids), []
    while waiting:
        found.append(pid := waiting.pop(0))
        waiting.extend(below.get(pid, ()))
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until("all of them are gone", lambda: not any(map(alive, found)))
