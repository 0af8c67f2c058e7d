from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.process.launch import ProcessResult
from llm_perf_opt.stages.nsys.diagnose import Evidence, diagnose, no_kernels

RANGE = "opening the range 'decode'"
REPORT = [Path("/run/nsys/run.nsys-rep")]


def evidence(
    stdout: str = "", stderr: str = "", code: int | None = 0, ended: Any = "exit", **changes: Any
) -> Evidence:
    process = ProcessResult(("nsys",), code, 1.0, ended, stdout, stderr)
    defaults: dict[str, Any] = {
        "process": process,
        "reports": REPORT,
        "trigger": None,
        "ends_program": False,
        "opened": False,
        "closed": False,
        "timeout_s": 60.0,
        "max_bytes": 1000,
        "free_bytes": 1 << 40,
    }
    return Evidence(**{**defaults, **changes})


def test_a_report_and_a_clean_exit_is_success() -> None:
    assert diagnose(evidence()) is None


@pytest.mark.contract("B10")
@pytest.mark.parametrize("code", [143, 137, -15])
def test_B10_the_end_that_nsys_makes_is_success(code: int) -> None:
    hit = {"trigger": RANGE, "opened": True, "closed": True}
    assert diagnose(evidence(code=code, ends_program=True, **hit)) is None
    # The same code without nsys being the one who ends programs is a crash.
    crashed = diagnose(evidence(code=code, ends_program=False, **hit))
    assert crashed is not None
    assert crashed.kind == "program-crashed"


@pytest.mark.contract("A6")
def test_A6_exit_code_zero_without_a_report_is_not_success() -> None:
    fault = diagnose(evidence("Generated:\n", reports=[]))
    assert fault is not None
    assert (fault.kind, fault.status) == ("no-report", "failed")


def test_a_range_that_never_opened() -> None:
    fault = diagnose(evidence("Generated:\n", reports=[], trigger="opening the range 'decode@LLM'"))
    assert fault is not None
    assert fault.kind == "range-never-opened"
    assert "'decode@LLM'" in fault.message
    assert "prefill" in fault.fix
    own = diagnose(evidence(reports=[], trigger="calling cudaProfilerStart", built_in=False))
    assert own is not None
    assert "exact name" in own.fix


@pytest.mark.parametrize(("code", "expected"), [(3, "exit code 3"), (139, "signal 11"), (-11, "signal 11")])
def test_a_crash_shows_the_programs_output(code: int, expected: str) -> None:
    text = "loading\n[1/1] [====100%] run.nsys-rep\nTraceback: KeyError\nGenerated:\n"
    fault = diagnose(evidence(text, code=code))
    assert fault is not None
    assert (fault.kind, fault.status) == ("program-crashed", "failed")
    assert expected in fault.message
    assert "  | Traceback: KeyError" in fault.message
    assert "100%" not in fault.message
    own = diagnose(evidence(text, code=code, built_in=False))
    assert own is not None
    assert own.status == "failed"


@pytest.mark.parametrize(
    ("text", "kind", "transient"),
    [
        ("Failed to create '/x/run.nsys-rep': Permission denied.", "permission", False),
        ("Failed to create '/x/run.nsys-rep': No such file or directory.", "no-directory", False),
        ("Failed to create '/x/run.qdstrm': No space left on device.", "disk-full", False),
        ("No such file or directory: /nope/x", "program-missing", False),
        ("Executable not found in current directory or standard search paths", "program-missing", False),
        ("unrecognised option '--bogus'", "option", False),
        ("Illegal --trace argument 'bogus'", "option", False),
        ("option '--env-var' cannot be specified more than once", "option", False),
        ("Connection to Agent lost. This is most likely a bug.", "agent", True),
        ("Agent error: Local Endpoint is not available.", "agent", True),
        ("End of file", "agent", True),
        ("EOFError: End of file while reading", "program-crashed", False),
        ("Connection reset by peer", "agent", True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "program-crashed", False),
    ],
)
def test_known_messages(text: str, kind: str, transient: bool) -> None:
    fault = diagnose(evidence("app said this", text, code=1, reports=[]))
    assert fault is not None
    assert (fault.kind, fault.status, fault.transient) == (kind, "failed", transient)
    assert fault.fix


def test_a_full_disk_is_detected_even_when_nsys_reports_something_else() -> None:
    fault = diagnose(evidence("", "Failed to probe the process (sync)", code=1, reports=[], free_bytes=0))
    assert fault is not None
    assert fault.kind == "disk-full"


def test_only_the_raw_stream() -> None:
    text = "Importer error status: The importer binary and its dependencies were not found."
    fault = diagnose(evidence("Generated:\n", text, reports=[], streams=[Path("/t/nsys-report-1.qdstrm")]))
    assert fault is not None
    assert fault.kind == "importer"
    assert "importer binary" in fault.message


def test_limits_with_and_without_a_report() -> None:
    with_report = diagnose(evidence(code=None, ended="timeout"))
    without = diagnose(evidence("working\n", code=None, ended="timeout", reports=[], trigger=RANGE))
    size = diagnose(evidence(code=None, ended="size", reports=[]))
    assert with_report is not None and without is not None and size is not None
    assert (with_report.kind, with_report.status) == ("hang", "degraded")
    assert (without.kind, without.status) == ("hang", "failed")
    assert "60 s" in without.message
    assert RANGE in without.message
    assert "  | working" in without.message
    assert (size.kind, size.status) == ("size", "failed")
    assert "max_bytes" in size.fix


def test_no_kernels_is_expected_on_a_cpu_and_strange_on_a_gpu() -> None:
    assert no_kernels("cpu", traced=False) is None
    cpu, gpu = no_kernels("cpu", traced=True), no_kernels("cuda:0", traced=True)
    assert cpu is not None and gpu is not None
    assert (cpu.status, gpu.status) == ("degraded", "degraded")
    assert "as expected" in cpu.message
    assert "CUPTI" in gpu.fix
