"""What limits a phase on the processor: problems that are there, and phases that have none."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.cpu.verdict import cpu_answer
from llm_perf_opt.analysis.cpu.work import PhaseClock, phase_work
from llm_perf_opt.model.summary import Prediction, Summary
from tests.unit.summaries import cpu, gpu, operator, summary, timings

NAMES = {
    "matrix": "aten::mm",
    "movement": "aten::copy_",
    "growing cache": "aten::cat",
    "element-wise": "aten::mul",
    "unknown": "x::y",
}


def phase(
    *, host_s: float = 1.2, floor_s: float | None = None, bound: str = "memory", **parts: float
) -> Summary:
    """One second of decode without a profiler, split as planted; what is left is dispatch."""
    rows = [operator(NAMES[name.replace("_", " ")], 10, seconds) for name, seconds in parts.items()]
    data = summary(hardware=cpu(), operators=rows, timings=timings(decode=1.0))
    work = phase_work(rows, PhaseClock(host_s, 1.0), grows=True)
    assert work is not None
    data.cpu_work = {"decode": work}
    if floor_s is not None:
        data.predictions = {"decode": Prediction(floor_s, bound, 1.0 / floor_s, "bytes ÷ bandwidth")}  # type: ignore[arg-type]
    return data


@pytest.mark.parametrize(
    ("data", "bound", "words"),
    [
        (phase(matrix=0.2, growing_cache=0.1), "launch", "dispatch is the largest part"),
        (phase(matrix=0.2, growing_cache=0.6), "memory", "memory movement is the largest part"),
        (phase(matrix=0.3, movement=0.2, growing_cache=0.3), "memory", "memory movement is the largest part"),
        (phase(matrix=0.7, floor_s=0.35), "memory", "roofline floor is set by memory"),
        (phase(matrix=0.7, floor_s=0.35, bound="compute"), "compute", "roofline floor is set by compute"),
        (phase(matrix=0.7, floor_s=0.1), "unknown", "reaches 14.3 % of its memory limit"),
        (phase(matrix=0.7), "unknown", "its limit is not known"),
        (phase(matrix=0.45, movement=0.45, floor_s=0.3, bound="compute"), "balanced", "are even"),
        (phase(matrix=0.45, movement=0.45, floor_s=0.3), "memory", "matrix work that reads memory"),
        (phase(matrix=0.45, movement=0.45), "unknown", "as large as one another"),
        (phase(matrix=0.42), "launch", "dispatch is the largest part"),
        (phase(matrix=0.49), "unknown", "as large as one another"),
        (phase(**{"element-wise": 0.7}), "unknown", "their sizes were not recorded"),
        (phase(unknown=0.7), "unknown", "not known to be any kind of work"),
        (phase(matrix=0.3, movement=0.2, **{"element-wise": 0.2}), "unknown", "no single limit"),
    ],
)
def test_the_largest_part_decides(data: Summary, bound: str, words: str) -> None:
    found = cpu_answer(data, "decode")
    assert found is not None
    assert found.bound == bound
    assert words in found.arithmetic


def test_the_profilers_own_time_is_not_dispatch() -> None:
    """0.8 s of products in 1 s; the profiler makes 3 s of it, two thirds of them outside operators."""
    found = cpu_answer(phase(host_s=3.0, matrix=0.8, floor_s=0.4), "decode")
    assert found is not None and found.bound == "memory"


def test_launch_is_never_said_without_the_unprofiled_time() -> None:
    data = phase(matrix=0.2)
    data.cpu_work = {}
    work = phase_work(data.operators, PhaseClock(host_s=1.2))
    assert work is not None
    data.cpu_work = {"decode": work}
    found = cpu_answer(data, "decode")
    assert found is not None and found.bound == "unknown"
    assert "outside operators" in found.arithmetic


def test_the_sentence_has_its_shares_and_the_largest_operator() -> None:
    found = cpu_answer(phase(matrix=0.25, growing_cache=0.6, movement=0.01), "decode")
    assert found is not None
    assert found.arithmetic == (
        "memory movement is the largest part: of 1.00 s without a profiler: copying the growing cache 60.0 %, matrix work 25.0 %, "
        "dispatch (Python, views, calls) 14.0 %; the largest operator is aten::cat (60.0 %)"
    )
    assert found.sources == ("trace",)


def test_nothing_is_said_of_a_device_or_without_operators() -> None:
    rows = [operator("aten::mm", 1, 1.0)]
    assert cpu_answer(summary(hardware=gpu(), operators=rows), "decode") is None
    assert cpu_answer(summary(hardware=cpu()), "decode") is None
    assert cpu_answer(summary(hardware=cpu(), operators=rows), "prefill") is None
