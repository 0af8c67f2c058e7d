"""Budgets against the wall-clock without a profiler: device time over that wall-clock decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.findings import idle
from llm_perf_opt.analysis.timeline.budget import PARTS
from llm_perf_opt.analysis.unprofiled import against_wall_clock, occurrences
from llm_perf_opt.analysis.verdicts import judge
from llm_perf_opt.summary import Budget, BudgetPart, Workload
from llm_perf_opt.summary.devices import IdleOwner
from tests.text_facts import mentions
from tests.unit.summaries import budget, summary, timings

NOTHING = Workload()


def seconds(found: Budget) -> dict[str, float]:
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.span_s)
    assert sum(part.share_ratio for part in found.parts) == pytest.approx(1.0)
    return {part.name: part.seconds for part in found.parts if part.seconds}


def test_a_token_of_eight_milliseconds_with_seven_of_kernels_loses_at_most_one() -> None:
    """Under the profiler it took twenty, and thirteen of them looked like launching."""
    captured = budget(2.0, compute=0.35, launch=0.45, host=0.2)
    timed = timings(decode=0.8, tpot=0.008)
    found, notes = against_wall_clock({"decode": captured}, {"decode": 100}, timed, NOTHING)
    assert notes == []
    assert seconds(found["decode"]) == pytest.approx(
        {"compute": 0.7, "launch": 0.1 * 0.45 / 0.65, "host": 0.1 * 0.2 / 0.65}
    )
    assert found["decode"].span_s == pytest.approx(0.8)
    assert found["decode"].profiled_span_s == pytest.approx(2.0)
    assert found["decode"].inflation_ratio == pytest.approx(2.5)
    data = summary(timings=timed, budget=found)
    assert judge(data)["decode"].bound == "unknown"  # the device is busy: nothing says which limit it meets
    (only,) = idle.find_losses(data)
    assert only.id == "launch-bound"
    assert only.gain_upper_s is not None and only.gain_upper_s <= 0.1
    assert any(mentions(line, "2.00 s", "2.50") for line in only.evidence)


def test_the_profiled_timeline_still_shows_what_the_host_does() -> None:
    """Twice as slow under the profiler, and waiting for its input all the same."""
    owner = IdleOwner("data loading", "load_batch")
    captured = Budget(4.0, [BudgetPart("compute", 1.0, 0.25), BudgetPart("data", 3.0, 0.75, owner)], "t.json")
    timed = timings(decode=2.0, tpot=0.02)
    found, _ = against_wall_clock({"decode": captured}, {"decode": 100}, timed, NOTHING)
    assert seconds(found["decode"]) == pytest.approx({"compute": 1.0, "data": 1.0})
    assert found["decode"].parts[1].owner == owner
    verdict = judge(summary(timings=timed, budget=found))["decode"]
    assert verdict.bound == "host"
    assert mentions(verdict.arithmetic, "data loading", "load_batch")
    assert mentions(verdict.evidence[1], "4.00 s", "2.00")


def test_a_capture_of_half_the_steps_represents_all_of_them() -> None:
    captured = budget(1.0, compute=0.35, launch=0.65)
    found, _ = against_wall_clock(
        {"decode": captured}, {"decode": 50}, timings(decode=0.8, tpot=0.008), NOTHING
    )
    assert seconds(found["decode"]) == pytest.approx({"compute": 0.7, "launch": 0.1})
    assert found["decode"].profiled_span_s == pytest.approx(2.0)


def test_tokens_come_from_the_workload_where_they_were_not_timed() -> None:
    captured = budget(2.0, compute=0.35, launch=0.65)
    found, _ = against_wall_clock(
        {"decode": captured}, {"decode": 100}, timings(decode=0.8), Workload(new_tokens=101)
    )
    assert seconds(found["decode"]) == pytest.approx({"compute": 0.7, "launch": 0.1})
    for tokens in (None, 1):
        unknown, notes = against_wall_clock(
            {"decode": captured}, {"decode": 100}, timings(decode=0.8), Workload(new_tokens=tokens)
        )
        assert (unknown["decode"], notes) == (captured, [])


@pytest.mark.parametrize(
    ("counts", "timed"),
    [
        ({}, timings(prefill=0.5)),
        ({"prefill": 0}, timings(prefill=0.5)),
        ({"prefill": 1}, timings(decode=0.5, tpot=0.1)),
    ],
)
def test_what_was_not_counted_or_not_timed_stays_as_captured(counts: dict[str, int], timed: object) -> None:
    captured = {"prefill": budget(1.0, compute=0.2, launch=0.8)}
    found, notes = against_wall_clock(captured, counts, timed, NOTHING)  # type: ignore[arg-type]
    assert found == captured
    assert notes == []


def test_a_capture_of_other_work_is_noted_and_not_measured_against_the_timings() -> None:
    """The capture is of a batch of eight, the timings are of one."""
    captured = {"prefill": budget(2.0, compute=0.5, launch=0.5)}
    found, notes = against_wall_clock(captured, {"prefill": 1}, timings(prefill=0.25), NOTHING)
    assert found == captured
    (note,) = notes
    assert mentions(note, "prefill", "250 ms", "1.00 s")


@pytest.mark.parametrize(("device_s", "fits"), [(1.05, True), (1.06, False)])
def test_a_little_more_device_time_than_wall_clock_is_measurement(device_s: float, fits: bool) -> None:
    captured = budget(2.0, compute=device_s / 2, launch=1 - device_s / 2)
    found, notes = against_wall_clock({"prefill": captured}, {"prefill": 1}, timings(prefill=1.0), NOTHING)
    assert bool(notes) is not fits
    if fits:
        assert seconds(found["prefill"]) == pytest.approx({"compute": 1.0})


def test_a_device_that_never_waited_under_the_profiler_waits_for_the_host_without_one() -> None:
    """The capture says nothing of who; the time is there all the same."""
    captured = budget(1.0, compute=1.0, host=0.0)
    found, _ = against_wall_clock({"prefill": captured}, {"prefill": 1}, timings(prefill=1.5), NOTHING)
    assert seconds(found["prefill"]) == pytest.approx({"compute": 1.0, "host": 0.5})
    assert [part.name for part in found["prefill"].parts] == ["compute", "host"]


# vision inside prefill


def test_vision_inside_prefill_is_taken_off_its_wall_clock() -> None:
    captured = {
        "vision": budget(1.0, compute=0.5, launch=0.5),
        "prefill": budget(1.0, compute=0.3, launch=0.7),
    }
    timed = timings(vision=0.6, prefill=1.0, ttft=1.0)
    found, _ = against_wall_clock(
        captured, {"vision": 1, "prefill": 1}, timed, NOTHING, prefill_includes_vision=True
    )
    assert seconds(found["vision"]) == pytest.approx({"compute": 0.5, "launch": 0.1})
    assert seconds(found["prefill"]) == pytest.approx({"compute": 0.3, "launch": 0.1})
    apart, _ = against_wall_clock(captured, {"vision": 1, "prefill": 1}, timed, NOTHING)
    assert seconds(apart["prefill"]) == pytest.approx({"compute": 0.3, "launch": 0.7})


def test_losses_of_prefill_are_not_those_of_the_vision_inside_it() -> None:
    timed = timings(vision=0.6, prefill=1.0, ttft=1.0)
    found, _ = against_wall_clock(
        {"vision": budget(1.0, compute=0.5, launch=0.5), "prefill": budget(1.0, compute=0.2, launch=0.8)},
        {"vision": 1, "prefill": 1},
        timed,
        NOTHING,
        prefill_includes_vision=True,
    )
    gains = {one.phase: one.gain_upper_s for one in idle.find_losses(summary(timings=timed, budget=found))}
    assert gains == {"vision": pytest.approx(0.1), "prefill": pytest.approx(0.2)}


@pytest.mark.parametrize(
    ("timed_apart", "captured_apart"),
    [(True, False), (False, True)],
)
def test_vision_that_is_separate_on_one_side_only_leaves_prefill_as_captured(
    timed_apart: bool, captured_apart: bool
) -> None:
    captured = {"prefill": budget(1.0, compute=0.3, launch=0.7)}
    if captured_apart:
        captured["vision"] = budget(1.0, compute=1.0)
    timed = timings(vision=0.6, prefill=1.0) if timed_apart else timings(prefill=1.0)
    found, _ = against_wall_clock(captured, {"prefill": 1}, timed, NOTHING, prefill_includes_vision=True)
    assert found == captured


def test_prefill_of_a_model_without_vision_is_measured_as_it_was_timed() -> None:
    """Short timings say that prefill may hold a vision encoder; nothing else knows of one."""
    captured = {"prefill": budget(2.0, compute=0.3, launch=0.7)}
    found, _ = against_wall_clock(
        captured, {"prefill": 1}, timings(prefill=1.0), NOTHING, prefill_includes_vision=True
    )
    assert seconds(found["prefill"]) == pytest.approx({"compute": 0.6, "launch": 0.4})


# the whole


def test_the_whole_is_the_sum_of_its_phases_where_all_were_timed() -> None:
    owner = IdleOwner("range", "sample")
    captured = {
        "prefill": budget(1.0, compute=0.5, launch=0.5),
        "decode": Budget(2.0, [BudgetPart("compute", 1.0, 0.5), BudgetPart("host", 1.0, 0.5, owner)], "t"),
        "all": budget(3.5, compute=0.4, host=0.6),
    }
    counts = {"prefill": 1, "decode": 10}
    found, _ = against_wall_clock(captured, counts, timings(prefill=0.8, decode=1.5, tpot=0.15), NOTHING)
    assert seconds(found["all"]) == pytest.approx({"compute": 1.5, "launch": 0.3, "host": 0.5})
    assert found["all"].profiled_span_s == pytest.approx(3.0)
    assert {part.name: part.owner for part in found["all"].parts}["host"] == owner
    some, _ = against_wall_clock(captured, counts, timings(prefill=0.8), NOTHING)
    assert some["all"] == captured["all"]


def test_the_whole_alone_is_never_measured_against_timings() -> None:
    captured = {"all": budget(3.5, compute=0.4, host=0.6)}
    found, _ = against_wall_clock(captured, {"all": 1}, timings(prefill=0.8, decode=1.5), NOTHING)
    assert found == captured


@given(
    st.lists(st.floats(0.001, 1.0), min_size=len(PARTS), max_size=len(PARTS)),
    st.floats(0.001, 10.0),
    st.integers(1, 500),
    st.floats(0.0001, 10.0),
)
def test_parts_always_sum_to_the_wall_clock(
    sizes: list[float], span_s: float, count: int, tpot: float
) -> None:
    shares = {name: size / sum(sizes) for name, size in zip(PARTS, sizes, strict=True)}
    captured = budget(span_s, **shares)
    timed = timings(decode=tpot * 37, tpot=tpot)
    found, notes = against_wall_clock({"decode": captured}, {"decode": count}, timed, NOTHING)
    if notes:
        assert found["decode"] is captured
        return
    seconds(found["decode"])
    assert found["decode"].span_s == pytest.approx(tpot * 37)
    assert all(part.seconds >= 0 for part in found["decode"].parts)


# how often a capture holds a phase


@pytest.mark.parametrize(
    ("counts", "ranges", "steps", "decode"),
    [
        ({"decode": 31}, {"decode": 31, "prefill": 1}, None, 31),  # ranges that call themselves steps
        ({}, {"decode": 31, "prefill": 1}, None, 31),  # more ranges than prefills: one per step
        ({}, {"decode": 31}, None, 31),
        ({}, {"decode": 1, "prefill": 1}, 31.0, 31),  # one range for the whole loop
        ({}, {"decode": 3, "prefill": 3}, 31.0, 93),
        ({}, {"decode": 2, "prefill": 3}, 10.0, 20),
        ({}, {"decode": 1, "prefill": 1}, None, None),  # nobody says how many steps it has
        ({}, {"decode": 1, "prefill": 1}, 0.5, None),
        ({}, {"prefill": 1}, 31.0, None),
    ],
)
def test_how_many_steps_a_capture_holds(
    counts: dict[str, int], ranges: dict[str, int], steps: float | None, decode: int | None
) -> None:
    found = occurrences({**counts, "prefill": 7}, ranges, steps)
    assert found.get("decode") == decode
    assert found["prefill"] == 7
