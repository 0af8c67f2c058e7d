"""Single calls of selected operators with their input shapes, in a second pass over a trace.

The reader of whole traces keeps no argument of an operator, because millions of calls pass. Where the trace was made
with ``record_shapes=True`` and the work of its matrix products is needed, the file is read once more, and only
the arguments of the selected operators are parsed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from llm_perf_opt.captures.kineto.decode import BadPiece, PieceDecoder
from llm_perf_opt.captures.kineto.stream import EventStream
from llm_perf_opt.captures.kineto.timeline import process_id
from llm_perf_opt.captures.timeline import Int64, is_capture_begin, is_capture_end, is_kernel_launch
from llm_perf_opt.core.arrays import order_by_thread
from llm_perf_opt.core.limits import LATEST_NS, MOST_BYTES, MOST_NS

OPERATORS = frozenset(("cpu_op", "Operator"))
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_LONGEST_NUMBER = 40
_USUAL_DIGITS = 16
"""Of microseconds since 1970."""
_NO_ARGS = msgspec.Raw(b"{}")


@dataclass(frozen=True, slots=True)
class Signature:
    """An operator with one set of input shapes."""

    name: str
    dims: tuple[Any, ...]
    """Shape of every input; empty for what is no tensor."""
    types: tuple[str, ...]
    """``c10::BFloat16``, ``float``, ``Scalar``, … as torch writes them."""
    concrete: tuple[str, ...]
    """Scalars and lists as text; empty where not recorded."""


@dataclass(frozen=True, slots=True)
class OperatorCalls:
    """Calls of the selected operators, ordered by (thread, start, longest first)."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    """As numbered in the timeline of the same file."""
    signature: Int64
    """Index into ``signatures``."""
    signatures: tuple[Signature, ...]

    def __len__(self) -> int:
        return len(self.start_ns)


class _RawEvent(msgspec.Struct, gc=False):
    """A complete event with lazily parsed fields."""

    cat: str = ""
    name: str = ""
    pid: msgspec.Raw = msgspec.Raw(b"")
    tid: msgspec.Raw = msgspec.Raw(b"")
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = _NO_ARGS

    def kept(self) -> _RawEvent:
        """Copy the event: its parts point into a reused buffer."""
        parts = (self.pid, self.tid, self.ts, self.dur, self.args)
        return _RawEvent(self.cat, self.name, *(part.copy() for part in parts))


class _CallArgs(msgspec.Struct, gc=False):
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"[]"), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"[]"), name="Input type")
    concrete: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"[]"), name="Concrete Inputs")


_EVENTS = msgspec.json.Decoder(list[_RawEvent])
_LOOSE = msgspec.json.Decoder(list[Any])
_ARGS = msgspec.json.Decoder(_CallArgs)


class _CallDecoder(PieceDecoder):
    """Decode a piece and return the calls of some operators as rows: start, end, thread, signature."""

    def __init__(
        self, names: frozenset[str], threads: list[dict[str, Any]], categories: frozenset[str]
    ) -> None:
        super().__init__()
        self._names = names
        self._categories = categories
        self._numbers = _thread_numbers(threads)
        self._threads: dict[tuple[bytes, bytes], int | None] = {}
        self.signatures: dict[tuple[str, bytes, bytes, bytes], int] = {}

    def decode(self, text: bytes | memoryview) -> list[Any]:
        names, categories = self._names, self._categories
        chosen = (each for each in _raw_events(text) if each.name in names and each.cat in categories)
        return [row for each in chosen if (row := self._row(each)) is not None]

    def _row(self, event: _RawEvent) -> tuple[int, int, int, int] | None:
        begin, length = nanoseconds(event.ts), nanoseconds(event.dur)
        thread = self._thread((bytes(event.pid), bytes(event.tid)))
        if begin is None or length is None or thread is None or length < 0:
            return None
        key = (event.name, *_inputs(event.args))
        return begin, begin + length, thread, self.signatures.setdefault(key, len(self.signatures))

    def _thread(self, written: tuple[bytes, bytes]) -> int | None:
        if written not in self._threads:
            process, thread = (_identity(part) for part in written)
            self._threads[written] = self._numbers.get((process, thread))
        return self._threads[written]


def _raw_events(text: bytes | memoryview) -> list[_RawEvent]:
    """Decode a piece; raise :class:`BadPiece` when it is not JSON. Kept events must be copied (``kept``)."""
    try:
        return _EVENTS.decode(text)
    except msgspec.ValidationError:
        return _loose_events(text)
    except _NOT_JSON as error:
        raise BadPiece(str(error)) from error


def _loose_events(text: bytes | memoryview) -> list[_RawEvent]:
    """Decode pieces with unexpected field types (a null name) event by event."""
    try:
        values = _LOOSE.decode(text)
    except _NOT_JSON as error:
        raise BadPiece(str(error)) from error

    return [
        _RawEvent(cat, name, *(_as_raw(value.get(key)) for key in ("pid", "tid", "ts", "dur", "args")))
        for value in values
        if isinstance(value, Mapping)
        and isinstance(cat := value.get("cat"), str)
        and isinstance(name := value.get("name"), str)
    ]


def _as_raw(value: Any) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except (OverflowError, RecursionError):
        return msgspec.Raw(b"")  # an invalid number or nesting


def read_operator_calls(
    path: Path,
    names: frozenset[str],
    threads: list[dict[str, Any]],
    *,
    categories: frozenset[str] = OPERATORS,
) -> OperatorCalls:
    """Read every call of the operators in ``names``; ``threads`` are those of the timeline of the same file.

    Calls without a time, and of threads the timeline does not have, are left out. ``categories``: event categories to read.
    """
    decoder = _CallDecoder(names, threads, categories)
    rows: list[Any] = [row for piece in EventStream(path, decoder=decoder) for row in piece]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    order = order_by_thread(table[:, 2], table[:, 0], table[:, 1])
    start, end, thread, signature = (np.ascontiguousarray(table[order, column]) for column in range(4))
    return OperatorCalls(start, end, thread, signature, tuple(map(_signature, decoder.signatures)))


def _thread_numbers(threads: list[dict[str, Any]]) -> dict[tuple[Any, Any], int]:
    """Return (process, thread) → number; a pair that several threads share (merged ranks) is left out."""
    found: dict[tuple[Any, Any], int] = {}
    twice = set()
    for place, each in enumerate(threads):
        key = (each["pid"], each["tid"])
        if key in found:
            twice.add(key)
        found[key] = place
    return {key: place for key, place in found.items() if key not in twice}


def _identity(text: bytes) -> Any:
    value = _value(text)
    if isinstance(value, int) and not isinstance(value, bool):
        return process_id(float(value))
    return value if isinstance(value, str) and process_id(value) < 0 else process_id(value)


def _value(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except _NOT_JSON:
        return None


def nanoseconds(raw: msgspec.Raw) -> int | None:
    """Return a time in µs, as text, in integer nanoseconds; ``None`` if invalid."""
    text = bytes(raw)
    whole, _, part = text.partition(b".")
    if whole.isdigit() and len(whole) <= _USUAL_DIGITS and (part.isdigit() or not part) and len(part) <= 3:
        return int(whole) * 1000 + int(part.ljust(3, b"0"))
    return _unusual_nanoseconds(text.strip(b'" '))


def _unusual_nanoseconds(text: bytes) -> int | None:
    """Parse unusual formats: exponents, signs, extra digits, numbers as text."""
    if not text or len(text) > _LONGEST_NUMBER:
        return None
    try:
        value = Decimal(text.decode("ascii")) * 1000
    except (InvalidOperation, UnicodeDecodeError):
        return None
    if not value.is_finite() or abs(value) > max(LATEST_NS, MOST_NS):
        return None
    return int(value.to_integral_value())


def _inputs(args: msgspec.Raw) -> tuple[bytes, bytes, bytes]:
    try:
        found = _ARGS.decode(args)
    except _NOT_JSON:
        return b"[]", b"[]", b"[]"
    return bytes(found.dims), bytes(found.types), bytes(found.concrete)


def _signature(key: tuple[str, bytes, bytes, bytes]) -> Signature:
    name, dims, types, concrete = key
    return Signature(name, _list(dims), tuple(map(str, _list(types))), tuple(map(str, _list(concrete))))


def _list(text: bytes) -> tuple[Any, ...]:
    value = _value(text)
    return tuple(value) if isinstance(value, list) else ()


def has_shapes(facts: Mapping[str, Any]) -> bool:
    """Whether a trace has recorded operator shapes."""
    return bool(facts.get("record_shapes"))


# Contents of a graph-recording trace: kernels in the order they were added to graphs, and the operators that added them.
#
# While a stream is recorded no kernel runs, so the names of kernels come from the launch calls themselves (ROCm writes
# them), or from the pass that ran the same operators just before (the warm-up that engines make before they record).


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
    """An event on a thread's timeline."""

    begin: int
    end: int
    kind: str
    name: str
    correlation: float = -1.0
    kernel: str | None = None


