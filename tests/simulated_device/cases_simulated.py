"""Engine, clock, stop check, memory and profiler on the simulated device. Run by ``tests/integration/test_simulated_device.py``
in a process of its own, because a device of torch, once registered, is there for every test after it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.hardware import accelerator as module
from llm_perf_opt.hardware.accelerator import HostProcessor, TorchAccelerator, open_accelerator, seeded
from llm_perf_opt.hardware.detect import detect_device
from llm_perf_opt.workloads.devices import confirm_device
from llm_perf_opt.workloads.engine import memory
from llm_perf_opt.workloads.engine.engine import Clock, Engine, StopCheck, intervals
from llm_perf_opt.workloads.engine.memory import PhaseMemory, memory_meter, require_room
from tests.simulated_device import Simulation, load
from tests.unit.small_workloads import samples, workload

LAUNCH_S, KERNEL_S = 1e-6, 20e-6
SECOND = "sim:1"


@pytest.fixture
def sim() -> Iterator[Simulation]:
    """The device, with the host's time in the test's hands."""
    found = load()
    torch.accelerator.set_device_index(0)
    found.virtual_time(True)
    yield found
    found.reset()
    torch.accelerator.set_device_index(0)
    gc.collect()
    torch.accelerator.empty_cache()


def work(device: str, kernels: int) -> torch.Tensor:
    value = torch.zeros(4, device=device)
    for _ in range(kernels - 1):
        value = value + 1
    return value


# --- clock -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["sim:0", SECOND])
def test_the_clock_measures_the_devices_time_to_the_nanosecond(sim: Simulation, device: str) -> None:
    clock = Clock(open_accelerator(device))
    start = clock.mark()
    work(device, 7)
    end = clock.mark()
    clock.synchronize()
    assert clock.seconds(start, end) == pytest.approx(LAUNCH_S + 7 * KERNEL_S, rel=1e-9)


def test_time_read_without_waiting_is_refused_by_the_device(sim: Simulation) -> None:
    clock = Clock(open_accelerator(SECOND))
    marks = [clock.mark()]
    work(SECOND, 3)
    marks.append(clock.mark())
    with pytest.raises(RuntimeError, match="must be completed"):
        intervals(clock, marks)


def test_a_hosts_clock_would_time_the_launches_only(sim: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a missing synchronise costs: the error that the clock must not make, made on purpose."""
    monkeypatch.setattr(module.time, "perf_counter", sim.host_s)
    wrong = Clock(HostProcessor())
    start = wrong.mark()
    work(SECOND, 10)
    assert wrong.seconds(start, wrong.mark()) == pytest.approx(10 * LAUNCH_S, rel=1e-6)
    open_accelerator(SECOND).synchronize()
    assert wrong.seconds(start, wrong.mark()) == pytest.approx(LAUNCH_S + 10 * KERNEL_S, rel=1e-6)


def test_marks_are_on_the_stream_in_use(sim: Simulation) -> None:
    accelerator = open_accelerator(SECOND)
    stream = torch.Stream(SECOND)
    before = torch.accelerator.current_stream(SECOND)
    torch.accelerator.set_stream(stream)
    try:
        sim.begin_notes()
        accelerator.record(timed=True)
        assert sim.notes() == [f"record_timed 1 {stream.stream_id}"]
    finally:
        torch.accelerator.set_stream(before)


# --- engine ----------------------------------------------------------------------------------------------


def engine_on(device: str, **changes: Any) -> Engine:
    return Engine(replace(workload("llama", max_new_tokens=8, **changes), device=device))


def test_a_pass_on_the_second_device_gives_the_cpus_tokens(sim: Simulation, tmp_path: Path) -> None:
    requests = samples("llama", tmp_path, 2)
    expected = engine_on("cpu").run_sample(requests)[1].token_ids
    engine = engine_on(SECOND)
    torch.accelerator.set_device_index(0)  # a library that chose another device must not mislead the engine
    sim.begin_notes()
    result = engine.run_sample(requests)[1]
    assert result.token_ids == expected
    lines = [line.split() for line in sim.notes()]
    assert {line[1] for line in lines} == {"1"}, "something was asked of another device"
    assert {line[2] for line in lines if line[0].startswith("record")} == {"0"}


