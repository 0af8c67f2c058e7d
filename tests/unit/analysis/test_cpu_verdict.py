"""What limits a phase on the processor: problems that are there, and phases that have none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from llm_perf_opt.analysis.cpu import PhaseClock, cpu_answer, overhead_of, phase_work
from llm_perf_opt.analysis.verdicts import judge, shown_bound
from llm_perf_opt.summary import Prediction, Summary
from tests.text_facts import mentions
from tests.unit.summaries import cpu, gpu, operator, summary, timings

NAMES = {
    "matrix": "aten::mm",
    "movement": "aten::copy_",
    "growing cache": "aten::cat",
    "element-wise": "aten::mul",
    "unknown": "x::y",
}

TRACE, TIMED, COUNTED = ("trace",), ("trace", "timings"), ("trace", "static")


def phase(
    *, host_s: float = 1.2, floor_s: float | None = None, bound: str = "memory", **parts: float
) -> Summary:
    """One second of decode without a profiler, split as planted; what is left is dispatch."""
    rows = [operator(NAMES[name.replace("_", " ")], 10, seconds) for name, seconds in parts.items()]
    data = summary(hardware=cpu(), operators=rows, timings=timings(decode=1.0))
    work = phase_work(rows, PhaseClock(host_s, 1.0), grows=True)
    assert work is not None
    data.cpu_work = {"decode": work}
    if floor_s is not None:
        data.predictions = {"decode": Prediction(floor_s, bound, 1.0 / floor_s, "bytes ÷ bandwidth")}  # type: ignore[arg-type]
    return data


@pytest.mark.parametrize(
    ("data", "bound", "sources", "facts"),
    [
        (phase(matrix=0.2, growing_cache=0.1), "launch", TIMED, ["dispatch", "70.0 %", "aten::mm"]),
        (phase(matrix=0.2, growing_cache=0.6), "memory", TRACE, ["60.0 %", "20.0 %", "aten::cat"]),
        (phase(matrix=0.3, movement=0.2, growing_cache=0.3), "memory", TRACE, ["30.0 %", "20.0 %"]),
        (phase(matrix=0.7, floor_s=0.35), "memory", COUNTED, ["70.0 %", "bytes ÷ bandwidth"]),
        (phase(matrix=0.7, floor_s=0.35, bound="compute"), "compute", COUNTED, ["bytes ÷ bandwidth"]),
        (phase(matrix=0.7, floor_s=0.1), "unknown", COUNTED, ["14.3 %", "memory", "70.0 %"]),
        (phase(matrix=0.7), "unknown", TRACE, ["70.0 %", "aten::mm"]),
        (phase(matrix=0.45, movement=0.45, floor_s=0.3, bound="compute"), "balanced", COUNTED, ["45.0 %"]),
        (phase(matrix=0.45, movement=0.45, floor_s=0.3), "memory", COUNTED, ["45.0 %", "10.0 %"]),
        (phase(matrix=0.45, movement=0.45), "unknown", TRACE, ["45.0 %", "10.0 %"]),
        (phase(matrix=0.42), "launch", TIMED, ["dispatch", "58.0 %", "42.0 %"]),
        (phase(matrix=0.49), "unknown", TRACE, ["51.0 %", "49.0 %"]),
        (phase(**{"element-wise": 0.7}), "unknown", TRACE, ["element-wise", "70.0 %", "aten::mul"]),
        (phase(unknown=0.7), "unknown", TRACE, ["70.0 %", "x::y"]),
        (phase(matrix=0.3, movement=0.2, **{"element-wise": 0.2}), "unknown", TRACE, ["30.0 %", "20.0 %"]),
    ],
)
def test_the_largest_part_decides(
    data: Summary, bound: str, sources: tuple[str, ...], facts: list[str]
) -> None:
    found = cpu_answer(data, "decode")
    assert found is not None
    assert (found.bound, found.sources) == (bound, sources)
    assert mentions(found.arithmetic, *facts)


def small_products(calls: int, *, floor_s: float, shared: bool = False, bound: str = "memory") -> Summary:
    """One second: 0.46 s of products in ``calls``, 0.35 s of dispatch, the rest element-wise."""
    rows = [operator("aten::mm", calls, 0.46), operator("aten::mul", calls, 0.19)]
    data = summary(hardware=cpu(), operators=rows, timings=timings(decode=1.0))
    work = phase_work(rows, PhaseClock(1.2, 1.0))
    assert work is not None
    data.cpu_work = {"decode": work}
    data.predictions = {"decode": Prediction(floor_s, bound, 1.0 / floor_s, "bytes ÷ bandwidth")}  # type: ignore[arg-type]
    data.environment["device_use"] = {"shared": "others used 80 %"} if shared else {}
    return data


def test_products_that_are_too_small_for_the_machine_are_overhead() -> None:
    """2,000 products of 230 µs, of which the limit explains 25 µs: calling them is what takes the time."""
    data = small_products(2000, floor_s=0.05)
    found = cpu_answer(data, "decode")
    assert found is not None and found.bound == "launch"
    assert mentions(found.arithmetic, "230 µs", "25.0 µs", "41.0 %", "35.0 %", "76.0 %")
    assert shown_bound(replace(data, verdicts=judge(data)), "decode") == "overhead"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(small_products(20, floor_s=0.05), id="the products are long: 2.5 ms at their limit"),
        pytest.param(small_products(2000, floor_s=0.4), id="the products are at their limit"),
    ],
)
def test_products_that_are_long_or_near_their_limit_are_no_overhead(data: Summary) -> None:
    found = cpu_answer(data, "decode")
    assert found is not None and found.bound != "launch"


def measured_products(width: int, layers: int) -> Summary:
    """Profile a real stack of matrix products; its floor is the bandwidth that a large product reaches on this machine."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    def seconds(call: Callable[[], object]) -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    with torch.inference_mode():
        large, row = torch.rand(2048, 2048), torch.rand(1, 2048)
        bytes_per_s = large.nbytes / min(seconds(lambda: row @ large) for _ in range(20))
        weights, token = torch.rand(layers, width, width), torch.rand(1, width)

        def step() -> None:
            x = token
            for weight in weights:
                x = torch.mm(x, weight)

        wall_s = min(seconds(step) for _ in range(20))
        passes = []
        for _ in range(5):  # the one that other programs disturbed least
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                host_s = seconds(step)
            passes.append((host_s, profiler.key_averages()))
    host_s, averages = min(passes, key=lambda one: one[0])
    rows = [
        operator(row.key, row.count, row.self_cpu_time_total * 1e-6)
        for row in averages
        if row.key.startswith("aten::")
    ]
    data = summary(hardware=cpu(), operators=rows, timings=timings(decode=wall_s))
    work = phase_work(rows, PhaseClock(host_s, wall_s))
    assert work is not None
    data.cpu_work = {"decode": work}
    floor_s = weights.nbytes / bytes_per_s
    data.predictions = {"decode": Prediction(floor_s, "memory", wall_s / floor_s, "bytes ÷ bandwidth")}
    return data


