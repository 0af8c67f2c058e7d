"""The third term of a floor: which term binds, what launching one by one costs, and floors that a run beat."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from llm_perf_opt.analysis.roofline.launches import (
    EAGER_LAUNCH_S,
    GRAPH_NODE_S,
    TYPICAL,
    LaunchCost,
    launches_of,
    measured_launch,
    started_by,
)
from llm_perf_opt.analysis.roofline.predictions import predict_phases
from llm_perf_opt.analysis.roofline.what_if import note_beaten_floors, what_if
from llm_perf_opt.core.units import seconds
from llm_perf_opt.summary import Coverage, Hardware, Params, Peak, Static, StaticPhase, WhatIf
from llm_perf_opt.workloads.counting.counter import count_phase, model_tree
from tests.text_facts import mentions

PEAK, BANDWIDTH = 1e15, 1e12


def static(flops: float, weight_bytes: float, products: int | None, operators: int | None) -> Static:
    phase = StaticPhase(flops, weight_bytes, None, 0.0, None, 1, operators, products)
    return Static(
        Params(1000, 1000, {}), None, {"prefill": phase, "decode": phase}, [], Coverage(1.0, []), {}
    )


def device() -> Any:
    limits = SimpleNamespace(
        name="made up",
        peaks={"bfloat16": Peak(PEAK, "a test")},
        bandwidth_bytes_per_s=BANDWIDTH,
        memory_bytes=1e12,
    )
    return SimpleNamespace(devices=[limits])


def row(work: Static, **options: Any) -> WhatIf:
    return what_if(work, device(), dtype="bfloat16", focus=(), **options)[0]


@pytest.mark.parametrize(
    ("flops", "weight_bytes", "products", "term"),
    [
        (1e12, 1e8, 100, "compute"),
        (1e10, 1e9, 100, "memory"),
        (1e6, 1e6, 100, "launch"),
        (1e6, 1e6, None, "memory"),
    ],
)
def test_the_longest_of_three_terms_binds(
    flops: float, weight_bytes: float, products: int | None, term: str
) -> None:
    found = row(static(flops, weight_bytes, products, 900))
    launch = (products or 0) * GRAPH_NODE_S
    expected = max(flops / PEAK, weight_bytes / BANDWIDTH, launch)
    assert found.floor_term == term
    assert found.tpot_floor_s == pytest.approx(expected)
    assert found.ttft_floor_s == pytest.approx(expected)
    assert found.note is not None
    assert found.note.startswith(f"{term}-bound")
    gpu = Hardware("made up", "gpu", {"bfloat16": Peak(PEAK, "a test")}, BANDWIDTH, "user")
    step = predict_phases(static(flops, weight_bytes, products, 900), gpu, "bfloat16")["tpot"]
    assert (step.floor_s, step.bound) == (pytest.approx(expected), term)


def test_a_processor_that_does_the_work_itself_launches_nothing() -> None:
    cpu = Hardware("a CPU", "cpu", {"bfloat16": Peak(PEAK, "a test")}, BANDWIDTH, "probe")
    assert predict_phases(static(1e6, 1e6, 100, 900), cpu, "bfloat16")["tpot"].bound == "memory"


def test_launching_one_by_one_is_shown_next_to_the_floor() -> None:
    work = static(1e10, 1e9, 100, 900)
    counted = row(work)
    assert counted.launch_graph_s == pytest.approx(100 * GRAPH_NODE_S)
    assert counted.launch_eager_s == pytest.approx(900 * EAGER_LAUNCH_S)
    assert mentions(counted.note, "3.60 ms")
    started = started_by(work, step_launches=200.0, launch_cost=LaunchCost(2e-6, "measured"))
    captured = row(work, started=started)
    assert captured.launch_eager_s == pytest.approx(200 * 2e-6)
    assert captured.tpot_floor_s == counted.tpot_floor_s
    assert captured.note is not None and not mentions(captured.note, "400 µs"), "the floor is longer"


def test_a_capture_with_fewer_kernels_lowers_the_least_too() -> None:
    phase = static(1, 1, 100, 900).phases["decode"]
    assert launches_of(phase, captured=40.0).least == 40
    assert launches_of(None).graph_s == 0


def test_the_cost_measured_on_an_accelerator_is_used_a_processors_is_not() -> None:
    gpu = Hardware("x", "gpu", {}, None, "probe", measured_operator_s=6e-6)
    found = measured_launch(gpu)
    assert found is not None and (found.seconds, found.is_bound) == (6e-6, True)
    assert found.source != TYPICAL.source
    assert measured_launch(Hardware("x", "cpu", {}, None, "probe", measured_operator_s=6e-6)) is None
    assert measured_launch(Hardware("x", "gpu", {}, None, "catalogue")) is None


@pytest.mark.parametrize(("factor", "is_said"), [(0.9, True), (1.0, False), (3.0, False)])
def test_a_floor_above_what_was_measured_is_reported(factor: float, is_said: bool) -> None:
    found = row(static(1e10, 1e9, 100, 900))
    before, measured = found.note, (found.tpot_floor_s or 0.0) * factor
    note_beaten_floors([found], "made up", None, measured)
    note_beaten_floors([found], "another device", None, measured / 100)
    assert (found.note != before) is is_said
    assert not is_said or mentions(found.note, "TPOT", seconds(measured))


def test_operators_that_start_work_are_counted_and_views_are_not() -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(8, 8, bias=False, device="meta")
            self.second = torch.nn.Linear(8, 8, bias=False, device="meta")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.relu(self.first(x)).view(2, 2, 2, 8).transpose(1, 2)
            room = torch.empty_like(hidden)
            return self.second(hidden.contiguous() + room.zero_())

    model = Two()
    tree = model_tree(model)
    x = torch.empty(2, 4, 8, device="meta")
    counted = count_phase(model, lambda: model(x), tree, positions=4, batch_size=2)
    assert counted.products == 2
    # two products, relu, the copy into order, zero_, the sum
    assert counted.operators == 6
