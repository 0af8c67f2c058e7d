"""predictions.jsonl: nothing lost, nothing twice, nothing mixed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.workloads.outputs.writer import PredictionLog, read_predictions


def line(name: str, **extra: Any) -> dict[str, Any]:
    return {"id": name, "sha256": f"hash-{name}", "workload": "w", "text": "é\u2028\n", **extra}


def write(path: Path, *names: str, workload: str = "w") -> None:
    log = PredictionLog(path, workload)
    for name in names:
        log.append(line(name, workload=workload))
    log.close()


def ids(path: Path) -> list[str]:
    return [record["id"] for record in read_predictions(path)]


def test_lines_are_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "predictions.jsonl"
    log = PredictionLog(path, "w")
    for number in range(3):
        log.append(line(str(number)))
        assert ids(path) == [str(index) for index in range(number + 1)]
    log.close()
    log.close()


def test_each_line_is_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), real(descriptor))[1])
    write(tmp_path / "p.jsonl", "a", "b")
    assert len(synced) == 2


@given(cut=st.integers(min_value=0))
def test_a_file_cut_anywhere_loses_at_most_one_line(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "p.jsonl"
    write(path, "a", "b", "c")
    content = path.read_bytes()
    cut %= len(content) + 1
    path.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n")
    log = PredictionLog(path, "w")
    assert [log.record(name, f"hash-{name}") is not None for name in "abc"] == [n < whole for n in range(3)]
    log.append(line("z"))
    log.close()
    assert ids(path) == [*"abc"[:whole], "z"]
    assert path.read_bytes().count(b"\n") == whole + 1


def test_a_killed_process_loses_nothing_it_had_written(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from llm_perf_opt.workloads.outputs.writer import PredictionLog\n"
        f"log = PredictionLog(Path({str(path)!r}), 'w')\n"
        "for n in range(4): log.append({'id': str(n), 'sha256': None, 'workload': 'w'})\n"
        'os.write(log._descriptor, b\'{"id": "torn\')\n'
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=240)
    assert done.returncode == -signal.SIGKILL
    log = PredictionLog(path, "w")
    assert [log.record(str(n), None) is not None for n in range(5)] == [True] * 4 + [False]
    log.close()
    assert path.read_bytes().endswith(b"}\n")


def test_a_changed_image_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    write(path, "a")
    log = PredictionLog(path, "w")
    assert log.record("a", "another hash") is None
    log.close()


def test_lines_of_another_workload_are_set_aside_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    write(path, "a", "b", workload="old")
    before = path.read_bytes()
    write(path, "c", workload="new")
    assert ids(path) == ["c"]
    assert (tmp_path / "predictions.old-1.jsonl").read_bytes() == before
    write(path, "d", workload="newer")
    assert ids(tmp_path / "predictions.old-2.jsonl") == ["c"]


def test_garbage_between_lines_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    write(path, "a")
    with path.open("ab") as stream:
        stream.write(b'\xff\x00 nonsense\n[1]\n{"no": "id"}\n' + json.dumps(line("b")).encode() + b"\n")
    log = PredictionLog(path, "w")
    log.close()
    assert ids(path) == ["a", "b"]
    assert path.read_bytes().count(b"\n") == 2


def test_a_full_disk_leaves_a_readable_file_and_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.jsonl"
    log = PredictionLog(path, "w")
    log.append(line("a"))
    real = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(ToolError, match="no space left"):
            log.append(line("b"))
    log.append(line("c"))
    log.close()
    assert ids(path) == ["a", "c"]


def test_names_that_are_not_text_survive_as_json(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    log = PredictionLog(path, "w")
    log.append(line("a", text="caf\udce9"))
    log.close()
    assert next(read_predictions(path))["text"] == "caf\udce9"
    path.read_text(encoding="utf-8")