def test_each_phase_is_synchronise_event_work_event_synchronise(sim: Simulation, tmp_path: Path) -> None:
    engine = engine_on(SECOND)
    batch = engine.prepare(samples("llama", tmp_path, 1))
    sim.begin_notes()
    result = engine.run_prepared(batch, components=False)
    kinds = [line.split()[0] for line in sim.notes()]
    collapsed = [kind for place, kind in enumerate(kinds) if place == 0 or kinds[place - 1] != kind]
    first = collapsed.index("synchronize")
    step = ["launch", "record_timed"]
    prefill = ["synchronize", "record_timed", *step, "synchronize"]
    # Two syncs in a row, the end of the prefill and the begin of the decode, are one here.
    decode = ["record_timed", *step * (result.new_tokens - 1), "synchronize"]
    end = first + len(prefill) + len(decode)
    assert collapsed[first:end] == [*prefill, *decode]
    assert set(collapsed[end:]) <= {"launch"}, "reading the tokens is all that follows"


def test_measured_phases_are_the_kernels_of_their_own(sim: Simulation, tmp_path: Path) -> None:
    """Launches are cheaper than kernels here, so the device idles only at the begin and after a copy that is waited for."""
    engine = engine_on(SECOND)
    batch = engine.prepare(samples("llama", tmp_path, 1))
    sim.begin_notes()
    timings = engine.run_prepared(batch, components=False).timings
    notes = sim.notes()
    marks = [place for place, line in enumerate(notes) if line.startswith("record_timed")]
    assert timings.prefill_s is not None and timings.decode_s is not None
    for seconds, first, last in (
        (timings.prefill_s, marks[0], marks[1]),
        (timings.decode_s, marks[2], marks[-1]),
    ):
        launches = [line for line in notes[first:last] if line.startswith("launch")]
        idle = 1 + sum("copy_to" in line for line in launches)
        least = LAUNCH_S + len(launches) * KERNEL_S
        assert least * (1 - 1e-9) <= seconds <= least + idle * LAUNCH_S