class _HostDecoder(PieceDecoder):
    """Keep operators, annotations, launches and kernels; everything else is discarded."""

    def decode(self, text: bytes | memoryview) -> list[Any]:
        return [each.kept() for each in _raw_events(text) if _kind(each) is not None]


def _kind(event: _RawEvent) -> str | None:
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
    """Read the trace of a recording: one run per recorded graph, and one per thread of what ran alongside them."""
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


def _host_events(path: Path) -> Iterator[_RawEvent]:
    for events in EventStream(path, decoder=_HostDecoder()):
        yield from events  # type: ignore[misc]


def _arguments(event: _RawEvent) -> _LaunchArgs:
    try:
        return msgspec.json.decode(event.args, type=_LaunchArgs)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _LaunchArgs()


def _runs(marks: list[_Mark], ran: dict[float, str]) -> list[RecordedRun]:
    """Walk a thread in time; a launch inside a recording belongs to that graph, others to the surrounding pass."""
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
            # Kernels without a name cannot be matched: the graph stays unknown.
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


# Payloads of collectives that a program calls on the host, from the shapes of their inputs.


_CATEGORIES = OPERATORS | {"user_annotation"}
_ANNOTATIONS = {
    f"{library}:{name}": kind
    for library in ("gloo", "ucc", "mpi")
    for name, kind in (
        ("all_reduce", "all_reduce"),
        ("broadcast", "broadcast"),
        ("reduce_scatter", "reduce_scatter"),
        ("all_to_all", "all_to_all"),
    )
}
"""Annotations whose input is the payload; that of an all-gather is a part of it."""
_ALL_GATHER = "_c10d_functional::all_gather_into_tensor"
_CALLS = {**_ANNOTATIONS, _ALL_GATHER: "all_gather"}
_ELEMENT_BYTES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "int": 4, "long int": 8, "short": 2, "signed char": 1,
    "unsigned char": 1, "bool": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip


def host_payloads(path: Path, threads: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return kind and bytes of a trace's collectives in the order of their calls; -1 bytes if the shape is not sufficient."""
    calls = read_operator_calls(path, frozenset(_CALLS), threads, categories=_CATEGORIES)
    order = np.argsort(calls.start_ns, kind="stable").tolist()
    signatures = [calls.signatures[calls.signature[row]] for row in order]
    return [(_CALLS[one.name], _payload(one)) for one in signatures]


def _payload(call: Signature) -> int:
    dims, size = call.dims[0] if call.dims else None, _ELEMENT_BYTES.get(call.types[0] if call.types else "")
    counts = list(dims) if isinstance(dims, list | tuple) else []
    if size is None or not counts or not all(isinstance(one, int) and one >= 0 for one in counts):
        return -1
    payload = math.prod(counts) * size
    if call.name == _ALL_GATHER:
        # The output is larger by the number of ranks passed to the call.
        ranks = call.concrete[1] if len(call.concrete) > 1 else ""
        if not ranks.isdigit():
            return -1
        payload *= int(ranks)
    return payload if payload <= MOST_BYTES else -1
