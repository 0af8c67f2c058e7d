"""Being asked to stop, and being killed: what is left behind, of processes, of files, of a run."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core.console import signals
from llm_perf_opt.core.console.signals import (
    Interrupted,
    acknowledge_interruption,
    defer_signals,
    interruption_first,
    raise_if_interrupted,
    stop_signals,
)
from llm_perf_opt.process import launch
from llm_perf_opt.process.launch import run_probe
from llm_perf_opt.process.leftovers import Leftovers
from llm_perf_opt.process.tools import find_tools
from llm_perf_opt.runs import app, execute, lock
from tests.faults.processes import guards_of, nsys_files_of, nsys_part, started_by, wait_for
from tests.nsys_support import alive, fake_nsys
from tests.support import read_json
from tests.warm import WarmProcess, warm_server

ASKED = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
NO_OTHER_STAGE = (
    "pipeline.static_analysis.enable=false",
    "pipeline.torch_profiler.enable=false",
    "hardware.probe=false",
    "pipeline.nsys.enable=true",
    "pipeline.workload.repeats=0",
)


def _start(cwd: Path, *overrides: str) -> WarmProcess:
    return warm_server().start(["run", *NO_OTHER_STAGE, *overrides], cwd)


def _start_anew(cwd: Path, *overrides: str) -> subprocess.Popen[str]:
    """Start one that first has to import everything."""
    return subprocess.Popen(
        [sys.executable, "-m", "llm_perf_opt", "run", *NO_OTHER_STAGE, *overrides],
        cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )  # fmt: skip


def _output_at_the_end(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    """Return what a process wrote; of one that does not end, where it stands and what it has started."""
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        code, started = process.poll(), started_by(process.pid)
        process.send_signal(signal.SIGABRT)
        output, errors = process.communicate(timeout=30)
        pytest.fail(f"it did not end (exit code {code}, programs {started}):\n{output}\n{errors}")


@pytest.fixture
def slow_tool(tmp_path: Path) -> Path:
    """A capture that takes its time and says when it has begun."""
    return fake_nsys(tmp_path / "tool", '(state / "began").write_text("x"); time.sleep(120)')


@pytest.mark.parametrize("number", ASKED)
def test_a_signal_in_a_stage_leaves_the_right_manifest_and_a_report(
    number: signal.Signals, slow_tool: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = _start(
        tmp_path,
        f"pipeline.nsys.executable={slow_tool}",
        "pipeline.workload.command=[sleep,1]",
        f"artifacts.runs_dir={run}",
    )
    try:
        wait_for((slow_tool.parent / "began").exists)
        started = started_by(process.pid)
        os.kill(process.pid, number)
        output, errors = process.communicate(timeout=90)
    finally:
        process.kill()
    assert started
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    manifest = read_json(run / "manifest.json")
    assert manifest["status"] == "interrupted"
    assert manifest["stages"]["nsys"]["reason"] == "interrupted"
    assert "interrupted" in (run / "report.md").read_text()
    assert read_json(run / "summary.json")["run"]["status"] == "interrupted"
    assert str(run) in output
    assert not [pid for pid in started if alive(pid)]
    wait_for(lambda: not guards_of(process.pid), 20)


@pytest.mark.parametrize(
    ("delay_s", "number"),
    list(zip((0.4, 0.8, 1.0, 1.2, 1.6, 2.0, 2.6, 3.2), [signal.SIGTERM, signal.SIGINT] * 4, strict=True)),
)
def test_a_signal_at_any_time_is_not_lost_and_leaves_nothing_half(
    delay_s: float, number: signal.Signals, tmp_path: Path
) -> None:
    """Also while Python starts and Hydra composes; a signal that comes too late finds a complete run."""
    tool = fake_nsys(tmp_path / "tool", "time.sleep(120)")
    run = tmp_path / "run"
    process = _start_anew(
        tmp_path,
        f"pipeline.nsys.executable={tool}",
        "pipeline.workload.command=[sleep,1]",
        f"artifacts.runs_dir={run}",
    )
    try:
        time.sleep(delay_s)
        os.kill(process.pid, number)
        _, errors = _output_at_the_end(process, 90)
    finally:
        process.kill()
    # Before our handlers are there, the signal's own action ends the interpreter.
    assert process.returncode in (128 + number, -number), errors
    if run.exists():
        assert read_json(run / "manifest.json")["status"] == "interrupted"
        assert (run / "report.md").is_file()
    assert started_by(process.pid) == []


@pytest.mark.usefixtures("signals_arrive")
@pytest.mark.parametrize("moment", ["run_directory", "lock", "run_log"])
def test_a_signal_right_after_a_first_file_leaves_it_explained_or_removed(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name = {
        "run_directory": (app, "reserve_run_directory"),
        "lock": (lock, "_acquire"),
        "run_log": (execute, "run_log"),
    }[moment]
    original = getattr(module, name)

    def then_stop(*arguments: Any, **options: Any) -> Any:
        made = original(*arguments, **options)
        os.kill(os.getpid(), signal.SIGTERM)
        return made

    monkeypatch.setattr(module, name, then_stop)
    monkeypatch.chdir(tmp_path)
    tool, run = fake_nsys(tmp_path / "tool", "time.sleep(120)"), tmp_path / "run"
    code = main(
        ["run", *NO_OTHER_STAGE, f"pipeline.nsys.executable={tool}", "pipeline.workload.command=[sleep,1]",
         f"artifacts.runs_dir={run}"]
    )  # fmt: skip
    assert code == 128 + signal.SIGTERM
    if moment == "run_log":
        assert read_json(run / "manifest.json")["status"] == "interrupted"
        assert (run / "report.md").is_file()
    else:
        assert not run.exists()


def test_a_signal_while_the_report_is_written_leaves_both(tmp_path: Path) -> None:
    tool = fake_nsys(tmp_path / "tool", "report()")
    run = tmp_path / "run"
    code = (
        "import os, signal, sys\n"
        "from llm_perf_opt.runs import finish\n"
        "whole, first = finish.render, []\n"
        "def render(*arguments, **named):\n"
        "    if not first:\n"
        "        first.append(1)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    return whole(*arguments, **named)\n"
        "finish.render = render\n"
        "from llm_perf_opt.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "run", *NO_OTHER_STAGE, f"pipeline.nsys.executable={tool}", "pipeline.workload.command=[sleep,1]", f"artifacts.runs_dir={run}"],
        capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode in (143, 129), done.stderr
    assert "Traceback" not in done.stderr
    assert read_json(run / "manifest.json")["status"] == "interrupted"
    assert "interrupted" in (run / "report.md").read_text()


def test_a_terminal_that_closes_leaves_manifest_and_report(slow_tool: Path, tmp_path: Path) -> None:
    """Every word to it fails from then on."""
    run = tmp_path / "run"
    argv = [
        sys.executable, "-m", "llm_perf_opt", "run", *NO_OTHER_STAGE, f"pipeline.nsys.executable={slow_tool}",
        "pipeline.workload.command=[sleep,1]", f"artifacts.runs_dir={run}",
    ]  # fmt: skip
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execv(argv[0], argv)
    try:
        threading.Thread(target=_read_all, args=(terminal,), daemon=True).start()
        wait_for((slow_tool.parent / "began").exists)
    finally:
        os.close(terminal)
    deadline = time.monotonic() + 90
    status = 0
    while time.monotonic() < deadline and not (ended := os.waitpid(child, os.WNOHANG))[0]:
        time.sleep(0.1)
    else:
        status = ended[1]
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
    assert ended[0] == child
    assert os.waitstatus_to_exitcode(status) == 129
    assert read_json(run / "manifest.json")["status"] == "interrupted"
    assert "interrupted" in (run / "report.md").read_text()


def _read_all(terminal: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass


def test_nohup_stays_nohup(slow_tool: Path, tmp_path: Path) -> None:
    with stop_signals():
        before = signal.getsignal(signal.SIGHUP)
        assert before not in (signal.SIG_DFL, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("number", ASKED)
def test_a_signal_that_a_library_swallows_comes_again(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "_AGAIN_S", 0.3)
    with pytest.raises(Interrupted) as caught, stop_signals():
        for _ in range(2):
            try:
                os.kill(os.getpid(), number)
                time.sleep(5)
            except BaseException:  # noqa: BLE001 - what such a library does
                pass
        try:
            time.sleep(60)
        finally:
            acknowledge_interruption()
    assert caught.value.exit_code == 128 + number


def test_where_work_goes_on_a_lost_signal_is_raised_at_once() -> None:
    with stop_signals():
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            raise_if_interrupted()
        acknowledge_interruption()
        raise_if_interrupted()


def _lose_a_signal() -> None:
    with contextlib.suppress(Interrupted):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_lost_while_a_program_ends_is_raised_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgotten there, a run that was asked to stop would go on."""
    whole = launch._watch

    def watch(*arguments: Any) -> Any:
        ended = whole(*arguments)
        _lose_a_signal()
        return ended

    monkeypatch.setattr(launch, "_watch", watch)
    with stop_signals(), pytest.raises(Interrupted):
        run_probe(["true"])


