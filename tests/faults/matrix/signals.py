"""Being asked to stop, stopped and killed, at every point of a run: a manifest, a report, no process."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from llm_perf_opt.process.tools import find_tool
from tests.faults.matrix.case import NO_MODEL, QUICK, STATIC_ONLY, Case, Running
from tests.faults.processes import nsys_files_of, nsys_part, started_by, wait_for
from tests.nsys_support import fake_nsys
from tests.support import cli, read_json

ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TIMINGS = {"samples": 2, "new_tokens": 8, "prefill_s": 0.1, "decode_s": 0.7}


def _capturing(*more: str) -> Callable[[Path], list[str]]:
    """Return a run whose capture takes its time and says when it has begun."""

    def build(folder: Path) -> list[str]:
        tool = fake_nsys(folder / "tool", '(state / "began").write_text("x"); time.sleep(120)')
        return [
            "run", *NO_MODEL, "pipeline.nsys.enable=true", "pipeline.workload.repeats=0", f"pipeline.nsys.executable={tool}",
            "pipeline.workload.command=[sleep,1]", *more, f"artifacts.runs_dir={folder / 'run'}",
        ]  # fmt: skip

    return build


def _static(folder: Path) -> list[str]:
    return ["run", *STATIC_ONLY, f"artifacts.runs_dir={folder / 'run'}"]


def _measuring(folder: Path) -> list[str]:
    long = [part for part in QUICK if not part.startswith("infer.max_new_tokens")]
    return [
        "run", *long, "infer.max_new_tokens=2000", "pipeline.static_analysis.enable=false", f"artifacts.runs_dir={folder / 'run'}",
    ]  # fmt: skip


def _ingest(folder: Path) -> list[str]:
    (folder / "wall.json").write_text(json.dumps(TIMINGS))
    return ["ingest", f"--timings={folder / 'wall.json'}", f"--out={folder / 'run'}"]


def _in_capture(*numbers: signal.Signals) -> Callable[[Running], None]:
    def send(running: Running) -> None:
        wait_for((running.folder / "tool" / "began").exists)
        for number in numbers:
            os.kill(running.process.pid, number)
            time.sleep(0.3)

    return send


def _while_measuring(number: signal.Signals) -> Callable[[Running], None]:
    def send(running: Running) -> None:
        log = running.folder / "run" / "run.log"
        wait_for(lambda: log.is_file() and "measuring" in log.read_text(), 120)
        os.kill(running.process.pid, number)

    return send


def _after(seconds: float, number: signal.Signals) -> Callable[[Running], None]:
    def send(running: Running) -> None:
        time.sleep(seconds)
        wait_for(lambda: not _is_python_alone(running.process.pid))
        os.kill(running.process.pid, number)

    return send


def _is_python_alone(pid: int) -> bool:
    """Whether Python handles Ctrl-C, and our program, which would also handle SIGTERM, has not begun."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (signal.SIGINT - 1) & 1) and not caught >> (signal.SIGTERM - 1) & 1


def _at(place: str, number: signal.Signals) -> str:
    """Return Python that sends the signal to its own process the first time that a function is called."""
    module, _, path = place.partition(":")
    holder, _, name = path.rpartition(".")
    return (
        f"import {module} as place\n"
        + (f"place = place.{holder}\n" if holder else "")
        + f"whole, first = place.{name}, []\n"
        "def replaced(*arguments, **named):\n"
        "    if not first:\n"
        f"        first.append(1); os.kill(os.getpid(), {int(number)})\n"
        "    return whole(*arguments, **named)\n"
        f"place.{name} = replaced\n"
    )


