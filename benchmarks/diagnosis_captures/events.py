"""What a capture holds, in no tool's format: integer nanoseconds, one record per event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

HostKind = Literal["op", "range", "call", "frame"]
DeviceKind = Literal["kernel", "memcpy", "memset"]
MAIN_THREAD, AUTOGRAD_THREAD, OTHER_THREAD = 0, 1, 2


@dataclass(slots=True)
class HostEvent:
    """An operator, a range, a CUDA or HIP call, or a Python frame."""

    kind: HostKind
    name: str
    start_ns: int
    end_ns: int
    thread: int = MAIN_THREAD
    external: int | None = None
    correlation: int | None = None
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class DeviceEvent:
    """A kernel, a copy or a fill."""

    kind: DeviceKind
    name: str
    start_ns: int
    end_ns: int
    stream: int
    correlation: int | None
    external: int | None = None
    graph_node: int | None = None
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    bytes: int | None = None
    args: dict[str, Any] = field(default_factory=dict)
    ranges: tuple[int, ...] = ()
    """External ids of the ranges open where it was launched: torch draws those on the device too."""


@dataclass(slots=True)
class RankEvents:
    """Everything one rank recorded."""

    rank: int
    world: int
    device: int
    gpu: str
    host: list[HostEvent]
    devices: list[DeviceEvent]
    clock_offset_ns: int = 0
    """Added to every time when written: clocks of machines differ."""
    with_stack: bool = False
