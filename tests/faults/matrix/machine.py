"""Terminals, pipes, working directories and disks that do not behave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.faults.matrix.case import STATIC_ONLY, Case, fixed


def _run(folder: Path) -> list[str]:
    return ["run", *STATIC_ONLY, f"artifacts.runs_dir={folder / 'run'}"]


def _report(folder: Path) -> None:
    assert (folder / "run" / "report.html").is_file()


def _cases() -> Iterator[Case]:
    for name, env in {
        "an ASCII terminal": {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        "no home": {"HOME": "/nowhere/at/all"},
        "a narrow terminal": {"COLUMNS": "20"},
        "no terminal type": {"TERM": ""},
        "a cache that cannot be made": {"XDG_CACHE_HOME": "/proc/nowhere"},
        "another time zone": {"TZ": "Pacific/Kiritimati"},
    }.items():
        yield Case("disk" if "cache" in name else "path", name, _run, 0, env=env, slow=True, check=_report)
    for verb in ("run", "doctor", "report", "ingest", "compare", "migrate", "ncu-profile", "top-kernels"):
        yield Case("report", f"help of {verb}", fixed(verb, "--help"), 0, ("usage",))


CASES = tuple(_cases())
