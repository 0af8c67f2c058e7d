"""Find a planted loss again in the written files, by interval arithmetic that knows nothing of the simulation.

Uses neither the simulator's books nor the project's own readers: what it finds has to agree with the label.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Interval = tuple[int, int]
COMMUNICATION = re.compile(r"nccl(Dev)?Kernel|cross_device_reduce", re.IGNORECASE)
LOADING = re.compile(r"DataLoader|load_batch|tokeni[sz]e|read_images")
ALLOCATING = re.compile(r"^(cuda|hip)(Malloc|Free)\b|^(cuda|hip)(Malloc|Free)_v")
SYNCHRONISING = re.compile(r"Synchronize|(cuda|hip)Memcpy")
SMALLEST_GAP_NS, LONG_PAUSE_NS = 2_500, 100_000
EAGER_SCORES = re.compile(
    r"softmax|AUnaryFunctor|::bfloat16\w*_copy_kernel|[ :]elementwise_kernel<(\(int\))?128.*CUDAFunctor_add",
    re.IGNORECASE,
)
ELEMENTWISE = re.compile(r"elementwise_kernel|reduce_kernel.*MeanOps|CatArrayBatchedCopy")


@dataclass(slots=True)
class Work:
    """One device event."""

    name: str
    start: int
    end: int
    shapes: list[list[int]] = field(default_factory=list)
    copy: bool = False


@dataclass(slots=True)
class Read:
    """One rank as read back."""

    device: list[Work] = field(default_factory=list)
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    operators: list[Interval] = field(default_factory=list)


def read_kineto(path: Path) -> Read:
    """Read one trace."""
    raw = path.read_bytes()
    document = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    found = Read()
    shapes: dict[int | None, list[list[int]]] = {}
    for event in document["traceEvents"]:
        category, args = event.get("cat"), event.get("args", {})
        if event["ph"] != "X":
            continue
        start = round(event["ts"] * 1000)
        end = start + round(event["dur"] * 1000)
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            copied = category != "kernel"
            work = Work(event["name"], start, end, shapes.get(args.get("External id"), []), copied)
            found.device.append(work)
        elif category in ("cuda_runtime", "cuda_driver"):
            found.calls.append((event["name"], start, end))
        elif category == "user_annotation":
            found.ranges.append((event["name"], start, end))
        elif category == "cpu_op":
            found.operators.append((start, end))
            shapes[args["External id"]] = args.get("Input Dims", [])
    return found


def read_nsys(path: Path) -> list[Read]:
    """Read an export: one rank per process."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    names = dict(database.execute("SELECT id, value FROM StringIds"))
    found: dict[int, Read] = {}

    def of(process: int) -> Read:
        return found.setdefault(process >> 24, Read())

    query = "SELECT globalPid, demangledName, start, end FROM CUPTI_ACTIVITY_KIND_KERNEL"
    for process, name, start, end in database.execute(query):
        of(process).device.append(Work(names[name], start, end))
    query = "SELECT globalPid, copyKind, start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY"
    for process, kind, start, end in database.execute(query):
        of(process).device.append(Work(f"Memcpy {kind}", start, end, copy=True))
    query = "SELECT globalTid, nameId, start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    for thread, name, start, end in database.execute(query):
        of(thread).calls.append((names[name], start, end))
    query = "SELECT globalTid, text, start, end FROM NVTX_EVENTS WHERE end IS NOT NULL"
    for thread, text, start, end in database.execute(query):
        of(thread).ranges.append((text, start, end))
    database.close()
    return [found[key] for key in sorted(found)]


# --- intervals -------------------------------------------------------------------------------------------------


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge what touches."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def total(intervals: Iterable[Interval]) -> int:
    """Time covered."""
    return sum(end - start for start, end in union(intervals))


def only(these: Iterable[Interval], others: Iterable[Interval]) -> int:
    """Time covered by ``these`` and by none of ``others``."""
    second = list(others)
    return total([*these, *second]) - total(second)


def gaps(read: Read) -> list[Interval]:
    """Stretches between the first and the last event in which the device ran nothing."""
    busy = union((work.start, work.end) for work in read.device)
    pairs = [(one[1], two[0]) for one, two in itertools.pairwise(busy)]
    return [(start, end) for start, end in pairs if end - start > SMALLEST_GAP_NS]


def _owner(gap: Interval, read: Read, starts: list[int], longest_call: int) -> str:
    """What the host did in a gap; the first of these that applies."""
    start, end = gap
    if any(LOADING.search(name) and begin < end and stop > start for name, begin, stop in read.ranges):
        return "input-pipeline"
    near = read.calls[bisect_left(starts, start - longest_call) : bisect_left(starts, end)]
    inside = [(name, begin, stop) for name, begin, stop in near if stop > start]
    if any(ALLOCATING.search(name) for name, _, _ in inside):
        return "allocation"
    if any(SYNCHRONISING.search(name) and begin <= start < stop for name, begin, stop in inside):
        return "host-sync"
    active = [(begin, stop) for _, begin, stop in inside]
    quiet = [(one[1], two[0]) for one, two in itertools.pairwise(active)]
    edges = [(start, active[0][0])] if active else [(start, end)]
    longest = max(stop - begin for begin, stop in [*quiet, *edges])
    return "host-idle" if longest > LONG_PAUSE_NS else "launch-bound"