@pytest.fixture
def one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_real_products_of_a_tiny_and_of_a_wide_model() -> None:
    """40 products of 16 KB are mostly calls; four of 16 MB are mostly memory traffic. The limit of 30 µs lies between."""
    tiny, wide = measured_products(64, 40), measured_products(2048, 4)
    overhead = overhead_of(tiny, "decode", tiny.cpu_work["decode"])
    assert overhead is not None and overhead.small.limit_s < 10e-6 and overhead.share > 0.5
    answer = cpu_answer(tiny, "decode")
    assert answer is not None and answer.bound == "launch"
    assert wide.predictions["decode"].floor_s / 4 > 100e-6
    assert overhead_of(wide, "decode", wide.cpu_work["decode"]) is None


def test_slow_products_are_a_verdict_only_where_nobody_else_used_the_processor() -> None:
    alone = cpu_answer(phase(matrix=0.7, floor_s=0.1, bound="compute"), "decode")
    data = phase(matrix=0.7, floor_s=0.1, bound="compute")
    data.environment["device_use"] = {"shared": "others used 80 %"}
    shared = cpu_answer(data, "decode")
    assert alone is not None and alone.bound == "compute"
    assert shared is not None and shared.bound == "unknown"


def test_the_profilers_own_time_is_not_dispatch() -> None:
    """0.8 s of products in 1 s; the profiler makes 3 s of it, two thirds of them outside operators."""
    found = cpu_answer(phase(host_s=3.0, matrix=0.8, floor_s=0.4), "decode")
    assert found is not None and found.bound == "memory"


def test_launch_is_never_concluded_without_the_unprofiled_time() -> None:
    data = phase(matrix=0.2)
    data.cpu_work = {}
    work = phase_work(data.operators, PhaseClock(host_s=1.2))
    assert work is not None
    data.cpu_work = {"decode": work}
    found = cpu_answer(data, "decode")
    assert found is not None and found.bound == "unknown"
    assert "outside operators" in found.arithmetic


def test_the_sentence_has_its_shares_and_the_largest_operator() -> None:
    found = cpu_answer(phase(matrix=0.25, growing_cache=0.6, movement=0.01), "decode")
    assert found is not None
    assert found.bound == "memory"
    assert mentions(
        found.arithmetic, "1.00 s", "growing cache", "60.0 %", "25.0 %", "dispatch", "14.0 %", "aten::cat"
    )
    assert not mentions(found.arithmetic, "1.00 %"), "parts that small are not listed"
    assert found.sources == ("trace",)


def test_nothing_is_reported_of_a_device_or_without_operators() -> None:
    rows = [operator("aten::mm", 1, 1.0)]
    assert cpu_answer(summary(hardware=gpu(), operators=rows), "decode") is None
    assert cpu_answer(summary(hardware=cpu()), "decode") is None
    assert cpu_answer(summary(hardware=cpu(), operators=rows), "prefill") is None
