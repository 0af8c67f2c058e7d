"""Reading of Nsight Compute captures of any kind: :func:`read_ncu`."""

from __future__ import annotations

import re
from pathlib import Path

from llm_perf_opt.captures.ncu.csv import read_ncu_csv
from llm_perf_opt.captures.ncu.launches import NcuCapture
from llm_perf_opt.captures.ncu.merge import merge_launches
from llm_perf_opt.captures.ncu.report import read_ncu_report, report_reader_available
from llm_perf_opt.captures.ncu.settings import settings_near
from llm_perf_opt.core.errors import InputError

_KERNEL_FOLDER = re.compile(r"kernel_(\d+)(?:_([0-9a-f]{32}))?")
_REPORT_SUFFIXES = (".ncu-rep", ".nsight-cuprof-report")
# Tables this project itself writes next to a capture are not captures.
_OWN_TABLES = ("kernels.csv", "rules.csv", "targets.csv")


def read_ncu(path: Path | str) -> NcuCapture:
    """Read a ``.ncu-rep``, a CSV page, a folder of such files, or a folder of one folder per kernel.

    Files of one folder that describe the same launch (process, number, name) are joined. Where a folder holds
    a report and its CSV exports, the report is read: it has every digit.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    return _with_settings(_read_file(path), path.parent)


def _read_file(path: Path) -> NcuCapture:
    if not path.exists():
        raise InputError(f"{path} does not exist", hint="give a .ncu-rep, a CSV or a folder", path=str(path))
    if path.suffix in _REPORT_SUFFIXES:
        return read_ncu_report(path)
    if path.suffix in {".nsys-rep", ".sqlite", ".qdrep"}:
        raise InputError(
            f"{path} is an Nsight Systems file, not Nsight Compute",
            hint="give it with --nsys",
            path=str(path),
        )
    return read_ncu_csv(path)


def _read_folder(folder: Path) -> NcuCapture:
    result = NcuCapture([], str(folder))
    failures: list[InputError] = []
    folders = sorted([folder, *(path for path in folder.rglob("*") if path.is_dir())])
    for each in folders:
        capture = _read_files(each, failures)
        if capture is None:
            continue
        _mark_origin(capture, each)
        # The command of a run is next to its captures, or next to the folders of their phases or kernels.
        for place in dict.fromkeys((each, each.parent if each != folder else each)):
            _with_settings(capture, place)
        result.launches.extend(capture.launches)
        result.notes.extend(capture.notes)
        result.messages.extend(capture.messages)
    if not result.launches:
        if failures:
            raise failures[0]
        raise InputError(
            f"no Nsight Compute capture under {folder}",
            hint="expected .ncu-rep files, CSV exports, or folders named kernel_<rank>_<md5>",
            path=str(folder),
        )
    result.notes.extend(f"left out: {failure.message}" for failure in failures)
    return result


def _with_settings(capture: NcuCapture, folder: Path) -> NcuCapture:
    """Add the conditions from the command in ``folder``, if the capture has none."""
    unknown = [launch for launch in capture.launches if launch.settings is None]
    found = settings_near(folder) if unknown else None
    for launch in unknown:
        launch.settings = found
    return capture


def _read_files(folder: Path, failures: list[InputError]) -> NcuCapture | None:
    """Read the files directly in ``folder``; an unreadable file is recorded, not fatal."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    reports = [path for path in files if path.suffix in _REPORT_SUFFIXES]
    tables = [path for path in files if path.suffix == ".csv" and path.name not in _OWN_TABLES]
    if reports and report_reader_available():
        capture = _read_all(reports, failures)
        if capture is not None:
            return capture
    elif reports and tables:
        tables_only = _read_all(tables, failures)
        if tables_only is not None:
            tables_only.notes.append(
                f"{reports[0].name} was not read (ncu-report is not installed); its CSV exports were"
            )
            return tables_only
    return _read_all(tables or reports, failures)


def _read_all(files: list[Path], failures: list[InputError]) -> NcuCapture | None:
    capture: NcuCapture | None = None
    for path in files:
        try:
            part = _read_file(path)
        except InputError as error:
            failures.append(error)
            continue
        if capture is None:
            capture = NcuCapture([], str(path.parent))
        capture.launches.extend(part.launches)
        capture.notes.extend(part.notes)
        capture.messages.extend(part.messages)
    if capture is None:
        return None
    # Reports have no process id: launches of different reports must not be joined by their numbers.
    tables = [launch for launch in capture.launches if launch.process_id]
    capture.launches = merge_launches(tables) + [each for each in capture.launches if not each.process_id]
    return capture


def _mark_origin(capture: NcuCapture, folder: Path) -> None:
    match = _KERNEL_FOLDER.fullmatch(folder.name)
    if not match:
        return
    for launch in capture.launches:
        launch.rank, launch.nsys_name_md5 = int(match.group(1)), match.group(2)