def test_a_program_that_ends_in_another_thread_settles_nothing() -> None:
    with stop_signals():
        _lose_a_signal()
        other = threading.Thread(target=run_probe, args=(["true"],))
        other.start()
        other.join()
        with pytest.raises(Interrupted):
            raise_if_interrupted()


@pytest.mark.parametrize("number", ASKED)
def test_a_signal_that_somebody_makes_another_error_of_is_the_signal(number: signal.Signals) -> None:
    """Python itself does, while a class is made."""

    class Named:
        def __set_name__(self, owner: type, name: str) -> None:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted) as caught, stop_signals(), interruption_first():
        type("Made", (), {"named": Named()})
    assert caught.value.exit_code == 128 + number


def test_signals_wait_while_something_is_written_whole() -> None:
    done = []
    with pytest.raises(Interrupted), stop_signals():
        with defer_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            with defer_signals(signal.SIGHUP):
                os.kill(os.getpid(), signal.SIGHUP)
            done.append("whole")
        done.append("never")
    assert done == ["whole"]
    assert threading.active_count() >= 1


RUNNER = """
import sys
from pathlib import Path
from llm_perf_opt.process.launch import run_process
code = "import subprocess,sys,time,os; p=subprocess.Popen([sys.executable,'-c','import time; time.sleep(99)'], start_new_session=True); "
code += f"open({sys.argv[1]!r},'w').write(f'{{os.getpid()}} {{p.pid}}'); time.sleep(99)"
run_process([sys.executable, "-c", code], log_dir=None, name="n", timeout_s=90)
"""


