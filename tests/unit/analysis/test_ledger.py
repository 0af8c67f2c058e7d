"""The module ledger joins static work, hooks and timeline, and shows where they contradict each other."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.ledger import ModuleTime, build_ledger, split_component, with_parents
from llm_perf_opt.core.units import seconds
from llm_perf_opt.summary import Hardware, Peak, StaticModule, Timings
from tests.text_facts import mentions
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
    assert (row.measured_s, row.measured_source, row.others_s) == (0.01, "hooks", {"timeline": 0.02})
    assert mentions(row.disagreement, "timeline", "20.0 ms", "hooks", "10.0 ms")
    assert row.flops is None
    assert row.mfu_ratio is None


def test_faster_than_the_floor_is_a_disagreement() -> None:
    times = {("model", "prefill"): ModuleTime(1e-4, 5)}
    (row,) = build_ledger(static([module("model", 1)]), Timings(), GPU, "bfloat16", times)
    assert row.floor_s is not None and row.measured_s is not None and row.measured_s < row.floor_s
    assert mentions(row.disagreement, seconds(row.measured_s), seconds(row.floor_s))


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


def test_hooks_win_over_the_profiler_and_a_large_difference_is_reported() -> None:
    timed = Timings(vision_s=one(0.02), components={"sam_s": one(0.01)})
    (row,) = build_ledger(None, timed, NOWHERE, None, {}, {("sam", "vision"): 0.012})
    assert (row.measured_s, row.measured_source, row.others_s) == (0.01, "hooks", {"profiler": 0.012})
    assert row.disagreement is None
    (row,) = build_ledger(None, timed, NOWHERE, None, {}, {("sam", "vision"): 0.9})
    assert (row.measured_s, row.measured_source, row.others_s) == (0.01, "hooks", {"profiler": 0.9})
    assert mentions(row.disagreement, "profiler", "900 ms", "hooks", "10.0 ms")


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


def test_bytes_of_a_component_are_those_of_its_topmost_modules() -> None:
    document = static(
        [
            module("model", 1, weights=9e9),
            module("model.sam", 2, "sam", weights=3e6),
            module("model.sam.blocks", 3, "sam", weights=2e6),
            module("model.sam2", 2, "sam", weights=5e5),
            module("model.clip", 2, "clip", weights=7e6),
        ]
    )
    document.components = {"sam": {"prefill": 1e9, "decode": 1e9, "vision": 0.0}}
    document.params.components = {"sam": 42}
    prefill, decode = build_ledger(document, Timings(), GPU, "bfloat16")[:2]
    assert (prefill.module, prefill.phase, prefill.params) == ("sam", "prefill", 42)
    assert prefill.bytes == pytest.approx(3.5e6)  # the children are in their parent's weights already
    assert (decode.module, decode.phase, decode.bytes) == (
        "sam",
        "decode",
        None,
    )  # it reads none that is known
    assert decode.floor_s is None


def test_time_of_a_component_is_that_of_its_topmost_modules() -> None:
    document = static([module("m.sam", 1, "sam"), module("m.sam.a", 2, "sam"), module("m.neck", 1, "sam")])
    document.components = {"sam": {"prefill": 1e9}}
    device = {
        ("m.sam", "prefill"): ModuleTime(0.25, 1),
        ("m.sam.a", "prefill"): ModuleTime(0.5, 2),
        ("m.neck", "prefill"): ModuleTime(1.0, 4),
        ("m.neck", "decode"): ModuleTime(8.0, 8),
    }
    component = build_ledger(document, Timings(), GPU, "bfloat16", device)[0]
    assert (component.device_s, component.launches) == (1.75, 7)
    named = {**device, ("sam", "prefill"): ModuleTime(3.0, 9)}
    component = build_ledger(document, Timings(), GPU, "bfloat16", named)[0]
    assert (component.device_s, component.launches) == (3.0, 9)  # a range of that name knows better
    host = {("m.sam", "prefill"): 0.75, ("m.sam.a", "prefill"): 0.5, ("m.neck", "prefill"): 1.0}
    assert build_ledger(document, Timings(), GPU, "bfloat16", {}, host)[0].measured_s == 1.75


@pytest.mark.parametrize(("device_s", "message"), [(0.5, False), (1.1, False), (1.25, False), (1.26, True)])
def test_a_quarter_more_device_time_than_wall_clock_is_tolerated(device_s: float, message: bool) -> None:
    timed = Timings(components={"sam_s": one(1.0)})
    (row,) = build_ledger(None, timed, NOWHERE, None, {("sam", "vision"): ModuleTime(device_s, 5)})
    assert (row.disagreement is not None) is message


@pytest.mark.parametrize(
    ("host_s", "message"),
    [(0.79, True), (0.8, False), (0.9, False), (1.1, False), (1.25, False), (1.26, True)],
)
def test_a_quarter_between_profiler_and_wall_clock_is_tolerated(host_s: float, message: bool) -> None:
    timed = Timings(components={"sam_s": one(1.0)})
    (row,) = build_ledger(None, timed, NOWHERE, None, {}, {("sam", "vision"): host_s})
    assert (row.disagreement is not None) is message


@pytest.mark.parametrize(("measured_s", "message"), [(0.79, True), (0.8, False), (0.9, False), (1.1, False)])
def test_a_little_below_the_floor_is_tolerated(measured_s: float, message: bool) -> None:
    times = {("model", "prefill"): ModuleTime(measured_s, 5)}
    one_second = static([module("model", 1, flops=1e12)])
    (row,) = build_ledger(one_second, Timings(), GPU, "bfloat16", times)
    assert row.floor_s == 1.0
    assert (row.disagreement is not None) is message


def test_the_tree_is_as_deep_as_two_hundred_modules_allow() -> None:
    def depths(*counts: int) -> set[int]:
        modules = [
            module("a" + ".b" * (depth - 1) + str(i), depth)
            for depth, count in enumerate(counts, 1)
            for i in range(count)
        ]
        return {row.depth for row in build_ledger(static(modules), Timings(), GPU, "bfloat16")}

    assert depths(1, 1, 1, 1, 1, 1) == {1, 2, 3, 4, 5, 6}
    assert depths(50, 50, 50, 50) == {1, 2, 3, 4}  # two hundred
    assert depths(50, 50, 50, 51) == {1, 2, 3}
    assert depths(50, 50, 50, 10, 100) == {1, 2, 3, 4}
    assert depths(300, 300, 300, 1) == {1, 2, 3}  # never less than three levels


def test_ratios_need_their_own_half_of_the_hardware_only() -> None:
    times = {("model", "prefill"): ModuleTime(0.5, 5)}
    no_peak = Hardware("GPU", "gpu", {}, 1e11, "catalogue")
    (row,) = build_ledger(static([module("model", 1)]), Timings(), no_peak, "bfloat16", times)
    assert (row.floor_s, row.mfu_ratio) == (None, None)
    assert row.mbu_ratio == pytest.approx(1e6 / (0.5 * 1e11))
    no_bandwidth = Hardware("GPU", "gpu", {"bfloat16": Peak(1e12, "data sheet")}, None, "catalogue")
    (row,) = build_ledger(static([module("model", 1)]), Timings(), no_bandwidth, "bfloat16", times)
    assert (row.floor_s, row.mbu_ratio) == (None, None)
    assert row.mfu_ratio == pytest.approx(1e9 / (0.5 * 1e12))
