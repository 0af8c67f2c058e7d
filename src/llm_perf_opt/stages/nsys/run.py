"""Run one capture with Nsight Systems, robust against its failures."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_perf_opt.core.files import atomic_path, explain_os_errors
from llm_perf_opt.process.environment import allowed_environment
from llm_perf_opt.process.groups import advice, find_orphans
from llm_perf_opt.process.isolate import isolated
from llm_perf_opt.process.launch import ProcessResult, run_probe, run_process
from llm_perf_opt.process.leftovers import SizeLimit
from llm_perf_opt.process.tools import free_bytes
from llm_perf_opt.stages.nsys.command import NsysOptions, build_import_cmd, build_shutdown_cmd
from llm_perf_opt.stages.nsys.diagnose import RANGE_CLOSED, RANGE_OPENED, Evidence, Fault, diagnose
from llm_perf_opt.stages.nsys.probe import nsys_version
from llm_perf_opt.stages.workload import FileState, Workload, folder_state, is_fresh

# nsys's list of its sessions in shared memory, which outlives an nsys that was killed.
#
# Nsight Systems 2022 keeps one file per version, ``/dev/shm/NSys-<version>``. An nsys that dies while it makes the
# file leaves it incomplete: from then on every nsys of that version waits for it, for every user, and fails after ten
# seconds with "Agent launcher failed". Only removing the file helps.


SHARED_MEMORY = Path("/dev/shm")
_PROC = Path("/proc")
_BEING_MADE = (1).to_bytes(4, "little")
"""First word of a list that somebody is making; 2 once it is made."""
_STUCK_AFTER_S = 8.0
"""Making the list takes milliseconds; nsys itself gives up after ten seconds."""


def remove_half_made(version: str, folder: Path = SHARED_MEMORY, proc: Path = _PROC) -> Path | None:
    """Remove this user's list of this version if it is incomplete and unused; return its path."""
    path = folder / f"NSys-{version}"
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return None
        with path.open("rb") as stream:
            half_made = stream.read(4) == _BEING_MADE
        if not half_made or time.time() - status.st_mtime < _STUCK_AFTER_S or _is_used(status, proc):
            return None
        path.unlink()
    except OSError:  # already removed, or not ours
        return None
    return path


def _is_used(status: os.stat_result, proc: Path) -> bool:
    """Return whether a process has the file open or mapped; an unreadable nsys process counts as a user."""
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if _is_mapped(entry, status.st_ino) or _is_open(entry, status):
                return True
        except PermissionError:
            if _process_name(entry).startswith("nsys"):
                return True
        except OSError:
            continue  # ended meanwhile
    return False


def _is_mapped(entry: Path, inode: int) -> bool:
    # Fields: addresses, rights, offset, device, inode, path. Other devices may have the same inode: then it is kept.
    lines = (line.split(maxsplit=5) for line in (entry / "maps").read_bytes().splitlines())
    return any(len(fields) > 4 and fields[4] == str(inode).encode() for fields in lines)


