"""What the tests of all engines share: the jobs of a sweep, and reading what became of them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("program.py")
CHEAP = (
    "pipeline.static_analysis.enable=false",
    "pipeline.torch_profiler.enable=false",
    "hardware.probe=false",
    "pipeline.workload.repeats=1",
)


def swept_programs(names: Sequence[str]) -> str:
    """Return the override that makes one job for each name."""
    commands = (f"[{sys.executable},{PROGRAM},{name}]" for name in names)
    return f"pipeline.workload.command={','.join(commands)}"


class Client:
    """The command line of a user, in an environment that has the engine."""

    def __init__(self, python: Path, folder: Path, env: Mapping[str, str]) -> None:
        self.python, self.folder = python, folder
        own = [str(REPOSITORY / "src"), str(REPOSITORY)]
        self.env = {
            **os.environ,
            **env,
            "PYTHONPATH": os.pathsep.join(own),
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

    def errors(self) -> str:
        """Return what all commands said on standard error."""
        return (self.folder / "client.err").read_text()


def sweep_document(sweep: Path) -> dict[str, Any]:
    """Return ``sweep.json``."""
    found: dict[str, Any] = json.loads((sweep / "sweep.json").read_text())
    return found


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


def assert_leases_hold(sweep: Path) -> None:
    """No two jobs held one device at the same time."""
    spans = []
    for path in sweep.glob("*/manifest.json"):
        lease = json.loads(path.read_text()).get("lease")
        if lease and lease["exclusive"] and lease["ended"]:
            spans.append((lease["device"], lease["began"], lease["ended"], path.parent.name))
    assert len(spans) > 1
    spans.sort()
    for (device, _, ended, one), (other, began, _, two) in itertools.pairwise(spans):
        assert device != other or ended <= began, f"jobs {one} and {two} shared {device}"
