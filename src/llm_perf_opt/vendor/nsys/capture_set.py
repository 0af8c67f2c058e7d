"""Several captures as one result: capture, export, summarise each; sum up what is there and what is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from llm_perf_opt.core.console.progress import Progress, Task
from llm_perf_opt.core.files import atomic_path, atomic_write_text
from llm_perf_opt.core.stage import StageResult
from llm_perf_opt.vendor.nsys.command import build_export_cmd, build_stats_cmd
from llm_perf_opt.vendor.nsys.diagnose import Fault, no_kernels
from llm_perf_opt.vendor.nsys.export import export_sqlite, has_kernels, write_summaries
from llm_perf_opt.vendor.nsys.files import SUMMARY, sqlite_of
from llm_perf_opt.vendor.nsys.probe import SUMMARIES, NsysCapabilities
from llm_perf_opt.vendor.nsys.run import Captured, CaptureRequest, capture
from llm_perf_opt.vendor.workload import CAPTURED_ENVIRONMENT, replay_lines

_NOTE_EVERY_S = 15.0
_CUT_SHORT = ("program-crashed", "tool-killed")
"""Whatever the report holds is not the work that was to be measured."""


class CaptureSet:
    """The captures of one stage run: gathers artifacts, exit codes and faults."""

    def __init__(
        self,
        *,
        capabilities: NsysCapabilities,
        folder: Path,
        scratch: Path,
        progress: Progress,
        device: str,
        keep_streams: bool = True,
    ) -> None:
        self._capabilities, self._folder, self._scratch = capabilities, folder, scratch
        self._progress, self._device, self._keep_streams = progress, device, keep_streams
        self._logs = folder / "logs"
        self._result = StageResult("ok")
        self._faults: list[tuple[str, Fault]] = []
        self._exported = 0
        self._captures = 0
        self._commands = [f"# Nsight Systems {capabilities.version_text}. Run again with: sh cmd.txt"]
        self._commands.append(CAPTURED_ENVIRONMENT)

    def add(self, request: CaptureRequest) -> None:
        """Capture, export, summarise."""
        self._record_command(
            replay_lines(request.command(), cwd=request.workload.cwd, env=request.workload.added_env)
        )
        title = f"nsys {request.label or 'whole run'}"
        with self._progress.task(title) as task:
            captured = capture(
                request,
                scratch=self._scratch,
                log_dir=self._logs,
                keep_streams=self._keep_streams,
                on_line=_follow_lines(task),
                on_tick=_follow_time(task),
            )
        name = request.base.name
        self._add_outcome(name, captured)
        kernels = [self._export(name, report) for report in captured.reports]
        if captured.reports and not any(kernels) and None not in kernels:
            fault = no_kernels(self._device, traced="cuda" in request.trace.split(","))
            self._faults += [(name, fault)] if fault else []

    def result(self) -> StageResult:
        """Sum up: failed when nothing can be read or something was cut short, degraded when something is missing."""
        self._result.artifacts.insert(0, self._folder / "cmd.txt")
        if self._faults:
            failed = any(fault.status == "failed" for _, fault in self._faults)
            cut_short = any(fault.kind in _CUT_SHORT for _, fault in self._faults)
            self._result.status = "failed" if cut_short or (failed and not self._exported) else "degraded"
            self._result.reason = "; ".join(self._fault_messages())
            self._result.fix = "; ".join(dict.fromkeys(fault.fix for _, fault in self._faults))
        return self._result

    def _fault_messages(self) -> list[str]:
        """Each message once, with the captures it is about where there are several captures."""
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
        """Give the kernel summary its predictable name; with several captures, the first one gets it."""
        for target in dict.fromkeys((self._folder / f"{base}.csv", self._folder / SUMMARY)):
            if not target.exists():
                with atomic_path(target) as temporary:
                    shutil.copyfile(kernels, temporary)
                self._result.artifacts.append(target)

    def _record_command(self, command: str) -> None:
        self._commands.append(command)
        atomic_write_text(self._folder / "cmd.txt", "\n\n".join(self._commands) + "\n")


def _follow_lines(task: Task) -> Callable[[str], None]:
    """Show what nsys says about the capture; the program's own words are in the log."""

    def show(line: str) -> None:
        if line.startswith(("Capture range", "Generating")):
            task.advance(1, note=line.split(" '")[0].strip())

    return show


def _follow_time(task: Task) -> Callable[[float], None]:
    """Say now and then that the capture is still under way."""
    last = 0.0

    def show(elapsed: float) -> None:
        nonlocal last
        if elapsed - last >= _NOTE_EVERY_S:
            last = elapsed
            task.advance(0, note=f"{elapsed:.0f} s")

    return show