def test_an_engine_that_does_not_wait_is_caught(
    sim: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on(SECOND)
    monkeypatch.setattr(TorchAccelerator, "synchronize", lambda self: None)
    with pytest.raises(RuntimeError, match="must be completed"):
        engine.run_sample(samples("llama", tmp_path, 1))


# --- stop check ------------------------------------------------------------------------------------------


class OnCurrentDevice(TorchAccelerator):
    """The defect that was: the event on the current device's stream."""

    def record(self, *, timed: bool = False) -> torch.Event:
        event = torch.Event("sim:0", enable_timing=timed)
        event.record()
        return event


def stop_answers(accelerator: TorchAccelerator, steps: int = 4) -> list[bool]:
    check = StopCheck(accelerator)
    return [check.push(work(SECOND, 3) > 100) for _ in range(steps)]


def test_the_stop_check_waits_for_the_flag_of_its_own_device(sim: Simulation) -> None:
    assert stop_answers(TorchAccelerator(SECOND)) == [False] * 4
    assert True in stop_answers(OnCurrentDevice(SECOND)), "stale flags were not read: the test proves nothing"


def test_answers_end_where_the_cpus_do(
    sim: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = samples("llama", tmp_path, 2)
    free = engine_on("cpu", ignore_eos=True, no_repeat_ngram_size=2).run_sample(requests)[1].token_ids
    stops = (free[0][2], free[1][4])
    found = []
    for device in ("cpu", SECOND):
        engine = engine_on(device, ignore_eos=False, no_repeat_ngram_size=2)
        monkeypatch.setattr(engine, "_stop_ids", stops)
        found.append(engine.run_sample(requests)[1].token_ids)
    assert found[0] == found[1]
    assert max(len(row) for row in found[0]) < 8


# --- memory ----------------------------------------------------------------------------------------------


def test_phases_have_the_allocators_peaks(sim: Simulation, tmp_path: Path) -> None:
    meter = memory_meter(SECOND)
    assert not isinstance(meter, str)
    engine = engine_on(SECOND)
    weights = sum(each.nbytes for each in engine.model.parameters())
    memory = PhaseMemory(meter)
    with engine.watched(memory.watch):
        engine.run_sample(samples("llama", tmp_path, 1))
    found = memory.found
    assert weights < found["decode"]["peak_bytes"] <= found["prefill"]["peak_bytes"]
    assert found["prefill"]["peak_bytes"] <= found["prefill"]["reserved_bytes"]


def test_memory_is_given_back_and_proved_to_be(sim: Simulation, tmp_path: Path) -> None:
    engine = engine_on(SECOND)
    engine.run_sample(samples("llama", tmp_path, 1))
    found = engine.release()
    assert found is not None and found.before.allocated_bytes > 1_000_000
    assert (found.after, found.is_proved, found.problem()) == (found.at_start, True, None)
    sim.begin_notes()
    require_room(SECOND)
    assert sim.notes() == []  # nothing was held, so nothing was asked


def test_what_is_still_held_is_named_and_a_child_without_room_refused(
    sim: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "TOLERANCE_BYTES", 1 << 20)
    engine = engine_on(SECOND)
    kept = engine.model
    found = engine.release()
    assert found is not None and not found.is_proved
    assert "could not be given back" in (found.problem() or "")
    require_room(SECOND)
    assert "still holds" in caplog.text
    held = torch.accelerator.memory_reserved(SECOND)
    sim.total_bytes(held + (1 << 20))
    with pytest.raises(ToolError, match="the captured program needs about"):
        require_room(SECOND)
    del kept


def test_a_model_that_does_not_fit_is_reported(sim: Simulation) -> None:
    sim.total_bytes(1 << 20)
    with pytest.raises(ToolError, match="memory of sim:1"):
        engine_on(SECOND)


# --- the rest of the interface ---------------------------------------------------------------------------


def test_torch_has_the_last_word_on_the_device(sim: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_perf_opt.core.errors import ConfigError
    from llm_perf_opt.workloads import devices

    monkeypatch.setattr(devices, "may_have_accelerator", lambda: True)
    assert confirm_device("auto", "cpu").name == "sim:0"
    assert confirm_device("sim:1", "sim:1").name == "sim:1"
    assert confirm_device("cpu", "cpu").name == "cpu"
    with pytest.raises(ConfigError, match=r"run.device=sim:2 is not available: torch .* offers 2 sim device"):
        confirm_device("sim:2", "sim:2")
    with pytest.raises(ConfigError, match="xpu is not available"):
        confirm_device("xpu", "xpu:0")


def test_properties_come_from_torch(sim: Simulation) -> None:
    found = detect_device(SECOND)
    assert found is not None
    assert (found.name, found.memory_bytes, found.source) == (
        "Simulated Accelerator",
        float(4 << 30),
        "torch",
    )
    assert detect_device("sim:2") is None


def test_seeds_are_set_and_put_back_on_the_device_too(sim: Simulation) -> None:
    states: Any = torch.get_device_module("sim")
    states.manual_seed_all(3)
    before = states.get_rng_state(SECOND)
    with seeded(SECOND, 7):
        inside = states.get_rng_state(SECOND)
    assert not torch.equal(before, inside)
    assert torch.equal(states.get_rng_state(SECOND), before)


def test_the_profiler_has_the_devices_kernels(sim: Simulation, tmp_path: Path) -> None:
    from llm_perf_opt.captures.kineto.reader import read_kineto
    from llm_perf_opt.stages.torch_profiler.passes import ProfileOptions, profile_pass

    sim.virtual_time(False)  # a trace has the host's real time
    engine = engine_on(SECOND)
    batch = engine.prepare(samples("llama", tmp_path, 1))
    profile = profile_pass(engine, batch, 3, ProfileOptions(("cpu", "privateuse1")), tmp_path)
    capture = read_kineto(profile.trace)
    timeline, ops = capture.timeline, capture.timeline.ops
    assert len(ops) > 50
    assert set(ops.device.tolist()) == {1}
    assert (ops.launch >= 0).all(), "kernels are not traced to the calls that launched them"
    launched_in = {timeline.names[timeline.ranges.name[row]] for row in set(ops.range.tolist())}
    assert {"prefill", "decode_step"} <= launched_in
