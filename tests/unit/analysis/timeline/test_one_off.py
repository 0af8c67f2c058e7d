"""Costs that occur once: found by names and by comparing first launches with later ones. Times are in microseconds."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.analysis.timeline.one_off import is_preparing, is_preparing_frame, is_warm_up
from llm_perf_opt.captures.timeline import Timeline
from tests.unit.timelines import LAUNCH, MALLOC, SYNC, US, Call, Op, make_timeline, owner_of, split

REPEATS = 30


def steps(first_call: int, usual_call: int = 10, more: list[Call] | None = None, **fields: Any) -> Timeline:
    """A kernel whose first launch call takes ``first_call``, and ``REPEATS`` later ones; each runs for 50 µs behind its call."""
    calls: list[Call] = [(0, 10, LAUNCH)]
    ops: list[Op] = [(10, 60, "other", 0)]
    at = 60
    for number in range(REPEATS + 1):
        length = first_call if number == 0 else usual_call
        calls.append((at, at + length, LAUNCH))
        ops.append((at + length, at + length + 50, "gemm", number + 1))
        at += length + 50
    return make_timeline(ops, [*calls, *(more or [])], unit=US, **fields)


def test_the_first_launch_of_a_kernel_that_loads_its_module_is_no_launch_overhead() -> None:
    timeline = steps(20_000)
    found = split(timeline, unit=US)
    assert found["one-off"] == 20_000
    assert found["launch"] == REPEATS * 10
    assert owner_of(timeline, "one-off").what == "first use"


@pytest.mark.parametrize(("first", "usual"), [(150, 10), (900, 300), (20_000, 3_000)])
def test_a_first_launch_about_as_long_as_later_ones_is_none(first: int, usual: int) -> None:
    """Shorter than a module takes to load, or not ten times the usual launch: launches are slow here."""
    found = split(steps(first, usual), unit=US)
    assert found.get("one-off", 0) == 0
    assert found["launch"] + found.get("host", 0) == first + REPEATS * usual


def test_few_launches_do_not_show_what_is_usual() -> None:
    calls = [(0, 10, LAUNCH), (60, 20_060, LAUNCH)]
    found = split(make_timeline([(10, 60, "a", 0), (20_060, 20_100, "b", 1)], calls, unit=US), unit=US)
    assert found.get("one-off", 0) == 0


def test_idle_time_inside_a_range_named_warm_up_is_all_of_it() -> None:
    """Also waits: nothing in a warm-up recurs."""
    calls = [(0, 10, LAUNCH), (60, 3_000, SYNC), (4_000, 4_010, LAUNCH)]
    ops = [(10, 60, "a", 0), (4_010, 4_100, "a", 1)]
    plain = split(make_timeline(ops, calls, [(0, 4_100, "forward")], unit=US), unit=US)
    assert plain.get("one-off", 0) == 0
    timeline = make_timeline(ops, calls, [(0, 4_100, "model|warmup|forward")], unit=US)
    assert split(timeline, unit=US)["one-off"] == 3_950
    assert owner_of(timeline, "one-off").what == "warm-up"


def test_an_allocator_that_grows_once_is_one_off_and_one_that_frees_is_not() -> None:
    growing = allocating([])
    assert (growing.get("allocation", 0), growing["one-off"]) == (0, 300)
    freeing = allocating([(5_000, 5_001, "cudaFree_v3020")])
    assert (freeing["allocation"], freeing.get("one-off", 0)) == (300, 0)


def allocating(more: list[Call]) -> dict[str, float]:
    """A gap of 400 µs with 300 µs of cudaMalloc in it, before thirty launches."""
    calls: list[Call] = [(0, 10, LAUNCH), (80, 380, MALLOC)]
    ops: list[Op] = [(10, 60, "gemm", 0)]
    for number in range(REPEATS):
        at = 450 + 60 * number
        calls.append((at, at + 10, LAUNCH))
        ops.append((at + 10, at + 60, "gemm", 2 + number))
    return split(make_timeline(ops, [*calls, *more], unit=US, ranges=[(0, 6_000, "step")]), unit=US)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("warmup", True),
        ("Warm-up 3", True),
        ("kernel_warmup", True),
        ("[param|model|0|warmup|forward]", True),
        ("get_linear_schedule_with_warmup", False),
        ("lr_warmup", False),
        ("after_warmup", False),
        ("warmup_ratio", False),
        ("swarmup", False),
        ("forward", False),
    ],
)
def test_names_of_warm_ups(name: str, expected: bool) -> None:
    assert is_warm_up(name) is expected


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("torch/_dynamo/convert_frame.py(1372): __call__", True),
        ("torch/_inductor/compile_fx.py(700): fx_codegen_and_compile", True),
        ("torch/_inductor/runtime/triton_heuristics.py(900): benchmark_all_configs", True),
        ("triton/runtime/autotuner.py(120): _bench", True),
        ("torch/_inductor/runtime/triton_heuristics.py(1100): run", False),
        ("torch/_inductor/output_code.py(450): __call__", False),
        ("torch/_dynamo/eval_frame.py(570): _fn", False),
    ],
)
def test_frames_of_a_compiled_model_in_its_steady_state_are_not_compilation(
    frame: str, expected: bool
) -> None:
    assert is_preparing_frame(frame) is expected


def test_ranges_that_compile() -> None:
    assert is_preparing("_compile.compile_inner (dynamo_timed)")
    assert is_preparing("autotuning gemm")
    assert not is_preparing("Torch-Compiled Region: 0/0")
    assert not is_preparing("## Call CompiledFxGraph abc ##")


def test_work_launched_before_the_capture_waits_in_the_queue_whatever_the_host_does() -> None:
    """The first kernels of the stream have no launch in the capture, the last one has: the gap between them is the queue's."""
    calls = [(50, 9_000, "cudaMemcpyAsync_v3020"), (9_010, 9_020, LAUNCH)]
    ops = [(0, 10, "a", -1), (6_000, 6_010, "b", -1), (9_030, 9_040, "c", 1)]
    found = split(make_timeline(ops, calls, unit=US), unit=US)
    assert found["queue"] == 5_990
    unknown_later = [(0, 10, "a", 0), (6_000, 6_010, "b", -1), (9_030, 9_040, "c", 1)]
    later = split(make_timeline(unknown_later, calls, unit=US), unit=US)
    assert later.get("queue", 0) == 0, "a launch that was lost in the middle says nothing"
