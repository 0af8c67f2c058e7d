"""Outcome of an Nsight Compute run, determined from files and messages: its exit code is not reliable."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_PERMISSION_FIX = (
    "let users read GPU counters: as root, echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' "
    "> /etc/modprobe.d/nvidia-profiling.conf, then reboot; in a container add --cap-add=SYS_ADMIN; or run as "
    "root (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)
NO_KERNELS = "No kernels were profiled"
_PASSES = re.compile(
    r'==PROF== Profiling "?(?P<kernel>.*?)"?(?: - \d+| \(\d+/\d+\))*: .*?(?P<passes>\d+) pass', re.S
)


@dataclass(frozen=True, slots=True)
class NcuFault:
    """Why a capture is incomplete."""

    kind: str
    status: Literal["failed", "skipped", "degraded"]
    message: str
    fix: str


@dataclass(frozen=True, slots=True)
class NcuEvidence:
    """Files and messages of a run."""

    text: str
    """Messages of the tool (log file, standard output and error)."""
    report_written: bool
    ended: str
    """``exit``, ``timeout``, ``signal``, ``size``, ``interrupted``."""
    returncode: int | None
    timeout_s: float | None = None
    written_bytes: int | None = None
    kernels: int | None = None
    """Profiled launches in the report; ``None`` when nobody could look."""


def diagnose(evidence: NcuEvidence) -> NcuFault | None:
    """Return the fault of a run; ``None`` when there is a report with kernels in it."""
    text = evidence.text
    known = _known_error(text)
    if evidence.ended == "timeout":
        limit = f"{evidence.timeout_s:.0f} s" if evidence.timeout_s else "its limit"
        what = "the kernels profiled until then are kept" if evidence.report_written else "nothing was kept"
        return NcuFault(
            "timeout",
            "degraded" if evidence.report_written else "failed",
            f"ncu ran into its time limit of {limit}; {what}",
            "profile fewer kernels (run.top_n_kernels, pipeline.ncu.ncu_cli.launch_count) or sections, "
            "or raise pipeline.ncu.timeout_s",
        )
    if evidence.ended == "size":
        what = "the kernels profiled until then are kept" if evidence.report_written else "nothing was kept"
        return NcuFault(
            "size",
            "degraded" if evidence.report_written else "failed",
            f"ncu was stopped at its size limit, after {evidence.written_bytes or 0} bytes; {what}",
            "profile fewer kernels (run.top_n_kernels, pipeline.ncu.ncu_cli.launch_count) or sections, "
            "or raise pipeline.ncu.max_bytes",
        )
    if known is not None:
        return known
    if evidence.report_written and evidence.kernels != 0:
        return _program_fault(evidence)
    # A program that failed early launches no kernel either: report the failure.
    if not evidence.report_written and (fault := _program_fault(evidence)):
        return fault
    if NO_KERNELS in text or evidence.kernels == 0:
        return NcuFault(
            "no-kernels",
            "failed",
            "ncu profiled no kernel: none was launched, or none matched the kernel and NVTX filters",
            "check pipeline.ncu.ncu_cli.nvtx.include, or set pipeline.ncu.gating_nvtx=false",
        )
    if "No metrics to collect" in text:
        return NcuFault(
            "no-metrics",
            "failed",
            "ncu found no metrics to collect",
            "check pipeline.ncu.ncu_cli.set and sections (ncu --list-sets, ncu --list-sections)",
        )
    return _program_fault(evidence) or NcuFault(
        "no-report",
        "failed",
        f"ncu wrote no report: {_last_error(text) or 'it gave no reason'}",
        "run the command in ncu/cmd.txt by hand",
    )


_ERRORS: tuple[tuple[str, str, str, str], ...] = (
    (
        r"ERR_NVGPUCTRPERM",
        "permission",
        "this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM)",
        _PERMISSION_FIX,
    ),
    (
        r"did not match any section",
        "section",
        "a section does not exist in this version of ncu",
        "list them with ncu --list-sections and correct pipeline.ncu.ncu_cli.sections",
    ),
    (
        r"Failed to (?:find|access the following) metric|metrics? .*(?:not found|unknown)",
        "metric",
        "a metric is unknown to this chip",
        "list them with ncu --query-metrics and correct pipeline.ncu.ncu_cli.metrics",
    ),
    (
        r"Invalid configuration for nvtx-include",
        "nvtx",
        "ncu does not understand the NVTX filter",
        "correct pipeline.ncu.ncu_cli.nvtx.include (a range name, a glob, or ncu's own syntax)",
    ),
    (
        r"nsight-compute-lock|Failed to (?:create|open|acquire).*lock",
        "lock",
        "ncu cannot take its lock file",
        "another user's ncu runs, or left nsight-compute-lock behind in the temporary directory: set TMPDIR",
    ),
    (
        r"already exists\. Use '-f'",
        "exists",
        "the report exists already",
        "set pipeline.ncu.ncu_cli.force_overwrite=true",
    ),
    (
        r"Unable to write to file",
        "unwritable",
        "ncu cannot write its report",
        "check space and permissions of the run directory",
    ),
    (
        r"does not exist or is not an executable",
        "program",
        "the program to profile was not found",
        "check pipeline.workload.command",
    ),
    (
        r"unrecognised option|unrecognized option|the argument .* is invalid",
        "option",
        "ncu does not know an option",
        "check pipeline.ncu.ncu_cli.extra_args against ncu --help",
    ),
    (
        r"Cuda driver is not compatible|driver resource was unavailable|Failed to prepare kernel",
        "driver",
        "the CUDA driver does not work with this ncu, or another profiler uses the counters",
        "stop other profilers (DCGM: dcgmi profile --pause) and use an ncu that fits the driver",
    ),
)


def _known_error(text: str) -> NcuFault | None:
    for line in text.splitlines():
        if "==ERROR==" not in line and "ERR_NV" not in line and "unrecogni" not in line:
            continue
        for pattern, kind, message, fix in _ERRORS:
            if re.search(pattern, line):
                return NcuFault(kind, "failed", f"{message}: {_clean(line)}", fix)
    return None


def _program_fault(evidence: NcuEvidence) -> NcuFault | None:
    """Return the fault of a program that did not finish: its counters are kept, but the stage has failed."""
    if evidence.ended == "signal":
        number = -(evidence.returncode or 0)
        return NcuFault(
            "tool-killed",
            "failed",
            f"ncu itself was killed (signal {number})",
            "run again; if no user killed it, the machine may be out of memory (see dmesg)",
        )
    match = re.search(r"The application returned an error code \((-?\d+)\)", evidence.text)
    if match is None and evidence.ended == "exit":
        return None
    how = f"exit code {match.group(1)}" if match else f"ended by {evidence.ended}"
    stopped_at_limit = match is None and evidence.report_written
    return NcuFault(
        "program",
        "degraded" if stopped_at_limit else "failed",
        f"the profiled program failed ({how})",
        "run the program without ncu first; its output is in ncu/logs",
    )


def _last_error(text: str) -> str | None:
    errors = [line for line in text.splitlines() if line.startswith("==ERROR==")]
    return _clean(errors[-1]) if errors else None


def _clean(line: str) -> str:
    return line.replace("==ERROR==", "").strip()[:300]


def observed_passes(text: str) -> list[int]:
    """Return the number of passes ncu reported for each profiled launch."""
    return [int(match.group("passes")) for match in _PASSES.finditer(text)]


def tool_text(parts: Sequence[str]) -> str:
    """Join the texts of a run."""
    return "\n".join(part for part in parts if part)
