from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.process import groups
from llm_perf_opt.process.groups import JOB_VARIABLE, survivors
from llm_perf_opt.process.launch import ProcessResult, run_probe, run_process
from llm_perf_opt.process.leftovers import SizeLimit
from tests.nsys_support import alive
from tests.support import HOLD_SIGNALS, within_a_limit

PYTHON = sys.executable


def wait_for(path: Path, seconds: float = 120.0) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().strip():
            return path.read_text().strip()
        time.sleep(0.02)
    raise AssertionError(f"{path} was never written")


def test_probe_returns_both_streams_and_exit_code() -> None:
    result = run_probe([PYTHON, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"])
    assert (result.ended, result.returncode, result.stdout, result.stderr) == ("exit", 3, "out\n", "err\n")
    assert not result.ok
    assert result.stdout_path is None


def test_probe_keeps_all_of_a_large_output() -> None:
    result = run_probe([PYTHON, "-c", "print('x' * 3_000_000)"])
    assert len(result.stdout) == 3_000_001


def test_nothing_to_read_on_standard_input() -> None:
    assert run_probe([PYTHON, "-c", "import sys; print(repr(sys.stdin.read()))"]).stdout == "''\n"


def test_arguments_reach_the_program_untouched() -> None:
    arguments = ["a b", "$HOME", "`id`", "x;y", "*", "", "ü", "it's"]
    result = run_probe([PYTHON, "-c", "import sys; print(sys.argv[1:])", *arguments])
    assert result.stdout.strip() == repr(arguments)


def test_logs_are_files_and_the_result_keeps_their_tail(tmp_path: Path) -> None:
    result = run_process(
        [PYTHON, "-c", "print('x' * 50); print('end')"],
        log_dir=tmp_path / "logs",
        name="step",
        timeout_s=30,
        keep_bytes=10,
    )
    assert result.stdout_path == tmp_path / "logs" / "step.stdout.log"
    assert result.stdout_path.read_text() == "x" * 50 + "\nend\n"
    assert result.stdout == "xxxxx\nend\n"


def test_lines_come_while_the_program_runs_and_bars_count_as_lines(tmp_path: Path) -> None:
    seen: list[str] = []
    gate = tmp_path / "gate"

    def on_line(line: str) -> None:
        seen.append(line)
        if line == "first":
            gate.write_text("go")  # the program waits for this: only a live reader lets it end

    code = (
        "import pathlib,sys,time\n"
        "print('first', flush=True)\n"
        f"while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)\n"
        "sys.stdout.write('10%\\r20%\\rdone')"
    )
    result = run_process([PYTHON, "-c", code], log_dir=None, name="n", timeout_s=30, on_line=on_line)
    assert result.ok
    assert seen == ["first", "10%", "20%", "done"]


def test_time_limit_ends_the_whole_group_and_who_left_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import subprocess,sys,os,time,signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "words='import time,signal; signal.signal(signal.SIGTERM,signal.SIG_IGN); print(1,flush=True); time.sleep(99)'\n"
        "child=[sys.executable,'-c',words]\n"
        "a=subprocess.Popen(child, stdout=subprocess.PIPE)\n"
        "b=subprocess.Popen(child, stdout=subprocess.PIPE, start_new_session=True)\n"
        "a.stdout.readline(), b.stdout.readline()\n"
        f"open({str(pids)!r},'w').write(f'{{os.getpid()}} {{a.pid}} {{b.pid}}')\n"
        "time.sleep(99)\n"
    )
    result = within_a_limit(
        lambda limit_s: run_process(
            [PYTHON, "-c", code], log_dir=None, name="n", timeout_s=limit_s, grace_s=0.2
        ),
        lambda _: pids.exists(),
    )
    assert (result.ended, result.returncode) == ("timeout", None)
    assert result.killed == 3
    assert [alive(int(pid)) for pid in wait_for(pids).split()] == [False, False, False]


def test_the_polite_signal_is_enough_for_a_polite_program() -> None:
    code = (
        f"{HOLD_SIGNALS}print('ready', flush=True)\n"
        "if signal.sigwait(HELD) == signal.SIGINT: print('saved', flush=True)\n"
    )
    result = within_a_limit(
        lambda limit_s: run_process(
            [PYTHON, "-c", code],
            log_dir=None,
            name="n",
            timeout_s=limit_s,
            stop_signal=signal.SIGINT,
            grace_s=60,
        ),
        lambda result: "ready" in result.stdout,
    )
    assert (result.ended, result.killed) == ("timeout", 0)
    assert "saved" in result.stdout


def test_a_tool_may_clean_up_before_the_kill(tmp_path: Path) -> None:
    called: list[bool] = []
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(99)"

    def run(limit_s: float) -> ProcessResult:
        called.clear()
        return run_process(
            [PYTHON, "-c", code],
            log_dir=None,
            name="n",
            timeout_s=limit_s,
            grace_s=0.1,
            before_kill=lambda: called.append(True),
        )

    within_a_limit(run, lambda result: "deaf" in result.stdout)
    assert called == [True]


def test_orphans_of_a_program_that_ended_are_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = (
        "import subprocess,sys\n"
        "p=subprocess.Popen([sys.executable,'-c','import time; time.sleep(99)'], start_new_session=True)\n"
        f"open({str(pid)!r},'w').write(str(p.pid))\n"
    )
    result = run_process([PYTHON, "-c", code], log_dir=None, name="n", timeout_s=30)
    assert (result.ended, result.returncode, result.killed) == ("exit", 0, 1)
    assert not alive(int(pid.read_text()))


def test_a_signal_from_outside_is_distinguished_from_an_exit() -> None:
    result = run_probe([PYTHON, "-c", "import os,signal; os.kill(os.getpid(), signal.SIGSEGV)"])
    assert (result.ended, result.returncode) == ("signal", -signal.SIGSEGV)


def test_size_limit_counts_files_and_logs(tmp_path: Path) -> None:
    code = f"import time\nopen({str(tmp_path / 'big')!r},'wb').write(b'x'*2_000_000)\ntime.sleep(99)\n"
    limit = SizeLimit((tmp_path,), 1_000_000)
    result = run_process(
        [PYTHON, "-c", code], log_dir=None, name="n", timeout_s=60, size_limit=limit, grace_s=1
    )
    assert (result.ended, result.returncode) == ("size", None)

    chatty = "print('x'*2_000_000, flush=True); import time; time.sleep(99)"
    empty = tmp_path / "empty"
    empty.mkdir()
    result = run_process(
        [PYTHON, "-c", chatty],
        log_dir=tmp_path / "logs",
        name="n",
        timeout_s=60,
        size_limit=SizeLimit((empty,), 1_000_000),
        grace_s=1,
    )
    assert result.ended == "size"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["/does/not/exist"], "not found"),
        (["no-such-program-anywhere"], "not found"),
        ([], "no program"),
        ([PYTHON, "-c", "\0"], "cannot start"),
    ],
)
def test_what_cannot_be_started_is_a_tool_error_with_a_hint(argv: list[str], expected: str) -> None:
    with pytest.raises(ToolError, match=expected) as caught:
        run_probe(argv)
    assert caught.value.hint


