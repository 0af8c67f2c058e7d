"""Request → step → kernel, with steps and requests whose truth is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.analysis.serving.kernels import describe_window, find_steps, match_trace
from llm_perf_opt.analysis.serving.matching import merge_steps
from llm_perf_opt.captures.serving.reader import read_serving
from llm_perf_opt.captures.serving.records import Requests, StepRows, Steps
from llm_perf_opt.captures.timeline import Timeline
from tests.unit.serving_records import Plan, simulate, write_lines
from tests.unit.timelines import LAUNCH, make_timeline

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
MS = 1_000_000


def traced(steps: Steps, first: int = 0, last: int | None = None) -> Timeline:
    """A trace of the steps: every one has a matrix product of 60 % of its time, launched at its begin."""
    ops, calls, ranges, at = [], [], [], 0
    for row in range(first, len(steps) if last is None else last):
        length = round(float(steps.duration_s[row]) * 1e9)
        name = (
            f"execute_context_{max(steps.prefill_requests[row], 0)}({max(steps.prefill_tokens[row], 0)})"
            f"_generation_{steps.decode_requests[row]}({steps.decode_requests[row]})"
        )
        ranges.append((at, at + length, name))
        calls.append((at + 10, at + 20, LAUNCH))
        # It runs after the host's mark has ended: the launch decides to which step it belongs.
        ops.append((at + length, at + length + round(0.6 * length), GEMM, len(calls) - 1))
        at += 2 * length
    return make_timeline(ops, calls, ranges)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Steps, Requests]:
    folder: Path = tmp_path_factory.mktemp("window")
    simulated = simulate(Plan(requests=12, rate_per_s=6.0, output=(8, 16)))
    records = read_serving(
        [
            write_lines(folder / "requests.jsonl", simulated.own_requests()),
            write_lines(folder / "steps.jsonl", simulated.vllm_steps()),
        ]
    )
    steps = merge_steps(records.steps)
    assert steps is not None and records.requests is not None
    return steps, records.requests


def test_kernels_belong_to_the_step_that_launched_them(recorded: tuple[Steps, Requests]) -> None:
    steps, _ = recorded
    found = find_steps(traced(steps))
    assert len(found) == len(steps)
    for one in found:
        ((_, seconds),) = one.families.items()
        assert seconds == pytest.approx(0.6 * one.seconds, rel=1e-3)


def test_every_request_gets_its_share_and_nothing_is_given_twice(recorded: tuple[Steps, Requests]) -> None:
    steps, requests = recorded
    window = describe_window([traced(steps)], steps, requests, None)
    assert window.steps == window.matched_steps == len(steps)
    assert {one.id for one in window.requests} == set(requests.id)
    assert sum(one.own_seconds for one in window.requests) == pytest.approx(window.seconds, rel=0.05)
    kernels = sum(family.seconds for one in window.requests for family in one.families)
    whole = sum(family.seconds for held in window.families.values() for family in held)
    assert kernels == pytest.approx(whole, rel=0.05)
    for one in window.requests:
        assert one.traced_steps == one.steps and one.own_seconds <= one.step_seconds
    assert window.host_gap_ratio == pytest.approx(0.4, abs=0.01) and window.notes == []


def test_a_window_of_some_steps_is_found_among_all(recorded: tuple[Steps, Requests]) -> None:
    steps, requests = recorded
    found = find_steps(traced(steps, 10, 40))
    assert match_trace(found, steps) == 30
    window = describe_window([traced(steps, 10, 40)], steps, requests, None)
    assert window.steps == 30 and any(one.traced_steps < one.steps for one in window.requests)


def test_a_trace_of_another_load_gives_no_requests(recorded: tuple[Steps, Requests]) -> None:
    steps, requests = recorded
    other = StepRows()
    for place in range(40):
        other.add(end_s=float(place), duration_s=0.5, decode=(900 + place, 900 + place))
    window = describe_window([traced(other.table())], steps, requests, None)
    assert window.matched_steps == 0 and window.requests == [] and window.notes


def test_a_trace_without_marks_or_records_is_noted(recorded: tuple[Steps, Requests]) -> None:
    steps, requests = recorded
    bare = make_timeline([(0, MS, GEMM, -1)], [], [(0, MS, "forward")])
    nothing = describe_window([bare], steps, requests, None)
    assert nothing.steps == 0 and nothing.notes and not nothing.families
    alone = describe_window([traced(steps)], None, requests, None)
    assert alone.families and not alone.requests and alone.notes


def test_the_cost_of_profiling_compares_steps_of_one_size(recorded: tuple[Steps, Requests]) -> None:
    steps, requests = recorded
    usual, slow = StepRows(), StepRows()
    for place in range(20):
        usual.add(end_s=place * 0.01, duration_s=0.010, decode=(2, 2))
        usual.add(end_s=place * 0.01 + 0.005, duration_s=0.5, decode=(8, 8))
        slow.add(end_s=place * 0.02, duration_s=0.013, decode=(2, 2))
    window = describe_window([traced(slow.table())], slow.table(), requests, usual.table())
    assert window.cost_ratio == pytest.approx(1.3)
    assert describe_window([traced(steps)], steps, requests, slow.table()).cost_ratio != pytest.approx(1.3)


def test_ranks_that_differ_are_noted(recorded: tuple[Steps, Requests]) -> None:
    steps, requests = recorded
    window = describe_window([traced(steps), traced(steps, 5)], steps, requests, None)
    assert window.ranks == 2 and any("ranks" in note for note in window.notes)


def test_collectives_of_the_host_count_where_no_operator_works() -> None:
    """A step of 100 ms: 30 ms of products, and 50 ms of gloo on another thread of which 10 ms overlap with them."""
    step = (0, 100 * MS, "execute_context_0(0)_generation_2(2)")
    gloo = (20 * MS, 70 * MS, "gloo:all_reduce")
    operators = [
        (0, 30 * MS, "_C::onednn_mm"),
        (31 * MS, 71 * MS, "vllm::all_reduce"),
        (32 * MS, 35 * MS, "c10d::allreduce_"),
    ]
    alone = make_timeline(ranges=[step], operators=operators[:1])
    both = [
        make_timeline(ranges=[step, gloo], range_threads=[1, 2], operators=operators, facts={"rank": rank})
        for rank in (0, 1)
    ]
    (found,) = find_steps(both[0])
    assert found.families["communication"] == pytest.approx(0.040)
    assert found.families["matrix"] == pytest.approx(0.030)
    window = describe_window(both, None, None, None)
    assert window.communication_ratio == pytest.approx(0.4)
    assert [(one.rank, one.steps) for one in window.by_rank] == [(0, 1), (1, 1)]
    assert "communication" not in find_steps(alone)[0].families
    single = describe_window([alone], None, None, None)
    assert single.communication_ratio == 0 and single.by_rank == []


def test_collectives_over_shared_memory_are_communication() -> None:
    """vLLM's own operators, on the thread of the step: as recorded from its CPU build with two ranks."""
    step = (0, 100 * MS, "execute_context_0(0)_generation_4(4)")
    operators = [
        (0, 30 * MS, "_C::onednn_mm"),
        (30 * MS, 50 * MS, "_C::shm_allreduce"),
        (50 * MS, 55 * MS, "_C::shm_all_gather"),
    ]
    (found,) = find_steps(make_timeline(ranges=[step], operators=operators))
    assert found.families == {"matrix": pytest.approx(0.030), "communication": pytest.approx(0.025)}
