"""Run one capture with Nsight Systems; survive what it may do."""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_perf_opt.core.files import atomic_path, explain_os_errors
from llm_perf_opt.process.environment import allowed_environment
from llm_perf_opt.process.isolate import isolated
from llm_perf_opt.process.launch import ProcessResult, run_probe, run_process
from llm_perf_opt.process.orphans import advice, find_orphans
from llm_perf_opt.process.sizes import SizeLimit
from llm_perf_opt.process.tools import free_bytes
from llm_perf_opt.vendor.fresh import folder_state
from llm_perf_opt.vendor.nsys.command import (
    build_import_cmd,
    build_nsys_cmd,
    build_shutdown_cmd,
)
from llm_perf_opt.vendor.nsys.diagnose import (
    RANGE_CLOSED,
    RANGE_OPENED,
    Evidence,
    Fault,
    diagnose,
)
from llm_perf_opt.vendor.nsys.files import collect_reports, find_importer, unfinished_streams
from llm_perf_opt.vendor.nsys.probe import nsys_version
from llm_perf_opt.vendor.nsys.session_list import remove_half_made
from llm_perf_opt.vendor.workload import Workload

LOGGER = logging.getLogger("llm_perf_opt.nsys")
_GRACE_S = 20.0
"""After SIGINT nsys writes the report of what it has; measured within about a second when it is not hung."""
_IMPORT_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """One capture: what to run and how."""

    executable: str
    base: Path
    """Absolute output base: ``<run>/nsys/run``."""
    workload: Workload
    label: str | None = None
    capture_range: str = "none"
    capture_range_end: str | None = None
    trace: str = "cuda,nvtx,osrt"
    sample: str = "none"
    cpuctxsw: str = "none"
    cuda_graph_trace: str | None = None
    domain_include: tuple[str, ...] = ()
    domain_exclude: tuple[str, ...] = ()
    extra_args: tuple[str, ...] = ()
    timeout_s: float | None = 1800.0
    max_bytes: int | None = None
    rank: int | None = None
    """Of a capture for each of several ranks; ``base`` ends with it."""
    isolate: bool = False
    """Run it in a namespace of its own, where it sees no other processes."""
    session: str = field(default_factory=lambda: f"llm-perf-opt-{uuid.uuid4().hex[:12]}")

    @property
    def trigger(self) -> str | None:
        """What starts the capture, in words; ``None``: the start of the program."""
        ways = {
            "nvtx": f"opening the range '{self.label}'",
            "cudaProfilerApi": "calling cudaProfilerStart",
            "hotkey": "the hotkey being pressed",
        }
        return ways.get(self.capture_range)

    @property
    def ends_program(self) -> bool:
        """Whether nsys ends the program itself when the range is over."""
        gated = self.capture_range != "none"
        return gated and (not self.capture_range_end or "shutdown" in self.capture_range_end)

    def command(self) -> list[str]:
        """Return the argument list of the capture."""
        # nsys works in a scratch directory of ours; the program keeps the machine's own.
        own_tmp = tempfile.gettempdir()
        return build_nsys_cmd(
            self.base,
            self.workload.argv,
            nvtx_capture=self.label,
            trace=self.trace,
            sample=self.sample,
            cpuctxsw=self.cpuctxsw,
            cuda_graph_trace=self.cuda_graph_trace,
            capture=self.capture_range,
            capture_end=self.capture_range_end,
            domain_include=self.domain_include,
            domain_exclude=self.domain_exclude,
            env={} if "," in own_tmp else {"TMPDIR": own_tmp},
            session=self.session,
            rank=self.rank,
            extra_args=self.extra_args,
            executable=self.executable,
        )


@dataclass(frozen=True, slots=True)
class Captured:
    """What became of a capture."""

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
    """Run a capture; once more when nsys lost its own helper, which happens on busy machines."""
    result = _capture_once(request, scratch, log_dir, keep_streams, on_line, on_tick)
    if result.fault is None or not result.fault.transient:
        return result
    if result.fault.kind == "agent":
        version = nsys_version(request.executable).partition("-")[0]
        removed = remove_half_made(version)
        if removed is not None:
            LOGGER.warning(
                "removed %s: an nsys that was killed left it half made, and others wait for it", removed
            )
    again = _capture_once(request, scratch, log_dir, keep_streams, on_line, on_tick)
    return Captured(again.process, again.reports, again.fault, attempts=2, kept_streams=again.kept_streams)


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
    # Followed live: a talkative program would push these lines out of the tail that is kept.
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
    """Name agents of earlier captures: nsys may have talked to one of them instead of its own."""
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
    not run again for it. Tell whether every stream became a report."""
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
    """Let nsys end its own agent and target: sessions are found through the same scratch directory."""
    run_probe(
        build_shutdown_cmd(request.session, executable=request.executable),
        timeout_s=10.0,
        env=environment,
        base_env=request.workload.base_env(),
    )


def _shutdown_left_agent(
    request: CaptureRequest, process: ProcessResult, environment: Mapping[str, str]
) -> None:
    """After a lost connection an idle agent may stay registered; killed processes need no goodbye."""
    if process.ended == "exit" and process.returncode == 1 and not request.isolate:
        _shutdown(request, environment)


def _keep_streams(streams: Sequence[Path], base: Path) -> tuple[Path, ...]:
    """Move what the importer did not take into the stage directory: another machine may import it."""
    kept = []
    for number, path in enumerate(streams, start=1):
        target = base.with_name(f"{base.name}{'' if number == 1 else f'.{number}'}.qdstrm")
        if path != target:
            with atomic_path(target) as temporary:
                shutil.move(path, temporary)
        kept.append(target)
    return tuple(kept)
