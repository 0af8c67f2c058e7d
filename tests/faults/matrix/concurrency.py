"""Two at once, and one after another, in one directory: one writer, nothing mixed, nothing believed that is another's."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from llm_perf_opt.runs.lock import hold
from tests.faults.matrix.case import NO_MODEL, QUICK, STATIC_ONLY, Case, Running
from tests.faults.processes import wait_for
from tests.needs import need
from tests.nsys_support import fake_nsys
from tests.support import cli, files_below, read_json
from tests.unit.history.runs_made import make_run
from tests.unit.nsys_exports import kernel, write_export

TIMINGS = {"samples": 2, "new_tokens": 8, "prefill_s": 0.1, "decode_s": 0.7}
_OTHERS_KERNEL = "kernel_of_somebody_else"


def _static(folder: Path) -> list[str]:
    return ["run", *STATIC_ONLY, f"artifacts.runs_dir={folder / 'run'}"]


def _ingest(folder: Path) -> list[str]:
    (folder / "wall.json").write_text(json.dumps(TIMINGS))
    return ["ingest", f"--timings={folder / 'wall.json'}", f"--out={folder / 'run'}"]


def _with(
    before: Callable[[Path], None], command: Callable[[Path], list[str]]
) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        (folder / "run").mkdir()
        before(folder / "run")
        return command(folder)

    return build


def _held(folder: Path) -> contextlib.AbstractContextManager[None]:
    (folder / "run").mkdir(exist_ok=True)
    return hold(folder / "run")


def _lock_text(**changes: object) -> Callable[[Path], None]:
    def write(run: Path) -> None:
        holder = {
            "host": socket.gethostname(),
            "pid": 2**22 + 7,
            "started": "2026-01-01T00:00:00+00:00",
            **changes,
        }
        (run / "run.lock").write_text(json.dumps(holder))

    return write


def _text(name: str, text: str) -> Callable[[Path], None]:
    def write(run: Path) -> None:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)

    return write


def _linked_lock(run: Path) -> None:
    (run.parent / "precious").write_text("keep me")
    (run / "run.lock").symlink_to(run.parent / "precious")


def _precious_kept(folder: Path) -> None:
    assert (folder / "precious").read_text() == "keep me"


def _earlier_run(run: Path) -> None:
    """A run of the same directory, with a capture of another machine."""
    manifest = {
        "run_id": "run", "started": "2026-01-01T00:00:00+00:00", "command": ["llm-perf-opt", "run"], "status": "ok",
        "stages": {"nsys": {"status": "ok", "artifacts": ["nsys/run.sqlite"]}}, "files": ["manifest.json"],
        "facts": {"model": "the other model"},
    }  # fmt: skip
    (run / "manifest.json").write_text(json.dumps(manifest))
    _capture(run)


def _capture(run: Path) -> None:
    (run / "nsys").mkdir(exist_ok=True)
    rows = [kernel(100 * n, 100 * n + 50, n, 1) for n in range(1, 9)]
    write_export(run / "nsys" / "run.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": rows}, {1: _OTHERS_KERNEL})


def _others_left_out(folder: Path) -> None:
    run = folder / "run"
    assert _OTHERS_KERNEL not in (run / "summary.json").read_text()
    assert _OTHERS_KERNEL not in (run / "report.html").read_text()


def _moved_aside(folder: Path) -> None:
    _others_left_out(folder)
    (earlier,) = (folder / "run").glob("earlier-*")
    assert (earlier / "nsys" / "run.sqlite").is_file()


def _made_first(folder: Path, *arguments: str) -> None:
    done = cli(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr


def _ingest_over_a_run(folder: Path) -> list[str]:
    _made_first(folder, *_static(folder))
    return _ingest(folder)


def _still_the_runs(folder: Path) -> None:
    summary = read_json(folder / "run" / "summary.json")
    assert summary["run"]["command"][1] == "run"
    assert summary["static"] is not None


def _ingest_over_ingest(folder: Path) -> list[str]:
    command = _ingest(folder)
    _made_first(folder, *command)
    (folder / "wall.json").write_text(json.dumps({**TIMINGS, "new_tokens": 16}))
    return command


def _ingest_over_a_summary(folder: Path) -> list[str]:
    """A run of an earlier release has a summary and no manifest."""
    command = _ingest(folder)
    _made_first(folder, *command)
    summary = read_json(folder / "run" / "summary.json")
    summary["run"]["command"] = ["llm-perf-opt", "run"]
    (folder / "run" / "summary.json").write_text(json.dumps(summary))
    return command


def _planted_capture(folder: Path) -> list[str]:
    """Somebody puts a capture into a finished run, and it is analysed again."""
    _made_first(folder, *_static(folder))
    _capture(folder / "run")
    return ["report", str(folder / "run"), "--reanalyse"]


def _planted_in_own_stage(folder: Path) -> list[str]:
    """The same in the folder of a stage that the run had: its own export is read, the other one is not."""
    tool = fake_nsys(folder / "tool", "report()", exports=True)
    _made_first(
        folder, "run", *NO_MODEL, "pipeline.nsys.enable=true", "pipeline.workload.repeats=0", f"pipeline.nsys.executable={tool}",
        "pipeline.workload.command=[sleep,0]", f"artifacts.runs_dir={folder / 'run'}",
    )  # fmt: skip
    _capture(folder)
    shutil.move(folder / "nsys" / "run.sqlite", folder / "run" / "nsys" / "run.more.sqlite")
    return ["report", str(folder / "run"), "--reanalyse"]


def _second(verb: Callable[[Path], list[str]], code: int, expected: str) -> Callable[[Running], None]:
    """Start another command in the directory of the one that runs; it must be refused."""

    def start(running: Running) -> None:
        wait_for((running.folder / "run" / "manifest.json").is_file, 120)
        before = files_below(running.folder / "run" / "static_analysis")
        done = cli(*verb(running.folder), cwd=running.folder)
        assert done.returncode == code, f"the second ended with {done.returncode}: {done.stderr[-300:]}"
        assert expected in done.stderr, done.stderr[-300:]
        assert "Traceback" not in done.stderr
        assert not list((running.folder / "run").glob("earlier-*"))
        assert set(before) <= set(files_below(running.folder / "run" / "static_analysis"))

    return start


def _report(folder: Path) -> list[str]:
    return ["report", str(folder / "run")]


def _measuring(folder: Path) -> list[str]:
    longer = [part for part in QUICK if not part.startswith("infer.max_new_tokens")]
    return ["run", *longer, "infer.max_new_tokens=400", f"artifacts.runs_dir={folder / 'run'}"]


def _two_with_default_names(folder: Path) -> list[str]:
    return ["run", *STATIC_ONLY]


def _start_the_same(running: Running) -> None:
    done = cli("run", *STATIC_ONLY, cwd=running.folder)
    assert done.returncode == 0, done.stderr[-300:]


def _two_directories(folder: Path) -> None:
    runs = sorted((folder / "tmp" / "runs").iterdir())
    assert len(runs) == 2, runs
    assert all((run / "report.md").is_file() for run in runs)


def _directory_removed(running: Running) -> None:
    run = running.folder / "run"
    wait_for(lambda: (run / "run.log").is_file() and "measuring" in (run / "run.log").read_text(), 120)
    shutil.rmtree(run, ignore_errors=True)


def _compare(folder: Path) -> list[str]:
    a, b = make_run(folder / "runs", "a"), make_run(folder / "runs", "b", day=2)
    return ["compare", str(a), str(b), f"--out={folder / 'run'}"]


def _improve(folder: Path) -> list[str]:
    return ["improve", "model=llama_tiny", "--out", str(folder / "run")]


def _serve(folder: Path) -> list[str]:
    need("serving")
    return [
        "serve",
        "--url",
        "http://127.0.0.1:9",
        "--out",
        str(folder / "run"),
        "hardware.probe=false",
        "run.exclusive=false",
    ]


def _removing(expected: str) -> Callable[[Path], list[str]]:
    """A program that removes files of its own run."""

    def build(folder: Path) -> list[str]:
        paths = expected.replace("{run}", str(folder / "run")).replace(" ", ",")
        return [
            "run", *NO_MODEL, f"pipeline.workload.command=[rm,-rf,{paths}]", "pipeline.workload.repeats=1", "run.exclusive=false",
            f"artifacts.runs_dir={folder / 'run'}",
        ]  # fmt: skip

    return build


def _no_defect(folder: Path) -> None:
    assert "defect" not in (folder / "run" / "report.md").read_text()


def _cases() -> Iterator[Case]:
    name = "concurrency"
    another = ("another process writes in",)
    yield Case(name, "run in a held directory", _static, 2, (*another, "artifacts.runs_dir"), around=_held)
    yield Case(name, "ingest into a held directory", _ingest, 2, (*another, "--out DIR"), around=_held)
    yield Case(name, "report of a held directory", _with(_earlier_run, _report), 2, another, around=_held)
    yield Case(name, "compare into a held directory", _compare, 2, (*another, "--out DIR"), around=_held)
    yield Case(name, "improve in a held directory", _improve, 2, (*another, "--out DIR"), around=_held)
    yield Case(name, "serve in a held directory", _serve, 2, another, around=_held)
    for what, before in {
        "of a dead process": _lock_text(),
        "of another machine": _lock_text(host="elsewhere", pid=1),
        "of a living stranger": _lock_text(pid=os.getpid()),
        "of the future": _lock_text(started="2999-01-01T00:00:00+00:00"),
        "that holds nonsense": _text("run.lock", "\0\1\2"),
        "that is empty": _text("run.lock", ""),
    }.items():
        # The kernel's lock decides: what the text says is for people.
        yield Case(name, f"a lock {what}", _with(before, _ingest), 0)
    yield Case(
        name,
        "a lock that is a link",
        _with(_linked_lock, _ingest),
        2,
        ("is not a regular file",),
        check=_precious_kept,
    )
    yield Case(
        name, "a lock that is a folder", _with(lambda run: (run / "run.lock").mkdir(), _ingest), 2, ("run.lock",),
        check=lambda folder: (folder / "run" / "run.lock").rmdir(),
    )  # fmt: skip
    yield Case(
        name,
        "a stage's folder of nobody",
        _with(_capture, _static),
        2,
        ("nsys/", "which belongs to no listed run"),
    )
    yield Case(
        name, "a directory with an earlier run", _with(_earlier_run, _static), 0, ("held an earlier run",), status="ok",
        check=_moved_aside, slow=True,
    )  # fmt: skip
    yield Case(
        name, "a capture planted in a finished run", _planted_capture, 0, check=_others_left_out, slow=True
    )
    yield Case(
        name,
        "a capture planted in a stage's folder",
        _planted_in_own_stage,
        0,
        check=_others_left_out,
        slow=True,
    )
    yield Case(
        name,
        "ingest into a run",
        _ingest_over_a_run,
        2,
        ("contains a run", "--out DIR"),
        check=_still_the_runs,
        slow=True,
    )
    yield Case(
        name, "ingest over the summary of a run", _ingest_over_a_summary, 2, ("contains a run", "--out DIR")
    )
    yield Case(name, "ingest over an earlier ingest", _ingest_over_ingest, 0)
    for what, verb in {"run": _static, "report": _report, "ingest": _ingest}.items():
        yield Case(
            name, f"a second {what} meanwhile", _measuring, 0, status="ok", during=_second(verb, 2, "another process writes in"),
            slow=True,
        )  # fmt: skip
    yield Case(
        name, "two runs at once without a name", _two_with_default_names, 0, during=_start_the_same,
        check=_two_directories, slow=True,
    )  # fmt: skip
    for what, phrase in {
        "the run directory": "{run}",
        "all files of the run": "{run}/manifest.json {run}/program",
    }.items():
        yield Case(
            name, f"the program removes {what}", _removing(phrase), 1, ("was removed or replaced",), {"program": "failed"}, "failed",
            check=_no_defect,
        )  # fmt: skip
    yield Case(
        name, "the run directory vanishes", _measuring, (0, 1, 4), during=_directory_removed, slow=True
    )


CASES = tuple(_cases())