def idle_by_owner(read: Read) -> dict[str, int]:
    """Idle time by what the host did in it."""
    read.calls.sort(key=lambda call: call[1])
    starts = [begin for _, begin, _ in read.calls]
    longest = max(stop - begin for _, begin, stop in read.calls)
    found: dict[str, int] = {}
    for gap in gaps(read):
        owner = _owner(gap, read, starts, longest)
        found[owner] = found.get(owner, 0) + gap[1] - gap[0]
    return found


# --- the losses ------------------------------------------------------------------------------------------------


def _communication(read: Read) -> tuple[list[Interval], list[Interval]]:
    talk = [(work.start, work.end) for work in read.device if COMMUNICATION.search(work.name)]
    rest = [(work.start, work.end) for work in read.device if not COMMUNICATION.search(work.name)]
    return talk, rest


def exposed(read: Read) -> int:
    """Only communication ran."""
    return only(*_communication(read))


def waiting(reads: Sequence[Read]) -> list[int]:
    """Per rank: time with nothing to run but a collective that the last rank has not entered yet.

    Clocks need no putting together: all ranks leave together, so who came last stays shortest.
    """
    entries = [sorted(_communication(read)[0]) for read in reads]
    waits: list[list[Interval]] = [[] for _ in reads]
    for calls in zip(*entries, strict=True):
        shortest = min(end - start for start, end in calls)
        for rank, (start, end) in enumerate(calls):
            waits[rank].append((start, end - shortest))
    return [only(mine, _communication(read)[1]) for mine, read in zip(waits, reads, strict=True)]


def copying(read: Read) -> int:
    """Only copies ran."""
    copies = [(work.start, work.end) for work in read.device if work.copy]
    kernels = [(work.start, work.end) for work in read.device if not work.copy]
    return only(copies, kernels)


def _matching(read: Read, pattern: re.Pattern[str]) -> int:
    return sum(work.end - work.start for work in read.device if pattern.search(work.name))


def unfused(read: Read) -> int:
    """Element-wise chains, less what one kernel each would take.

    A fused norm reads and writes as much as the chain's ``pow``; a fused rotary embedding as much as the product before
    its negation.
    """
    rows = sorted(read.device, key=lambda work: work.start)
    fused = [work for work in rows if "pow_tensor_scalar" in work.name]
    fused += [one for one, two in itertools.pairwise(rows) if "neg_kernel" in two.name]
    return _matching(read, ELEMENTWISE) - sum(work.end - work.start for work in fused)


def misaligned(read: Read) -> int:
    """Time of ``align1`` products less their FLOPs at the rate of the large aligned ones."""
    rows = [(work, work.end - work.start, _flops(work)) for work in read.device if _flops(work)]
    aligned = [(flops, took) for work, took, flops in rows if "align1" not in work.name and took > 50_000]
    rate = sum(flops for flops, _ in aligned) / sum(took for _, took in aligned)
    return round(sum(took - flops / rate for work, took, flops in rows if "align1" in work.name))


def _flops(work: Work) -> float:
    shapes = [shape for shape in work.shapes if len(shape) == 2]  # a bias comes first
    if len(shapes) != 2 or len(work.shapes) > 3:
        return 0.0
    (m, k), (_, n) = shapes
    return 2.0 * m * n * k


KERNEL_LOSSES: dict[str, Callable[[Read], int]] = {
    "exposed-communication": exposed,
    "copies": copying,
    "eager-attention": lambda read: _matching(read, EAGER_SCORES),
    "unfused-elementwise": unfused,
    "misaligned-gemm": misaligned,
}


def read_all(files: Sequence[Path]) -> list[Read]:
    """Read the files of a case, whatever they are."""
    if files[0].suffix == ".sqlite":
        return [read for path in files for read in read_nsys(path)]
    return [read_kineto(path) for path in files]


def find_loss_s(cause: str, reads: Sequence[Read], straggler: int | None = None) -> float:
    """Return the loss to a cause in seconds, mean over the ranks (a straggler: over the others)."""
    if cause == "straggler":
        waits = [wait for rank, wait in enumerate(waiting(reads)) if rank != straggler]
        return sum(waits) / len(waits) / 1e9
    measure = KERNEL_LOSSES.get(cause) or (lambda read: idle_by_owner(read).get(cause, 0))
    found = sum(measure(read) for read in reads)
    if cause == "exposed-communication" and straggler is not None:  # lateness has a name of its own
        found -= sum(waiting(reads))
    return found / len(reads) / 1e9


def span_s(read: Read) -> float:
    """First to last activity of the device."""
    return (max(w.end for w in read.device) - min(w.start for w in read.device)) / 1e9


def busy_ratio(read: Read) -> float:
    """Share of the span in which anything ran."""
    return total((w.start, w.end) for w in read.device) / 1e9 / span_s(read)
