"""Single calls with their shapes: found in every layout, at the nanosecond the timeline has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.captures.kineto.calls import has_shapes, read_operator_calls
from llm_perf_opt.captures.kineto.reader import read_kineto
from tests.unit.kineto_traces import LAYOUTS, annotation, document, op, span, write

WANTED = frozenset(("aten::mm", "aten::linear"))


def shaped(name: str, start: float, dur: float, dims: Any, **more: Any) -> dict[str, Any]:
    args = {
        "External id": 1,
        "Input Dims": dims,
        "Input type": ["float"] * len(dims),
        "Concrete Inputs": [""] * len(dims),
    }
    return span("cpu_op", name, start, dur, args=args, **more)


def events(base: float = 0.0) -> list[dict[str, Any]]:
    part = 0.125 if not base else 0.0  # a Python float since 1970 has no such digits
    return [
        annotation("decode", base, 100.0),
        shaped("aten::linear", base + 1 + part, 8.5, [[2, 3], [4, 3], []]),
        shaped("aten::mm", base + 2 + part, 4.0, [[2, 3], [3, 4]]),
        shaped("aten::relu", base + 3, 1.0, [[2, 3]]),
        shaped("aten::mm", base + 20, 4.0, [[2, 3], [3, 4]], tid=99),
        op("aten::mm", base + 30, 1.0),
        span("user_annotation", "aten::mm", base + 40, 1.0),
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [0.0, 1_700_000_000_000_000.0], ids=["relative", "since 1970"])
def test_calls_have_the_shapes_and_times_of_the_trace(layout: str, base: float, tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", document(events(base), record_shapes=1), layout)
    capture = read_kineto(path)
    calls = read_operator_calls(path, WANTED, capture.facts["threads"])
    origin = int(base) * 1000
    names = [calls.signatures[number].name for number in calls.signature]
    assert names == ["aten::linear", "aten::mm", "aten::mm", "aten::mm"]
    part = 125 if not base else 0
    assert (calls.start_ns - origin).tolist() == [1000 + part, 2000 + part, 30000, 20000]
    assert (calls.end_ns - calls.start_ns).tolist() == [8500, 4000, 1000, 4000]
    assert calls.signatures[calls.signature[1]].dims == ([2, 3], [3, 4])
    assert calls.signatures[calls.signature[1]].types == ("float", "float")
    assert calls.signatures[calls.signature[2]].dims == ()
    # Threads are numbered as in the timeline.
    threads = [capture.facts["threads"][number]["tid"] for number in calls.thread]
    assert threads == [4242, 4242, 4242, 99]
    assert int(capture.timeline.ranges.start_ns[0]) == origin


def test_equal_inputs_are_one_signature(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.json.gz", document([shaped("aten::mm", i, 0.5, [[2, 3], [3, 4]]) for i in range(50)])
    )
    calls = read_operator_calls(path, WANTED, read_kineto(path).facts["threads"])
    assert (len(calls), len(calls.signatures)) == (50, 1)


def test_events_of_other_types_do_not_hide_the_rest(tmp_path: Path) -> None:
    odd: list[dict[str, Any]] = [
        {"ph": "X", "cat": None, "name": "x", "pid": 1, "tid": 1, "ts": 1, "dur": 1},
        {"ph": "X", "cat": "cpu_op", "name": 7, "pid": 1, "tid": 1, "ts": 1, "dur": 1, "args": {}},
        {**shaped("aten::mm", 5, 1.0, [[2, 3], [3, 4]]), "ts": "5", "dur": "1.5"},
        {**shaped("aten::mm", 6, 1.0, [[2, 3], [3, 4]]), "ts": "soon"},
        {**shaped("aten::mm", 7, 1.0, []), "args": 3},
        {**shaped("aten::mm", 8, 1.0, []), "args": {"Input Dims": "[[2, 3]]"}},
    ]
    strange: list[Any] = [17, None, {**shaped("aten::mm", 9, 1.0, []), "pid": 10**30}]
    path = write(tmp_path / "t.json", document([*odd, *strange, op("aten::relu", 20, 1.0)]))
    calls = read_operator_calls(path, WANTED, [{"pid": 4242, "tid": 4242}])
    assert calls.start_ns.tolist() == [5000, 7000, 8000]
    assert (calls.end_ns - calls.start_ns).tolist()[0] == 1500
    assert [calls.signatures[number].dims for number in calls.signature] == [([2, 3], [3, 4]), (), ()]


def test_threads_that_cannot_be_distinguished_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", document([shaped("aten::mm", 1, 1.0, [[2, 3], [3, 4]])]))
    twice = [{"pid": 4242, "tid": 4242}, {"pid": 4242, "tid": 4242}]
    assert len(read_operator_calls(path, WANTED, twice)) == 0
    assert len(read_operator_calls(path, WANTED, [])) == 0


def test_a_trace_records_whether_it_has_shapes() -> None:
    assert has_shapes({"record_shapes": 1})
    assert not has_shapes({"record_shapes": 0})
    assert not has_shapes({})
