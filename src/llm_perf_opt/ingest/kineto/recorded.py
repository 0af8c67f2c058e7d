"""What the trace of a graph's recording holds: kernels in the order they were put into graphs, and who put them there.

While a stream is recorded no kernel runs, so the names of kernels come from the launch calls themselves (ROCm writes
them), or from the pass that ran the same operators just before (the warm-up that engines make before they record).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from llm_perf_opt.ingest.graphs import is_capture_begin, is_capture_end, is_kernel_launch
from llm_perf_opt.ingest.kineto.calls import OPERATORS, RawEvent, nanoseconds, raw_events
from llm_perf_opt.ingest.kineto.decode import PieceDecoder
from llm_perf_opt.ingest.kineto.stream import EventStream

_RANGES = frozenset(("user_annotation",))
_KERNELS = frozenset(("kernel", "Kernel"))


@dataclass(frozen=True, slots=True)
class RecordedKernel:
    """One kernel, and the code that launched it."""

    name: str
    operator: str | None
    """Innermost operator around the launch."""
    ranges: tuple[str, ...] = ()
    """Names of the annotations around the launch, innermost first."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Kernels in the order they were launched, by one thread."""

    kernels: tuple[RecordedKernel, ...]
    is_graph: bool
    """Between the begin and the end of a recording: the whole of one graph. Else a pass that ran: a graph is a part of it."""


class _LaunchArgs(msgspec.Struct, gc=False):
    kernel: str | None = None
    correlation: float = -1.0


@dataclass(slots=True)
class _Mark:
    """Something on a thread's time line."""

    begin: int
    end: int
    kind: str
    name: str
    correlation: float = -1.0
    kernel: str | None = None


class _HostDecoder(PieceDecoder):
    """Keep operators, annotations, launches and kernels; everything else is forgotten at once."""

    def decode(self, text: bytes | memoryview) -> list[Any]:
        return [each.kept() for each in raw_events(text) if _kind(each) is not None]


def _kind(event: RawEvent) -> str | None:
    if event.cat in OPERATORS:
        return "operator"
    if event.cat in _RANGES:
        return "range"
    if event.cat in _KERNELS:
        return "kernel"
    if event.cat.endswith(("_runtime", "_driver")) or event.cat == "Runtime":
        if is_kernel_launch(event.name):
            return "launch"
        return "begin" if is_capture_begin(event.name) else "end" if is_capture_end(event.name) else None
    return None


def read_recorded(path: Path) -> list[RecordedRun]:
    """Read the trace of a recording: one run per recorded graph, and one per thread of what ran beside them."""
    threads: dict[tuple[bytes, bytes], list[_Mark]] = {}
    ran: dict[float, str] = {}
    for event in _host_events(path):
        kind, args = _kind(event), _arguments(event)
        if kind == "kernel":
            ran[args.correlation] = event.name
            continue
        begin, length = nanoseconds(event.ts), nanoseconds(event.dur)
        if kind is None or begin is None or length is None:
            continue
        mark = _Mark(begin, begin + length, kind, event.name, args.correlation, args.kernel)
        threads.setdefault((bytes(event.pid), bytes(event.tid)), []).append(mark)
    ran.pop(-1.0, None)
    return [run for marks in threads.values() for run in _runs(marks, ran) if run.kernels]


def _host_events(path: Path) -> Iterator[RawEvent]:
    for events in EventStream(path, decoder=_HostDecoder()):
        yield from events  # type: ignore[misc]


def _arguments(event: RawEvent) -> _LaunchArgs:
    try:
        return msgspec.json.decode(event.args, type=_LaunchArgs)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _LaunchArgs()


def _runs(marks: list[_Mark], ran: dict[float, str]) -> list[RecordedRun]:
    """Walk a thread in time; a launch inside a recording belongs to that graph, one that ran to the pass around."""
    marks.sort(key=lambda mark: (mark.begin, -mark.end))
    open_marks: list[_Mark] = []
    graph: list[RecordedKernel] | None = None
    graphs: list[list[RecordedKernel]] = []
    executed: list[RecordedKernel] = []
    for mark in marks:
        while open_marks and open_marks[-1].end < mark.begin:
            open_marks.pop()
        if mark.kind in ("operator", "range"):
            open_marks.append(mark)
        elif mark.kind == "begin":
            graph = []
            graphs.append(graph)
        elif mark.kind == "end":
            graph = None
        elif mark.correlation in ran:
            executed.append(_recorded(ran[mark.correlation], open_marks))
        elif graph is not None:
            # Without its name a kernel cannot be told from another: the graph stays unknown.
            graph.append(_recorded(mark.kernel or "", open_marks))
    whole = [each for each in graphs if each and all(kernel.name for kernel in each)]
    return [
        *(RecordedRun(tuple(each), is_graph=True) for each in whole),
        RecordedRun(tuple(executed), is_graph=False),
    ]


def _recorded(name: str, around: list[_Mark]) -> RecordedKernel:
    inner_first = around[::-1]
    operator = next((mark.name for mark in inner_first if mark.kind == "operator"), None)
    return RecordedKernel(name, operator, tuple(mark.name for mark in inner_first if mark.kind == "range"))