def test_not_executable_and_missing_directory(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    with pytest.raises(ToolError, match="not executable"):
        run_probe([str(plain)])
    with pytest.raises(ToolError, match="working directory"):
        run_probe([PYTHON, "-c", ""], cwd=tmp_path / "missing")


def test_environment_is_added_and_the_marker_nests() -> None:
    code = f"import os; print(os.environ['EXTRA'], bool(os.environ.get('PATH')), os.environ['{JOB_VARIABLE}'].count(':'))"
    assert run_probe([PYTHON, "-c", code], env={"EXTRA": "1"}).stdout.split()[:2] == ["1", "True"]
    inner = (
        "from llm_perf_opt.process.launch import run_probe; import sys, os\n"
        f"print(os.environ['{JOB_VARIABLE}'])\n"
        f"print(run_probe([sys.executable, '-c', \"import os; print(os.environ['{JOB_VARIABLE}'])\"]).stdout)\n"
    )
    outer_marker, inner_marker = run_probe([PYTHON, "-c", inner]).stdout.split()
    assert inner_marker.startswith(outer_marker + ":")


def test_survivors_never_include_this_process() -> None:
    assert os.getpid() not in survivors(os.getpgrp(), "no such job")


RUNNER = """
import sys
from pathlib import Path
from llm_perf_opt.process.launch import run_process
code = "import os,time,signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN); "
code += f"open({sys.argv[1]!r},'w').write(str(os.getpid())); time.sleep(99)"
try:
    run_process([sys.executable, "-c", code], log_dir=None, name="n", timeout_s=60, grace_s=0.3)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise SystemExit(130)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_interrupting_us_ends_the_child_first(tmp_path: Path, number: int, code: int) -> None:
    pid_file = tmp_path / "pid"
    done = threading.Event()

    def interrupt() -> None:
        child = int(wait_for(pid_file))
        parent = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, number)
        done.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = run_probe([PYTHON, "-c", RUNNER, str(pid_file)], timeout_s=120)
    thread.join()
    assert done.is_set()
    assert (result.ended, result.returncode) == ("exit", code)
    assert not alive(int(pid_file.read_text()))


def test_an_error_in_a_callback_does_not_leave_the_child(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"import os,time; open({str(pid_file)!r},'w').write(str(os.getpid())); print('x', flush=True); time.sleep(99)"

    def fail(_line: str) -> None:
        raise ValueError("callback")

    with pytest.raises(ValueError, match="callback"):
        run_process([PYTHON, "-c", code], log_dir=None, name="n", timeout_s=60, on_line=fail, grace_s=0.2)
    assert not alive(int(wait_for(pid_file)))


@pytest.mark.parametrize(
    ("flags", "expected"), [(0, [77]), (0x00200000, []), (4, [])], ids=["program", "kernel thread", "ending"]
)
def test_a_process_that_is_just_becoming_another_program_is_found(
    flags: int, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has neither arguments nor environment for a moment; a kernel thread never has."""
    monkeypatch.setattr(groups, "_PROC", tmp_path)
    entry = tmp_path / "77"
    entry.mkdir()
    (entry / "stat").write_text(f"77 (some (name) S 1 77 77 0 -1 {flags} 0 0 0")
    for name in ("environ", "cmdline"):
        (entry / name).write_bytes(b"")

    def executed() -> None:
        (entry / "environ").write_bytes(b"A=1\0LLM_PERF_OPT_JOB=:1-2-x\0")
        (entry / "cmdline").write_bytes(b"sleep\0")

    later = threading.Timer(0.1, executed)
    later.start()
    assert groups.survivors(5, ":1-2-x") == expected
    later.join()


def test_a_program_without_an_environment_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_PROC", tmp_path)
    monkeypatch.setattr(groups.time, "sleep", lambda _: pytest.fail("waited"))
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "stat").write_text("77 (init) S 1 77 77 0 -1 0 0 0 0")
    (tmp_path / "77" / "environ").write_bytes(b"")
    (tmp_path / "77" / "cmdline").write_bytes(b"init\0")
    assert groups.survivors(5, ":1-2-x") == []


