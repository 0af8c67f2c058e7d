"""A run's graphs named after the trace of their recording: kernel for kernel, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.operators.graph_join import (
    GraphOwner,
    graph_operator_times,
    join_graphs,
    join_note,
)
from llm_perf_opt.analysis.timeline.attribution import attribute
from llm_perf_opt.captures.kineto.calls import RecordedKernel, RecordedRun, read_recorded
from tests.text_facts import mentions
from tests.unit.kineto_traces import annotation, call, document, kernel, op, span, write
from tests.unit.timelines import make_timeline


def launch(name: str, start: float, correlation: int, kernel_name: str | None = None) -> dict[str, Any]:
    args: dict[str, Any] = {"correlation": correlation}
    if kernel_name is not None:
        args["kernel"] = kernel_name
    return span("cuda_runtime", name, start, 0.5, args=args)


def layer(start: float, number: int, correlation: int, *, named: bool) -> list[dict[str, Any]]:
    """One layer as an engine runs it: a norm, then a product."""
    return [
        annotation(f"nn.Module: model.layers.{number}.mlp", start, 10),
        op("aten::rms_norm", start + 1, 3),
        launch("hipLaunchKernel", start + 2, correlation, "norm" if named else None),
        op("aten::linear", start + 5, 4),
        op("aten::mm", start + 6, 2),
        launch("hipLaunchKernel", start + 7, correlation + 1, "gemm" if named else None),
    ]


def recorded_with_names(folder: Path) -> Path:
    events = [launch("hipStreamBeginCapture", 0, 1), *layer(10, 0, 2, named=True), launch("hipStreamEndCapture", 30, 9),
              launch("hipStreamBeginCapture", 40, 11), *layer(50, 1, 12, named=True), launch("hipStreamEndCapture", 70, 19)]  # fmt: skip
    return write(folder / "capture.json", document(events))


def recorded_after_a_warm_up(folder: Path) -> Path:
    events = [
        *layer(10, 0, 2, named=False), kernel("norm", 100, 5, 2), kernel("gemm", 105, 5, 3),
        *layer(30, 1, 4, named=False), kernel("norm", 110, 5, 4), kernel("gemm", 115, 5, 5),
        call("cudaStreamBeginCapture", 200, 1, 50), *layer(210, 0, 60, named=False), call("cudaStreamEndCapture", 230, 1, 51),
    ]  # fmt: skip
    return write(folder / "capture.json", document(events))


def execution(*graphs: tuple[str, ...]):  # type: ignore[no-untyped-def]
    calls = [(10 * place + 10, 10 * place + 12, "hipGraphLaunch") for place in range(len(graphs))]
    names = [(name, place) for place, graph in enumerate(graphs) for name in graph]
    ops = [(1000 + 10 * place, 1010 + 10 * place, name, graph) for place, (name, graph) in enumerate(names)]
    return make_timeline(ops, calls, [(0, 500, "execute_context_0(0)_generation_4(4)")])


def test_recorded_launches_are_read_with_their_operator_and_ranges(tmp_path: Path) -> None:
    graphs = [run for run in read_recorded(recorded_with_names(tmp_path)) if run.is_graph]
    assert [[kernel.name for kernel in run.kernels] for run in graphs] == [["norm", "gemm"], ["norm", "gemm"]]
    assert [kernel.operator for kernel in graphs[0].kernels] == ["aten::rms_norm", "aten::mm"]
    assert graphs[1].kernels[0].ranges == ("nn.Module: model.layers.1.mlp",)


@pytest.mark.parametrize("make", [recorded_with_names, recorded_after_a_warm_up])
def test_equal_sequences_get_the_operators_all_recordings_agree_on(make: Any, tmp_path: Path) -> None:
    run = execution(("norm", "gemm"), ("norm", "gemm"))
    join = join_graphs(run, read_recorded(make(tmp_path)))
    assert (join.graphs, join.joined_graphs, join.kernel_time_ratio) == (2, 2, 1.0)
    assert join.owners[0] == GraphOwner("aten::rms_norm", "model.layers.*.mlp")
    assert join.owners[3] == GraphOwner("aten::mm", "model.layers.*.mlp")
    times = graph_operator_times(run, attribute(run), join)
    assert [(row.operator, row.phase, row.kernels, row.device_s) for row in times] == [
        ("aten::mm", "decode", 2, pytest.approx(20e-9)),
        ("aten::rms_norm", "decode", 2, pytest.approx(20e-9)),
    ]
    assert mentions(join_note(join), "2", "100 %")


@pytest.mark.parametrize("graph", [("gemm", "norm"), ("norm", "gemm", "norm"), ("norm",), ("norm", "other")])
def test_sequences_that_differ_stay_unnamed(graph: tuple[str, ...], tmp_path: Path) -> None:
    join = join_graphs(execution(graph), read_recorded(recorded_with_names(tmp_path)))
    assert (join.graphs, join.joined_graphs, join.owners, join.kernel_time_ratio) == (1, 0, {}, 0.0)


def test_recordings_that_disagree_are_not_used_for_that_kernel() -> None:
    runs = [
        RecordedRun((RecordedKernel("a", "aten::add", ("module:x",)), RecordedKernel("b", "aten::mm")), is_graph=True),
        RecordedRun((RecordedKernel("a", "aten::mul", ("module:y",)), RecordedKernel("b", "aten::mm")), is_graph=True),
    ]  # fmt: skip
    join = join_graphs(execution(("a", "b")), runs)
    assert join.owners == {0: GraphOwner(None, None), 1: GraphOwner("aten::mm", None)}
    assert join.kernel_time_ratio == 0.5


def test_a_recording_without_kernel_names_and_without_a_warm_up_joins_nothing(tmp_path: Path) -> None:
    events = [
        call("cudaStreamBeginCapture", 0, 1, 1),
        *layer(10, 0, 2, named=False),
        call("cudaStreamEndCapture", 30, 1, 9),
    ]
    assert read_recorded(write(tmp_path / "t.json", document(events))) == []


def test_kernels_outside_graphs_are_not_touched() -> None:
    run = make_timeline([(100, 110, "norm", 0)], [(1, 2, "hipLaunchKernel")])
    join = join_graphs(run, [RecordedRun((RecordedKernel("norm", "x"),), is_graph=True)])
    assert (join.owners, join.graphs, join.kernel_time_ratio, join_note(join)) == ({}, 0, None, None)


def test_a_real_run_without_its_recording_abstains(shared_data: Path) -> None:
    """The eager kernels of the run itself are no recording of its graphs."""
    from llm_perf_opt.captures.kineto.reader import read_kineto

    (path,) = (shared_data / "torch-traces-more").glob("*vllm*.json.gz")
    join = join_graphs(read_kineto(path).timeline, read_recorded(path))
    assert (join.graphs, join.joined_graphs) == (25, 0)
