"""Clocks that jump, stand still, or differ between the machine and its files: no good result is refused for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.matrix.case import NO_MODEL, STATIC_ONLY, Case
from tests.faults.matrix.concurrency import TIMINGS
from tests.nsys_support import fake_nsys
from tests.support import read_json
from tests.unit import kineto_traces

_DAY_S = 86_400
_MOMENTS = {
    "a day ago": "time.time() - 86400",
    "in a day": "time.time() + 86400",
    "in 1970": "0",
    "before 1970": "-86400 * 3650",
    "in 2300": "86400 * 365 * 330",
}
"""When a file server says that a file was written."""


def _static(folder: Path) -> list[str]:
    return ["run", *STATIC_ONLY, f"artifacts.runs_dir={folder / 'run'}"]


def _ingest(folder: Path) -> list[str]:
    (folder / "wall.json").write_text(json.dumps(TIMINGS))
    return ["ingest", f"--timings={folder / 'wall.json'}", f"--out={folder / 'run'}"]


def _capture(moment: str) -> Callable[[Path], list[str]]:
    """Return a capture whose report bears another time than the machine has."""

    def build(folder: Path) -> list[str]:
        body = f'report(); moment = {moment}; os.utime(out + ".nsys-rep", (moment, moment))'
        tool = fake_nsys(folder / "tool", body, exports=True)
        return [
            "run", *NO_MODEL, "pipeline.nsys.enable=true", "pipeline.workload.repeats=0", f"pipeline.nsys.executable={tool}",
            "pipeline.workload.command=[sleep,0]", f"artifacts.runs_dir={folder / 'run'}",
        ]  # fmt: skip

    return build


def _trace(moment_s: float) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        events = [kineto_traces.kernel("gemm", 100.0 * n, 10.0, n) for n in range(1, 9)]
        path = kineto_traces.write(folder / "trace.json", kineto_traces.document(events))
        os.utime(path, (moment_s, moment_s))
        return ["ingest", f"--trace={path}", f"--out={folder / 'run'}"]

    return build


def _earlier(started: str, moment_s: float | None = None) -> Callable[[Path], list[str]]:
    """Return a run in a directory with an earlier one, which says when it began, or does not."""

    def build(folder: Path) -> list[str]:
        run = folder / "run"
        run.mkdir()
        manifest = {
            "run_id": "run",
            "started": started,
            "command": ["llm-perf-opt", "run"],
            "files": ["manifest.json"],
        }
        (run / "manifest.json").write_text(json.dumps(manifest))
        if moment_s is not None:
            os.utime(run / "manifest.json", (moment_s, moment_s))
        return _static(folder)

    return build


def _no_time_is_negative(folder: Path) -> None:
    summary = read_json(folder / "run" / "summary.json")
    seconds = [summary["run"]["seconds"], *(stage["seconds"] for stage in summary["stages"].values())]
    assert all(value is None or 0 <= value < _DAY_S for value in seconds), seconds


def _moved_aside(folder: Path) -> None:
    (earlier,) = (folder / "run").glob("earlier-*")
    assert (earlier / "manifest.json").is_file()


_STEP = """\
import datetime as module
from llm_perf_opt.core import units as clock
whole, calls = time.time, [0]
def stepped():
    calls[0] += 1
    return {seconds}
time.time = stepped
class Stepped(module.datetime):
    @classmethod
    def now(cls, tz=None):
        return module.datetime.fromtimestamp(stepped(), tz)
clock.datetime = Stepped
"""
_CLOCKS = {
    "the clock goes backwards": "whole() - 60.0 * calls[0]",
    "the clock jumps a day with every look": "whole() + 86400.0 * calls[0]",
    "the clock stands still": "1.7e9",
    "the clock says 1970": "float(calls[0])",
    "the clock says 2300": "1.04e10 + calls[0]",
}


def _cases() -> Iterator[Case]:
    for when, moment in _MOMENTS.items():
        yield Case(
            "clock", f"a report written {when}", _capture(moment), 0, stages={"nsys": "degraded"}, status="ok",
            slow=when != "in a day",
        )  # fmt: skip
    for when, moment_s in {
        "in 1970": 0,
        "before 1970": -_DAY_S * 3650,
        "in 2300": _DAY_S * 365 * 330,
    }.items():
        yield Case("clock", f"a trace written {when}", _trace(moment_s), 0)
    for what, seconds in _CLOCKS.items():
        hook = _STEP.format(seconds=seconds)
        yield Case("clock", f"{what} (ingest)", _ingest, 0, hook=hook, check=_no_time_is_negative)
        yield Case(
            "clock",
            f"{what} (run)",
            _static,
            0,
            status="ok",
            hook=hook,
            check=_no_time_is_negative,
            slow=True,
        )
    for zone in ("Pacific/Kiritimati", "America/St_Johns", "Nowhere/At_All", ":", "UTC+99", ""):
        yield Case("clock", f"TZ={zone!r}", _ingest, 0, env={"TZ": zone})
    for what, started, moment in (
        ("of the future", "2999-01-01T00:00:00+00:00", None),
        ("of no time", "yesterday", None),
        ("of no time, its file of 1970", "", 0),
        ("of no time, its file before 1970", "", -_DAY_S * 3650),
        ("of no time, its file of the year 36812", "", 2**40),
    ):
        yield Case(
            "clock",
            f"an earlier run {what}",
            _earlier(started, moment),
            0,
            status="ok",
            check=_moved_aside,
            slow=True,
        )


CASES = tuple(_cases())
