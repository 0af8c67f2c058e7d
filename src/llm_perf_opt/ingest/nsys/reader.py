"""Whatever Nsight Systems left behind: a SQLite export, a summary CSV, or a directory that holds them."""

from __future__ import annotations

import shlex
from pathlib import Path

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.ingest.cache import cached
from llm_perf_opt.ingest.nsys.csv import looks_like_nsys_csv, merge_totals, read_nsys_csv
from llm_perf_opt.model.timeline import KernelTotals, Timeline

_SQLITE_MAGIC = b"SQLite format 3\0"
_REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
_PREFERRED_NAMES = ("run", "report", "report1", "summary")
_SUBFOLDERS = ("nsys", ".")


def read_nsys(path: Path, *, cache_dir: Path | None = None) -> Timeline | KernelTotals:
    """Read a capture, told by content. ``cache_dir`` is a place of ours for the cache (default: the user's).

    A ``.nsys-rep`` has to be exported by the tool first: :func:`export_command` is the command, and the error
    carries it as ``data["command"]``.
    """
    path = Path(path)
    if path.is_dir():
        return _read_directory(path, cache_dir)
    if not path.exists():
        raise InputError(
            f"no such file: {path}", hint="give a .sqlite, .csv or run directory", path=str(path)
        )
    with path.open("rb") as stream:
        head = stream.read(65536)
    if head.startswith(_SQLITE_MAGIC) or (not head and path.suffix in (".sqlite", ".db")):
        return cached(path, _read_export, directory=cache_dir)
    if path.suffix in _REPORT_SUFFIXES:
        raise _needs_export(path)
    if path.suffix == ".csv" or looks_like_nsys_csv(head.decode("utf-8", errors="replace")):
        return read_nsys_csv(path)
    raise InputError(
        f"{path} is neither an nsys SQLite export nor one of its CSV summaries",
        hint="nsys export --type sqlite REPORT.nsys-rep writes the former",
        path=str(path),
    )


def _read_export(path: Path) -> Timeline:
    from llm_perf_opt.ingest.nsys.sqlite import read_nsys_sqlite

    return read_nsys_sqlite(path)


def export_command(report: Path) -> list[str]:
    """Return the command that turns a report into a SQLite file beside it."""
    output = report.with_suffix(".sqlite")
    return [
        "nsys",
        "export",
        "--type",
        "sqlite",
        "--force-overwrite",
        "true",
        "--output",
        str(output),
        str(report),
    ]


def _needs_export(path: Path) -> InputError:
    if path.suffix == ".qdstrm":
        return InputError(
            f"{path.name} is the raw stream of a capture whose import did not finish",
            hint="import it on a machine with Nsight Systems: QdstrmImporter --input-file "
            + shlex.quote(str(path)),
            path=str(path),
        )
    command = export_command(path)
    return InputError(
        f"{path.name} is a report that only nsys itself can open",
        hint=shlex.join(command),
        path=str(path),
        command=command,
    )


def _read_directory(folder: Path, cache_dir: Path | None) -> Timeline | KernelTotals:
    """The best there is in a run directory: the SQLite export, else the summaries, else say what to export."""
    places = [folder / name for name in _SUBFOLDERS if (folder / name).is_dir()]
    for place in places:
        exports = sorted((one for one in place.glob("*.sqlite") if one.is_file()), key=_preference)
        if exports:
            return cached(exports[0], _read_export, directory=cache_dir)
    for place in places:
        tables = [one for one in sorted(place.glob("*.csv"), key=_preference) if _is_summary(one)]
        if tables:
            return merge_totals([read_nsys_csv(one) for one in tables])
    for place in places:
        reports = sorted((one for one in place.iterdir() if one.suffix in _REPORT_SUFFIXES), key=_preference)
        if reports:
            raise _needs_export(reports[0])
    raise InputError(
        f"{folder} holds no Nsight Systems capture (.sqlite, .csv summary or .nsys-rep)",
        hint="give the run directory, its nsys/ folder, or the file itself",
        path=str(folder),
    )


def _preference(path: Path) -> tuple[int, str]:
    stem = path.name.split(".")[0]
    rank = _PREFERRED_NAMES.index(stem) if stem in _PREFERRED_NAMES else len(_PREFERRED_NAMES)
    return rank, path.name


def _is_summary(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return looks_like_nsys_csv(stream.read(8192).decode("utf-8-sig", errors="replace"))
    except OSError:
        return False
