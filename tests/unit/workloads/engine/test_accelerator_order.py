"""What the engine asks of its device, in order, on a stand-in that records it: no device and no compiler needed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.hardware.accelerator import MemoryUse
from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.engine import memory
from llm_perf_opt.workloads.engine.engine import Clock, Engine, StopCheck
from llm_perf_opt.workloads.engine.memory import Release, require_room
from tests.text_facts import mentions
from tests.unit.small_workloads import samples, workload

MIB = 1 << 20


@dataclass
class RecordedEvent:
    """An event, with where and when it was recorded."""

    device: str
    stream: int
    number: int
    timed: bool


@dataclass
class RecordingAccelerator:
    """A device that is asynchronous and does nothing but remember; time is the number of what was asked before."""

    device: str = "cuda:1"
    is_asynchronous: bool = True
    stream: int = 7
    calls: list[str] = field(default_factory=list)
    events: list[RecordedEvent] = field(default_factory=list)
    waited: list[RecordedEvent] = field(default_factory=list)
    idle_until: int = 0
    held: MemoryUse = field(default_factory=lambda: MemoryUse(0, 0))
    kept_bytes: int = 0
    """What stays in the allocator although it is emptied."""
    free: int = 8 * MIB

    def use(self) -> None:
        self.calls.append("use")

    def synchronize(self) -> None:
        self.calls.append("synchronize")
        self.idle_until = len(self.calls)

    def record(self, *, timed: bool = False) -> RecordedEvent:
        event = RecordedEvent(self.device, self.stream, len(self.calls), timed)
        self.calls.append("timed event" if timed else "event")
        self.events.append(event)
        return event

    def wait(self, event: RecordedEvent) -> None:
        self.calls.append("wait")
        self.waited.append(event)

    def seconds(self, start: RecordedEvent, end: RecordedEvent) -> float:
        assert start.timed and end.timed and end.number < self.idle_until, "time was read before it was there"
        return float(end.number - start.number)

    def memory(self) -> MemoryUse:
        return self.held

    def peak_memory(self) -> MemoryUse:
        return MemoryUse(16 * MIB, 16 * MIB)

    def reset_peak(self) -> None:
        self.calls.append("reset peak")

    def free_bytes(self) -> int:
        return self.free

    def empty_cache(self) -> None:
        self.calls.append("empty cache")
        self.held = MemoryUse(0, self.kept_bytes)


def recording_engine(accelerator: RecordingAccelerator, **changes: object) -> Engine:
    """An engine whose model works on the CPU, and whose calls of its device are noted beside the stand-in's own."""
    engine = Engine(workload("llama", max_new_tokens=4, **changes), accelerator=accelerator)  # type: ignore[arg-type]
    prefill, step = engine.adapter.prefill, engine.adapter.decode_step

    def noted_prefill(*arguments: object) -> torch.Tensor:
        accelerator.calls.append("work")
        return prefill(*arguments)  # type: ignore[arg-type]

    def noted_step(*arguments: object) -> torch.Tensor:
        accelerator.calls.append("work")
        return step(*arguments)  # type: ignore[arg-type]

    engine.adapter.prefill = noted_prefill  # type: ignore[method-assign]
    engine.adapter.decode_step = noted_step  # type: ignore[method-assign]
    return engine


@pytest.fixture
def request_of_one(tmp_path: Path) -> list[Sample]:
    return samples("llama", tmp_path, 1)


def test_the_order_of_a_pass(request_of_one: list[Sample]) -> None:
    accelerator = RecordingAccelerator()
    engine = recording_engine(accelerator, ignore_eos=True)
    batch = engine.prepare(request_of_one)
    accelerator.calls.clear()
    result = engine.run_prepared(batch, components=False)
    prefill = ["synchronize", "timed event", "work", "timed event", "synchronize"]
    decode = ["synchronize", "timed event", *["work", "timed event"] * 3, "synchronize"]
    assert accelerator.calls == [*prefill, *decode]
    assert result.timings.prefill_s is not None and len(result.timings.token_s) == 3


def test_the_device_is_idle_before_and_after_preprocessing(request_of_one: list[Sample]) -> None:
    accelerator = RecordingAccelerator()
    engine = recording_engine(accelerator, ignore_eos=True)
    assert accelerator.calls[0] == "use", "the device must be current before anything is built on it"
    accelerator.calls.clear()
    engine.run_sample(request_of_one)
    assert accelerator.calls[:2] == ["synchronize", "synchronize"]


