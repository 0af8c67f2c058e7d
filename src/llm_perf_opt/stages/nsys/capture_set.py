"""Several captures as one result: capture, export, summarise each; summarise results and gaps."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from llm_perf_opt.core.console.progress import Progress, Task
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.files import atomic_path, atomic_write_text
from llm_perf_opt.core.ranks import GROUP_VARIABLE, Rank
from llm_perf_opt.core.stage import Problem, StageResult
from llm_perf_opt.process.environment import allowed_environment
from llm_perf_opt.process.launch import ProcessResult, run_process
from llm_perf_opt.stages.nsys.command import build_export_cmd, build_stats_cmd
from llm_perf_opt.stages.nsys.config import NsysConfig
from llm_perf_opt.stages.nsys.diagnose import Fault, no_kernels
from llm_perf_opt.stages.nsys.probe import SUMMARIES, NsysCapabilities
from llm_perf_opt.stages.nsys.run import SUMMARY, Captured, CaptureRequest, capture, sqlite_of
from llm_perf_opt.stages.workload import CAPTURED_ENVIRONMENT, replay_lines

# Export a capture to SQLite and summarise it with nsys; the outcome is determined from the files.


LOGGER = logging.getLogger("llm_perf_opt.nsys")
_EXPORT_TIMEOUT_S = 1800.0
_STATS_TIMEOUT_S = 900.0
_GPU_WORK = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
"""Kernels one by one, or whole graphs (``--cuda-graph-trace=graph``)."""


def export_sqlite(
    executable: str, report: Path, *, log_dir: Path, on_tick: Callable[[float], None] | None = None
) -> tuple[Path | None, ProcessResult]:
    """Export a report next to itself; ``None`` when nsys did not write a readable database.

    Repeated once if it exited without one, which happens on busy machines.
    """
    target = sqlite_of(report)
    for last in (False, True):
        process = run_process(
            build_export_cmd(report, target, executable=executable),
            log_dir=log_dir,
            name=f"{report.name.removesuffix('.nsys-rep')}.export",
            timeout_s=_EXPORT_TIMEOUT_S,
            base_env=allowed_environment(),
            on_tick=on_tick,
        )
        if process.ok and _is_database(target):
            return target, process
        target.unlink(missing_ok=True)
        if last or process.ended in ("timeout", "size"):
            break
        LOGGER.warning(
            "nsys did not export %s (%s): once more", report.name, process.tail(1) or process.ended
        )
    return None, process


def write_summaries(
    capabilities: NsysCapabilities, database: Path, *, base: str, log_dir: Path
) -> tuple[dict[str, Path], ProcessResult]:
    """Write the reports of ``nsys stats`` as ``<base>_<report>.csv``; return summary → file of those with data.

    nsys exits with 0 whatever happens and leaves empty files for reports without data: those are removed.
    """
    folder = database.parent
    names = {kind: name for kind in SUMMARIES if (name := capabilities.report_name(kind))}
    if not names:
        raise ToolError(
            f"Nsight Systems {capabilities.version_text} lists no report we know",
            hint="the SQLite export is complete; open an issue with the output of nsys stats --help-reports",
        )
    process = run_process(
        build_stats_cmd(database, list(names.values()), base, executable=capabilities.executable),
        log_dir=log_dir,
        name=f"{database.stem}.stats",
        timeout_s=_STATS_TIMEOUT_S,
        cwd=folder,
        base_env=allowed_environment(),
    )
    written: dict[str, Path] = {}
    for kind, name in names.items():
        path = folder / f"{base}_{name}.csv"
        if path.is_file() and path.stat().st_size and f"[{path.name}]... PROCESSED" in process.stdout:
            written[kind] = path
        else:
            path.unlink(missing_ok=True)
    return written, process


def has_kernels(database: Path) -> bool:
    """Return whether an export has GPU kernels."""
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        found = (
            connection.execute(f"SELECT 1 FROM {table} LIMIT 1") for table in _GPU_WORK if table in there
        )
        return any(row.fetchone() is not None for row in found)


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


_STEPS = {"Capture range started": "capture range open", "Generating": "writing the report"}
"""Begin of a line of nsys → what it is doing."""
_CUT_SHORT = ("program-crashed", "tool-killed")
"""Whatever the report holds is not the work that was to be measured."""


class CaptureSet:
    """The captures of one stage run: collects artifacts, exit codes and faults."""

    def __init__(
        self,
        *,
        capabilities: NsysCapabilities,
        folder: Path,
        scratch: Path,
        progress: Progress,
        device: str,
        keep_streams: bool = True,
        total: int = 1,
    ) -> None:
        self._capabilities, self._folder, self._scratch = capabilities, folder, scratch
        self._progress, self._device, self._keep_streams = progress, device, keep_streams
        self._logs = folder / "logs"
        self._result = StageResult("ok")
        self._faults: list[tuple[str, Fault]] = []
        self._exported = 0
        self._captures = 0
        self._number, self._total = 0, total
        self._commands = [f"# Nsight Systems {capabilities.version_text}. Run again with: sh cmd.txt"]
        self._commands.append(CAPTURED_ENVIRONMENT)

    def add(self, request: CaptureRequest) -> None:
        """Capture, export, summarise."""
        self._record_command(
            replay_lines(request.command(), cwd=request.workload.cwd, env=request.workload.added_env)
        )
        self._number += 1
        place = f" {self._number} of {self._total}" if self._total > 1 else ""
        title = f"nsys: capture{place} ({request.label or 'whole run'})"
        with self._progress.task(title) as task:
            captured = capture(
                request,
                scratch=self._scratch,
                log_dir=self._logs,
                keep_streams=self._keep_streams,
                on_line=_follow_lines(task),
                on_tick=lambda _elapsed: task.advance(0),
            )
        name = request.base.name
        self._add_outcome(name, captured)
        kernels = [self._export(name, report) for report in captured.reports]
        if captured.reports and not any(kernels) and None not in kernels:
            fault = no_kernels(self._device, traced="cuda" in request.trace.split(","))
            self._faults += [(name, fault)] if fault else []

    def result(self) -> StageResult:
        """Return the overall result: failed if nothing is readable or something was cut short, degraded if something is missing."""
        self._result.artifacts.insert(0, self._folder / "cmd.txt")
        if self._faults:
            failed = any(fault.status == "failed" for _, fault in self._faults)
            cut_short = any(fault.kind in _CUT_SHORT for _, fault in self._faults)
            self._result.status = "failed" if cut_short or (failed and not self._exported) else "degraded"
            self._result.reason = "; ".join(self._fault_messages())
            self._result.fix = "; ".join(dict.fromkeys(fault.fix for _, fault in self._faults))
        return self._result

    def _fault_messages(self) -> list[str]:
        """Return each message once, naming the captures if there are several."""
        by_message: dict[str, list[str]] = {}
        for name, fault in self._faults:
            by_message.setdefault(fault.message, []).append(name)
        several = self._captures > 1
        return [
            f"{', '.join(dict.fromkeys(names))}: {message}" if several else message
            for message, names in by_message.items()
        ]

    def _add_outcome(self, name: str, captured: Captured) -> None:
        result = self._result
        result.exit_codes[name] = captured.process.returncode
        result.artifacts += [*captured.reports, *captured.kept_streams]
        result.artifacts += [
            path for path in (captured.process.stdout_path, captured.process.stderr_path) if path
        ]
        self._captures += 1
        if captured.fault:
            self._faults.append((name, captured.fault))

    def _export(self, name: str, report: Path) -> bool | None:
        """Export one report and summarise it; return whether it has kernels, ``None`` when unknown."""
        executable = self._capabilities.executable
        self._record_command(replay_lines(build_export_cmd(report, sqlite_of(report), executable=executable)))
        database, process = export_sqlite(executable, report, log_dir=self._logs)
        stem = report.name.removesuffix(".nsys-rep")
        self._result.exit_codes[f"{stem}.export"] = process.returncode
        if database is None:
            fault = Fault(
                "export",
                "failed",
                f"{report.name} could not be exported: {process.tail(3) or process.ended}",
                f"try by hand: nsys export --type=sqlite {report}",
            )
            self._faults.append((name, fault))
            return None
        self._exported += 1
        self._result.artifacts.append(database)
        self._summarise(name, database)
        return has_kernels(database)

    def _summarise(self, name: str, database: Path) -> None:
        base = database.stem.replace("run", "summary", 1)
        names = [found for kind in SUMMARIES if (found := self._capabilities.report_name(kind))]
        stats = build_stats_cmd(database, names, base, executable=self._capabilities.executable)
        self._record_command(replay_lines(stats, cwd=self._folder))
        written, process = write_summaries(self._capabilities, database, base=base, log_dir=self._logs)
        self._result.exit_codes[f"{database.stem}.stats"] = process.returncode
        self._result.artifacts += written.values()
        if not written:
            message = process.tail(3) or process.ended
            fix = "the SQLite export is complete: reports are made from it"
            self._faults.append(
                (name, Fault("stats", "degraded", f"nsys stats summarised nothing: {message}", fix))
            )
        if "kernels" in written:
            self._copy_summary(written["kernels"], base)

    def _copy_summary(self, kernels: Path, base: str) -> None:
        """Copy the kernel summary to its fixed name; of several captures, the first."""
        for target in dict.fromkeys((self._folder / f"{base}.csv", self._folder / SUMMARY)):
            if not target.exists():
                with atomic_path(target) as temporary:
                    shutil.copyfile(kernels, temporary)
                self._result.artifacts.append(target)

    def _record_command(self, command: str) -> None:
        self._commands.append(command)
        atomic_write_text(self._folder / "cmd.txt", "\n\n".join(self._commands) + "\n")


def _follow_lines(task: Task) -> Callable[[str], None]:
    """Show progress of nsys; program output goes to the log."""

    def show(line: str) -> None:
        for start, note in _STEPS.items():
            if line.startswith(start):
                task.advance(0, note=note)

    return show


# A capture for each of several ranks: a separate session, program and file.


def of_rank(request: CaptureRequest, rank: Rank | None) -> CaptureRequest:
    """Return the capture of one rank: a file named after it, and a program that joins those of the other ranks."""
    if rank is None:
        return request
    group = {GROUP_VARIABLE: f"nsys/{request.base.name}"}
    return replace(
        request,
        base=request.base.with_name(f"{request.base.name}.rank{rank.rank}"),
        rank=rank.rank,
        workload=replace(request.workload, env={**request.workload.env, **group}),
    )


def range_end(config: NsysConfig, rank: Rank | None) -> str | None:
    """Return what ends a capture; with several ranks, none is ended while the others are in a step."""
    return config.capture_range_end or (None if rank is None else "stop")


def must_see_each_other(rank: Rank | None, device: str) -> bool:
    """Whether ranks must share a namespace: NCCL treats other namespaces as other machines."""
    return rank is not None and device.startswith("cuda")


def rank_problems(config: NsysConfig, rank: Rank | None, device: str) -> list[Problem]:
    """Return settings that are incompatible with several ranks."""
    if rank is None:
        return []
    problems = []
    if config.isolate and must_see_each_other(rank, device):
        problems.append(
            Problem(
                "error",
                "pipeline.nsys.isolate=true hides the ranks from one another, and NCCL would not use the links between "
                "their devices",
                "leave it out",
                "pipeline.nsys.isolate",
            )
        )
    if "shutdown" in (config.capture_range_end or ""):
        problems.append(
            Problem(
                "error",
                f"pipeline.nsys.capture_range_end={config.capture_range_end} ends one rank while the others wait for it",
                "leave it out, or use stop or repeat:N",
                "pipeline.nsys.capture_range_end",
            )
        )
    return problems