def _is_open(entry: Path, status: os.stat_result) -> bool:
    for descriptor in (entry / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found = descriptor.stat()
            if (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino):
                return True
    return False


def _process_name(entry: Path) -> str:
    try:
        return (entry / "comm").read_text(errors="replace")
    except OSError:
        return ""


# Files of Nsight Systems captures: outputs, stale files, summaries.


SUMMARY = "summary.csv"
"""The kernel summary, whatever this version of nsys calls its report."""
_OUTPUTS = ("run.nsys-rep", "run.*.nsys-rep", "run.sqlite", "run.*.sqlite", "run*.qdstrm", "summary*.csv")
_KERNEL_SUMMARIES = (SUMMARY, "*_cuda_gpu_kern_sum.csv", "*_gpukernsum.csv")
_OLD_FOLDERS = (".", "nsys", "stage2/nsys", "tmp/nsys", "tmp/stage2/nsys", "tmp/stage2/*/nsys", "tmp/*/nsys")


def earlier_outputs(folder: Path) -> list[Path]:
    """Return files of an earlier capture in the stage directory."""
    return sorted({path for pattern in _OUTPUTS for path in folder.glob(pattern)})


def remove_earlier_outputs(folder: Path) -> None:
    """Remove an earlier capture: nsys would increment the number (``run.3.nsys-rep``) or keep the old file, with exit 0."""
    for path in earlier_outputs(folder):
        with explain_os_errors(path):
            path.unlink()


def generated_paths(text: str) -> list[Path]:
    """Return the files that nsys reports as written: the indented lines after ``Generated:``."""
    found: list[Path] = []
    for block in re.findall(r"^Generated:[ \t]*\n((?:[ \t]+/[^\n]*\n?)*)", text, re.MULTILINE):
        found += [Path(line.strip()) for line in block.splitlines() if line.strip()]
    return found


def collect_reports(base: Path, stdout: str, scratch: Path, before: Mapping[str, FileState]) -> list[Path]:
    """Return the fresh reports of a capture, in order of their number.

    A report that nsys could not put in place stays in its scratch directory, with exit code 0: it is moved.
    Files that were there ``before`` and have not changed are never treated as fresh.
    """
    for path in generated_paths(stdout):
        if path.is_relative_to(scratch) and path.suffix == ".nsys-rep" and path.is_file():
            target = base.with_name(f"{base.name}.nsys-rep")
            if not target.exists():
                with atomic_path(target) as temporary:
                    shutil.move(path, temporary)
    pattern = re.compile(re.escape(base.name) + r"(?:\.(\d+))?\.nsys-rep")
    found = []
    for path in base.parent.iterdir() if base.parent.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match and is_fresh(path, before):
            found.append((int(match[1] or 0), path))
    return [path for _, path in sorted(found)]


def unfinished_streams(folders: Iterable[Path]) -> list[Path]:
    """Return the ``.qdstrm`` files that no importer turned into a report."""
    return sorted(path for folder in folders if folder.is_dir() for path in folder.glob("*.qdstrm"))


def find_importer(executable: str) -> Path | None:
    """Return the importer of an installation (its host part); ``None`` if it does not exist.

    NVIDIA has ``target-*`` and ``host-*`` side by side, Debian in ``lib/<machine>/nsight-systems`` and
    ``lib/nsight-systems``.
    """
    for folder in Path(executable).resolve().parents:
        for home in (folder, folder / "nsight-systems"):
            for importer in sorted(home.glob("host-*/QdstrmImporter")):
                return importer
    return None


def sqlite_of(report: Path) -> Path:
    """Return the path of a report's export: next to it, ``run.nsys-rep`` → ``run.sqlite``."""
    return report.with_name(report.name.removesuffix(".nsys-rep") + ".sqlite")


def find_nsys_summary(run_dir: Path) -> Path | None:
    """Return the kernel summary of a run, also in the location of older releases; ``None``: there is none.

    Absence is normal: Nsight Systems may be off, and a CPU trace has no kernels.
    """
    for folder in ("nsys", *_OLD_FOLDERS):
        for pattern in _KERNEL_SUMMARIES:
            for path in sorted(run_dir.glob(f"{folder}/{pattern}")):
                if path.is_file() and path.stat().st_size:
                    return path
    return None


def is_old_place(run_dir: Path, summary: Path) -> bool:
    """Return whether a summary is neither in the run's ``nsys/`` nor in the directory itself, nor any export is."""
    current = (run_dir, run_dir / "nsys")
    return summary.parent not in current and not any(any(folder.glob("*.sqlite")) for folder in current)


LOGGER = logging.getLogger("llm_perf_opt.nsys")
_GRACE_S = 20.0
"""After SIGINT nsys writes the report of what it has; measured within about a second when it is not hung."""
_IMPORT_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest(NsysOptions):
    """One capture: program and settings."""

    base: Path
    """Absolute output base: ``<run>/nsys/run``; ends with the rank, where there is one."""
    workload: Workload
    timeout_s: float | None = 1800.0
    max_bytes: int | None = None
    isolate: bool = False
    """Run it in a namespace of its own, where it sees no other processes."""
    session: str = field(default_factory=lambda: f"llm-perf-opt-{uuid.uuid4().hex[:12]}")

    @property
    def trigger(self) -> str | None:
        """What starts the capture, as text; ``None``: the start of the program."""
        ways = {
            "nvtx": f"opening the range '{self.label}'",
            "cudaProfilerApi": "calling cudaProfilerStart",
            "hotkey": "the hotkey being pressed",
        }
        return ways.get(self.capture_range)

    @property
    def ends_program(self) -> bool:
        """Whether nsys ends the program when the range closes."""
        gated = self.capture_range != "none"
        return gated and (not self.capture_range_end or "shutdown" in self.capture_range_end)

    def command(self) -> list[str]:
        """Return the argument list of the capture."""
        # nsys works in a scratch directory of ours; the program keeps the machine's own.
        own_tmp = tempfile.gettempdir()
        return self.argv(self.base, self.workload.argv, {} if "," in own_tmp else {"TMPDIR": own_tmp})


@dataclass(frozen=True, slots=True)
class Captured:
    """Outcome of a capture."""

    process: ProcessResult
    reports: list[Path]
    fault: Fault | None
    attempts: int = 1
    kept_streams: tuple[Path, ...] = ()


def capture(
    request: CaptureRequest,
    *,
    scratch: Path,
    log_dir: Path,
    keep_streams: bool = True,
    on_line: Callable[[str], None] | None = None,
    on_tick: Callable[[float], None] | None = None,
) -> Captured:
    """Run a capture; repeated once if nsys lost its helper, which happens on busy machines.

    A session list that a killed nsys left half made is removed; the attempt that it spoilt does not count.
    """
    attempts, allowed = 0, 2
    while True:
        result = _capture_once(request, scratch, log_dir, keep_streams, on_line, on_tick)
        attempts += 1
        if result.fault is None or not result.fault.transient or attempts == allowed:
            return replace(result, attempts=attempts)
        if result.fault.kind == "agent" and attempts == 1:
            version = nsys_version(request.executable).partition("-")[0]
            removed = remove_half_made(version)
            if removed is not None:
                allowed += 1
                LOGGER.warning(
                    "removed %s: an nsys that was killed left it half made, and others wait for it", removed
                )


def _capture_once(
    request: CaptureRequest,
    scratch: Path,
    log_dir: Path,
    keep_streams: bool,
    on_line: Callable[[str], None] | None,
    on_tick: Callable[[float], None] | None,
) -> Captured:
    workspace = scratch / request.session
    with explain_os_errors(workspace):
        workspace.mkdir(parents=True, exist_ok=True)
        request.workload.cwd.mkdir(parents=True, exist_ok=True)
    environment = {**request.workload.env, "TMPDIR": str(workspace)}
    # Parsed live: a verbose program would push these lines out of the kept tail.
    marks: set[str] = set()

    def follow(line: str) -> None:
        marks.update(mark for mark in (RANGE_OPENED, RANGE_CLOSED) if mark in line)
        if on_line:
            on_line(line)

    before = folder_state(request.base.parent)
    try:
        command = request.command()
        process = run_process(
            isolated(command) if request.isolate else command,
            log_dir=log_dir,
            name=request.base.name,
            timeout_s=request.timeout_s,
            cwd=request.workload.cwd,
            env=environment,
            base_env=request.workload.base_env(),
            on_line=follow,
            on_tick=on_tick,
            size_limit=_size_limit(request, workspace),
            stop_signal=signal.SIGINT,
            grace_s=_GRACE_S,
            before_kill=None if request.isolate else lambda: _shutdown(request, environment),
        )
        _shutdown_left_agent(request, process, environment)
        reports = collect_reports(request.base, process.stdout, workspace, before)
        streams = [] if reports else unfinished_streams((workspace, request.base.parent))
        if streams and process.ended == "exit" and _import_again(request, streams, log_dir):
            reports, streams = collect_reports(request.base, process.stdout, workspace, before), []
        free = min(free_bytes(folder) for folder in (workspace, request.base.parent))
        fault = diagnose(_evidence(request, process, reports, streams, marks, free))
        if fault is not None and not reports and not request.isolate:
            fault = _blaming_orphans(fault)
        keep = keep_streams and not (fault and fault.kind == "disk-full")
        kept = _keep_streams(streams, request.base) if keep else ()
        return Captured(process, reports, fault, kept_streams=kept)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def _blaming_orphans(fault: Fault) -> Fault:
    """Name agents of earlier captures: nsys may have connected to one of them instead of its own."""
    orphans = find_orphans()
    return replace(fault, fix=f"{advice(orphans)}; {fault.fix}") if orphans else fault


def _evidence(
    request: CaptureRequest,
    process: ProcessResult,
    reports: Sequence[Path],
    streams: Sequence[Path],
    marks: Collection[str],
    free: int,
) -> Evidence:
    return Evidence(
        process=process,
        reports=reports,
        trigger=request.trigger,
        ends_program=request.ends_program,
        opened=RANGE_OPENED in marks,
        closed=RANGE_CLOSED in marks,
        streams=streams,
        built_in=request.workload.built_in,
        timeout_s=request.timeout_s,
        max_bytes=request.max_bytes,
        free_bytes=free,
    )


def _import_again(request: CaptureRequest, streams: Sequence[Path], log_dir: Path) -> bool:
    """Import what nsys' own importer left, once more: on a busy machine it fails now and then, and the program need
    not run again for it. Return whether every stream became a report."""
    importer = find_importer(request.executable)
    if importer is None:
        return False
    in_time = sorted(streams, key=lambda path: (path.stat().st_mtime_ns, path))
    for number, stream in enumerate(in_time, start=1):
        count = "" if len(streams) == 1 else f".{number}"
        report = request.base.with_name(f"{request.base.name}{count}.nsys-rep")
        done = run_process(
            build_import_cmd(importer, stream, report),
            log_dir=log_dir,
            name=f"{request.base.name}{count}.import",
            timeout_s=_IMPORT_TIMEOUT_S,
            base_env=allowed_environment(),
        )
        if not report.is_file() or not report.stat().st_size:
            LOGGER.warning("importing %s again failed as well: %s", stream.name, done.tail(2) or done.ended)
            return False
    for stream in streams:
        stream.unlink()
    LOGGER.warning("nsys' importer failed; imported again, with success")
    return True


def _size_limit(request: CaptureRequest, workspace: Path) -> SizeLimit | None:
    return SizeLimit((workspace, request.base.parent), request.max_bytes) if request.max_bytes else None


def _shutdown(request: CaptureRequest, environment: Mapping[str, str]) -> None:
    """End agent and target with nsys: sessions are found through the same scratch directory."""
    run_probe(
        build_shutdown_cmd(request.session, executable=request.executable),
        timeout_s=10.0,
        env=environment,
        base_env=request.workload.base_env(),
    )


def _shutdown_left_agent(
    request: CaptureRequest, process: ProcessResult, environment: Mapping[str, str]
) -> None:
    """After a lost connection an idle agent may stay registered; killed processes need no shutdown."""
    if process.ended == "exit" and process.returncode == 1 and not request.isolate:
        _shutdown(request, environment)


def _keep_streams(streams: Sequence[Path], base: Path) -> tuple[Path, ...]:
    """Move unimported streams into the stage directory: another machine may import them."""
    kept = []
    for number, path in enumerate(streams, start=1):
        target = base.with_name(f"{base.name}{'' if number == 1 else f'.{number}'}.qdstrm")
        if path != target:
            with atomic_path(target) as temporary:
                shutil.move(path, temporary)
        kept.append(target)
    return tuple(kept)