def _report_shows_failed(folder: Path) -> None:
    """A run that was killed is reported from what it left, and never as a good one."""
    done = cli("report", str(folder / "run"), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert read_json(folder / "run" / "summary.json")["run"]["status"] == "failed"
    compared = cli("compare", str(folder / "run"), str(folder / "run"), "--gate", "tpot", cwd=folder)
    assert compared.returncode != 0, compared.stdout


def _half_or_whole(folder: Path) -> None:
    """Stopped before anything was written, or with a manifest and a report."""
    run = folder / "run"
    if run.exists():
        assert read_json(run / "manifest.json")["status"] == "interrupted"
        assert (run / "report.md").is_file()


def _no_summary(folder: Path) -> None:
    assert not (folder / "run" / "summary.json").exists()


def _cases() -> Iterator[Case]:
    stopped = {"nsys": "failed"}
    for number in ASKED:
        name, code = number.name, 128 + number
        yield Case(
            "signal", f"{name} in a capture", _capturing(), code, ("interrupted",), stopped, "interrupted",
            during=_in_capture(number), slow=number is not signal.SIGTERM,
        )  # fmt: skip
        yield Case(
            "signal", f"{name} twice in a capture", _capturing(), (code, -number), ("interrupted",), stopped, "interrupted",
            during=_in_capture(number, number), slow=True,
        )  # fmt: skip
        yield Case(
            "signal", f"{name} while measuring", _measuring, code, ("interrupted",), {"torch_profiler": "failed"}, "interrupted",
            during=_while_measuring(number), slow=True,
        )  # fmt: skip
        for place, what in {
            "llm_perf_opt.runs.execute:_write_hardware": "before the first stage",
            "llm_perf_opt.stages.static_analysis:StaticAnalysisStage.run": "as a stage begins",
            "llm_perf_opt.runs.execute:write_manifest": "while the manifest is written",
            "llm_perf_opt.runs.finish:save_summary": "while the summary is written",
            "llm_perf_opt.runs.finish:render": "while the report is written",
        }.items():
            yield Case(
                "signal", f"{name} {what}", _static, code, ("interrupted",), status="interrupted", hook=_at(place, number),
                slow=True,
            )  # fmt: skip
        yield Case(
            "signal", f"{name} while Hydra composes", _static, code, ("interrupted",), writes_nothing=True,
            hook=_at("llm_perf_opt.config.hydra_bridge.compose:compose", number), slow=number is not signal.SIGINT,
        )  # fmt: skip
        yield Case(
            "signal", f"{name} while ingest reads", _ingest, code, ("interrupted",), writes_nothing=True,
            hook=_at("llm_perf_opt.commands.ingest:_read", number), slow=number is not signal.SIGHUP,
        )  # fmt: skip
        yield Case(
            "signal", f"{name} while ingest writes its summary", _ingest, code, ("interrupted",),
            hook=_at("llm_perf_opt.summary.file:save_json", number), check=_no_summary, slow=True,
        )  # fmt: skip
        for seconds in (0.1, 0.5, 1.0, 1.5):
            yield Case(
                "signal", f"{name} after {seconds} s", _capturing(), (code, -number), check=_half_or_whole,
                during=_after(seconds, number), slow=True,
            )  # fmt: skip
    yield Case(
        "signal", "SIGHUP under nohup", _static, 0, status="ok", slow=True,
        hook="signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + _at("llm_perf_opt.runs.finish:render", signal.SIGHUP),
    )  # fmt: skip
    yield Case(
        "signal", "stopped and continued", _static, 0, status="ok", during=_stop_and_continue, slow=True
    )
    yield Case(
        "signal", "kill -9 in a capture", _capturing(), -9, status="running", during=_in_capture(signal.SIGKILL),
        check=_report_shows_failed, slow=True,
    )  # fmt: skip
    yield Case(
        "signal", "kill -9 while measuring", _measuring, -9, status="running", during=_while_measuring(signal.SIGKILL),
        check=_report_shows_failed, slow=True,
    )  # fmt: skip
    if find_tool("nsys") is not None:
        yield from _real_captures()


def _stop_and_continue(running: Running) -> None:
    wait_for((running.folder / "run" / "manifest.json").is_file)
    os.kill(running.process.pid, signal.SIGSTOP)
    time.sleep(2)
    os.kill(running.process.pid, signal.SIGCONT)


def _real_capture(isolate: str) -> Callable[[Path], list[str]]:
    """Return a run of the real tool on a program that says when it has begun, and waits."""

    def build(folder: Path) -> list[str]:
        ready = folder / "ready"
        # A second try, after an agent that was lost early, ends by itself.
        program = (
            f"import os, time; again = os.path.exists({str(ready)!r}); time.sleep(1.5); "
            f"open({str(ready)!r}, 'w').write('x'); time.sleep(0 if again else 120)"
        )
        return [
            "run", *NO_MODEL, "pipeline.nsys.enable=true", "pipeline.workload.repeats=0", "pipeline.nsys.trace='nvtx,osrt'",
            f"pipeline.nsys.isolate={isolate}", f'pipeline.workload.command=[{sys.executable},-c,"{program}"]',
            "pipeline.nsys.timeout_s=60", f"artifacts.runs_dir={folder / 'run'}",
        ]  # fmt: skip

    return build


def _kill_part(name: str, number: signal.Signals = signal.SIGKILL) -> Callable[[Running], None]:
    def kill(running: Running) -> None:
        wait_for(lambda: (running.folder / "ready").exists() or running.process.poll() is not None)
        assert running.process.poll() is None, "it ended before its program had begun"
        time.sleep(3)  # processes are noted every two seconds
        started = started_by(running.process.pid)
        files = nsys_files_of(started)
        os.kill(nsys_part(name, running.process.pid, started), number)
        running.process.wait(timeout=120)
        wait_for(lambda: not any(path.exists() for path in files), 30)

    return kill


def _real_captures() -> Iterator[Case]:
    for isolate in ("true", "false"):
        of = f"(real nsys, isolate={isolate})"
        yield Case(
            "signal", f"kill -9 of a run {of}", _real_capture(isolate), -9, status="running",
            during=_kill_part("orchestrator"), check=_report_shows_failed, slow=True,
        )  # fmt: skip
        yield Case(
            "signal", f"kill -9 of nsys {of}", _real_capture(isolate), 1, ("nsys itself was killed",), {"nsys": "failed"},
            "failed", during=_kill_part("nsys"), slow=True,
        )  # fmt: skip
        yield Case(
            "signal", f"SIGTERM of a run {of}", _real_capture(isolate), 143, ("interrupted",), {"nsys": "failed"},
            "interrupted", during=_kill_part("orchestrator", signal.SIGTERM), slow=True,
        )  # fmt: skip


CASES = tuple(_cases())
