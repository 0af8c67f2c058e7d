"""What is run on a GPU, with the processes replaced: this path has no GPU to be tried on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.process.tools import CounterPermission
from llm_perf_opt.self_test import checks
from llm_perf_opt.self_test.known_work import ENGINE_MODES
from llm_perf_opt.stages.ncu.probe import assumed_ncu
from llm_perf_opt.workloads.engine.nvtx import PROFILER_RANGE


class Finished:
    """A process that printed something."""

    ended = "exit"

    def __init__(self, *parts: dict[str, Any]) -> None:
        self.stdout = "\n".join(["a library's line", *(json.dumps(part) for part in parts)])

    def tail(self, _count: int) -> str:
        return "the end"


def engine_part(mode: str, **changes: Any) -> dict[str, Any]:
    times = {"prefill_s": [0.1], "decode_s": [0.2]}
    return {"part": f"engine {mode}", "tokens": [1, 2], "verified": True, **times, "release": None, **changes}


def test_every_mode_of_the_engine_is_run_and_one_that_dies_loses_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> Finished:
        started.append(argv)
        return Finished(engine_part("eager"), engine_part("graphs", verified=False))

    monkeypatch.setattr(checks, "run_process", run)
    monkeypatch.setattr(checks, "missing_compiler", lambda device: None)
    found = {outcome.name: outcome for outcome in checks.engine_checks("cuda:0", tmp_path)}
    assert started[0][-4:] == ["cuda:0", *ENGINE_MODES]
    assert found["engine eager"].status == "passed" and found["engine graphs"].status == "failed"
    assert found["engine compile"].status == "failed" and not found["engine compile"].compared
    assert found["engine memory released"].status == "not possible"


def test_modes_that_a_device_lacks_are_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> Finished:
        started.append(argv)
        return Finished(engine_part("eager"))

    monkeypatch.setattr(checks, "run_process", run)
    monkeypatch.setattr(checks, "missing_compiler", lambda device: "no C++ compiler")
    found = {outcome.name: outcome.status for outcome in checks.engine_checks("cpu", tmp_path)}
    assert started[0][-2:] == ["cpu", "eager"]
    assert found["engine graphs"] == found["engine compile"] == "not possible"


def test_two_ranks_are_started_where_there_are_two_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = {"world": 2, "backend": "nccl", "low": 3.0, "high": 3.0, "nccl": "2.21.5"}
    parts = [{"part": f"collective {number}", **rank} for number in range(2)]
    monkeypatch.setattr(checks, "run_process", lambda argv, **_: Finished(*parts))
    (outcome,) = checks.collective_checks("cuda:0", tmp_path, count=2)
    assert outcome.status == "passed" and outcome.facts["version"] == "2.21.5"
    monkeypatch.setattr(checks, "run_process", lambda argv, **_: Finished())
    (outcome,) = checks.collective_checks("cuda:0", tmp_path, count=2)
    assert outcome.status == "failed" and not outcome.compared


def test_graphs_and_the_profiler_api_are_captured_on_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Any] = []

    class Tool:
        flags = frozenset({"cuda-graph-trace"})
        version_text = "2025.1"

    def refuse(request: Any, **_: Any) -> Any:
        requests.append(request)
        raise ToolError("no GPU here")

    monkeypatch.setattr(checks, "find_tool", lambda name: Path("/opt/nsys"))
    monkeypatch.setattr(checks, "probe_nsys", lambda executable: Tool())
    monkeypatch.setattr(checks, "capture", refuse)
    outcomes = checks.nsys_checks("cuda:0", tmp_path)
    assert [request.workload.argv[-2:] for request in requests] == [
        ("work", "cuda:0"),
        ("graph", "cuda:0"),
        ("profiled", "cuda:0"),
    ]
    assert [request.capture_range for request in requests] == ["none", "none", "cudaProfilerApi"]
    assert [PROFILER_RANGE in request.workload.env for request in requests] == [False, False, True]
    assert not requests[-1].ends_program, "the program goes on after the range"
    assert "--cuda-graph-trace=node" in requests[1].command()
    assert len(outcomes) == 3 and not any(outcome.compared for outcome in outcomes)


def test_ncu_filters_by_the_inner_and_the_outer_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Any] = []

    def refuse(request: Any) -> Any:
        requests.append(request)
        raise ToolError("no GPU here")

    monkeypatch.setattr(checks, "find_tool", lambda name: Path("/opt/ncu"))
    monkeypatch.setattr(checks, "probe_ncu", lambda executable: assumed_ncu())
    monkeypatch.setattr(checks, "known_metrics", lambda executable, chips: frozenset({"a__b"}))
    monkeypatch.setattr(checks, "device_metrics", lambda executable: frozenset({"sm__x", "dram__y"}))
    monkeypatch.setattr(checks, "counter_permission", lambda: CounterPermission(True, "open to all"))
    monkeypatch.setattr(checks, "run_ncu", refuse)
    ncu, *others = checks.ncu_checks("cuda:0", tmp_path)
    assert ncu.facts["device_metrics"] == ["dram__y", "sm__x"]
    assert [request.nvtx_include for request in requests] == [("self_test_sums/",), ("self_test_round/",)]
    assert [one.name for one in others] == ["counters", "ncu outer range"]
    assert not any(one.compared for one in others)
