"""The profiled window: every failure leaves a reason, and a trace that ends early is read up to there."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any, cast

import pytest

from llm_perf_opt.stages.serve import profile_window
from llm_perf_opt.stages.serve.config import ClientName, EngineName, ServeConfig
from llm_perf_opt.stages.serve.engines import profiler_arguments
from llm_perf_opt.stages.serve.profile_window import (
    TRACES,
    Window,
    check_traces,
    key_problems,
    profile_load,
    ranks_of,
    salvage,
    split_steps,
)
from llm_perf_opt.stages.serve.server import Server

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 1}


def write_trace(folder: Path, rank: int = 0, *, keep: float = 1.0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    events = [{**EVENT, "ts": float(place)} for place in range(400)]
    text = json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": "trace"}).encode()
    packed = gzip.compress(text)
    path = folder / f"w_rank{rank}.1.pt.trace.json.gz"
    path.write_bytes(packed[: int(len(packed) * keep)])
    return path


class FakeServer:
    """Answers to the two routes, and writes what an engine would."""

    def __init__(self, folder: Path, start: int | None = 200, stop: int | None = 200, ranks: int = 1) -> None:
        self.folder, self.answers, self.ranks = (
            folder,
            {"/start_profile": start, "/stop_profile": stop},
            ranks,
        )
        self.requested: list[str] = []
        self.is_alive = True

    def get(self, path: str, *, post: bool = False, timeout_s: float = 0.0) -> tuple[int | None, str]:
        assert post and timeout_s > 0
        self.requested.append(path)
        if path == "/stop_profile" and self.answers[path] == 200:
            for rank in range(self.ranks):
                write_trace(self.folder / TRACES, rank)
        return self.answers[path], "said"


def profiled(server: FakeServer, folder: Path, *arguments: str, timeout_s: float = 2.0) -> Window:
    async def send() -> int:
        return 3

    config = ServeConfig(
        engine=EngineName.vllm, args=list(arguments), profile=True, profile_timeout_s=timeout_s
    )
    return asyncio.run(profile_load(cast(Server, server), config, folder, "4 in flight", send))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_window, "_POLL_S", 0.001)


def test_a_window_has_its_traces(tmp_path: Path) -> None:
    window = profiled(FakeServer(tmp_path), tmp_path)
    assert window.problem is None and window.notes == [] and window.requests == 3
    assert window.traces == ["w_rank0.1.pt.trace.json.gz"] and window.salvaged == []
    assert window.begin_s <= window.end_s and window.document()["label"] == "4 in flight"


@pytest.mark.parametrize(
    ("status", "word"), [(404, "--profiler-config"), (409, "already"), (500, "500"), (None, "answer")]
)
def test_a_refused_start_is_a_reason_and_nothing_is_stopped(
    tmp_path: Path, status: int | None, word: str
) -> None:
    server = FakeServer(tmp_path, start=status)
    window = profiled(server, tmp_path)
    assert window.problem is not None and word in window.problem
    assert server.requested == ["/start_profile"] and window.requests == 0


def test_an_engine_that_never_writes_its_trace_is_given_up(tmp_path: Path) -> None:
    window = profiled(FakeServer(tmp_path, stop=None), tmp_path, timeout_s=0.05)
    assert window.problem is not None and window.notes and window.requests == 3


def test_an_engine_that_dies_in_the_flush_is_not_waited_for(tmp_path: Path) -> None:
    server = FakeServer(tmp_path, stop=None)
    server.is_alive = False
    window = profiled(server, tmp_path, timeout_s=3600)
    assert window.problem is not None


def test_a_load_without_end_is_stopped(tmp_path: Path) -> None:
    async def send() -> int:
        await asyncio.sleep(3600)
        return 0

    config = ServeConfig(engine=EngineName.vllm, profile=True, profile_timeout_s=0.05)
    server = FakeServer(tmp_path)
    window = asyncio.run(profile_load(cast(Server, server), config, tmp_path, "x", send))
    assert server.requested == ["/start_profile", "/stop_profile"] and window.notes and window.traces


def test_a_full_disk_is_seen_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1))
    server = FakeServer(tmp_path)
    window = profiled(server, tmp_path)
    assert window.problem is not None and server.requested == []


def test_every_rank_needs_a_trace(tmp_path: Path) -> None:
    whole = profiled(FakeServer(tmp_path, ranks=2), tmp_path, "--tensor-parallel-size", "2")
    assert len(whole.traces) == 2 and not whole.notes
    other = tmp_path / "other"
    other.mkdir()
    half = profiled(FakeServer(other, ranks=1), other, "-tp=2", timeout_s=0.05)
    assert len(half.traces) == 1 and any("1 of 2" in note for note in half.notes)


@pytest.mark.parametrize("keep", [0.95, 0.6])
def test_a_trace_that_ends_early_is_kept_up_to_there(tmp_path: Path, keep: float) -> None:
    write_trace(tmp_path, keep=keep)
    window = Window("x")
    check_traces(window, tmp_path, 1)
    assert window.problem is None and len(window.salvaged) == 1 and window.notes
    kept = json.loads((tmp_path / window.salvaged[0]).read_text())
    assert 0 < len(kept["traceEvents"]) < 400


def test_what_holds_no_event_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "a.pt.trace.json").write_text('{"traceEvents": [{"ph": ')
    (tmp_path / "b.pt.trace.json.gz").write_bytes(b"\x1f\x8b nothing")
    window = Window("x")
    check_traces(window, tmp_path, 1)
    assert window.problem is not None and window.traces == [] and len(window.notes) == 3
    assert salvage(tmp_path / "a.pt.trace.json") is None


def test_steps_of_the_window_are_kept_apart(tmp_path: Path) -> None:
    path, target = tmp_path / "steps.jsonl", tmp_path / "profiled.jsonl"
    lines: list[dict[str, Any]] = [{"t": 1.0}, {"t": 2.0}, {"t": 5.0}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "torn\n")
    assert split_steps(path, Window("x", begin_s=4.0), target)
    assert [json.loads(line)["t"] for line in target.read_text().splitlines()] == [5.0]
    assert path.read_text().count("\n") == 3
    assert not split_steps(path, Window("x"), target)


def test_the_profiler_is_bounded_when_it_is_configured() -> None:
    name, text = profiler_arguments(Path("/runs/a b"), 12)
    settings = json.loads(text)
    assert name == "--profiler-config" and settings["max_iterations"] == 12
    assert settings["torch_profiler_dir"] == "/runs/a b" and settings["torch_profiler_with_stack"] is False
    assert settings["ignore_frontend"] is True


def test_ranks_and_keys() -> None:
    assert (
        ranks_of([]) == 1
        and ranks_of(["--tensor-parallel-size=2", "-pp", "3"]) == 6
        and ranks_of(["-tp"]) == 1
    )
    assert key_problems(ServeConfig(engine=EngineName.sglang, profile=True)) is not None
    assert (
        key_problems(ServeConfig(engine=EngineName.vllm, profile=True, client=ClientName.aiperf)) is not None
    )
    assert key_problems(ServeConfig(engine=EngineName.vllm, profile=True)) is None
    assert key_problems(ServeConfig(engine=EngineName.sglang)) is None
