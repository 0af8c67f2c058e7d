"""Idle time after the host waited for the device, and queues that something outside the capture held. In microseconds."""

from __future__ import annotations

from llm_perf_opt.analysis.timeline.summary import summarise_timeline
from llm_perf_opt.model.timeline import Timeline
from tests.unit.timelines import LAUNCH, SYNC, US, Call, Op, make_timeline, owner_of, split


def after_a_wait(wait: tuple[int, int], launch: int, kernel_us: int = 100) -> Timeline:
    """The first kernel ends at 0, the second starts 5 µs after its launch; ``wait`` is when the host waited."""
    calls = [(-kernel_us - 20, -kernel_us - 10, LAUNCH), (*wait, SYNC), (launch, launch + 4, LAUNCH)]
    ops = [(-kernel_us, 0, "gemm", 0), (launch + 5, launch + 105, "gemm", 2)]
    return make_timeline(ops, calls, unit=US)


def idle(timeline: Timeline) -> dict[str, float]:
    return {name: value for name, value in split(timeline, unit=US).items() if name != "compute"}


def test_time_inside_the_waiting_call_is_waiting() -> None:
    """The call returns 30 µs after the device ran dry, and had begun long before."""
    timeline = after_a_wait((-50, 30), 600, kernel_us=30)
    assert idle(timeline) == {"sync": 30, "host": 570, "launch": 5}
    assert owner_of(timeline, "sync").what == "synchronisation"


def test_work_after_a_wait_could_have_been_hidden_behind_the_devices_own() -> None:
    assert idle(after_a_wait((-90, 1), 80)) == {"sync": 80, "launch": 5}
    # Without the wait, the same gap is dispatch.
    assert idle(after_a_wait((-900, -800), 80)) == {"launch": 85}


def test_only_as_much_as_the_device_had_work_for_could_have_been_hidden() -> None:
    assert idle(after_a_wait((-90, 1), 400)) == {"sync": 100, "launch": 305}
    assert idle(after_a_wait((-90, 1), 900)) == {"sync": 100, "host": 800, "launch": 5}


def test_work_that_was_hidden_once_is_not_hidden_twice() -> None:
    """Two gaps after waits: each may only be hidden behind the work since the one before."""
    calls: list[Call] = [
        (-120, -110, LAUNCH), (-100, 1, SYNC), (200, 204, LAUNCH), (206, 231, SYNC), (430, 434, LAUNCH),
    ]  # fmt: skip
    ops: list[Op] = [(-100, 0, "a", 0), (205, 230, "b", 2), (435, 500, "c", 4)]
    found = idle(make_timeline(ops, calls, unit=US))
    assert found == {"sync": 100 + 25, "launch": 105 + 180}


def test_a_wait_counts_when_it_ends_or_begins_close_to_the_gap() -> None:
    """Clocks of host and device differ a little."""
    assert idle(after_a_wait((-90, -15), 80))["sync"] == 80
    assert "sync" not in idle(after_a_wait((-90, -25), 80))
    assert idle(after_a_wait((15, 18), 80))["sync"] == 80


def test_a_blocking_copy_is_a_wait() -> None:
    calls = [(-120, -110, LAUNCH), (-90, 2, "cudaMemcpy_v3020"), (80, 84, LAUNCH)]
    ops = [(-100, 0, "gemm", 0), (85, 185, "gemm", 2)]
    assert idle(make_timeline(ops, calls, unit=US))["sync"] == 80


def test_input_after_a_wait_is_input() -> None:
    calls = [(-120, -110, LAUNCH), (-90, 1, SYNC), (80, 84, LAUNCH)]
    ops = [(-100, 0, "gemm", 0), (85, 185, "gemm", 2)]
    timeline = make_timeline(ops, calls, [(2, 70, "load_batch")], unit=US)
    assert idle(timeline) == {"data": 68, "sync": 12, "launch": 5}


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
    assert [note for note in facts.warnings if "queue" in note] == [
        "Device 0 had work in its queue for 463 ms before it ran it: its stream was still busy with work from before "
        "the capture. That time is not counted as idle, nor as part of the span."
    ]
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
