"""Each answer a verdict can give, and what it says when it cannot tell."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.verdicts import judge, phases_to_show
from llm_perf_opt.core.units import percent
from llm_perf_opt.summary import Hardware, Kernel, Prediction, Utilisation, Workload
from tests.text_facts import mentions
from tests.unit.summaries import budget, cpu, gpu, kernel, operator, summary, timings, verdict


def test_device_time_against_wall_clock() -> None:
    busy = {"decode": Utilisation(device_busy_ratio=0.2)}
    assert judge(summary(utilisation=busy))["decode"].bound == "launch"
    half = {"decode": Utilisation(device_busy_ratio=0.9)}
    assert judge(summary(utilisation=half))["decode"].bound == "unknown"


def test_one_phase_of_many_is_rated_by_an_upper_bound() -> None:
    data = summary(
        timings=timings(prefill=0.1, decode=0.7),
        workload=Workload(samples=10),
        metrics={"device_busy_s": 2.1},
    )
    found = judge(data)
    assert found["decode"].bound == "launch"
    assert "at most 30.0 %" in found["decode"].arithmetic
    assert found["prefill"].bound == "unknown"  # all kernel time could be in prefill


@pytest.mark.parametrize(
    ("compute", "memory", "bound"),
    [(0.9, 0.3, "compute"), (0.2, 0.8, "memory"), (0.8, 0.79, "balanced"), (0.3, 0.3, "unknown")],
)
def test_counters_decide_when_they_cover_enough(compute: float, memory: float, bound: str) -> None:
    counters: dict[str, float | None] = {"compute_ratio": compute, "dram_ratio": memory}
    rows = [
        kernel("a", "gemm", 0.9, phase="prefill", counters=counters),
        kernel("b", "gemm", 0.1, phase="prefill"),
    ]
    data = summary(kernels=rows, budget={"prefill": budget(1.0, compute=0.95, host=0.05)})
    assert judge(data)["prefill"].bound == bound
    rows[0].total_s = 0.05
    assert judge(data)["prefill"].bound == "unknown"


@pytest.mark.parametrize(
    ("mfu", "mbu", "bound"),
    [
        (0.6, 0.1, "compute"),
        (0.1, 0.6, "memory"),
        (0.5, 0.52, "balanced"),
        (0.1, 0.2, "unknown"),
        (0.6, None, "unknown"),
    ],
)
def test_utilisation_near_a_limit(mfu: float, mbu: float | None, bound: str) -> None:
    found = judge(summary(utilisation={"prefill": Utilisation(mfu_ratio=mfu, mbu_ratio=mbu)}))["prefill"]
    assert found.bound == bound
    assert found.arithmetic


@pytest.mark.parametrize(
    ("hardware", "dtype", "helps"),
    [
        (cpu(float32=1e11), "float32", False),  # nothing says that this processor is faster in another type
        (cpu(float32=1e11, bfloat16=4e10), "float32", False),
        (cpu(float32=1e11, bfloat16=8e11), "float32", True),
        (gpu(float32=2e13, bfloat16=4e14), "float32", True),
        (gpu(float32=2e13, bfloat16=4e14), "bfloat16", False),
        (gpu(bfloat16=4e14), None, True),
    ],
)
def test_lower_precision_is_named_where_the_device_is_faster_in_it(
    hardware: Hardware, dtype: str | None, helps: bool
) -> None:
    near = {"prefill": Utilisation(mfu_ratio=0.6, mbu_ratio=0.1)}
    found = judge(summary(utilisation=near, hardware=hardware, workload=Workload(dtype=dtype)))["prefill"]
    assert found.bound == "compute"
    assert found.lever is not None and "less work" in found.lever
    assert ("lower precision" in found.lever) is helps


def test_on_a_cpu_operators_decide() -> None:
    timed = timings(prefill=0.1, decode=0.5)
    small = [operator("aten::mul", 100, 0.7), operator("aten::addmm", 10, 0.3)]
    spread = judge(summary(hardware=cpu(), timings=timed, operators=small))["decode"]
    assert spread.bound == "unknown"  # work on elements is no dispatch
    assert "element-wise 70.0 %" in spread.arithmetic
    matrix = [operator("aten::addmm", 10, 0.9), operator("aten::mul", 10, 0.1)]
    predicted = {"decode": Prediction(0.15, "memory", 0.5 / 0.15, "1.5 GB ÷ 10 GB/s")}
    data = summary(hardware=cpu(), timings=timed, operators=matrix, predictions=predicted)
    assert judge(data)["decode"].bound == "memory"  # 0.15 s of 0.9 × 0.5 s: a third of the limit
    data.predictions = {"decode": Prediction(0.05, "memory", 10.0, "0.5 GB ÷ 10 GB/s")}
    slow = judge(data)["decode"]
    assert slow.bound == "unknown"  # mostly matrix work, but far from any limit
    assert mentions(slow.arithmetic, "11.1 %", "memory")
    even = [operator("aten::addmm", 10, 0.5), operator("aten::mul", 10, 0.5)]
    undecided = judge(summary(hardware=cpu(), timings=timed, operators=even))["decode"]
    assert undecided.bound == "unknown"
    assert not mentions(undecided.arithmetic, "trace")  # it has one
    assert mentions(undecided.arithmetic, "50.0 %")
    blind = judge(summary(hardware=cpu(), timings=timed))["decode"]
    assert blind.bound == "unknown" and mentions(blind.arithmetic, "trace", "FLOPs")


def test_unknown_names_what_is_missing_and_nothing_is_concluded_without_data() -> None:
    found = judge(summary(timings=timings(decode=1.0)))
    assert set(found) == {"decode"}
    assert found["decode"].bound == "unknown"
    assert "timeline" in found["decode"].arithmetic
    assert found["decode"].lever is None
    assert judge(summary()) == {}


def test_a_batch_is_timed_once_for_all_its_samples() -> None:
    data = summary(
        timings=timings(prefill=0.1, decode=0.7),
        workload=Workload(samples=10, batch_size=5),
        metrics={"device_busy_s": 2.1},
    )
    assert judge(data)["decode"].bound == "unknown"  # 2 batches take 1.4 s: the device may be busy throughout


def test_the_whole_capture_is_not_shown_where_it_repeats_a_phase() -> None:
    shown = {"prefill": verdict("compute"), "decode": verdict("launch"), "all": verdict("launch")}
    assert phases_to_show(shown) == ["prefill", "decode"]
    assert phases_to_show({**shown, "all": verdict("memory")}) == ["prefill", "decode", "all"]
    assert phases_to_show({"all": verdict("launch")}) == ["all"]


def counted(name: str, seconds: float, compute: float, memory: float, phase: str = "prefill") -> Kernel:
    counters: dict[str, float | None] = {"compute_ratio": compute, "dram_ratio": memory}
    return kernel(name, "gemm", seconds, phase=phase, counters=counters)


def test_counters_are_weighted_by_the_time_of_their_kernels() -> None:
    rows = [counted("long", 1.8, 0.2, 0.9), counted("short", 0.2, 0.4, 0.1), kernel("x", "gemm", 0.5)]
    data = summary(kernels=rows, budget={"prefill": budget(2.0, compute=1.0)}, sources={"ncu": "a.ncu-rep"})
    found = judge(data)["prefill"]
    assert found.bound == "memory"
    assert mentions(found.arithmetic, "100 %", "22.0 %", "82.0 %")
    assert found.evidence == ["ncu: a.ncu-rep"]


def test_every_phase_is_rated_by_its_own_kernels_and_the_run_by_all() -> None:
    rows = [
        counted("a", 1.0, 0.9, 0.1, "prefill"),
        counted("b", 3.0, 0.1, 0.9, "decode"),
        kernel("c", "gemm", 1.0, phase="decode"),
    ]
    spans = {phase: budget(5.0, compute=1.0) for phase in ("prefill", "decode", "all")}
    found = judge(summary(kernels=rows, budget=spans))
    assert {phase: one.bound for phase, one in found.items()} == {
        "prefill": "compute",
        "decode": "memory",
        "all": "memory",
    }
    assert mentions(found["decode"].arithmetic, "75.0 %", "10.0 %", "90.0 %")
    assert mentions(found["all"].arithmetic, "80.0 %", "30.0 %", "70.0 %")


def test_a_counter_that_some_kernel_lacks_decides_nothing() -> None:
    rows = [
        counted("a", 9.0, 0.9, 0.1),
        kernel("b", "gemm", 1.0, phase="prefill", counters={"dram_ratio": 0.2}),
    ]
    data = summary(kernels=rows, budget={"prefill": budget(2.0, compute=1.0)})
    assert judge(data)["prefill"].bound == "unknown"


def test_a_unit_that_did_nothing_counts_as_nothing() -> None:
    rows = [counted("copy", 2.0, 0.0, 0.75)]
    found = judge(summary(kernels=rows, budget={"prefill": budget(2.0, compute=1.0)}))["prefill"]
    assert found.bound == "memory"
    assert mentions(found.arithmetic, "0 %", "75.0 %")


@pytest.mark.parametrize(
    ("compute", "memory", "bound"),
    [
        (0.6, 0.1, "compute"),  # a limiter from 60 % on
        (0.1, 0.6, "memory"),
        (0.59, 0.1, "unknown"),
        (0.625, 0.5625, "balanced"),  # within a tenth of the larger
        (0.625, 0.56, "compute"),
    ],
)
def test_where_counters_begin_to_decide(compute: float, memory: float, bound: str) -> None:
    spans = {"prefill": budget(1.0, compute=1.0)}
    assert (
        judge(summary(kernels=[counted("a", 0.5, compute, memory)], budget=spans))["prefill"].bound == bound
    )


def test_half_of_the_kernel_time_must_be_counted() -> None:
    spans = {"prefill": budget(1.0, compute=1.0)}
    rows = [counted("a", 0.5, 0.9, 0.1), kernel("b", "gemm", 0.5, phase="prefill")]
    assert judge(summary(kernels=rows, budget=spans))["prefill"].bound == "compute"
    rows[1].total_s = 0.51
    assert judge(summary(kernels=rows, budget=spans))["prefill"].bound == "unknown"


def test_where_device_time_begins_to_decide() -> None:
    half = {"decode": Utilisation(device_busy_ratio=0.5)}
    assert judge(summary(utilisation=half))["decode"].bound == "unknown"
    less = judge(summary(utilisation={"decode": Utilisation(device_busy_ratio=0.49)}))["decode"]
    assert less.bound == "launch" and mentions(less.arithmetic, "49.0 %", "50.0 %")


@pytest.mark.parametrize(("mfu", "mbu", "bound"), [(0.4, 0.1, "compute"), (0.39, 0.1, "unknown")])
def test_where_a_modelled_limit_is_near(mfu: float, mbu: float, bound: str) -> None:
    found = judge(summary(utilisation={"prefill": Utilisation(mfu_ratio=mfu, mbu_ratio=mbu)}))["prefill"]
    assert found.bound == bound
    assert mentions(found.arithmetic, "MFU", percent(mfu), "MBU", percent(mbu), "40.0 %")


@pytest.mark.parametrize(
    ("matrix", "bound"),
    [(0.39, "unknown"), (0.5, "unknown"), (0.52, "unknown"), (0.53, "memory"), (0.7, "memory")],
)
def test_where_operators_begin_to_decide(matrix: float, bound: str) -> None:
    """Without a namespace in the names, as operators of a user's library may come."""
    rows = [operator("linear", 10, matrix), operator("mul", 10, 1 - matrix)]
    predicted = {"decode": Prediction(0.4, "memory", 1.25, "4 GB ÷ 10 GB/s")}
    data = summary(hardware=cpu(), timings=timings(decode=0.5), operators=rows, predictions=predicted)
    assert judge(data)["decode"].bound == bound


