"""The module ledger joins static work, hooks and timeline, and shows where they contradict each other."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.ledger import (
    ModuleTime,
    build_ledger,
    split_component,
    with_parents,
)
from llm_perf_opt.model.summary import (
    Hardware,
    Peak,
    StaticModule,
    Timings,
)
from tests.unit.summaries import one, static, timings

GPU = Hardware("GPU", "gpu", {"bfloat16": Peak(1e12, "data sheet")}, 1e11, "catalogue")
NOWHERE = Hardware(None, "unknown", {}, None, "none")


def module(
    name: str, depth: int, component: str | None = None, flops: float = 1e9, weights: float = 1e6
) -> StaticModule:
    return StaticModule(name, "Module", depth, 5, {"prefill": flops}, component, {"prefill": weights})


def test_names_of_component_timings() -> None:
    assert split_component("lm_head_prefill_s") == ("lm_head", "prefill")
    assert split_component("language_model_decode_s") == ("language_model", "decode")
    assert split_component("sam_s") == ("sam", "vision")


def test_times_of_modules_hold_their_children() -> None:
    own = {
        ("model.layers.0", "decode"): ModuleTime(1.0, 10),
        ("model.layers.0.mlp", "decode"): ModuleTime(2.0, 20),
        ("model.layers.0.mlp", "prefill"): ModuleTime(7.0, 1),
        ("model.layers.01", "decode"): ModuleTime(100.0, 1),
    }
    both = with_parents(own)
    assert both["model.layers.0", "decode"] == ModuleTime(3.0, 30)
    assert both["model.layers.0.mlp", "decode"] == ModuleTime(2.0, 20)
    assert both["model", "decode"] == ModuleTime(103.0, 31)
    assert both["model", "prefill"] == ModuleTime(7.0, 1)


def test_static_work_alone_gives_floors_and_no_times() -> None:
    rows = build_ledger(static([module("model", 1), module("model.a", 2)]), Timings(), GPU, "bfloat16")
    assert [row.module for row in rows] == ["model", "model.a"]
    assert rows[0].floor_s == pytest.approx(max(1e9 / 1e12, 1e6 / 1e11))
    assert rows[0].measured_s is None
    assert rows[0].mfu_ratio is None


def test_hooks_win_over_the_timeline_and_both_are_shown() -> None:
    document = static([module("model.sam", 1, "sam")])
    document.components = {"sam": {"vision": 1e9}}
    document.modules[0].flops = {"vision": 1e9}
    document.modules[0].weight_bytes = {"vision": 1e6}
    timed = Timings(components={"sam_s": one(0.01)})
    times = {("model.sam", "vision"): ModuleTime(0.004, 50)}
    component, row = build_ledger(document, timed, GPU, "bfloat16", times)
    assert (component.module, component.measured_s, component.measured_source) == ("sam", 0.01, "hooks")
    assert component.others_s == {"timeline": 0.004}
    assert component.launches == 50
    assert component.disagreement is None  # device time below wall-clock is waiting, not a contradiction
    assert component.mfu_ratio == pytest.approx(1e9 / (0.01 * 1e12))
    assert component.mbu_ratio == pytest.approx(1e6 / (0.01 * 1e11))
    assert (row.measured_s, row.measured_source) == (0.004, "timeline")


def test_more_device_time_than_wall_clock_is_a_disagreement() -> None:
    timed = Timings(components={"sam_s": one(0.01)})
    (row,) = build_ledger(None, timed, NOWHERE, None, {("sam", "vision"): ModuleTime(0.02, 5)})
    assert row.disagreement is not None
    assert "timeline 20.0 ms against hooks 10.0 ms" in row.disagreement
    assert row.flops is None
    assert row.mfu_ratio is None


def test_faster_than_the_floor_is_a_disagreement() -> None:
    times = {("model", "prefill"): ModuleTime(1e-4, 5)}
    (row,) = build_ledger(static([module("model", 1)]), Timings(), GPU, "bfloat16", times)
    assert row.disagreement is not None
    assert "below the floor" in row.disagreement


def test_deep_modules_and_phases_without_work_are_left_out() -> None:
    layers = [module(f"a.b.{i}", 3) for i in range(150)]
    deep = [module(f"a.b.{i}.c", 4) for i in range(150)]
    rows = build_ledger(static([module("z", 1, flops=0.0), *layers, *deep]), Timings(), GPU, "bfloat16")
    assert len(rows) == 150  # with the next level it would be more than one reads
    few = build_ledger(static([*layers[:3], *deep[:3]]), Timings(), GPU, "bfloat16")
    assert [row.depth for row in few] == [3, 3, 3, 4, 4, 4]


def test_one_phase_more_does_not_change_which_modules_are_shown() -> None:
    modules = [module(f"a.b.{i}.c", 4) for i in range(150)]
    one_phase = build_ledger(static(modules), Timings(), GPU, "bfloat16")
    for each in modules:
        each.flops = {"prefill": 1e9, "decode": 1e6}
    two_phases = build_ledger(static(modules), Timings(), GPU, "bfloat16")
    assert {row.module for row in one_phase} == {row.module for row in two_phases}


def test_on_a_cpu_modules_have_the_profilers_time() -> None:
    document = static(
        [module("model", 1), module("model.layers", 2), module("model.layers.0", 3, "language_model")]
    )
    document.components = {"language_model": {"prefill": 1e9}}
    times = {("model.layers.0", "prefill"): 0.2, ("model.layers", "prefill"): 0.2, ("model", "prefill"): 0.24}
    component, *rows = build_ledger(document, timings(prefill=0.4), GPU, "bfloat16", {}, times)
    assert (component.module, component.measured_s, component.measured_source) == (
        "language_model",
        0.2,
        "profiler",
    )
    assert [row.measured_s for row in rows] == [0.24, 0.2, 0.2]
    assert rows[2].mfu_ratio == pytest.approx(1e9 / (0.2 * 1e12))
    assert rows[2].device_s is None


def test_hooks_win_over_the_profiler_and_a_large_difference_is_said() -> None:
    timed = Timings(vision_s=one(0.02), components={"sam_s": one(0.01)})
    (row,) = build_ledger(None, timed, NOWHERE, None, {}, {("sam", "vision"): 0.012})
    assert (row.measured_s, row.measured_source, row.others_s) == (0.01, "hooks", {"profiler": 0.012})
    assert row.disagreement is None
    (row,) = build_ledger(None, timed, NOWHERE, None, {}, {("sam", "vision"): 0.9})
    assert "profiler 900 ms against hooks 10.0 ms" in (row.disagreement or "")


def test_hooks_of_decode_become_times_of_one_step() -> None:
    timed = timings(decode=2.0, tpot=0.02)
    timed.components = {"lm_head_decode_s": one(0.5)}
    (row,) = build_ledger(None, timed, NOWHERE, None)
    assert row.measured_s == pytest.approx(0.005)
    unknown = Timings(components={"lm_head_decode_s": one(0.5)})
    assert [row.measured_s for row in build_ledger(None, unknown, NOWHERE, None)] == [None]


def test_modules_without_a_static_model_come_in_the_order_of_their_layers() -> None:
    times = {(f"layers.{i}", "decode"): ModuleTime(1.0, 1) for i in (10, 2, 0)}
    timed = Timings(components={"lm_head_prefill_s": one(0.1)})
    rows = build_ledger(None, timed, NOWHERE, None, {**times, ("lm_head", "decode"): ModuleTime(1.0, 1)})
    assert [(row.module, row.phase) for row in rows] == [
        ("lm_head", "prefill"),
        ("layers", "decode"),
        ("layers.0", "decode"),
        ("layers.2", "decode"),
        ("layers.10", "decode"),
        ("lm_head", "decode"),
    ]
