"""A simulated rank: one host that calls, a device whose streams run in order, and a clock that only moves forward.

Whatever a capture says was decided here: a kernel starts when its stream is free, when its launch has reached the
device and when what it waits for is done, whichever is last. Each time the host is what the device waited for, the
idle time is booked to the cause that the program has announced with :meth:`Rank.blame`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .events import MAIN_THREAD, DeviceEvent, HostEvent, RankEvents
from .gpus import Gpu, Kernel

US = 1_000
MS = 1_000_000
COMPUTE, COMMUNICATION, COPIES, SECOND = 7, 13, 17, 21
"""Streams."""
START_NS = 2_000 * MS
MOST_PENDING = 1020
"""Launches the driver takes before it makes the host wait."""
HOST_LIMITED_NS = 2_500
"""Idle time below this is the usual pause between two kernels of a stream."""

Program = Generator[int, int, None]
"""A program yields the time at which it enters a collective, and is sent the time at which the last rank entered."""


@dataclass(frozen=True, slots=True)
class HostCosts:
    """What the host needs for its part, in nanoseconds."""

    operator: int = 1_500
    """Entering one operator."""
    between: int = 2_600
    """Python between two operators."""
    launch: int = 4_300
    """A launch call."""
    latency: int = 3_500
    """From the end of the call to the kernel's start on an idle device."""


