"""From which number on a rule speaks, and the exact numbers it then says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llm_perf_opt.analysis.findings import attention, conditions, find_all, idle, kernels, model
from llm_perf_opt.summary import (
    Finding,
    Prediction,
    Stat,
    StaticPhase,
    Summary,
    Timings,
    Utilisation,
    Workload,
)
from tests.text_facts import mentions, mentions_in_order, numbers
from tests.unit.summaries import (
    budget,
    gpu,
    kernel,
    one,
    operator,
    static,
    summary,
    timings,
)

SMALL = 1_000_000
"""Launches that make kernels of seconds small ones."""
BUSY = {"all": Utilisation(device_busy_ratio=0.5)}
FLOAT32, BFLOAT16 = Workload(dtype="float32"), Workload(dtype="bfloat16")


def shared(family: str, part: float, name: str = "k", **fields: object) -> Summary:
    """Kernels of 4 s, ``part`` of it in one family."""
    rows = [kernel(name, family, 4 * part, **fields), kernel("other", "gemm", 4 * (1 - part))]
    return summary(
        kernels=rows, timings=timings(prefill=1.0, decode=2.0), utilisation=BUSY, workload=BFLOAT16
    )


def repeats(spread: float, n: int = 9) -> Summary:
    return summary(repeat_spread={"decode": Stat(2.0, 1.0, 1.0 + 2 * spread, 2.0, 0.0, n)})


def cache(share: float) -> Summary:
    phase = StaticPhase(1e9, (1 - share) * 1e9, None, share * 1e9, None)
    return summary(static=static(decode=phase), timings=timings(decode=3.0))


Rule = Callable[[Summary], list[Finding]]


@pytest.mark.parametrize(
    ("rule", "make", "begins", "below"),
    [
        (kernels.find_unfused_elementwise, lambda x: shared("norm", x, launches=SMALL), 0.2, 0.19),
        (kernels.find_copies_and_casts, lambda x: shared("cast", x), 0.1, 0.09),
        (kernels.find_full_precision, lambda x: shared("gemm", x, "sgemm"), 0.05, 0.04),
        (kernels.find_underfilled_grids, lambda x: shared("gemm", x, counters={"waves": 0.5}), 0.05, 0.04),
        (kernels.find_underfilled_grids, lambda x: shared("gemm", 0.5, counters={"waves": x}), 0.99, 1.0),
        (idle.find_losses, lambda x: summary(budget={"decode": budget(2.0, copy=x)}), 0.05, 0.049),
        (idle.find_losses, lambda x: summary(budget={"decode": budget(2.0, sync=x)}), 0.05, 0.049),
        (attention.find_kv_cache_growth, cache, 0.3, 0.29),
        (attention.find_kv_cache_growth, lambda x: summary(metrics={"tpot_growth_ratio": x}), 1.15, 1.14),
        (
            model.find_vision_share,
            lambda x: summary(timings=Timings(vision_s=one(x), ttft_s=one(2.0))),
            1.0,
            0.99,
        ),
        (model.find_padding, lambda x: summary(metrics={"padding_ratio": x}), 0.1, 0.09),
        (conditions.find_pollution, lambda x: summary(metrics={"first_repeat_ratio": x}), 1.3, 1.29),
        (
            conditions.find_pollution,
            lambda x: summary(metrics={"profiled_over_unprofiled_ratio": x}),
            1.5,
            1.49,
        ),
        (conditions.find_noise, lambda x: summary(metrics={"last_over_first_repeat_ratio": x}), 1.15, 1.14),
        (conditions.find_noise, repeats, 0.26, 0.25),
        (conditions.find_noise, lambda n: repeats(1.0, int(n)), 3, 2),
        (
            kernels.find_full_precision,
            lambda x: summary(
                hardware=gpu(float32=2.0, float16=x), workload=FLOAT32, timings=timings(decode=1.0)
            ),
            3.0,
            2.9,
        ),
    ],
)
def test_threshold_of_a_rule(
    rule: Rule, make: Callable[[float], Summary], begins: float, below: float
) -> None:
    assert len(rule(make(begins))) == 1
    assert rule(make(below)) == []


def test_kernel_shares_are_of_all_kernel_time_and_of_the_running_part_of_a_sample() -> None:
    (found,) = kernels.find_unfused_elementwise(shared("norm", 0.5, launches=SMALL))
    assert found.gain_upper_s == pytest.approx(3.0 * 0.5 * 0.5)
    assert mentions_in_order(found.arithmetic, "2.00 s", "4.00 s")
    (found,) = kernels.find_copies_and_casts(shared("transpose", 0.5))
    assert found.gain_upper_s == pytest.approx(3.0 * 0.5 * 0.5)
    assert mentions_in_order(found.arithmetic, "2.00 s", "4.00 s")
    assert found.id == "copy-kernels" and [numbers(line) for line in found.evidence] == [["50.0"]]
    (found,) = kernels.find_underfilled_grids(shared("gemm", 0.5, counters={"waves": 0.25}))
    assert found.gain_upper_s == pytest.approx(3.0 * 0.5 * 0.5)
    assert mentions_in_order(found.arithmetic, "2.00 s", "4.00 s")
    assert mentions(found.evidence[1], "50.0 %")
    assert found.confidence == "high"


def test_underfilled_grids_name_the_longest_and_the_range_of_waves() -> None:
    rows = [
        kernel("a", "gemm", 1.0, counters={"waves": 0.25}),
        kernel("b", "gemm", 3.0, counters={"waves": 0.75}),
        kernel("c", "gemm", 2.0, bound="underfilled"),
        kernel("full", "gemm", 4.0, counters={"waves": 7.0}),
    ]
    (found,) = kernels.find_underfilled_grids(summary(kernels=rows))
    named, together = found.evidence
    assert mentions(named, "3", "b") and mentions_in_order(named, "0.250", "0.750")
    assert mentions(together, "60.0 %")
    assert found.gain_upper_s is None  # no wall-clock to take a share of
    untimed = summary(kernels=[kernel("c", "gemm", None, bound="underfilled")])
    (counted,) = kernels.find_underfilled_grids(untimed)
    (named,) = counted.evidence
    assert mentions(named, "1", "c")
    assert counted.gain_upper_s is None and counted.arithmetic and numbers(counted.arithmetic) == []


def test_the_share_of_a_capture_of_one_phase_needs_the_timeline_of_that_phase() -> None:
    rows = [
        kernel("add", "elementwise", 1.0, phase="decode", launches=SMALL),
        kernel("mm", "gemm", 1.0, phase="prefill"),
    ]
    spans = {"decode": budget(1.0, compute=0.5), "all": budget(1.0, compute=0.25)}
    data = summary(kernels=rows, timings=timings(prefill=1.0, decode=3.0), budget=spans)
    (found,) = kernels.find_unfused_elementwise(data)  # two phases: a share of the whole sample
    assert found.gain_upper_s == pytest.approx(4.0 * 0.25 * 0.5)
    rows[1].phase = "decode"
    (found,) = kernels.find_unfused_elementwise(data)
    assert found.gain_upper_s == pytest.approx(3.0 * 0.5 * 0.5)
    rows[0].phase = rows[1].phase = "something else"  # not a phase of inference
    (found,) = kernels.find_unfused_elementwise(data)
    assert found.gain_upper_s == pytest.approx(4.0 * 0.25 * 0.5)


@pytest.mark.parametrize(("calls", "times"), [(20, None), (21, "2.10"), (30, "3.00")])
def test_more_than_two_reads_per_token_are_a_habit(calls: int, times: str | None) -> None:
    rows = [
        operator("aten::item", calls),
        operator("aten::mul", 900),
        operator("aten::item", 900, phase="prefill"),
    ]
    data = summary(operators=rows, metrics={"profiled_decode_steps": 10.0})
    messages = [line for finding in idle.find_host_syncs(data) for line in finding.evidence]
    assert len(messages) == (times is not None)
    assert times is None or mentions(messages[0], "aten::item", times)


def test_full_precision_names_both_peaks_and_what_they_bound() -> None:
    data = summary(
        hardware=gpu(float32=1e13, bfloat16=4e13), workload=FLOAT32, timings=timings(prefill=0.5, decode=1.5)
    )
    (found,) = kernels.find_full_precision(data)
    assert found.gain_upper_s == pytest.approx(1.5)
    assert found.arithmetic == "2.00 s × (1 − 1/4.00) = 1.50 s"
    assert mentions_in_order(
        found.evidence[0], "float32", "10.0 TFLOP/s", "data sheet", "40.0 TFLOP/s", "data sheet"
    )
    # Bytes halve whatever the peaks say.
    data.hardware = gpu(float32=1e13, bfloat16=1.6e13)
    (found,) = kernels.find_full_precision(data)
    assert found.gain_upper_s == pytest.approx(1.0)
    assert found.arithmetic == "2.00 s × (1 − 1/2.00) = 1.00 s"


def test_stray_full_precision_kernels_name_three_and_bound_by_the_peaks() -> None:
    rows = [kernel(f"sgemm_{i}", "gemm", 0.5) for i in (0, 1, 1, 2, 3)] + [kernel("bf16", "gemm", 2.5)]
    data = summary(
        workload=BFLOAT16,
        hardware=gpu(float32=1e13, float16=1.5e13),
        kernels=rows,
        timings=timings(prefill=1.0, decode=3.0),
        utilisation=BUSY,
    )
    (found,) = kernels.find_full_precision(data)
    (line,) = found.evidence
    assert mentions(line, "50.0 %", "sgemm_0, sgemm_1, sgemm_2") and "sgemm_3" not in line
    assert found.gain_upper_s == pytest.approx(4.0 * 0.5 * 0.5 * 0.5)
    assert mentions_in_order(found.arithmetic, "2.50 s", "5.00 s", "2.00")


def test_the_cache_is_detected_by_bytes_and_by_growth_with_its_arithmetic() -> None:
    data = cache(0.4)
    (found,) = attention.find_kv_cache_growth(data)
    (line,) = found.evidence
    assert mentions(line, "40.0 %") and mentions_in_order(line, "381 MiB", "954 MiB")
    assert found.gain_upper_s == pytest.approx(1.2)
    assert mentions_in_order(found.arithmetic, "3.00 s", "40.0 %", "1.20 s")
    data.metrics = {"tpot_growth_ratio": 2.0}
    (found,) = attention.find_kv_cache_growth(data)  # measured growth knows better than modelled bytes
    assert len(found.evidence) == 2
    assert found.gain_upper_s == pytest.approx(1.0)
    assert found.arithmetic.endswith("3.00 s × (1 − 2/(1 + 2.00)) = 1.00 s")
    data.metrics = {"tpot_growth_ratio": 1.15}
    assert attention.find_kv_cache_growth(data)[0].gain_upper_s == pytest.approx(3.0 * (1 - 2 / 2.15))
    data.metrics = {"tpot_growth_ratio": 1.1}
    assert attention.find_kv_cache_growth(data)[0].gain_upper_s == pytest.approx(1.2)


def test_vision_share_has_the_numbers_of_the_encoder_only() -> None:
    timed = Timings(vision_s=one(1.5), ttft_s=one(2.0))
    timed.components = {"sam_s": one(0.5), "clip_s": one(0.75), "lm_prefill_s": one(1.0), "none_s": one(0.0)}
    (found,) = model.find_vision_share(summary(timings=timed))
    share, largest = found.evidence
    assert mentions(share, "75.0 %") and mentions_in_order(share, "1.50 s", "2.00 s")
    assert mentions(largest, "clip", "750 ms") and not mentions(largest, "sam")
    assert found.gain_upper_s is None  # without a floor nobody knows what must stay
    assert model.find_vision_share(summary(timings=Timings(vision_s=one(1.0), ttft_s=one(0.0)))) == []
    floor = {"vision": Prediction(0.5, "compute", None)}
    longer = model.find_vision_share(
        summary(timings=Timings(vision_s=one(3.0), ttft_s=one(2.0)), predictions=floor)
    )
    assert longer[0].gain_upper_s == 1.5  # not more than there is above the floor


def test_padding_and_noise_show_their_numbers() -> None:
    (found,) = model.find_padding(summary(timings=timings(prefill=2.0), metrics={"padding_ratio": 0.25}))
    assert found.arithmetic == "2.00 s × 25.0 % = 500 ms"
    (found,) = conditions.find_noise(repeats(0.5))
    (line,) = found.evidence
    assert mentions(line, "decode", "50.0 %", "9")
    calm_machine = repeats(0.5)
    calm_machine.environment = {"load_average": [2.0, 2.0, 2.0], "cpu": {"cores": 2}}
    assert conditions.find_noise(calm_machine)[0].evidence == found.evidence
    calm_machine.environment["load_average"] = [2.1, 0.0, 0.0]
    assert mentions(conditions.find_noise(calm_machine)[0].evidence[1], "2.1", "2")
    assert conditions.find_noise(summary(repeat_spread={"decode": Stat(0.0, -1.0, 1.0, 0.0, 0.0, 9)})) == []


def test_findings_of_equal_gain_come_by_name_and_phase() -> None:
    spans = {
        phase: budget(2.0, compute=0.5, copy=0.25, sync=0.25) for phase in ("decode", "prefill", "vision")
    }
    found = [(one.id, one.phase) for one in find_all(summary(budget=spans))]
    assert found == [
        (rule, phase) for rule in ("copies", "host-sync") for phase in ("decode", "prefill", "vision")
    ]
    mixed = summary(budget=spans, metrics={"first_repeat_ratio": 2.0})
    assert find_all(mixed)[-1].id == "warm-up-pollution"  # without a gain: last


def test_seconds_of_a_sample_without_its_whole_are_the_sum_of_its_phases() -> None:
    data = summary(hardware=gpu(float32=1.0, bfloat16=2.0), workload=FLOAT32)
    data.timings = Timings(prefill_s=one(1.0), decode_s=one(2.0))
    assert kernels.find_full_precision(data)[0].gain_upper_s == pytest.approx(1.5)
    data.timings = Timings(vision_s=one(1.0), decode_s=one(4.0))
    assert kernels.find_full_precision(data)[0].gain_upper_s == pytest.approx(2.5)
    data.timings = Timings(ttft_s=one(3.0), prefill_s=one(1.0), decode_s=one(4.0))
    assert kernels.find_full_precision(data)[0].gain_upper_s == pytest.approx(3.5)


def test_kernels_without_a_time_add_none() -> None:
    rows = [
        kernel("timed", "norm", 0.5, launches=100_000, counters={"waves": 0.5}),
        kernel("untimed", "norm", None, launches=None, counters={"waves": 0.5}),
        kernel("mm", "gemm", 0.5),
    ]
    (small,) = kernels.find_underfilled_grids(summary(kernels=rows))
    assert mentions(small.evidence[0], "2", "timed") and not mentions(small.evidence[0], "untimed")
    assert mentions_in_order(small.arithmetic, "500 ms", "1.00 s")
    (unfused,) = kernels.find_unfused_elementwise(summary(kernels=rows))
    assert mentions(unfused.evidence[0], "50.0 %", "100 k", "1")


def test_a_component_that_took_no_time_is_not_named() -> None:
    timed = Timings(vision_s=one(1.5), ttft_s=one(2.0), components={"sam_s": one(0.0)})
    assert len(model.find_vision_share(summary(timings=timed))[0].evidence) == 1
