"""Reading of Nsight Systems output: a SQLite export, a summary CSV, or a directory that holds them."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_perf_opt.captures.cache import cached
from llm_perf_opt.captures.nsys.csv import looks_like_nsys_csv, merge_totals, read_nsys_csv
from llm_perf_opt.captures.timeline import (
    CaptureConfiguration,
    DeviceOps,
    HostCalls,
    Int64,
    KernelTotals,
    Ranges,
    Timeline,
    check_limits,
)
from llm_perf_opt.core.arrays import distinct_values, process_of
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import parse_yaml

_SQLITE_MAGIC = b"SQLite format 3\0"
_REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
_PREFERRED_NAMES = ("run", "report", "report1", "summary")
_SUBFOLDERS = ("nsys", ".")


def read_nsys(path: Path, *, cache_dir: Path | None = None) -> Timeline | KernelTotals:
    """Read a capture, detected by its content. ``cache_dir`` is the directory of the cache (default: the user's).

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
    from llm_perf_opt.captures.nsys.sqlite import read_nsys_sqlite

    timeline = read_nsys_sqlite(path)
    check_limits(timeline, path)
    return timeline


def export_command(report: Path) -> list[str]:
    """Return the command that turns a report into a SQLite file next to it."""
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
    """Read the best source in a run directory: the SQLite export, else the summaries, else raise with the export command."""
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
        f"{folder} contains no Nsight Systems capture (.sqlite, .csv summary or .nsys-rep)",
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


# How a capture was taken, from the files next to it: ``cmd.txt`` of the run, or its ``config.yaml``.


_LEVELS = 2
"""``<run>/nsys/summary.csv``: the configuration is next to the table or one folder up."""
_MOST_BYTES = 1 << 20
_ONE_RANGE = ("", "stop", "stop-shutdown", "repeat", "repeat-shutdown")
"""Ends of a capture after which it holds its range once (``repeat`` writes a file for each)."""


def read_capture_configuration(path: Path) -> CaptureConfiguration | None:
    """Return the known range of a capture; ``None`` if no file next to it matches."""
    folder = path if path.is_dir() else path.parent
    for place in (folder, *folder.parents)[:_LEVELS]:
        command, settings = place / "cmd.txt", place / "config.yaml"
        found = _of_commands(_text(command), path, command.name) or _of_settings(
            _text(settings), path, settings.name
        )
        if found is not None:
            return found
    return None


def _text(path: Path) -> str:
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _of_commands(text: str, path: Path, source: str) -> CaptureConfiguration | None:
    """Read the ``nsys profile`` commands of a shell file; of several, the one whose label the table is named after."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        try:
            arguments = shlex.split(line, comments=True)
        except ValueError:  # an open quote: not a command line
            continue
        start = next((place for place, word in enumerate(arguments) if PurePath(word).name == "nsys"), None)
        if start is None or arguments[start + 1 : start + 2] != ["profile"]:
            continue
        options = _options(arguments[start + 2 :])
        gated = options.get("--capture-range", options.get("-c", "none")) == "nvtx"
        label = options.get("--nvtx-capture", options.get("-p")) if gated else None
        found.append((label, options.get("--capture-range-end", "")))
    return _chosen(found, path, source)


def _options(arguments: list[str]) -> dict[str, str]:
    """Return options with their values, up to the program."""
    found: dict[str, str] = {}
    place = 0
    while place < len(arguments) and arguments[place].startswith("-"):
        option, equals, value = arguments[place].partition("=")
        if not equals and place + 1 < len(arguments) and not arguments[place + 1].startswith("-"):
            place += 1
            value = arguments[place]
        found[option] = value
        place += 1
    return found


def _of_settings(text: str, path: Path, source: str) -> CaptureConfiguration | None:
    try:
        document: Any = parse_yaml(text) if text else None
    except ValueError:
        return None
    for key in ("pipeline", "nsys"):
        document = document.get(key) if isinstance(document, dict) else None
    if not isinstance(document, dict) or "capture_range" not in document:
        return None
    end = str(document.get("capture_range_end") or "")
    if document["capture_range"] != "nvtx" or document.get("gating_nvtx") is False:
        return CaptureConfiguration(None, None, source)
    labels = document.get("nvtx_capture")
    listed = labels if isinstance(labels, list) else [labels]
    return _chosen([(str(label), end) for label in listed if label], path, source)


def _chosen(found: list[tuple[str | None, str]], path: Path, source: str) -> CaptureConfiguration | None:
    if len(found) > 1:
        named = [each for each in found if each[0] and _is_named_after(path, each[0])]
        # nsys/summary.csv is the first label's table.
        found = named or (found[:1] if path.name == "summary.csv" else [])
    if len(found) != 1:
        return None
    label, end = found[0]
    if label is None:
        return CaptureConfiguration(None, None, source)
    if end.partition(":")[0] not in _ONE_RANGE:
        return None  # from the first such range to the end of the program: neither the range nor the whole
    return CaptureConfiguration(label.rpartition("@")[0] or label, 1, source)


def _is_named_after(path: Path, label: str) -> bool:
    return (label.rpartition("@")[0] or label) in path.name.split(".")


# An export of several processes (nsys around ``torchrun``), process by process.


Mask = npt.NDArray[np.bool_]


def by_process(timeline: Timeline) -> dict[int, Timeline]:
    """Return process → its timeline, for every process that used a device, in the order of devices and processes."""
    ops = timeline.ops
    processes = [one for one in distinct_values(ops.process).tolist() if one >= 0]
    if len(processes) < 2:
        return dict.fromkeys(processes, timeline)
    first_device = {one: int(ops.device[ops.process == one].min()) for one in processes}
    ordered = sorted(processes, key=lambda one: (first_device[one], one))
    return {one: of_process(timeline, one) for one in ordered}


def marked_ranks(timeline: Timeline) -> dict[int, int]:
    """Return rank → process, if several processes are marked as ranks of one group."""
    reported: list[list[int]] = timeline.facts.get("rank_processes") or []
    found = {rank: process for process, rank, _ in reported}
    sizes = {size for _, _, size in reported}
    # Two groups in one capture, or a duplicate rank: membership cannot be determined.
    return found if len(sizes) == 1 and len(found) == len(reported) > 1 else {}


def of_process(timeline: Timeline, process: int) -> Timeline:
    """Return the timeline of one process."""
    ops, calls, ranges = timeline.ops, timeline.calls, timeline.ranges
    mine = process_of(calls.thread) == process
    open_here = process_of(ranges.thread) == process
    call_row, range_row = _new_rows(mine), _new_rows(open_here)
    own = ops.process == process
    kept: dict[str, Any] = _rows(ops, own)
    kept["launch"] = _moved(kept["launch"], call_row)
    kept["range"] = _moved(kept["range"], range_row)
    inside: dict[str, Any] = _rows(ranges, open_here)
    inside["parent"] = _moved(inside["parent"], range_row)
    devices = set(distinct_values(kept["device"]).tolist())
    return replace(
        timeline,
        ops=DeviceOps(**kept),
        calls=HostCalls(**_rows(calls, mine)),
        ranges=Ranges(**inside),
        devices={number: name for number, name in timeline.devices.items() if number in devices},
        facts=dict(timeline.facts),
    )


def _rows(table: DeviceOps | HostCalls | Ranges, chosen: Mask) -> dict[str, Any]:
    return {one.name: getattr(table, one.name)[chosen] for one in fields(table)}


def _new_rows(chosen: Mask) -> Int64:
    """Return for every row its place among the chosen; -1 for the others."""
    return np.where(chosen, np.cumsum(chosen) - 1, -1)


def _moved(rows: Any, places: Int64) -> Any:
    """Return references to rows as references to their new places; others become unknown."""
    if not len(places):
        return np.full_like(rows, -1)
    return np.where(rows >= 0, places[np.maximum(rows, 0)], -1).astype(rows.dtype)
