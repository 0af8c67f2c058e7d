"""Disks that are full, small, read-only or slow to say so: said in words, with the place and what to do."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.matrix.case import NO_MODEL, STATIC_ONLY, Case
from tests.faults.matrix.concurrency import TIMINGS
from tests.nsys_support import fake_nsys
from tests.support import cli

_FULL = "no space left"
_BALLAST_BYTES = 8 << 20


@contextlib.contextmanager
def _mounted(folder: Path, options: str) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def _fill_up(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        for _ in range(_BALLAST_BYTES >> 10):
            ballast.write(b"x" * 1024)


def _use_up_inodes(disk: Path) -> None:
    with contextlib.suppress(OSError):
        for number in range(1000):
            (disk / f"ballast-{number}").touch()


def _read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


def _disk(
    options: str, then: Callable[[Path], None]
) -> Callable[[Path], contextlib.AbstractContextManager[Path]]:
    """Return a small file system with the output of ``ingest`` on it, to which ``then`` something happens."""

    @contextlib.contextmanager
    def around(folder: Path) -> Iterator[Path]:
        with _mounted(folder, options) as disk:
            made = cli(*_ingest_to("made")(folder), cwd=folder)
            assert made.returncode == 0, made.stderr
            then(disk)
            yield disk

    return around


def _ingest_to(name: str) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        (folder / "wall.json").write_text(json.dumps(TIMINGS))
        return ["ingest", f"--timings={folder / 'wall.json'}", f"--out={folder / 'disk' / name}"]

    return build


def _run(folder: Path) -> list[str]:
    return ["run", *STATIC_ONLY, f"artifacts.runs_dir={folder / 'disk' / 'run'}"]


def _report(folder: Path) -> list[str]:
    return ["report", str(folder / "disk" / "made")]


def _compare(folder: Path) -> list[str]:
    made = str(folder / "disk" / "made")
    return ["compare", made, made, f"--out={folder / 'disk' / 'compared'}"]


def _capture(folder: Path) -> list[str]:
    """A program that fills the disk while it is watched."""
    body = (
        "print(\"Failed to create '/x/run.qdstrm': No space left on device.\", file=sys.stderr); sys.exit(1)"
    )
    tool = fake_nsys(folder / "tool", body)
    return [
        "run", *NO_MODEL, "pipeline.nsys.enable=true", "pipeline.workload.repeats=0", f"pipeline.nsys.executable={tool}",
        "pipeline.workload.command=[sleep,0]", f"artifacts.runs_dir={folder / 'run'}",
    ]  # fmt: skip


_SMALL_FILES = (
    "import resource\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))\n"
)


def _cases() -> Iterator[Case]:
    verbs = {"run": _run, "ingest": _ingest_to("more"), "report": _report, "compare": _compare}
    for verb, command in verbs.items() if os.geteuid() == 0 else ():
        yield Case(
            "disk",
            f"{verb} on a full disk",
            command,
            (1, 4),
            (_FULL,),
            slow=True,
            around=_disk("size=4m", _fill_up),
        )
        yield Case(
            "disk", f"{verb} on a read-only disk", command, 4, ("no permission to write",), slow=True,
            around=_disk("size=4m", _read_only),
        )  # fmt: skip
        yield Case(
            "disk", f"{verb} without inodes", command, (1, 4), (_FULL,), slow=True,
            around=_disk("size=4m,nr_inodes=100", _use_up_inodes),
        )  # fmt: skip
    yield Case(
        "disk",
        "a capture that fills the disk",
        _capture,
        1,
        ("the disk is full",),
        {"nsys": "failed"},
        "failed",
        slow=True,
    )
    local = {
        "run": lambda folder: ["run", *STATIC_ONLY, f"artifacts.runs_dir={folder / 'run'}"],
        "ingest": _local_ingest,
    }
    for verb, command in local.items():
        yield Case(
            "disk", f"{verb} where no file may grow", command, (1, 4), ("fix:",), hook=_SMALL_FILES, slow=True
        )
    for name, env in {
        "no temporary directory": {"TMPDIR": "/nowhere/at/all"},
        "a cache that is a file": {"XDG_CACHE_HOME": "/dev/null"},
    }.items():
        yield Case("disk", name, _local_ingest, 0, env=env)


def _local_ingest(folder: Path) -> list[str]:
    (folder / "wall.json").write_text(json.dumps(TIMINGS))
    return ["ingest", f"--timings={folder / 'wall.json'}", f"--out={folder / 'run'}"]


CASES = tuple(_cases())