def test_a_quarter_of_the_limit_is_near_enough_for_matrix_work() -> None:
    rows = [operator("aten::mm", 10, 1.0)]
    data = summary(hardware=cpu(), timings=timings(decode=0.5), operators=rows)
    data.predictions = {"decode": Prediction(0.125, "memory", 4.0, "1.25 GB ÷ 10 GB/s")}
    assert judge(data)["decode"].bound == "memory"
    data.predictions = {"decode": Prediction(0.124, "memory", 0.5 / 0.124, "1.24 GB ÷ 10 GB/s")}
    assert judge(data)["decode"].bound == "unknown"


def test_undetermined_shows_how_far_both_limits_are() -> None:
    use = {"decode": Utilisation(mfu_ratio=0.1, mbu_ratio=0.2)}
    far = judge(summary(utilisation=use, budget={"decode": budget(1.0, compute=1.0)}))["decode"]
    assert mentions(far.arithmetic, "100 %", "1.00 s", "counters", "MFU", "10.0 %", "MBU", "20.0 %", "40.0 %")
    rows = [operator("aten::mm", 1, 0.5), operator("aten::mul", 1, 0.5)]
    on_cpu = judge(summary(hardware=cpu(), utilisation=use, operators=rows))["decode"]
    assert mentions(on_cpu.arithmetic, "element-wise", "50.0 %", "aten::mul")
    untraced = judge(summary(hardware=cpu(), utilisation=use))["decode"]
    assert mentions(untraced.arithmetic, "MFU", "10.0 %", "MBU", "20.0 %", "40.0 %")
    assert not mentions(untraced.arithmetic, "counters"), "a processor has none"
    assert far.bound == on_cpu.bound == untraced.bound == "unknown"
