"""Run Nsight Compute once over a workload, and print its report as CSV; the outcome is determined from files and messages."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import explain_os_errors
from llm_perf_opt.process.environment import allowed_environment
from llm_perf_opt.process.launch import ProcessResult, run_process
from llm_perf_opt.process.leftovers import SizeLimit
from llm_perf_opt.stages.ncu.command import NcuOptions, build_import_cmd
from llm_perf_opt.stages.ncu.diagnose import NcuEvidence, NcuFault, diagnose, observed_passes, tool_text
from llm_perf_opt.stages.ncu.probe import NcuCapabilities
from llm_perf_opt.stages.workload import Workload, folder_state, is_fresh

REPORT = "run.ncu-rep"
_GRACE_S = 20.0
_IMPORT_TIMEOUT_S = 600.0
_TRANSIENT = "Failed to connect to process"
"""Seen once in a while with very short programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcuRequest(NcuOptions):
    """One profiling run: metrics, kernels and program."""

    folder: Path
    """Absolute; gets ``run.ncu-rep``."""
    workload: Workload
    timeout_s: float | None = 1800.0
    max_bytes: int | None = None
    name: str = "ncu"

    def command(self) -> list[str]:
        """Return the argument list."""
        base = self.folder / REPORT.removesuffix(".ncu-rep")
        return self.argv(base, self.workload.argv, log_file=self.log_file)

    @property
    def log_file(self) -> Path:
        """File for the tool's own messages, separate from the program's output."""
        return self.folder / "logs" / f"{self.name}.log"

    def without_filter(self) -> NcuRequest:
        """Return the same run without kernel filter."""
        return replace(self, kernel_regex=None, kernel_name_base=None, name=f"{self.name}-rerun")


@dataclass(frozen=True, slots=True)
class NcuRunResult:
    """Outcome of a run."""

    process: ProcessResult
    report: Path | None
    kernels: list[str] | None
    """Names of the profiled launches; ``None`` when the report could not be looked into."""
    fault: NcuFault | None
    passes: list[int]


def run_ncu(
    request: NcuRequest,
    *,
    on_line: Callable[[str], None] | None = None,
    on_tick: Callable[[float], None] | None = None,
) -> NcuRunResult:
    """Profile; once more when ncu lost the program at its start."""
    result = _run_once(request, on_line, on_tick)
    if result.report is None and _TRANSIENT in _text_of(request, result.process):
        return _run_once(request, on_line, on_tick)
    return result


def _run_once(
    request: NcuRequest, on_line: Callable[[str], None] | None, on_tick: Callable[[float], None] | None
) -> NcuRunResult:
    report = request.folder / REPORT
    with explain_os_errors(request.folder):
        request.log_file.parent.mkdir(parents=True, exist_ok=True)
        request.workload.cwd.mkdir(parents=True, exist_ok=True)
        request.log_file.unlink(missing_ok=True)
    before = folder_state(request.folder)
    process = run_process(
        request.command(),
        log_dir=request.log_file.parent,
        name=request.name,
        timeout_s=request.timeout_s,
        cwd=request.workload.cwd,
        env=request.workload.env,
        base_env=request.workload.base_env(),
        on_line=on_line,
        on_tick=on_tick,
        size_limit=SizeLimit((request.folder,), request.max_bytes) if request.max_bytes else None,
        stop_signal=signal.SIGINT,
        grace_s=_GRACE_S,
    )
    text = _text_of(request, process)
    written = is_fresh(report, before)
    kernels = _kernels(report) if written else []
    fault = diagnose(
        NcuEvidence(
            text=text,
            report_written=written,
            ended=process.ended,
            returncode=process.returncode,
            timeout_s=request.timeout_s,
            written_bytes=process.written_bytes,
            kernels=None if kernels is None else len(kernels),
        )
    )
    return NcuRunResult(process, report if written else None, kernels, fault, observed_passes(text))


def _text_of(request: NcuRequest, process: ProcessResult) -> str:
    """Return the tool's messages: its log, and its own lines in both streams."""
    log = ""
    if request.log_file.is_file():
        log = request.log_file.read_text(encoding="utf-8", errors="replace")
    own = [line for line in process.text.splitlines() if line.startswith("==") or "unrecogni" in line]
    return tool_text([log, *own])


def _kernels(report: Path) -> list[str] | None:
    from llm_perf_opt.captures.ncu.report import read_ncu_report, report_reader_available

    if not report_reader_available():
        return None
    try:
        return [launch.kernel for launch in read_ncu_report(report).launches]
    except InputError:
        return []


# --- CSV -------------------------------------------------------------------------------------------------


def page_commands(
    capabilities: NcuCapabilities, report: Path, sections: Sequence[str]
) -> dict[str, list[str]]:
    """Return file name → command: the raw page, the details page, and one file per section."""
    executable = capabilities.executable
    details = "all" if "print-details" in capabilities.flags else None
    commands = {
        "raw.csv": build_import_cmd(report, page="raw", executable=executable),
        "details.csv": build_import_cmd(report, page="details", executable=executable),
    }
    for section in sections:
        name = f"section_{re.sub(r'[^A-Za-z0-9_.-]', '_', section)}.csv"
        commands[name] = build_import_cmd(
            report, page="details", section=section, print_details=details, executable=executable
        )
    return commands


def export_pages(
    capabilities: NcuCapabilities, report: Path, sections: Sequence[str], *, folder: Path, log_dir: Path
) -> tuple[list[Path], dict[str, int | None], list[str]]:
    """Write the pages next to the report; return files, exit codes and problems."""
    files: list[Path] = []
    codes: dict[str, int | None] = {}
    problems: list[str] = []
    for name, command in page_commands(capabilities, report, sections).items():
        target = folder / name
        temporary = folder / f".{name}.partial"
        process = run_process(
            [*command, "--log-file", str(temporary)],
            log_dir=log_dir,
            name=f"export-{target.stem}",
            timeout_s=_IMPORT_TIMEOUT_S,
            base_env=allowed_environment(),
        )
        codes[f"export {name}"] = process.returncode
        if temporary.is_file() and b'"ID"' in temporary.read_bytes()[:200_000]:
            temporary.replace(target)
            files.append(target)
        else:
            message = temporary.read_text(errors="replace")[:200] if temporary.is_file() else process.tail(2)
            temporary.unlink(missing_ok=True)
            problems.append(f"{name}: {message.strip() or process.ended}")
    return files, codes, problems
