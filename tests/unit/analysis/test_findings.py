"""Every rule on data that has the problem, with its arithmetic, and on data that has not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.analysis.findings import (
    RULES,
    copies_and_casts,
    find_all,
    full_precision,
    host_syncs,
    kv_cache,
    launch_bound,
    module_gap,
    noise,
    padding,
    pollution,
    underfilled_grids,
    unfused_elementwise,
    vision_share,
)
from llm_perf_opt.model.summary import (
    LedgerRow,
    Operator,
    Prediction,
    Stat,
    StaticPhase,
    Summary,
    Utilisation,
    Workload,
)
from tests.unit.summaries import (
    budget,
    cpu,
    gpu,
    kernel,
    one,
    operator,
    static,
    summary,
    timings,
    verdict,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__module__.rsplit(".", 1)[-1])
def test_no_rule_speaks_without_data(rule: object) -> None:
    assert rule(summary()) == []  # type: ignore[operator]


# launch-bound


def test_launch_bound_decode_gains_at_most_its_waiting_time() -> None:
    data = summary(
        timings=timings(prefill=0.1, decode=2.0),
        budget={"decode": budget(9.0, compute=0.3, launch=0.5, host=0.15, sync=0.05)},
        verdicts={"decode": verdict("launch")},
        metrics={"launches_per_token": 1320.0},
    )
    (found,) = launch_bound.find(data)
    assert (found.id, found.phase, found.confidence) == ("launch-bound", "decode", "high")
    assert found.gain_upper_s == pytest.approx(2.0 * 0.65)  # of the wall-clock, not of the captured 9 s
    assert "2.00 s × 65.0 %" in found.arithmetic
    assert any("launches per generated token" in line for line in found.evidence)


def test_launch_bound_without_a_timeline_is_bounded_by_the_idle_time_of_the_run() -> None:
    data = summary(
        timings=timings(prefill=0.1, decode=0.9),
        utilisation={"all": Utilisation(device_busy_ratio=0.3)},
        verdicts={"decode": verdict("launch"), "all": verdict("launch")},
    )
    (found,) = launch_bound.find(data)
    assert found.phase == "decode"
    assert found.gain_upper_s == pytest.approx(0.7)
    assert found.confidence == "medium"
    assert "per sample" in found.arithmetic


def test_launch_bound_gain_never_exceeds_the_phase() -> None:
    data = summary(
        timings=timings(prefill=0.9, decode=0.1),
        utilisation={"all": Utilisation(device_busy_ratio=0.1)},
        verdicts={"decode": verdict("launch")},
    )
    (found,) = launch_bound.find(data)
    assert found.gain_upper_s == pytest.approx(0.1)


def test_launch_bound_says_captured_where_nothing_was_timed() -> None:
    data = summary(budget={"all": budget(4.0, compute=0.2, launch=0.8)}, verdicts={"all": verdict("launch")})
    (found,) = launch_bound.find(data)
    assert found.title.startswith("The run")
    assert found.gain_upper_s == pytest.approx(3.2)
    assert "per sample" not in found.arithmetic


def test_launch_bound_abstains_for_other_verdicts() -> None:
    assert launch_bound.find(summary(verdicts={"decode": verdict("memory"), "all": verdict("sync")})) == []


def test_launch_bound_on_a_cpu_is_bounded_by_what_is_not_matrix_work() -> None:
    data = summary(
        hardware=cpu(),
        timings=timings(prefill=0.1, decode=1.0),
        verdicts={"decode": verdict("launch")},
        operators=[
            Operator("aten::mm", 10, 0.25, 0.25, None, None, "decode"),
            Operator("aten::add", 99, 0.75, 0.75, None, None, "decode"),
        ],
    )
    (found,) = launch_bound.find(data)
    assert found.gain_upper_s == pytest.approx(0.75)


def test_launch_bound_on_a_cpu_does_not_advise_cuda_graphs() -> None:
    (found,) = launch_bound.find(summary(hardware=cpu(), verdicts={"decode": verdict("launch")}))
    assert "CUDA" not in found.advice
    assert found.gain_upper_s is None


# host synchronisation


def test_host_syncs_in_the_timeline() -> None:
    data = summary(
        timings=timings(prefill=0.1, decode=2.0),
        budget={"decode": budget(1.0, compute=0.6, sync=0.4), "all": budget(2.0, compute=0.6, sync=0.4)},
        operators=[operator("aten::item", 300), operator("aten::nonzero", 10)],
        metrics={"profiled_decode_steps": 10.0},
    )
    (found,) = host_syncs.find(data)
    assert (found.phase, found.confidence) == ("decode", "high")
    assert found.gain_upper_s == pytest.approx(0.8)
    assert any("aten::item runs 30.0 times per token" in line for line in found.evidence)
    assert not any("nonzero" in line for line in found.evidence)


def test_host_syncs_of_a_whole_capture_are_named_so() -> None:
    (found,) = host_syncs.find(summary(budget={"all": budget(2.0, compute=0.5, sync=0.5)}))
    assert "of the captured time" in found.evidence[0]


def test_host_syncs_by_operators_alone_have_no_price() -> None:
    data = summary(
        operators=[operator("aten::_local_scalar_dense", 62)], metrics={"profiled_decode_steps": 31.0 / 2}
    )
    (found,) = host_syncs.find(data)
    assert found.gain_upper_s is None
    assert found.confidence == "medium"


def test_host_syncs_abstain() -> None:
    few = [operator("aten::item", 20)]
    assert host_syncs.find(summary(operators=few, metrics={"profiled_decode_steps": 10.0})) == []
    assert host_syncs.find(summary(operators=[operator("aten::item", 900)])) == []  # steps unknown
    assert host_syncs.find(summary(budget={"decode": budget(1.0, compute=0.96, sync=0.04)})) == []
    on_cpu = summary(
        hardware=cpu(), operators=[operator("aten::item", 900)], metrics={"profiled_decode_steps": 10.0}
    )
    assert host_syncs.find(on_cpu) == []


# float32


def test_full_precision_run_on_a_device_with_fast_half_precision() -> None:
    data = summary(
        hardware=gpu(float32=1e13, bfloat16=8e13),
        workload=Workload(dtype="float32"),
        timings=timings(prefill=0.2, decode=0.6),
    )
    (found,) = full_precision.find(data)
    assert found.gain_upper_s == pytest.approx(0.8 * (1 - 1 / 8))


def test_full_precision_counts_nested_vision_once() -> None:
    data = summary(
        hardware=gpu(float32=1e13, bfloat16=2e13),
        workload=Workload(dtype="float32"),
        timings=timings(vision=0.3, prefill=0.4, ttft=0.4, decode=0.6),
    )
    (found,) = full_precision.find(data)
    assert found.gain_upper_s == pytest.approx(1.0 * 0.5)


def test_full_precision_abstains() -> None:
    slow_half = gpu(float32=1e13, bfloat16=1.2e13)
    timed = timings(prefill=0.2, decode=0.6)
    float32 = Workload(dtype="float32")
    assert full_precision.find(summary(hardware=slow_half, workload=float32, timings=timed)) == []
    assert full_precision.find(summary(hardware=gpu(float32=1e13), workload=float32, timings=timed)) == []
    fast = gpu(float32=1e13, bfloat16=8e13)
    assert full_precision.find(summary(hardware=fast, workload=float32)) == []  # nothing timed
    assert (
        full_precision.find(summary(hardware=fast, workload=Workload(dtype="bfloat16"), timings=timed)) == []
    )


def test_stray_float32_kernels() -> None:
    rows = [kernel("ampere_sgemm_128x64_nn", "gemm", 0.2), kernel("ampere_bf16_s16816gemm", "gemm", 0.8)]
    data = summary(
        workload=Workload(dtype="bfloat16"),
        hardware=gpu(float32=1e13, bfloat16=4e13),
        kernels=rows,
        timings=timings(prefill=0.5, decode=1.5),
        utilisation={"all": Utilisation(device_busy_ratio=0.5)},
    )
    (found,) = full_precision.find(data)
    assert found.id == "full-precision-kernels"
    assert found.gain_upper_s == pytest.approx(2.0 * 0.5 * 0.2 * (1 - 1 / 4))
    assert "ampere_sgemm_128x64_nn" in found.evidence[0]
    data.hardware.peak_flops_per_s.clear()
    (unbounded,) = full_precision.find(data)
    assert unbounded.gain_upper_s == pytest.approx(0.2)  # peaks unknown: not more than all of it
    data.kernels = rows[1:]
    assert full_precision.find(data) == []


# kernel shares


def test_unfused_elementwise() -> None:
    rows = [
        kernel("add", "elementwise", 0.2, launches=100_000),
        kernel("rms", "norm", 0.1, launches=50_000),
        kernel("mm", "gemm", 0.7),
    ]
    data = summary(
        kernels=rows,
        timings=timings(prefill=1.0, decode=1.0),
        utilisation={"all": Utilisation(device_busy_ratio=0.4)},
    )
    (found,) = unfused_elementwise.find(data)
    assert found.gain_upper_s == pytest.approx(2.0 * 0.4 * 0.3)
    assert "30.0 % of kernel time in 150 k launches of 2" in found.evidence[0]
    data.kernels[2].total_s = 1.7
    assert unfused_elementwise.find(data) == []


def test_shares_of_a_capture_of_one_phase_are_shares_of_that_phase() -> None:
    rows = [
        kernel("add", "elementwise", 0.5, phase="decode", launches=100_000),
        kernel("mm", "gemm", 0.5, phase="decode"),
    ]
    data = summary(
        kernels=rows,
        timings=timings(prefill=10.0, decode=1.0),
        budget={"decode": budget(1.0, compute=0.8, host=0.2)},
    )
    (found,) = unfused_elementwise.find(data)
    assert found.gain_upper_s == pytest.approx(1.0 * 0.8 * 0.5)


def test_copy_kernels_and_copies() -> None:
    rows = [kernel("copy", "copy", 0.2), kernel("mm", "gemm", 0.8)]
    data = summary(
        kernels=rows,
        timings=timings(prefill=0.5, decode=0.5),
        budget={"decode": budget(3.0, compute=0.7, copy=0.3), "all": budget(4.0, compute=0.5, copy=0.5)},
    )
    found = {finding.id: finding for finding in copies_and_casts.find(data)}
    assert found["copy-kernels"].gain_upper_s == pytest.approx(1.0 * 0.5 * 0.2)
    assert found["copies"].phase == "decode"
    assert found["copies"].gain_upper_s == pytest.approx(0.5 * 0.3)
    (whole,) = copies_and_casts.find(summary(budget={"all": budget(4.0, compute=0.5, copy=0.5)}))
    assert "of the captured time" in whole.evidence[0]
    quiet = summary(
        kernels=[kernel("copy", "copy", 0.05), kernel("mm", "gemm", 0.95)],
        budget={"decode": budget(1.0, compute=0.95, copy=0.05)},
    )
    assert copies_and_casts.find(quiet) == []


def test_underfilled_grids() -> None:
    rows = [
        kernel("small", "gemv", 0.3, counters={"waves": 0.2}),
        kernel("large", "gemm", 0.7, counters={"waves": 6.0}),
    ]
    data = summary(
        kernels=rows,
        timings=timings(prefill=0.5, decode=0.5),
        utilisation={"all": Utilisation(device_busy_ratio=1.0)},
    )
    (found,) = underfilled_grids.find(data)
    assert found.gain_upper_s == pytest.approx(0.3)
    assert "small" in found.evidence[0]
    rows[0].counters["waves"] = 4.0
    assert underfilled_grids.find(data) == []
    untimed = summary(kernels=[kernel("small", "gemv", None, bound="underfilled")])
    (counted,) = underfilled_grids.find(untimed)
    assert counted.gain_upper_s is None
    assert counted.confidence == "medium"


# cache, vision, padding


def _decode(kv_bytes: float, weight_bytes: float) -> StaticPhase:
    return StaticPhase(1e9, weight_bytes, None, kv_bytes, None)


def test_kv_cache_by_bytes_and_by_growth() -> None:
    by_bytes = summary(static=static(decode=_decode(4e8, 6e8)), timings=timings(prefill=0.1, decode=1.0))
    (found,) = kv_cache.find(by_bytes)
    assert found.gain_upper_s == pytest.approx(0.4)
    growing = summary(timings=timings(prefill=0.1, decode=1.0), metrics={"tpot_growth_ratio": 1.5})
    (grown,) = kv_cache.find(growing)
    assert grown.gain_upper_s == pytest.approx(1 - 2 / 2.5)
    assert (
        kv_cache.find(summary(static=static(decode=_decode(1e8, 9e8)), metrics={"tpot_growth_ratio": 1.05}))
        == []
    )
    (untimed,) = kv_cache.find(summary(static=static(decode=_decode(4e8, 6e8))))
    assert untimed.gain_upper_s is None


def test_vision_dominated_first_token_names_a_vision_component() -> None:
    timed = timings(vision=0.8, prefill=0.2, decode=1.0)
    timed.components = {"sam_s": one(0.5), "clip_s": one(0.2), "language_model_prefill_s": one(0.7)}
    floor = Prediction(0.3, "compute", 0.8 / 0.3)
    (found,) = vision_share.find(summary(timings=timed, predictions={"vision": floor}))
    assert found.gain_upper_s == pytest.approx(0.5)
    assert "sam" in found.evidence[1]
    assert "800 ms − 300 ms = 500 ms: all of vision above its roofline floor" in found.arithmetic
    # The whole encoder can never go: without a floor nothing says how much of it could.
    (unbounded,) = vision_share.find(summary(timings=timed))
    assert unbounded.gain_upper_s is None
    assert unbounded.confidence == "medium"
    assert vision_share.find(summary(timings=timings(vision=0.3, prefill=0.7, decode=1.0))) == []
    assert vision_share.find(summary(timings=timings(prefill=0.7, decode=1.0))) == []


def _part(module: str, measured: float | None, floor: float | None, phase: str = "vision") -> LedgerRow:
    return LedgerRow(
        module, phase, module.count(".") + 1, measured_s=measured, floor_s=floor, measured_source="profiler"
    )


def test_module_gap_names_the_innermost_module_that_explains_the_loss() -> None:
    rows = [
        _part("model", 0.8, 0.2),
        _part("model.proj", 0.1, 0.05),
        _part("model.layers", 0.7, 0.15),
        _part("model.layers.0", 0.2, 0.05),
        _part("model.layers.0.attn", 0.15, 0.02),
        _part("model.layers.1", 0.5, 0.1),
        _part("model.layers.1.attn", 0.4, 0.06),
        _part("model.layers.1.attn.qkv", 0.1, 0.05),
        LedgerRow("component", "vision", 0, measured_s=9.0, floor_s=0.1),
    ]
    data = summary(timings=timings(vision=1.0, prefill=0.2, decode=0.8), ledger=rows)
    (found,) = module_gap.find(data)
    assert (found.id, found.phase) == ("module-gap", "vision")
    assert found.title.startswith("layers.*.attn is farthest")
    assert found.gain_upper_s == pytest.approx(0.55 - 0.08)
    assert "550 ms per sample (55.0 % of vision), its floor is 80.0 ms" in found.evidence[0]
    assert found.evidence[1] == "largest of 2: model.layers.1.attn with 400 ms"


def test_module_gap_counts_every_decode_step_and_ignores_small_gaps() -> None:
    rows = [_part("lm", 0.01, 0.002, "decode"), _part("x", 0.05, 0.04)]
    data = summary(timings=timings(vision=0.1, prefill=0.1, decode=0.5, tpot=0.02), ledger=rows)
    (found,) = module_gap.find(data)
    assert (found.phase, found.gain_upper_s) == ("decode", pytest.approx(0.008 * 25))
    assert module_gap.find(summary(timings=timings(decode=0.5), ledger=[_part("lm", 0.01, None)])) == []
    unknown = summary(timings=timings(prefill=0.1, tpot=0.02), ledger=rows[:1])
    assert module_gap.find(unknown) == []  # one step of how many?
    data.verdicts = {"decode": verdict("launch")}
    assert module_gap.find(data) == []  # it waits; the launch rule says so


def test_padding_waste() -> None:
    (found,) = padding.find(summary(timings=timings(prefill=2.0), metrics={"padding_ratio": 0.25}))
    assert found.gain_upper_s == pytest.approx(0.5)
    assert padding.find(summary(timings=timings(prefill=2.0), metrics={"padding_ratio": 0.05})) == []


# measurement


def test_pollution() -> None:
    data = summary(metrics={"first_repeat_ratio": 2.0, "profiled_over_unprofiled_ratio": 3.0})
    found = pollution.find(data)
    assert [finding.id for finding in found] == ["warm-up-pollution", "profiler-pollution"]
    assert all(finding.gain_upper_s is None for finding in found)
    calm = summary(metrics={"first_repeat_ratio": 1.1, "profiled_over_unprofiled_ratio": 1.2})
    assert pollution.find(calm) == []


def test_noise() -> None:
    data = summary(
        repeat_spread={
            "decode": Stat(1.0, 0.8, 1.4, 1.0, 0.2, 9),
            "prefill": Stat(1.0, 0.99, 1.01, 1.0, 0.0, 9),
        },
        metrics={"last_over_first_repeat_ratio": 1.3},
        environment={"load_average": [9.0, 8.0, 7.0], "cpu": {"cores": 2}},
    )
    (found,) = noise.find(data)
    assert "decode: spread 60.0 %" in found.evidence[0]
    assert not any("prefill" in line for line in found.evidence)
    assert any("load average 9.0 on 2 cores" in line for line in found.evidence)
    few = summary(repeat_spread={"decode": Stat(1.0, 0.5, 2.0, 1.0, 0.2, 2)})
    assert noise.find(few) == []
    busy_but_calm = summary(environment=data.environment)
    assert noise.find(busy_but_calm) == []


# all together


def test_findings_are_ordered_by_gain_and_deterministic() -> None:
    data = summary(
        timings=timings(vision=0.8, prefill=0.2, decode=2.0),
        budget={"decode": budget(1.0, compute=0.3, launch=0.6, copy=0.1)},
        verdicts={"decode": verdict("launch")},
        metrics={"padding_ratio": 0.5, "first_repeat_ratio": 2.0},
    )
    found = find_all(data)
    assert [f.id for f in found] == [f.id for f in find_all(data)]
    gains = [f.gain_upper_s for f in found]
    assert gains == sorted(gains, key=lambda gain: -(gain or 0.0))
    assert found[0].id == "launch-bound"
    assert found[-1].gain_upper_s is None


shares = st.floats(0.0, 1.0)


@settings(deadline=None)
@given(
    split=st.lists(st.floats(0.01, 1.0), min_size=5, max_size=5),
    vision=st.floats(0.001, 5.0),
    prefill=st.floats(0.001, 5.0),
    decode=st.floats(0.001, 5.0),
    times=st.lists(st.floats(0.0, 3.0), min_size=4, max_size=4),
    ratios=st.lists(shares, min_size=2, max_size=2),
)
def test_no_gain_exceeds_its_phase_and_nothing_is_said_without_evidence(
    split: list[float], vision: float, prefill: float, decode: float, times: list[float], ratios: list[float]
) -> None:
    total = sum(split)
    parts = dict(zip(("compute", "copy", "sync", "launch", "host"), (s / total for s in split), strict=True))
    families = ("elementwise", "copy", "gemm", "norm")
    data = summary(
        hardware=gpu(float32=1e13, bfloat16=8e13),
        timings=timings(vision=vision, prefill=prefill, decode=decode),
        budget={"decode": budget(3.0, **parts), "all": budget(5.0, **parts)},
        kernels=[
            kernel(f"sgemm {f}", f, t, counters={"waves": 0.5}) for f, t in zip(families, times, strict=True)
        ],
        verdicts={"decode": verdict("launch")},
        static=static(decode=_decode(ratios[0] * 1e9, 1e9)),
        metrics={"padding_ratio": ratios[1], "tpot_growth_ratio": 1 + ratios[0]},
    )
    limits = {"vision": vision, "prefill": prefill, "decode": decode, None: vision + prefill + decode}
    for finding in find_all(data):
        assert finding.evidence
        assert finding.arithmetic
        if finding.gain_upper_s is not None:
            assert 0 <= finding.gain_upper_s <= limits[finding.phase] * (1 + 1e-9), finding


def test_a_summary_without_samples_does_not_speak_of_samples() -> None:
    data = Summary(
        **{
            **{f: getattr(summary(), f) for f in ("run", "environment", "hardware", "workload")},
            "budget": {"all": budget(4.0, compute=0.2, launch=0.5, sync=0.2, copy=0.1)},
            "verdicts": {"all": verdict("launch")},
            "kernels": [kernel("add", "elementwise", 0.5), kernel("copy", "copy", 0.3)],
        }
    )
    for finding in find_all(data):
        assert "sample" not in finding.arithmetic
        assert finding.gain_upper_s is None or finding.gain_upper_s <= 4.0
