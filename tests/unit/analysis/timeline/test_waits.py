"""Idle time after the host waited for the device, and queues that something outside the capture held. In microseconds."""

from __future__ import annotations

from llm_perf_opt.analysis.timeline.summary import summarise_timeline
from llm_perf_opt.captures.timeline import Timeline
from tests.text_facts import mentions
from tests.unit.timelines import LAUNCH, SYNC, US, Call, Op, make_timeline, owner_of, split


def after_a_wait(wait: tuple[int, int], launch: int, kernel_us: int = 100) -> Timeline:
    """The first kernel ends at 0, the second starts 5 µs after its launch; ``wait`` is when the host waited."""
    calls = [(-kernel_us - 20, -kernel_us - 10, LAUNCH), (*wait, SYNC), (launch, launch + 4, LAUNCH)]
    ops = [(-kernel_us, 0, "gemm", 0), (launch + 5, launch + 105, "gemm", 2)]
    return make_timeline(ops, calls, unit=US)


def idle(timeline: Timeline) -> dict[str, float]:
    return {name: value for name, value in split(timeline, unit=US).items() if name != "compute"}


def test_time_inside_the_waiting_call_is_waiting() -> None:
    """The call returns 30 µs after the device ran dry; without it, the host had been 50 µs further by then."""
    timeline = after_a_wait((-50, 30), 600)
    assert idle(timeline) == {"sync": 30 + 50, "host": 520, "launch": 5}
    assert owner_of(timeline, "sync").what == "synchronisation"


def test_work_after_a_wait_would_have_been_done_meanwhile() -> None:
    assert idle(after_a_wait((-90, 1), 80)) == {"sync": 85}
    # Without the wait, the same gap is dispatch.
    assert idle(after_a_wait((-900, -800), 80)) == {"launch": 85}


def test_only_as_much_as_the_host_waited_would_have_been_done() -> None:
    assert idle(after_a_wait((-90, 1), 400)) == {"sync": 91, "launch": 314}
    assert idle(after_a_wait((-90, 1), 900)) == {"sync": 91, "host": 809, "launch": 5}


def two_waits(first: tuple[int, int], second_launch: int) -> Timeline:
    """Kernels of 100, 25 and 65 µs; the host waits before the 2nd (as told) and, for 24 µs, before the 3rd."""
    start = second_launch + 5
    calls: list[Call] = [
        (-120, -110, LAUNCH), (*first, SYNC), (second_launch, second_launch + 4, LAUNCH),
        (start + 1, start + 26, SYNC), (start + 225, start + 229, LAUNCH),
    ]  # fmt: skip
    ops: list[Op] = [(-100, 0, "a", 0), (start, start + 25, "b", 2), (start + 230, start + 295, "c", 4)]
    return make_timeline(ops, calls, unit=US)


def test_every_wait_answers_for_the_work_behind_it() -> None:
    found = idle(two_waits((-100, 1), 200))
    assert found == {"sync": 101 + 25, "launch": 104 + 180}


def test_what_a_host_is_ahead_by_it_still_is_after_the_next_wait() -> None:
    """It would have been ahead by 100 µs, needs 14 of them after the first wait, and has 86 left for the second gap."""
    assert idle(two_waits((-100, 1), 10)) == {"sync": 15 + 1 + 24 + 86, "launch": 205 - 1 - 24 - 86}


def test_no_host_is_ahead_by_more_than_a_queue_holds() -> None:
    """It waited for 60 ms; more than 20 ms of launches do not fit into a queue."""
    calls: list[Call] = [
        (-60_200, -60_100, LAUNCH), (-60_000, 1, SYNC), (10, 14, LAUNCH), (30, 101, SYNC), (40_000, 40_004, LAUNCH),
    ]  # fmt: skip
    ops: list[Op] = [(-60_050, 0, "a", 0), (15, 100, "b", 2), (40_005, 40_100, "c", 4)]
    assert idle(make_timeline(ops, calls, unit=US))["sync"] == 15 + 1 + 70 + 20_000


def test_a_wait_counts_when_it_ends_or_begins_close_to_the_gap() -> None:
    """Clocks of host and device differ a little."""
    assert idle(after_a_wait((-90, -15), 80)) == {"sync": 75, "launch": 10}
    assert "sync" not in idle(after_a_wait((-90, -25), 80))
    assert idle(after_a_wait((15, 18), 80)) == {"sync": 3, "launch": 82}


def test_a_blocking_copy_is_a_wait() -> None:
    calls = [(-120, -110, LAUNCH), (-90, 2, "cudaMemcpy_v3020"), (80, 84, LAUNCH)]
    ops = [(-100, 0, "gemm", 0), (85, 185, "gemm", 2)]
    assert idle(make_timeline(ops, calls, unit=US)) == {"sync": 85}


def test_input_after_a_wait_is_input() -> None:
    """Loading would not have been done earlier by a host that had not waited: it does not depend on the device."""
    calls = [(-120, -110, LAUNCH), (-90, 1, SYNC), (80, 84, LAUNCH)]
    ops = [(-100, 0, "gemm", 0), (85, 185, "gemm", 2)]
    timeline = make_timeline(ops, calls, [(2, 70, "load_batch")], unit=US)
    assert idle(timeline) == {"data": 68, "sync": 17}


# backlog from before the capture


def held(wait_us: int, first_us: int = 10, later_us: int = 1_000) -> Timeline:
    """A short kernel, then one that was launched at once and starts ``wait_us`` later."""
    ops = [(0, first_us, "a", 0), (first_us + wait_us, first_us + wait_us + later_us, "b", 1)]
    return make_timeline(ops, [(-30, -25, LAUNCH), (-24, -20, LAUNCH)], unit=US)


def test_a_backlog_from_before_the_capture_is_neither_idle_nor_span() -> None:
    timeline = held(463_000)
    assert split(timeline, unit=US) == {"compute": 1_010}
    facts = summarise_timeline(timeline)
    (device,) = facts.axis.devices if facts.axis is not None else []
    assert (device.busy_ratio, device.idle_s, device.queued_s) == (1.0, 0.0, 0.0)
    assert device.backlog_s == 0.463
    assert len([note for note in facts.warnings if mentions(note, "0", "463 ms")]) == 1
    assert facts.axis is not None
    assert facts.axis.gaps == []


def test_less_than_a_millisecond_is_no_backlog() -> None:
    assert split(held(999), unit=US) == {"compute": 1_010, "queue": 999}
    assert split(held(1_000), unit=US) == {"compute": 1_010}


def test_a_queue_held_after_the_work_has_begun_is_a_loss() -> None:
    """More than a twentieth of the device's work ran before: the capture itself has begun, and something else held it."""
    assert split(held(5_000, first_us=52), unit=US) == {"compute": 1_052}
    timeline = held(5_000, first_us=53)
    assert split(timeline, unit=US) == {"compute": 1_053, "queue": 5_000}
    assert owner_of(timeline, "queue").what == "queued work"
    assert not any("queue" in note for note in summarise_timeline(timeline).warnings)


def test_a_backlog_is_taken_out_of_the_phase_too() -> None:
    timeline = make_timeline(
        [(20_000, 21_000, "gemm", 0)], [(5, 10, LAUNCH)], [(0, 20_500, "decode")], unit=US
    )
    assert split(timeline, "decode", unit=US) == {"compute": 1_000, "host": 5, "launch": 5}