def test_every_event_is_on_the_stream_and_device_of_the_run(request_of_one: list[Sample]) -> None:
    accelerator = RecordingAccelerator(device="xpu:3", stream=11)
    engine = recording_engine(accelerator, ignore_eos=False)
    engine.run_sample(request_of_one)
    assert {(event.device, event.stream) for event in accelerator.events} == {("xpu:3", 11)}
    untimed = [event for event in accelerator.events if not event.timed]
    assert untimed, "the stop check recorded nothing"
    assert accelerator.waited == untimed[: len(accelerator.waited)], (
        "it waits for its own events, oldest first"
    )


def test_the_stop_check_looks_one_step_late() -> None:
    accelerator = RecordingAccelerator()
    check = StopCheck(accelerator)
    answers = [check.push(torch.tensor([flag])) for flag in (False, True, True)]
    assert answers == [False, False, True]
    assert accelerator.calls == ["event", "event", "wait", "event", "wait"]
    assert [event.number for event in accelerator.waited] == [0, 1]


def test_times_are_read_after_the_device_is_idle() -> None:
    accelerator = RecordingAccelerator()
    clock = Clock(accelerator)
    marks = [clock.mark(), clock.mark()]
    with pytest.raises(AssertionError, match="before it was there"):
        clock.seconds(*marks)
    clock.synchronize()
    assert [clock.seconds(a, b) for a, b in itertools.pairwise(marks)] == [1.0]


# --- memory before children ------------------------------------------------------------------------------


def test_memory_is_released_when_the_device_is_idle_and_looked_at_afterwards() -> None:
    accelerator = RecordingAccelerator()
    engine = recording_engine(accelerator)
    accelerator.held = MemoryUse(300 * MIB, 400 * MIB)
    accelerator.calls.clear()
    found = engine.release()
    assert accelerator.calls == ["synchronize", "empty cache"]
    assert found is not None and found.is_proved and found.problem() is None
    assert found.to_dict()["before"] == {"allocated_bytes": 300 * MIB, "reserved_bytes": 400 * MIB}
    assert not hasattr(engine, "model"), "the engine still refers to the model"


def test_a_device_without_allocations_is_asked_for_nothing_else() -> None:
    """A CPU build of torch under a patched CUDA answers counts, but cannot synchronise or empty a cache."""
    accelerator = RecordingAccelerator()
    engine = recording_engine(accelerator)
    accelerator.held = MemoryUse(0, 0)
    accelerator.calls.clear()
    found = engine.release()
    assert accelerator.calls == []
    assert found is not None and found.is_proved and found.left_bytes == 0


def test_what_stays_is_no_proof() -> None:
    held = MemoryUse(70 * MIB, 90 * MIB)
    found = Release("cuda:0", MemoryUse(0, 0), MemoryUse(300 * MIB, 400 * MIB), held)
    assert not found.is_proved
    assert mentions(found.problem(), "90.0 MiB", "cuda:0", "70.0 MiB")
    # What was there before the model is not the model's.
    assert replace(found, at_start=held).is_proved


@pytest.mark.parametrize(
    ("kept_mib", "free_mib", "outcome"), [(0, 1, "ok"), (80, 40, "warned"), (80, 8, "refused")]
)
def test_a_child_is_started_only_where_it_has_room(
    kept_mib: int,
    free_mib: int,
    outcome: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    accelerator = RecordingAccelerator(kept_bytes=kept_mib * MIB, free=free_mib * MIB)
    accelerator.held = MemoryUse(100 * MIB, 100 * MIB)
    monkeypatch.setattr(memory, "open_accelerator", lambda device: accelerator)
    if outcome == "refused":
        with pytest.raises(ToolError) as caught:
            require_room("cuda:1")
        assert mentions(caught.value.message, "80.0 MiB", "cuda:1", "8.00 MiB")
        return
    require_room("cuda:1")
    assert mentions(caplog.text, "80.0 MiB", "cuda:1") == (outcome == "warned")
    assert bool(caplog.records) == (outcome == "warned")
    assert "empty cache" in accelerator.calls


def test_on_a_cpu_nothing_is_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "open_accelerator", lambda device: pytest.fail("nothing to ask"))
    require_room("cpu")
