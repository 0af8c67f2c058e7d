"""Graphs in captures: no operator and no module claims what a launch replays; recordings are told from runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.analysis.operators.table import operator_records
from llm_perf_opt.analysis.shares import add_operator_shares
from llm_perf_opt.analysis.timeline.attribution import attribute, by_path_and_name
from llm_perf_opt.analysis.timeline.engines import (
    engine_facts,
    graph_notes,
    graph_use,
    unclaimed_behind_graphs,
)
from llm_perf_opt.analysis.timeline.tables import module_rows
from llm_perf_opt.captures.kineto.reader import read_kineto
from llm_perf_opt.captures.timeline import is_graph_launch, is_kernel_launch
from tests.unit.kineto_traces import annotation, call, document, kernel, op, write
from tests.unit.timelines import make_timeline

LAUNCH, GRAPH = "cudaLaunchKernel", "cudaGraphLaunch"
BEGIN, END = "cudaStreamBeginCapture", "cudaStreamEndCapture"


def with_graph(ranges: list[tuple[int, int, str]]) -> object:
    calls = [(10, 12, LAUNCH), (20, 22, GRAPH)]
    ops = [(30, 40, "eager", 0), (40, 70, "replayed", 1), (70, 100, "replayed", 1)]
    return make_timeline(ops, calls, ranges)


def test_the_share_behind_graph_launches_is_of_kernel_time() -> None:
    use = graph_use(with_graph([]))  # type: ignore[arg-type]
    assert use.kernel_time_ratio == pytest.approx(60 / 70)
    assert not use.is_recording
    assert "85.7 %" in graph_notes(use)[0]


def test_without_graphs_the_share_is_zero_and_nothing_is_noted() -> None:
    use = graph_use(make_timeline([(5, 9, "k", 0)], [(1, 2, LAUNCH)]))
    assert use.kernel_time_ratio == 0.0
    assert graph_notes(use) == []


def test_without_known_launches_the_share_is_not_known() -> None:
    assert graph_use(make_timeline([(5, 9, "k", -1)])).kernel_time_ratio is None


def test_modules_do_not_claim_replayed_kernels() -> None:
    timeline = with_graph([(0, 50, "decode"), (5, 45, "module:model.layers.3")])
    attribution = attribute(timeline)  # type: ignore[arg-type]
    claimed = unclaimed_behind_graphs(timeline, attribution)  # type: ignore[arg-type]
    rows = module_rows(claimed, by_path_and_name(timeline, claimed))  # type: ignore[arg-type]
    assert [(row.module, row.phase, row.total_ns) for row in rows] == [("model.layers.3", "decode", 10)]
    assert [claimed.phases[phase] for phase in claimed.op_phase] == ["decode"] * 3


def test_a_phase_that_only_a_module_is_around_is_kept() -> None:
    timeline = with_graph([(0, 50, "module:model"), (5, 45, "decode")])
    claimed = unclaimed_behind_graphs(timeline, attribute(timeline))  # type: ignore[arg-type]
    assert [claimed.phases[phase] for phase in claimed.op_phase] == ["decode"] * 3


def test_operators_do_not_claim_replayed_kernels_and_shares_are_of_all_device_time(tmp_path: Path) -> None:
    events = [
        annotation("execute_context_0(0)_generation_4(4)", 0, 100),
        op("vllm::attention", 5, 10, external=1),
        call(LAUNCH, 6, 1, 1),
        kernel("attention", 20, 10, 1, external=1),
        op("aten::surrounds", 30, 20, external=2),
        call(GRAPH, 32, 2, 2),
        kernel("gemm_a", 40, 60, 2, external=2),
        kernel("gemm_b", 100, 30, 2),
    ]
    capture = read_kineto(write(tmp_path / "t.json", document(events)))
    attribution = attribute(capture.timeline)
    records = operator_records(capture.operators, capture.timeline, attribution)
    device = {record.name: record.self_device_s for record in records}
    assert device == {"vllm::attention": pytest.approx(10e-6), "aten::surrounds": 0.0}
    facts = engine_facts("torch_profiler", capture.timeline, attribution)
    assert facts.metrics["decode_graph_device_s"] == pytest.approx(90e-6)
    add_operator_shares(records, facts.metrics)
    assert {record.name: record.share_ratio for record in records}["vllm::attention"] == pytest.approx(0.1)


def recording(executed: int, recorded: int) -> object:
    calls = [(index, index + 1, LAUNCH) for index in range(executed)]
    ops = [(1000 + 10 * index, 1005 + 10 * index, "k", index) for index in range(executed)]
    calls.append((100, 101, BEGIN))
    calls += [(110 + index, 111 + index, LAUNCH) for index in range(recorded)]
    calls.append((500, 501, END))
    return make_timeline(ops, calls)


@pytest.mark.parametrize(("executed", "recorded", "is_recording"), [(0, 5, True), (5, 5, True), (10, 5, True), (40, 5, False)])  # fmt: skip
def test_a_recording_is_distinguished_from_a_run_that_also_records(
    executed: int, recorded: int, is_recording: bool
) -> None:
    use = graph_use(recording(executed, recorded))  # type: ignore[arg-type]
    assert (use.recordings, use.recorded_launches, use.executed_kernels) == (1, recorded, executed)
    assert use.is_recording is is_recording
    assert any("being recorded" in note for note in graph_notes(use)) is is_recording


def test_launches_outside_the_recording_are_not_recorded() -> None:
    calls = [(1, 2, LAUNCH), (10, 11, BEGIN), (12, 13, LAUNCH), (14, 15, END), (16, 17, LAUNCH)]
    use = graph_use(make_timeline([], calls))
    assert use.recorded_launches == 1


def test_names_of_every_vendor() -> None:
    graphs = ("cudaGraphLaunch", "cudaGraphLaunch_v10000", "cuGraphLaunch", "hipGraphLaunch")
    kernels = ("cudaLaunchKernel", "cudaLaunchKernelExC_v11060", "cuLaunchKernel", "hipLaunchKernel",
               "hipModuleLaunchKernel", "hipExtModuleLaunchKernel", "hipExtLaunchKernel", "cudaLaunchCooperativeKernel")  # fmt: skip
    assert all(is_graph_launch(name) and not is_kernel_launch(name) for name in graphs)
    assert all(is_kernel_launch(name) and not is_graph_launch(name) for name in kernels)
    assert not is_graph_launch("cudaGraphInstantiate")