@pytest.mark.parametrize("stubborn", [False, True], ids=["ends when asked", "goes on when asked to stop"])
@pytest.mark.parametrize("files", [1, 50])
def test_a_program_that_writes_at_disk_speed_is_stopped_near_the_limit(
    files: int, stubborn: bool, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    code = (
        "import signal, itertools\n"
        f"signal.signal(signal.SIGTERM, {'signal.SIG_IGN' if stubborn else 'signal.SIG_DFL'})\n"
        "piece = b'x' * (1 << 20)\n"
        f"streams = [open({str(out)!r} + f'/{{n}}', 'wb', buffering=0) for n in range({files})]\n"
        "for stream in itertools.islice(itertools.cycle(streams), 2_000):\n    stream.write(piece)\n"
    )
    limit = SizeLimit((out,), 20_000_000)
    result = run_process(
        [PYTHON, "-c", code], log_dir=None, name="n", timeout_s=60, size_limit=limit, grace_s=20
    )
    left = sum(path.stat().st_size for path in out.iterdir())
    assert result.ended == "size"
    assert left <= (result.written_bytes or 0) <= left + 100_000  # the directory itself
    assert 20_000_000 < left < (600_000_000 if stubborn else 400_000_000)


def test_a_program_may_still_write_its_report_after_it_was_stopped_at_the_limit(tmp_path: Path) -> None:
    code = (
        f"{HOLD_SIGNALS}import pathlib\n"
        f"out = pathlib.Path({str(tmp_path)!r})\n"
        "(out / 'stream').write_bytes(b'x' * 1_100_000)\n"
        "assert signal.sigwait(HELD) == signal.SIGTERM\n"
        "(out / 'report').write_bytes(b'x' * 900_000)\ntime.sleep(0.3)\n"
    )
    limit = SizeLimit((tmp_path,), 1_000_000)
    result = run_process(
        [PYTHON, "-c", code], log_dir=None, name="n", timeout_s=60, size_limit=limit, grace_s=20
    )
    assert (result.ended, result.killed) == ("size", 0)
    assert (tmp_path / "report").stat().st_size == 900_000
