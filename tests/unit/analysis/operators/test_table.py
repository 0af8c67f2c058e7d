"""Operators: self and total time, nested calls of one name, device time, ranking; checked against torch."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from llm_perf_opt.analysis.operators.table import operator_records
from llm_perf_opt.analysis.timeline.attribution import attribute
from llm_perf_opt.captures.kineto.reader import read_kineto
from llm_perf_opt.summary import Operator
from tests.unit.kineto_traces import annotation, call, document, kernel, op, write

NESTED = [
    annotation("prefill", 0.0, 100.0),
    op("aten::linear", 10.0, 40.0, 1),
    op("aten::to", 12.0, 20.0, 2),
    op("aten::to", 14.0, 10.0, 3),  # calls itself: 20 µs in total, not 30
    op("aten::mm", 35.0, 10.0, 4),
    call("cudaLaunchKernel", 36.0, 2.0, 21),
    call("cudaLaunchKernel", 16.0, 2.0, 22),
    annotation("decode", 200.0, 50.0),
    op("aten::mm", 210.0, 30.0, 5),
    call("cudaLaunchKernel", 215.0, 2.0, 23),
    kernel("gemm", 60.0, 8.0, 21, 4),
    kernel("copy", 70.0, 2.0, 22, 3),
    kernel("gemv", 260.0, 3.0, 23, 5),
]


def records(path: Path, **options: object) -> list[Operator]:
    capture = read_kineto(path)
    return operator_records(capture.operators, capture.timeline, attribute(capture.timeline), **options)  # type: ignore[arg-type]


def by_name(found: list[Operator]) -> dict[tuple[str | None, str], Operator]:
    return {(record.phase, record.name): record for record in found}


@pytest.mark.parametrize("with_ids", [True, False])
def test_self_and_total_times(tmp_path: Path, with_ids: bool) -> None:
    """Without ids on the events, the running operator is found by time: same answer."""
    events = [
        {**event, "args": {k: v for k, v in event["args"].items() if with_ids or k != "External id"}}
        for event in NESTED
    ]
    found = by_name(records(write(tmp_path / "t.json", document(events))))
    linear, to, mm = (
        found["prefill", "aten::linear"],
        found["prefill", "aten::to"],
        found["prefill", "aten::mm"],
    )
    assert (linear.self_cpu_s, linear.total_cpu_s) == (10e-6, 40e-6)
    assert (to.calls, to.self_cpu_s, to.total_cpu_s) == (2, 20e-6, 20e-6)
    assert (linear.self_device_s, linear.total_device_s) == (0.0, 10e-6)
    assert (to.self_device_s, to.total_device_s) == (2e-6, 2e-6)
    assert (mm.self_device_s, mm.total_device_s) == (8e-6, 8e-6)
    assert found["decode", "aten::mm"].self_device_s == 3e-6


def test_self_times_add_up_to_the_outermost_calls(tmp_path: Path) -> None:
    found = records(write(tmp_path / "t.json", document(NESTED)))
    assert sum(record.self_cpu_s for record in found) == pytest.approx(70e-6)
    assert sum(record.self_device_s or 0.0 for record in found) == pytest.approx(13e-6)


def test_order_is_phase_then_rank_then_name(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", document(NESTED))
    keys = [(record.phase, record.name) for record in records(path)]
    assert keys == [
        ("prefill", "aten::mm"),
        ("prefill", "aten::to"),
        ("prefill", "aten::linear"),
        ("decode", "aten::mm"),
    ]
    assert [record.name for record in records(path, rank_by="total_cpu")][:2] == ["aten::linear", "aten::to"]
    assert next(record.name for record in records(path, rank_by="calls")) == "aten::to"
    assert len(records(path, limit=1)) == 2


def test_order_does_not_depend_on_the_file(tmp_path: Path) -> None:
    ahead = records(write(tmp_path / "a.json", document(NESTED)))
    behind = records(write(tmp_path / "b.json", document(NESTED[::-1])))
    assert ahead == behind


def test_threads_do_not_nest_into_each_other(tmp_path: Path) -> None:
    events = [op("outer", 0.0, 100.0), op("inner", 10.0, 10.0, tid=77)]
    found = by_name(records(write(tmp_path / "t.json", document(events))))
    assert found[None, "outer"].self_cpu_s == 100e-6


def test_kernels_of_a_graph_belong_to_no_operator(tmp_path: Path) -> None:
    events = [
        annotation("decode", 0.0, 50.0),
        call("cudaGraphLaunch", 5.0, 5.0, 9),
        kernel("a", 20.0, 4.0, 9),
        op("aten::mm", 30.0, 5.0, 3),
    ]
    found = by_name(records(write(tmp_path / "t.json", document(events))))
    assert found["decode", "aten::mm"].self_device_s == 0.0


# --- against torch itself --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    """A real profile on the CPU with nested operators, annotations and a second thread."""
    import threading

    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)
    )
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        with record_function("prefill"):
            model(torch.randn(16, 32))
        for _ in range(5):
            with record_function("decode"), record_function("decode_step"):
                torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 4, 8)).softmax(-1)
        other = threading.Thread(target=lambda: torch.randn(64, 64) @ torch.randn(64, 64))
        other.start()
        other.join()
    path = tmp_path_factory.mktemp("profile") / "trace.json"
    profiler.export_chrome_trace(str(path))
    return path, profiler


def test_times_equal_key_averages(profiled: tuple[Path, object]) -> None:
    path, profiler = profiled
    calls: dict[str, int] = defaultdict(int)
    self_s: dict[str, float] = defaultdict(float)
    total_s: dict[str, float] = defaultdict(float)
    for record in records(path):
        calls[record.name] += record.calls
        self_s[record.name] += record.self_cpu_s
        total_s[record.name] += record.total_cpu_s
    theirs = {
        row.key: row for row in profiler.key_averages() if row.key not in ("prefill", "decode", "decode_step")
    }  # type: ignore[attr-defined]
    assert calls == {name: row.count for name, row in theirs.items()}
    for name, row in theirs.items():
        # torch keeps microseconds as floats; one nanosecond per call is lost on either side at most.
        tolerance = 2e-9 * row.count
        assert self_s[name] == pytest.approx(row.self_cpu_time_total / 1e6, abs=tolerance), name
        assert total_s[name] <= row.cpu_time_total / 1e6 + tolerance, name


def test_totals_equal_torch_where_nothing_calls_itself(profiled: tuple[Path, object]) -> None:
    path, profiler = profiled
    nested = set()
    for event in profiler.events():  # type: ignore[attr-defined]
        above = event.cpu_parent
        while above is not None:
            if above.name == event.name:
                nested.add(event.name)
            above = above.cpu_parent
    total_s: dict[str, float] = defaultdict(float)
    for record in records(path):
        total_s[record.name] += record.total_cpu_s
    compared = [row for row in profiler.key_averages() if row.key in total_s and row.key not in nested]  # type: ignore[attr-defined]
    assert len(compared) > 10
    for row in compared:
        assert total_s[row.key] == pytest.approx(row.cpu_time_total / 1e6, abs=2e-9 * row.count), row.key


def test_without_phases_every_operator_is_summed_once(tmp_path: Path) -> None:
    capture = read_kineto(write(tmp_path / "t.json", document(NESTED)))
    plain = operator_records(capture.operators, capture.timeline)
    assert {op.phase for op in plain} == {None}
    assert len({op.name for op in plain}) == len(plain)
    split = operator_records(capture.operators, capture.timeline, attribute(capture.timeline))
    assert sum(op.calls for op in plain) == sum(op.calls for op in split)
