"""A program that says more than anybody can keep: memory, logs, limits and Ctrl-C hold all the same."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from llm_perf_opt.process.launch import (
    HEAD_BYTES,
    LINE_BYTES,
    TAIL_BYTES,
    BoundedLog,
    LineSplitter,
    OutputReader,
    run_probe,
    run_process,
)
from tests.nsys_support import alive

_MARKER_LINE = 200
MEGABYTE = 1 << 20

FLOOD = """
import os, threading
line = {line!r} * 1000
def write(number):
    while True:
        os.write(number, line)
threading.Thread(target=write, args=(2,), daemon=True).start()
write(1)
"""
"""Both streams at full speed, with and without ends of lines."""

RUNNER = """
import json, resource, sys
from pathlib import Path
from llm_perf_opt.process.launch import run_process
from llm_perf_opt.core.console.signals import Interrupted, stop_signals
folder, code, limit = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
lines = 0
def on_line(line):
    global lines
    lines += 1
    (folder / "began").touch()
with stop_signals():
    try:
        result = run_process([sys.executable, "-c", code], log_dir=folder, name="flood", timeout_s=limit, on_line=on_line, grace_s=1)
        ended = result.ended
    except Interrupted:
        ended = "interrupted"
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(json.dumps({"ended": ended, "grown": grown, "lines": lines}))
"""


def _processes_with(text: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and alive(int(entry.name)):
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("line", [b"0123456789abcdef\n", b"no end "], ids=["lines", "one endless line"])
def test_a_flood_is_bounded_in_memory_and_on_disk_and_the_time_limit_holds(
    line: bytes, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(tmp_path), FLOOD.format(line=line), "2"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert output["ended"] == "timeout"
    assert output["lines"] > 0
    assert output["grown"] < 200 * MEGABYTE
    for log in (tmp_path / "flood.stdout.log", tmp_path / "flood.stderr.log"):
        assert log.stat().st_size <= HEAD_BYTES + TAIL_BYTES + 2 * LINE_BYTES + _MARKER_LINE


def test_ctrl_c_works_during_a_flood(tmp_path: Path) -> None:
    code = FLOOD.format(line=b"0123456789abcdef\n") + f"# {tmp_path}\n"
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path), code, "300"], stdout=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "began").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert json.loads(output)["ended"] == "interrupted"
    assert not _processes_with(str(tmp_path))


def test_a_log_keeps_beginning_and_end_and_notes_what_is_left_out(tmp_path: Path) -> None:
    code = "import sys\nfor i in range(300_000): sys.stdout.write(f'line {i:060d}\\n')"
    result = run_process([sys.executable, "-c", code], log_dir=tmp_path, name="n", timeout_s=120)
    assert result.ok
    text = (tmp_path / "n.stdout.log").read_text()
    first, marker, last = text.partition("[… ")
    assert first.startswith(f"line {0:060d}\n")
    assert last.endswith(f"line {299_999:060d}\n")
    left_out = int(last.split(" ", 1)[0])
    kept = len(first.encode()) - 1 + len(last.partition("…]\n")[2].encode())
    assert marker
    assert left_out + kept == 300_000 * 66
    assert result.stdout.endswith(f"line {299_999:060d}\n")


def test_the_result_of_a_probe_that_floods_is_bounded() -> None:
    result = run_probe([sys.executable, "-c", FLOOD.format(line=b"x" * 80 + b"\n")], timeout_s=2.0)
    assert result.ended == "timeout"
    assert len(result.stdout) <= 64 * MEGABYTE


def test_a_callback_that_never_returns_does_not_hold_up_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that nobody reads stops whoever prints to it."""
    monkeypatch.setattr(OutputReader.finish, "__defaults__", (0.5,))
    gate = threading.Event()
    code = "import time\nprint('x', flush=True)\ntime.sleep(99)"
    threading.Timer(20.0, gate.set).start()
    result = run_process(
        [sys.executable, "-c", code], log_dir=tmp_path, name="n", timeout_s=1.0, grace_s=0.5, on_line=lambda _: gate.wait() and None,
    )  # fmt: skip
    assert result.ended == "timeout"
    assert not gate.is_set()
    gate.set()


def test_a_program_that_escaped_and_holds_the_pipe_does_not_hold_us(tmp_path: Path) -> None:
    """Without our marker and group it is not ours to end, but we do not wait for it either."""
    pid = tmp_path / "pid"
    code = (
        "import subprocess,sys\n"
        "p=subprocess.Popen([sys.executable,'-c','import time; time.sleep(60)'], env={}, start_new_session=True)\n"
        f"open({str(pid)!r},'w').write(str(p.pid))\nprint('end')\n"
    )
    result = run_process([sys.executable, "-c", code], log_dir=tmp_path, name="n", timeout_s=50)
    try:
        assert (result.ended, result.returncode, result.stdout) == ("exit", 0, "end\n")
        assert alive(int(pid.read_text()))
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_full_disk_costs_the_log_and_not_the_program(tmp_path: Path) -> None:
    """A file may not grow above a limit here, which fails like a full disk."""
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from llm_perf_opt.process.launch import run_process\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        'child = \'print("x" * 50_000); print("end")\'\n'
        "result = run_process([sys.executable, '-c', child], log_dir=Path(sys.argv[1]), name='n', timeout_s=60)\n"
        "print(result.ended, result.returncode)\n"
    )
    assert resource.RLIMIT_FSIZE is not None
    done = run_probe([sys.executable, "-c", code, str(tmp_path)], timeout_s=60)
    assert done.stdout.split() == ["exit", "0"], done.stderr


def test_lines_are_handed_over_in_bounded_pieces() -> None:
    seen: list[str] = []
    splitter = LineSplitter(seen.append, longest=10)
    for piece in (b"ab", b"c\rde\n\n", b"x" * 25, b"y\n", b"last"):
        splitter.feed(piece)
    splitter.end()
    assert seen == ["abc", "de", "x" * 10, "x" * 10, "x" * 5 + "y", "last"]


@pytest.mark.parametrize("size", [0, 5, 10, 15, 20, 21, 1000])
def test_a_bounded_log_in_memory_and_in_a_file_keep_the_same(size: int, tmp_path: Path) -> None:
    data = bytes(97 + i % 26 for i in range(size))
    logs = [BoundedLog(path, head_bytes=10, tail_bytes=10) for path in (None, tmp_path / "log")]
    for log in logs:
        for at in range(0, size, 3):
            log.write(data[at : at + 3])
        log.close()
    memory, file = (log.last(10_000) for log in logs)
    assert memory == file == (tmp_path / "log").read_text()
    assert memory.startswith(data[:10].decode())
    assert memory.endswith(data[-10:].decode() if size else "")
    assert ("left out" in memory) == (logs[0].left_out > 0)
    assert logs[0].left_out <= max(0, size - 20)
