"""Diagnosis of failed captures, with fixes. Pure: based on files and messages, not on exit codes.

Nsight Systems returns the exit code of the profiled program, and 0 when nothing was captured, when the report
could not be written and when every summary failed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llm_perf_opt.process.launch import ProcessResult

RANGE_OPENED = "Capture range started in the application."
RANGE_CLOSED = "Capture range ended in the application."


@dataclass(frozen=True, slots=True)
class Fault:
    """A diagnosis with its fix."""

    kind: str
    status: Literal["failed", "degraded"]
    message: str
    fix: str
    transient: bool = False
    """Worth one more try."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Files and messages of a capture."""

    process: ProcessResult
    reports: Sequence[Path]
    trigger: str | None
    """What it waited for (``opening the range 'decode'``); ``None``: it captured from the start."""
    ends_program: bool
    """Whether nsys ends the program at the end of the range (its default, and ``*-shutdown``)."""
    opened: bool
    """Whether nsys said that the range began, and ..."""
    closed: bool
    """... that it ended."""
    streams: Sequence[Path] = ()
    """Left ``.qdstrm`` files."""
    built_in: bool = True
    timeout_s: float | None = None
    max_bytes: int | None = None
    free_bytes: int | None = None
    """Space left where nsys writes, right after it ended: a full disk often shows as some other error."""


_FULL_BYTES = 4 << 20
_CHEAP_S = 30.0
"""A capture that failed within this time is tried again without a second thought."""
_PROGRAM_FIX = (
    "fix the program (its output is above and in the log), then run again; add variables that are not "
    "allow-listed to pipeline.workload.env"
)
_DISK_FIX = "free some space, set pipeline.nsys.max_bytes lower, or choose another artifacts.runs_dir"
_MESSAGES: tuple[tuple[str, str, str, str, bool], ...] = (
    (
        "disk-full",
        r"No space left on device|Disk quota exceeded",
        "the disk is full",
        _DISK_FIX,
        False,
    ),
    (
        "permission",
        r"Failed to create '[^']*': Permission denied|Failed to create '[^']*': Read-only file system",
        "nsys may not write its report",
        "choose a writable directory: artifacts.runs_dir=/some/dir",
        False,
    ),
    (
        "no-directory",
        r"Failed to create '[^']*': No such file or directory",
        "the output directory vanished during the capture",
        "leave the run directory in place until the run is over",
        False,
    ),
    (
        "program-missing",
        r"^No such file or directory: .*|Executable not found in current directory.*|^Not executable\b.*",
        "nsys could not start the program",
        "check pipeline.workload.command: the program must exist and be executable",
        False,
    ),
    (
        "option",
        r"^unrecognised option.*|^Illegal --?\w.*|^option '.*' cannot be specified more than once|^Error: --.*",
        "this version of nsys does not take an option",
        "change the key of pipeline.nsys that it comes from, or pipeline.nsys.extra_args",
        False,
    ),
    (
        "agent",
        r"Connection to (?:the )?Agent lost.*|Local Endpoint is not available.*|Agent launcher failed.*|"
        r"Failed to get number of the device CPUs.*|Failed to probe the process.*|"
        # 2022.4 reports only one of these when its agent is gone before the program has started.
        r"^End of file\s*$|^Connection reset by peer\s*$|"
        r"\[boost::errinfo_api_function_\*\] = .*",
        "nsys lost its own helper process (killed, or not able to start)",
        "try again on a less busy machine; nsys needs /proc, /sys and a writable TMPDIR. "
        "When no nsys is running, remove /dev/shm/NSys-*: one that was killed may have left it locked",
        True,
    ),
)


def diagnose(evidence: Evidence) -> Fault | None:
    """Return the most specific fault, or ``None`` if the capture is complete."""
    process = evidence.process
    if process.ended in ("timeout", "size"):
        return _limit_reached(evidence)
    if process.ended == "signal":
        return _tool_killed(evidence)
    if not evidence.reports:
        return _nothing_captured(evidence)
    if evidence.trigger and not evidence.opened:
        return _range_never_opened(evidence)
    if _program_failed(evidence):
        return Fault(
            "program-crashed",
            "failed",
            f"the program under nsys ended with {_exit_description(process)}; the report contains what came before\n"
            + _quoted(process),
            _PROGRAM_FIX,
        )
    return None


def no_kernels(device: str, *, traced: bool) -> Fault | None:
    """Return the fault of a trace without GPU kernels; ``traced``: CUDA tracing was enabled."""
    if not traced:
        return None
    if device == "cpu":
        return Fault(
            "no-cuda",
            "degraded",
            "no GPU kernels in the trace, as expected: the workload ran on the CPU",
            "run on a GPU (run.device=cuda) for kernels; ranges and OS calls are in the trace",
        )
    return Fault(
        "no-cuda",
        "degraded",
        "no GPU kernels in the trace although CUDA was traced",
        "check that the program launches kernels inside the captured range, that no other profiler uses CUPTI, "
        "and that this nsys supports the driver (nsys status -e)",
    )