class Rank:
    """One rank of a program."""

    def __init__(
        self,
        number: int,
        world: int,
        gpu: Gpu,
        *,
        seed: int,
        costs: HostCosts | None = None,
        with_stack: bool = False,
        device_factor: float = 1.0,
        clock_offset_ns: int = 0,
    ) -> None:
        self.number, self.world, self.gpu = number, world, gpu
        self.costs = costs or HostCosts()
        self.with_stack, self.device_factor, self.clock_offset_ns = with_stack, device_factor, clock_offset_ns
        self.random = random.Random(f"{seed}/{number}")
        self.now = START_NS + self.random.randrange(200 * US)
        self.thread = MAIN_THREAD
        self.host: list[HostEvent] = []
        self.devices: list[DeviceEvent] = []
        self.ready: dict[int, int] = {}
        self.pending: deque[int] = deque()
        self.open_ranges: list[int] = []
        self.open_ops: list[int] = []
        self.correlation, self.external = 4_000 + 7 * number, 1_024
        self.default_cause: str | None = None
        self.announced: str | None = None
        self.lost_ns: dict[str, int] = {}
        self.straggler: int | None = None
        """The rank that is made to come late; its lateness is not booked as communication."""
        self.outstanding: list[tuple[DeviceEvent, int]] = []
        """Collectives that nothing has waited for yet, with the time their bytes need."""

    # --- host --------------------------------------------------------------------------------------------------

    def jitter(self, nanoseconds: float, width: float = 0.06) -> int:
        return max(1, int(nanoseconds * (1 - width / 2 + width * self.random.random())))

    def work(self, nanoseconds: float) -> None:
        """The host is busy with something no tool records."""
        self.now += self.jitter(nanoseconds)

    def blame(self, cause: str) -> None:
        """Book the next idle time that the host causes to ``cause``."""
        self.announced = cause

    @contextmanager
    def _event(self, event: HostEvent) -> Iterator[HostEvent]:
        self.host.append(event)
        yield event
        event.end_ns = self.now

    @contextmanager
    def range(self, name: str) -> Iterator[HostEvent]:
        """A range the program itself opened (``record_function``, NVTX)."""
        self.external += 1
        self.open_ranges.append(self.external)
        event = HostEvent("range", name, self.now, 0, self.thread, self.external)
        with self._event(event):
            self.now += 400
            yield event
            self.now += 300
        self.open_ranges.remove(event.external or 0)

    @contextmanager
    def op(self, name: str, shapes: Sequence[Sequence[int]] = (), **args: Any) -> Iterator[HostEvent]:
        """An operator as the profiler records it."""
        self.external += 1
        self.open_ops.append(self.external)
        if shapes:
            args = {"Input Dims": [list(shape) for shape in shapes], **args}
        event = HostEvent("op", name, self.now, 0, self.thread, self.external, None, args)
        with self._event(event):
            self.now += self.jitter(self.costs.operator, 0.3)
            yield event
            self.now += self.jitter(self.costs.operator * 0.4, 0.3)
        self.open_ops.pop()

    @contextmanager
    def frame(self, name: str) -> Iterator[None]:
        """A Python function; recorded only when stacks are."""
        if not self.with_stack:
            yield
            return
        with self._event(HostEvent("frame", name, self.now, 0, self.thread)):
            self.now += 250
            yield
            self.now += 150

    @contextmanager
    def on_thread(self, thread: int) -> Iterator[None]:
        """Another thread goes on while this one waits, as autograd's does."""
        before, self.thread = self.thread, thread
        self.now += 12 * US
        yield
        self.now += 9 * US
        self.thread = before

    def call(self, name: str, nanoseconds: float, correlation: int | None = None) -> HostEvent:
        """A call into the runtime."""
        if correlation is None:
            self.correlation += 1
            correlation = self.correlation
        start = self.now
        self.now += self.jitter(nanoseconds, 0.2)
        event = HostEvent(
            "call", self._api(name), start, self.now, self.thread, self._inner_external(), correlation
        )
        self.host.append(event)
        return event

    def _api(self, name: str) -> str:
        return name.replace("cuda", "hip", 1) if self.gpu.vendor == "amd" else name

    def _inner_external(self) -> int | None:
        return self.open_ops[-1] if self.open_ops else self.open_ranges[-1] if self.open_ranges else None

    # --- device ------------------------------------------------------------------------------------------------

    def kernel(self, kernel: Kernel, stream: int = COMPUTE, after_ns: int = 0) -> DeviceEvent:
        """Launch a kernel inside its operators, the way eager torch does."""
        self.now += self.jitter(self.costs.between, 0.5)
        return self._inside(kernel, list(kernel.ops), stream, after_ns)

    def _inside(self, kernel: Kernel, ops: list[str], stream: int, after_ns: int) -> DeviceEvent:
        if ops:
            with self.op(ops[0], kernel.shapes if len(ops) == 1 else ()):
                return self._inside(kernel, ops[1:], stream, after_ns)
        event = DeviceEvent(
            "kernel",
            kernel.name,
            0,
            self._duration(kernel),
            stream,
            None,
            grid=kernel.grid,
            block=kernel.block,
        )
        return self.submit(kernel.call, event, after_ns)

    def _duration(self, kernel: Kernel) -> int:
        duration = self.jitter(kernel.duration_ns * self.device_factor)
        if kernel.wasted is not None:
            cause, ratio = kernel.wasted
            self.lose(cause, round(duration * ratio))
        return duration

    def submit(
        self, call: str, event: DeviceEvent, after_ns: int = 0, call_ns: int | None = None
    ) -> DeviceEvent:
        """Call, and put ``event`` (its end is still its duration) on its stream."""
        self._wait_for_queue()
        called = self.call(call, self.costs.launch if call_ns is None else call_ns)
        event.correlation, event.external = called.correlation, called.external
        event.ranges = tuple(self.open_ranges)
        arrives = called.start_ns + (called.end_ns - called.start_ns) * 6 // 10 + self.costs.latency
        return self.place(event, max(arrives, after_ns))

    def place(self, event: DeviceEvent, earliest_ns: int) -> DeviceEvent:
        """Run it as soon as its stream allows, but not before ``earliest_ns``."""
        duration = event.end_ns
        ready = self.ready.get(event.stream)
        pause = self.jitter(850, 0.4)
        start = max(earliest_ns, ready + pause if ready else 0)
        drained = max(self.ready.values(), default=start)
        if start - drained > HOST_LIMITED_NS:
            cause = self.announced or self.default_cause
            if cause:
                self.lose(cause, start - drained)
        self.announced = None
        event.start_ns, event.end_ns = start, start + duration
        self.ready[event.stream] = event.end_ns
        self.pending.append(event.end_ns)
        self.devices.append(event)
        return event

    def lose(self, cause: str, nanoseconds: int) -> None:
        self.lost_ns[cause] = self.lost_ns.get(cause, 0) + nanoseconds

    def _wait_for_queue(self) -> None:
        while self.pending and self.pending[0] <= self.now:
            self.pending.popleft()
        if len(self.pending) > MOST_PENDING:
            self.now = max(self.now, self.pending[len(self.pending) - MOST_PENDING])

    def graph(self, kernels: Sequence[Kernel], stream: int = COMPUTE) -> list[DeviceEvent]:
        """One call, and all kernels of the graph follow one another without the host."""
        self.now += self.jitter(self.costs.between, 0.5)
        self._wait_for_queue()
        called = self.call("cudaGraphLaunch", 24 * US + 90 * len(kernels))
        placed = []
        for number, kernel in enumerate(kernels):
            event = DeviceEvent(
                "kernel", kernel.name, 0, self._duration(kernel), stream, called.correlation, called.external,
                (3 << 32) + number, kernel.grid, kernel.block, ranges=tuple(self.open_ranges),
            )  # fmt: skip
            placed.append(self.place(event, called.start_ns + 14 * US))
        return placed

    # --- copies and waiting -------------------------------------------------------------------------------------

    def copy(
        self, direction: str, size: int, *, pinned: bool, stream: int = COMPUTE, after_ns: int = 0
    ) -> DeviceEvent:
        """A copy between host and device; from pageable memory the call lasts as long as the copy."""
        host_side = "Pinned" if pinned else "Pageable"
        ends = (host_side, "Device") if direction == "HtoD" else ("Device", host_side)
        duration = int(size / (24.5e9 if pinned else 9.5e9) * 1e9) + 1_400
        name = f"Memcpy {direction} ({ends[0]} -> {ends[1]})"
        event = DeviceEvent("memcpy", name, 0, self.jitter(duration), stream, None, bytes=size)
        call_ns = 6 * US
        placed = self.submit("cudaMemcpyAsync", event, after_ns, call_ns)
        if not pinned and size > 65_536:
            called = next(one for one in reversed(self.host) if one.correlation == placed.correlation)
            called.end_ns = self.now = max(self.now, placed.end_ns + 3 * US)
        return placed

    def synchronise(self, name: str = "cudaStreamSynchronize") -> None:
        """The host waits until the device has done everything."""
        event = self.call(name, 1_800)
        event.end_ns = self.now = max(self.now, max(self.ready.values(), default=0) + self.jitter(6 * US))

    def item(self) -> None:
        """``tensor.item()``: eight bytes back, and the host waits for them."""
        with self.op("aten::item"), self.op("aten::_local_scalar_dense"):
            self.copy("DtoH", 8, pinned=self.gpu.vendor == "nvidia")
            self.synchronise()
        self.blame("host-sync")

    # --- collectives --------------------------------------------------------------------------------------------

    def entered(self, event: DeviceEvent, transfer_ns: int) -> Program:
        """Every rank leaves a collective together: when the last one has come and the bytes have moved."""
        last = yield event.start_ns
        event.end_ns = last + transfer_ns + self.random.randrange(300)
        self.ready[event.stream] = event.end_ns
        self.pending[-1] = event.end_ns

    def recorded(self) -> RankEvents:
        """Hand over what the profiler saw."""
        number = self.gpu.first_number + self.number
        return RankEvents(
            self.number,
            self.world,
            number,
            self.gpu.name,
            self.host,
            self.devices,
            self.clock_offset_ns,
            self.with_stack,
        )