def test_kill_9_leaves_no_program_and_no_guard(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, str(pids)])
    try:
        wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        children = [int(pid) for pid in pids.read_text().split()]
        assert all(map(alive, children))
        guards = guards_of(runner.pid)
        assert len(guards) == 1
    finally:
        runner.kill()
        runner.wait()
    wait_for(lambda: not any(map(alive, [*children, *guards])), 60)


def test_a_guard_that_begins_after_its_parent_was_killed_ends_the_programs() -> None:
    """Its parent is another one from the start, and what it was told of waits in the pipe."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"], start_new_session=True)
    watching = "from llm_perf_opt.process.guard import watch; watch(1)"
    try:
        shown = json.dumps({"job": "one", "group": program.pid}) + "\n"
        # The pipe stays open, as a fork of the parent would keep it.
        guard = subprocess.Popen([sys.executable, "-c", watching], stdin=subprocess.PIPE, text=True)
        assert guard.stdin is not None
        guard.stdin.write(shown)
        guard.stdin.flush()
        assert guard.wait(60) == 0
        assert program.wait(60) == -signal.SIGKILL
    finally:
        program.kill()


def test_a_fork_that_keeps_the_pipe_does_not_keep_the_programs(tmp_path: Path) -> None:
    pids, fork = tmp_path / "pids", tmp_path / "fork"
    code = (
        "import os, time, threading\n"
        "def fork():\n"
        f"    while not os.path.exists({str(pids)!r}): time.sleep(0.05)\n"
        "    if os.fork() == 0:\n"
        f"        open({str(fork)!r}, 'w').write(str(os.getpid())); time.sleep(60); os._exit(0)\n"
        "threading.Thread(target=fork, daemon=True).start()\n" + RUNNER
    )
    runner = subprocess.Popen([sys.executable, "-c", code, str(pids)])
    try:
        wait_for(lambda: fork.exists() and fork.read_text() and len(pids.read_text().split()) == 2)
        children = [int(pid) for pid in pids.read_text().split()]
    finally:
        runner.kill()
        runner.wait()
    try:
        wait_for(lambda: not any(map(alive, children)), 20)
    finally:
        os.kill(int(fork.read_text()), signal.SIGKILL)


@pytest.mark.needs("nsys")
@pytest.mark.parametrize("isolate", ["true", "false"])
@pytest.mark.parametrize("victim", ["orchestrator", "nsys", "agent"])
def test_killing_any_part_of_a_real_capture_leaves_no_process_and_no_file(
    victim: str, isolate: str, tmp_path: Path
) -> None:
    tools = find_tools("nsys")
    run, ready = tmp_path / "run", tmp_path / "ready"
    # A second try, after an agent that was lost early, ends by itself.
    program = (
        f"import os, time; again = os.path.exists({str(ready)!r}); time.sleep(1.5); "
        f"open({str(ready)!r}, 'w').write('x'); time.sleep(0 if again else 120)"
    )
    process = _start(
        tmp_path, f"pipeline.nsys.executable={tools[0]}", "pipeline.nsys.trace='nvtx,osrt'", f"pipeline.nsys.isolate={isolate}",
        f'pipeline.workload.command=[{sys.executable},-c,"{program}"]', "pipeline.nsys.timeout_s=60", f"artifacts.runs_dir={run}",
    )  # fmt: skip
    try:
        wait_for(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        time.sleep(3)  # processes are noted every two seconds
        marked = started_by(process.pid)
        own_files = nsys_files_of(marked)
        os.kill(nsys_part(victim, process.pid, marked), signal.SIGKILL)
        _, errors = process.communicate(timeout=100)
    finally:
        process.kill()
    assert len(marked) >= 4
    wait_for(lambda: not any(map(alive, marked)), 30)
    assert own_files
    wait_for(lambda: not any(path.exists() for path in own_files), 10)
    if victim == "orchestrator":
        return
    stage = read_json(run / "manifest.json")["stages"]["nsys"]
    assert "host part" not in errors
    if victim == "agent" and (run / "nsys/run.nsys-rep").exists():
        assert process.returncode == 0
        return
    assert "killed" in stage["reason"], stage
    assert process.returncode == 1


def test_only_files_that_our_processes_name_are_removed(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "injection_config_0a1b", tmp_path / "injection_config_ffff"
    other_name, link = tmp_path / "precious", tmp_path / "injection_config_11"
    for path in (ours, theirs, other_name):
        path.write_text("x")
    link.symlink_to(other_name)
    shared = tmp_path / "shm"
    shared.mkdir()
    noted = Leftovers(shared_memory=shared)
    children = [
        subprocess.Popen(["sleep", "60"], env={"QUADD_INJECTION_CONFIG": str(path), "PATH": os.environ["PATH"]})
        for path in (ours, other_name, link)
    ]  # fmt: skip
    mine, foreign = shared / f"sem.nsys_sem_{children[0].pid}", shared / "sem.nsys_sem_1"
    mine.touch()
    foreign.touch()
    # A process has the name of its program a moment before it has its environment.
    wait_for(
        lambda: all(
            b"QUADD_INJECTION_CONFIG" in Path(f"/proc/{child.pid}/environ").read_bytes() for child in children
        )
    )
    noted.note(child.pid for child in children)
    for child in children:
        child.kill()
        child.wait()
    assert noted.remove() == sorted([ours, mine])
    assert theirs.exists()
    assert other_name.exists()
    assert link.is_symlink()
    assert foreign.exists()


def test_a_signal_lost_in_a_destructor_prints_no_traceback(tmp_path: Path) -> None:
    """It is raised again; what else goes wrong in a destructor is still told."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal\n"
        "from llm_perf_opt.core.console import signals\n"
        "class Asked:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        sum(range(1000))\n"
        "class Wrong:\n"
        "    def __del__(self):\n"
        "        raise ValueError('kept')\n"
        "signal.signal(signal.SIGINT, signals._on_signal)\n"
        "one = Asked()\n"
        "del one\n"
        "signals.acknowledge_interruption()\n"
        "other = Wrong()\n"
        "del other\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "KeyboardInterrupt" not in done.stderr
    assert "ValueError: kept" in done.stderr
