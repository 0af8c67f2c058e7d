"""Programs and models that crash, hang, flood, hide and lie: the stage fails by name, and the run is not "ok"."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from llm_perf_opt.process.launch import HEAD_BYTES, LINE_BYTES, TAIL_BYTES
from llm_perf_opt.process.tools import find_tool
from tests.faults.matrix.case import NO_MODEL, QUICK, Case
from tests.nsys_support import fake_nsys

_LOG_BYTES = HEAD_BYTES + TAIL_BYTES + 2 * LINE_BYTES + 200
_SECRET = "q9ZverySecretValue77"

_PROGRAMS: dict[str, tuple[str, str]] = {
    "exit 3": ("print('bad weights'); sys.exit(3)", "exit code 3"),
    "exit 1 without a word": ("sys.exit(1)", "exit code 1"),
    "an exception": ("raise RuntimeError('no such layer')", "no such layer"),
    "killed (SIGKILL)": ("os.kill(os.getpid(), 9)", "signal 9"),
    "a segmentation fault": ("os.kill(os.getpid(), 11)", "signal 11"),
    "aborted": ("os.abort()", "signal 6"),
    "terminated": ("os.kill(os.getpid(), 15)", "signal 15"),
}
"""What happens to a program → how, and the words that must be said of it."""
_SOUND: dict[str, str] = {
    "closes its streams": "os.close(1); os.close(2)",
    "reads standard input": "assert sys.stdin.read() == ''",
    "writes no text": "os.write(1, bytes(range(256)) * 100)",
    "writes escapes": r"print('\x1b]0;pwned\x07\x1b[2J')",
    "writes a line of 50 MB": "sys.stdout.write('x' * 50_000_000)",
    "writes 50 MB of lines": "sys.stdout.write('0123456789abcde\\n' * 3_000_000)",
    "leaves a child behind": "subprocess.Popen(['sleep', '100'])",
    "leaves a daemon behind": "subprocess.Popen(['sleep', '100'], start_new_session=True, stdin=-3, stdout=-3, stderr=-3)",
    "removes its own file": "os.remove(sys.argv[0])",
}
_MODEL_FAULTS = {
    "raises RuntimeError": ("raise RuntimeError('CUDA error: an illegal memory access was encountered')", 1),
    "runs out of memory": ("raise MemoryError()", 1),
    "asserts": ("raise AssertionError('device-side assert')", 1),
    "recurses": ("return fail()", 1),
    "leaves with 0": ("sys.exit(0)", 1),
    "leaves with 3": ("sys.exit(3)", 1),
    "leaves with words": ("sys.exit('bye')", 1),
}
_MODEL_DEATHS = {
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", -9),
    "faults": ("os.kill(os.getpid(), signal.SIGSEGV)", -11),
    "exits without a word": ("os._exit(9)", 9),
}
"""The process of the run itself is gone: nobody is left to write, and what is there does not say "ok"."""


def _program(code: str, *more: str) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        script = folder / "bench.py"
        script.write_text(f"import os, subprocess, sys, time\n{code}\n")
        own = [part.replace("{folder}", str(folder)) for part in more]
        return [
            "run", *NO_MODEL, f"pipeline.workload.command=[{sys.executable},{script}]", "pipeline.workload.repeats=1", *own,
            f"artifacts.runs_dir={folder / 'run'}",
        ]  # fmt: skip

    return build


def _watched(tool: str, code: str, *more: str) -> Callable[[Path], list[str]]:
    """Return a capture by the real tool, without a run before it."""
    options = ("pipeline.workload.repeats=0", f"pipeline.{tool}.enable=true", f"pipeline.{tool}.timeout_s=90")
    trace = ("pipeline.nsys.trace=osrt",) if tool == "nsys" else ()
    return _program(code, *options, *trace, *more)


def _command(expected: str) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        (folder / "text.txt").write_text("no program")
        shown = expected.replace("{folder}", str(folder))
        return [
            "run",
            *NO_MODEL,
            f"pipeline.workload.command={shown}",
            f"artifacts.runs_dir={folder / 'run'}",
        ]

    return build


def _model(stage: str) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        others = [
            f"pipeline.{name}.enable={str(name == stage).lower()}"
            for name in ("torch_profiler", "direct_inference")
        ]
        return [
            "run", *QUICK, "pipeline.static_analysis.enable=false", *others, f"artifacts.runs_dir={folder / 'run'}",
        ]  # fmt: skip

    return build


def _failing(body: str) -> str:
    """Return Python that lets the model fail in the middle of a pass."""
    return (
        "from llm_perf_opt.workloads.engine.engine import Engine\n"
        f"def fail(*_, **__):\n    {body}\n"
        "Engine.run_prepared = fail\n"
    )


def _exporting(exports: bool, body: str = "report()") -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        tool = fake_nsys(folder / "tool", body, exports=exports)
        return [
            "run", *NO_MODEL, "pipeline.nsys.enable=true", "pipeline.workload.repeats=0", f"pipeline.nsys.executable={tool}",
            "pipeline.workload.command=[sleep,0]", f"artifacts.runs_dir={folder / 'run'}",
        ]  # fmt: skip

    return build


def _logs_bounded(folder: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in (folder / "run").rglob("*.log")}
    assert sizes
    assert max(sizes.values()) <= _LOG_BYTES, sizes


def _no_escape_printed(folder: Path) -> None:
    assert b"\x1b]0;" not in (folder / ".printed").read_bytes()
    assert "\x1b" not in (folder / "run" / "report.md").read_text()


def _secret_not_shown(folder: Path) -> None:
    shown = [
        path.name
        for path in (folder / "run").rglob("*")
        if path.is_file() and _SECRET.encode() in path.read_bytes()
    ]
    assert shown == ["run-1.stderr.log"], shown
    assert _SECRET.encode() not in (folder / ".printed").read_bytes()


def _programs() -> Iterator[Case]:
    failed = {"program": "failed"}
    for what, (code, phrase) in _PROGRAMS.items():
        yield Case(
            "workload",
            what,
            _program(code),
            1,
            (phrase,),
            failed,
            "failed",
            slow=what not in ("exit 3", "killed (SIGKILL)"),
        )
    for what, code in _SOUND.items():
        escapes = what == "writes escapes"
        yield Case(
            "workload", what, _program(code), 0, stages={"program": "ok"}, status="ok", slow=True,
            check=_no_escape_printed if escapes else _logs_bounded,
        )  # fmt: skip
    limit = "pipeline.workload.timeout_s=2"
    for what, code in {
        "never ends": "time.sleep(100)",
        "never ends, and does not listen": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(100)",
        "never ends, nor does its daemon": "subprocess.Popen(['sleep', '100'], start_new_session=True)\ntime.sleep(100)",
        "floods and never ends": "while True: os.write(1, b'0123456789abcdef\\n' * 1000)",
    }.items():
        yield Case(
            "workload", what, _program(code, limit), 1, ("pipeline.workload.timeout_s",), failed, "failed", slow=True,
            check=_logs_bounded,
        )  # fmt: skip
    yield Case(
        "workload", "tells a secret and fails", _program(f"sys.exit('cannot log in: password={_SECRET}')"), 1, ("***",), failed,
        "failed", slow=True, check=_secret_not_shown,
    )  # fmt: skip
    for what, phrase in {
        "no such program": "[/nowhere/program]",
        "a name that is none": "[no-such-program-anywhere]",
        "an empty name": "['']",
    }.items():
        yield Case("workload", what, _command(phrase), 2, ("pipeline.workload.command",), writes_nothing=True)
    yield Case(
        "workload",
        "a text for a program",
        _command("['{folder}/text.txt']"),
        1,
        ("chmod +x",),
        failed,
        "failed",
    )
    yield Case("workload", "a folder for a program", _command("['{folder}']"), 1, (), failed, "failed")


def _models() -> Iterator[Case]:
    for stage in ("torch_profiler", "direct_inference"):
        for what, (body, code) in _MODEL_FAULTS.items():
            quick = stage == "torch_profiler" and what == "leaves with 0"
            yield Case(
                "workload", f"{stage}: the model {what}", _model(stage), code, stages={stage: "failed"}, status="failed",
                hook=_failing(body), slow=not quick,
            )  # fmt: skip
        for what, (body, code) in _MODEL_DEATHS.items():
            yield Case(
                "workload",
                f"{stage}: the model {what}",
                _model(stage),
                code,
                status="running",
                hook=_failing(body),
                slow=True,
            )


def _captures() -> Iterator[Case]:
    lost = {"nsys": "failed"}
    yield Case(
        "workload",
        "a report that cannot be exported",
        _exporting(False),
        1,
        ("could not be exported",),
        lost,
        "failed",
    )
    yield Case(
        "workload",
        "a crash with a report",
        _exporting(True, "report(); sys.exit(7)"),
        1,
        ("exit code 7",),
        lost,
        "failed",
    )
    yield Case(
        "workload",
        "a crash without a report",
        _exporting(True, "sys.exit(139)"),
        1,
        ("signal 11",),
        lost,
        "failed",
        slow=True,
    )
    yield Case(
        "workload", "no report", _exporting(True, "pass"), 1, ("no report",), lost, "failed", slow=True
    )
    yield Case(
        "workload",
        "an empty report",
        _exporting(True, "report(size=0)"),
        1,
        ("no report",),
        lost,
        "failed",
        slow=True,
    )
    for tool in ("nsys", "ncu"):
        if find_tool(tool) is not None:
            for what, (code, phrase) in _PROGRAMS.items():
                yield Case(
                    "workload", f"{what} (real {tool})", _watched(tool, f"time.sleep(0.5); {code}"), 1,
                    (phrase,) if tool == "nsys" else (tool,), {tool: "failed"}, "failed", slow=True,
                )  # fmt: skip
    if find_tool("nsys") is not None:
        yield Case(
            "workload", "leaves a daemon behind (real nsys)", _watched("nsys", "subprocess.Popen(['sleep', '100'], start_new_session=True)", "pipeline.nsys.timeout_s=15"),
            0, ("time limit of 15 s",), {"nsys": "degraded"}, "ok", slow=True,  # nsys waits for it
        )  # fmt: skip
        yield Case(
            "workload", "never ends (real nsys)", _watched("nsys", "time.sleep(100)", "pipeline.nsys.timeout_s=8"), (0, 1),
            ("time limit of 8 s",), slow=True,
        )  # fmt: skip


CASES = (*_programs(), *_models(), *_captures())