def _limit_reached(evidence: Evidence) -> Fault:
    process = evidence.process
    if process.ended == "timeout":
        what = f"stopped at the time limit of {evidence.timeout_s:.0f} s"
        fix = "raise pipeline.nsys.timeout_s, or shorten the workload (run.repeats, infer.max_new_tokens)"
    else:
        what = f"stopped at the size limit of {evidence.max_bytes} bytes"
        if process.written_bytes is not None:
            what += f" (it had written {process.written_bytes} bytes)"
        fix = "raise pipeline.nsys.max_bytes, capture one range (capture_range=nvtx), or trace less"
    kind = "hang" if process.ended == "timeout" else "size"
    if evidence.reports:
        return Fault(kind, "degraded", f"{what}; the report contains what came before", fix)
    if evidence.trigger and not evidence.opened:
        what += f"; it had not come to {evidence.trigger}"
    return Fault(kind, "failed", f"{what}; no report was written\n{_quoted(process)}".rstrip(), fix)


def _tool_killed(evidence: Evidence) -> Fault:
    """Return the fault of a killed nsys: it passes on the program's signal as an exit code, so a signal means nsys itself."""
    what = "the report contains what came before" if evidence.reports else "no report was written"
    return Fault(
        "tool-killed",
        "failed",
        f"nsys itself was killed (signal {-(evidence.process.returncode or 0)}); {what}",
        "run again; if no user killed it, the machine may be out of memory (see dmesg)",
    )


def _nothing_captured(evidence: Evidence) -> Fault:
    process = evidence.process
    if evidence.free_bytes is not None and evidence.free_bytes < _FULL_BYTES:
        return Fault("disk-full", "failed", "the disk is full: nsys could not write its report", _DISK_FIX)
    for kind, pattern, message, fix, transient in _MESSAGES:
        found = re.search(pattern, process.text, re.MULTILINE)
        if found:
            # Late in a running capture, a retry would cost as much time again.
            again = transient and (not evidence.streams or process.seconds < _CHEAP_S)
            return Fault(kind, "failed", f"{message}: {found.group().strip()}", fix, again)
    if evidence.streams:
        crashed = _program_failed(evidence)
        reported = re.search(
            r"Import(?:er error status|ation error|er error|\w* failed).*", process.text, re.IGNORECASE
        )
        return Fault(
            "importer",
            "failed",
            "nsys left only its raw stream (.qdstrm): the importer made no report of it"
            + (f" ({reported.group().strip()})" if reported else "")
            + (
                f"; the program itself ended with {_exit_description(process)}\n" + _quoted(process)
                if crashed
                else ""
            ),
            "install the host part of Nsight Systems in addition to the target part (on Debian: "
            "scripts/install-nsight-debian.sh), or open the .qdstrm with Nsight Systems on another machine",
        )
    if _program_failed(evidence):
        return Fault(
            "program-crashed",
            "failed",
            f"the program under nsys ended with {_exit_description(process)} before anything was captured\n"
            + _quoted(process),
            _PROGRAM_FIX,
            transient=process.returncode == 1 and not process.text.strip(),
        )
    if evidence.trigger and not evidence.opened:
        return _range_never_opened(evidence)
    return Fault(
        "no-report",
        "failed",
        f"nsys wrote no report\n{_quoted(process)}".rstrip(),
        "look at the log in the nsys directory; try the command of nsys/cmd.txt by hand",
        transient=process.returncode == 1,
    )


def _range_never_opened(evidence: Evidence) -> Fault:
    if evidence.built_in:
        fix = (
            "the workload opens preprocess, vision, prefill, decode, decode_step and one range per component "
            "(sam, clip, projector, language_model, lm_head where the model has them): name one of those, or "
            "set pipeline.nsys.capture_range=none"
        )
    else:
        fix = (
            "check the exact name (range@domain for a range in a domain) and that the program's NVTX library is "
            "seen by this nsys, or set pipeline.nsys.capture_range=none"
        )
    return Fault(
        "range-never-opened",
        "failed",
        f"the program ended without {evidence.trigger}, so nsys captured nothing",
        fix,
    )


def _program_failed(evidence: Evidence) -> bool:
    """Return the fault of a failed program, except where nsys itself ended it: 143 (SIGTERM) or 137 (``--kill sigkill``)."""
    code = evidence.process.returncode
    if code in (143, 137, -15, -9) and evidence.ends_program and evidence.closed:
        return False
    return code != 0


def _exit_description(process: ProcessResult) -> str:
    code = process.returncode
    if code is not None and (code < 0 or 128 < code < 160):
        return f"signal {-code if code < 0 else code - 128}"
    return f"exit code {code}"


def _quoted(process: ProcessResult, lines: int = 15) -> str:
    """Return the program's last lines, without nsys' progress bars."""
    shown = [line for line in process.text.replace("\r", "\n").splitlines() if line.strip()]
    shown = [line for line in shown if not re.match(r"\[\d+/\d+\] \[|Generat(ed|ing)\b|Capture range ", line)]
    return "\n".join(f"  | {line}" for line in shown[-lines:])
