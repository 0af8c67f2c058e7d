"""Causes of idle time: every gap of a device is split by cause, to the nanosecond.

The gap before an operation is explained by that operation's launch. Until the launching call begins, the thread that
makes it was doing something else; then it launches; and what is left, when the launch was over before the gap was,
the device had work in its queue and did not run it.

``queue``       the next operation had been launched: the gap is not the host's. Short ones are the time between
                kernels; long ones mean that something outside the capture held the stream.
``data``        the thread was in a range that loads or prepares input;
``allocation``  it was allocating or freeing device memory;
``communication`` it was in a collective of its own (gloo);
``sync``        it waited for the device, or the device ran dry because it had: a host that had not waited would have
                been ahead by as much as it waited, so that much of the launching and other work after a wait, up to
                the next one, counts as ``sync``;
``launch``      it was launching: inside the call, or in a gap so short that nothing but dispatch fits in;
``host``        it did something else;
``one-off``     it did something that is done once, by :mod:`llm_perf_opt.analysis.timeline.one_off`: this comes before all
                others, except that only idle time inside a range named warm-up is taken from waits and queues.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_perf_opt.analysis.intervals import (
    EMPTY,
    IntervalSet,
    complement,
    from_disjoint,
    intersect,
    time_at,
    union,
    unite,
)
from llm_perf_opt.captures.timeline import UNKNOWN, HostCalls, HostSpans, Int32, Int64, Ranges, Timeline
from llm_perf_opt.core.arrays import distinct, distinct_of_sorted

# Meaning of names on the host: which calls wait, launch or allocate, which ranges load data, which wait for other ranks.


# Names as nsys prints them carry a version ("cudaMemcpy_v3020"), driver calls begin with "cu", HIP with "hip".
_SYNC_CALL = re.compile(
    r"synchronize|^\[CUDA synchronization\]|^(?:cuda|cu|hip)Memcpy(?!\w*Async)", re.IGNORECASE
)

_ALLOCATION_CALL = re.compile(
    r"^(?:cuda|cu|hip)(?:Malloc|Free|MemAlloc|MemFree|MemCreate|MemMap|MemUnmap|MemSetAccess|MemAddress|MemRelease"
    r"|HostAlloc|HostRegister|HostUnregister|ExtMalloc|ModuleUnload|MemPool)",
    re.IGNORECASE,
)
_DATA = re.compile(
    r"data_?loader|dataset|data[_ ]?load|load[_ ]?(?:next[_ ]?)?(?:batch|data|image|sample|input|page)|next[_ ]?batch"
    r"|get[_ ]?batch|fetch[_ ]?(?:batch|data|input)|\bcollate|collate_fn|read[_ ]?(?:image|file|batch|data|page)"
    r"|(?:decode|open)[_ ]?(?:image|jpe?g|png|pdf)|\bpre[_-]?process(?:ing|_inputs?|_images?)?\b|image[_ ]?processor"
    r"|augment|input[_ ]?pipeline|prepare[_ ]?(?:batch|data)\b",
    re.IGNORECASE,
)
_TOKENISING = re.compile(
    r"(?<!de)(?<!de-)tokeni[sz]|apply_chat_template|batch_encode|encode_batch", re.IGNORECASE
)
_DATA_FRAME = re.compile(
    r"torch/utils/data/|/?datasets/\w+\.py|tokenization_\w+\.py|/?tokenizers/|image_processing_\w+\.py|/?PIL/|/?torchvision/io/"
    r"|: (?:load|read|fetch|next|get|prepare|tokeni[sz]e|collate)_?(?:next_)?(?:batch|data|image|sample|input|page|file|text|fn)(?:e?s)?$"
    r"|: (?:tokeni[sz]e|collate)\w*$",
    re.IGNORECASE,
)
_RANK_WAIT = re.compile(
    r"^(?:gloo|ucc|mpi)[:_]|c10d::(?:barrier|monitored_barrier)|\bbarrier\b", re.IGNORECASE
)
_COMPILING = re.compile(
    r"torch[._]?(?:compile|_dynamo|_inductor)|inductor|triton.*compil|compile_fx|ptxas|nvrtc|\(dynamo_timed\)"
    r"|^entire_frame_compile",
    re.IGNORECASE,
)
_WARM_UP = re.compile(r"(?<![a-z])warm[-_ ]?(?:up|ing[-_ ]?up)(?![a-z])", re.IGNORECASE)
_NOT_WARM_UP = re.compile(
    r"(?:after|post|no|without|skip|non|past)[-_ ]*warm|(?:lr|learning|schedul)\w*[-_ ]?\w*warm|with_warmup|warm[-_ ]?up[-_ ]?"
    r"(?:ratio|steps|schedule|lr|done|finished|complete)",
    re.IGNORECASE,
)
_BOOKKEEPING = re.compile(r"^(?:ProfilerStep|Iteration|Trace|PyTorch Profiler|ProfilerStart|step ?#?\d+$)")


def is_warm_up(name: str) -> bool:
    """Whether a range is a warm-up by its name."""
    return bool(_WARM_UP.search(name)) and not _NOT_WARM_UP.search(name)


def is_sync_call(name: str) -> bool:
    """Whether a CUDA call makes the host wait for the device."""
    return bool(_SYNC_CALL.search(name))


def is_allocation_call(name: str) -> bool:
    """Whether a CUDA call allocates or frees memory: the driver may stop the device for it."""
    return bool(_ALLOCATION_CALL.search(name))


def is_tokenising(name: str) -> bool:
    """Whether a range or frame turns text into tokens."""
    return bool(_TOKENISING.search(name))


def is_data_loading(name: str) -> bool:
    """Whether a range or frame prepares the input of the model."""
    return bool(_DATA.search(name)) or is_tokenising(name)


def is_data_frame(name: str) -> bool:
    """Whether a Python frame (``file.py(12): function``) prepares the input of the model."""
    return bool(_DATA_FRAME.search(name))


def is_rank_wait(name: str) -> bool:
    """Whether a range or operator is a collective that the host itself waits in."""
    return bool(_RANK_WAIT.search(name))


def is_compiling(name: str) -> bool:
    """Whether a range or frame compiles code."""
    return bool(_COMPILING.search(name))


def is_bookkeeping(name: str) -> bool:
    """Whether a range only counts steps, and does not describe the work in it."""
    return bool(_BOOKKEEPING.match(name))


# Activity of the threads that feed devices, as sets of intervals: waiting, launching, allocating, loading data.


Mask = npt.NDArray[np.bool_]
_FEEDS = 0.01
"""A thread feeds a device when it launches this share of its work."""


@dataclass(frozen=True, slots=True)
class _HostSets:
    """Host activity that explains an idle device, for the threads that feed it."""

    waiting: IntervalSet
    """In a call that waits for the device."""
    allocating: IntervalSet
    loading: IntervalSet
    """In a range that prepares the model's input."""
    collective: IntervalSet
    """In a collective of the host itself (gloo)."""
    explains: IntervalSet
    """All of them."""


def feeding_threads(timeline: Timeline, launch: Int32) -> Int64:
    """Threads that launch a noticeable share of these operations; all threads with calls when none is known to."""
    known = launch[launch >= 0]
    if not len(known):
        return np.unique(timeline.calls.thread)
    threads, count = _launches_by_thread(timeline, known)
    return threads[count >= _FEEDS * len(known)]


def main_thread(timeline: Timeline, launch: Int32) -> int | None:
    """The thread with most launches of these operations; ``None`` if unknown."""
    known = launch[launch >= 0]
    if not len(known):
        return int(timeline.calls.thread[0]) if len(timeline.calls) else None
    threads, count = _launches_by_thread(timeline, known)
    return int(threads[int(count.argmax())])


def _launches_by_thread(timeline: Timeline, launches: Int32) -> tuple[Int64, Int64]:
    """Threads that launch anything, and how often. Calls are ordered by thread, so the thread follows from their rows."""
    threads = distinct_of_sorted(timeline.calls.thread)
    if len(threads) == 1:
        return threads, np.array([len(launches)], np.int64)
    ends = np.searchsorted(timeline.calls.thread, threads, side="right")
    upto = np.array([int((launches < end).sum()) for end in ends.tolist()], np.int64)
    count = np.diff(upto, prepend=0)
    return threads[count > 0], count[count > 0]


def named(names: list[str], used: Int32, test: Callable[[str], bool]) -> Mask:
    """Mark the names of ``used`` that pass a test; each distinct name is tested once."""
    marked = np.zeros(len(names) + 1, bool)
    for index in np.flatnonzero(np.bincount(used, minlength=1)).tolist():
        marked[index] = test(names[index])
    return marked


def _host_sets(timeline: Timeline, threads: Int64) -> _HostSets:
    """Collect the activity that explains idle time on these threads."""
    waiting = named_spans(timeline, timeline.calls, threads, is_sync_call)
    allocating = named_spans(timeline, timeline.calls, threads, is_allocation_call)
    loading = unite(
        named_spans(timeline, timeline.ranges, threads, is_data_loading),
        named_spans(timeline, timeline.operators, threads, is_data_loading),
        named_spans(timeline, timeline.frames, frame_threads(timeline, threads), is_data_frame),
    )
    collective = unite(
        named_spans(timeline, timeline.ranges, threads, is_rank_wait),
        named_spans(timeline, timeline.operators, threads, is_rank_wait),
    )
    return _HostSets(
        waiting, allocating, loading, collective, unite(waiting, allocating, loading, collective)
    )


def frame_threads(timeline: Timeline, threads: Int64) -> Int64:
    """Threads of the Python frames that belong to these. Some profilers number Python threads separately; a single one is then used."""
    known = np.unique(timeline.frames.thread)
    return known if len(known) == 1 else threads


def named_spans(
    timeline: Timeline, rows: HostCalls | Ranges | HostSpans, threads: Int64, test: Callable[[str], bool]
) -> IntervalSet:
    """Return when something whose name passes a test is open on these threads."""
    marked = named(timeline.names, rows.name, test)
    found = np.flatnonzero(marked[rows.name]) if marked.any() else np.empty(0, np.int64)
    found = found[np.isin(rows.thread[found], threads)]
    return union(rows.start_ns[found], rows.end_ns[found])


_DISPATCH_NS = 500_000
"""A gap up to this long between two launches is dispatch: Python, operators and calls that lead to the next launch."""
_LATENCY_NS = 100_000
"""A device that starts this long after the launching call returned still counts as launching; beyond, as queue."""
_DRAINED_NS = 20_000
"""A gap that begins this close to a waiting call was caused by the wait: clocks of host and device differ a little."""
_LONGEST_LEAD_NS = 20_000_000
"""A host can be ahead by what the queue of a device holds: about a thousand launches."""
_HELD_NS = 1_000_000
"""Queued work that waits this long is held by something that the capture does not show."""
_HELD_BEFORE = 0.05
"""Where at most this share of the device's work ran before, the hold is a backlog from before the capture."""
ONE_OFF = "one-off"
IDLE_PARTS = ("sync", "launch", "allocation", "data", "host", "queue", ONE_OFF)
COLLECTIVE_WAIT = "communication"


@dataclass(frozen=True, slots=True)
class OneOff:
    """When the threads that feed a device do one-off work."""

    warm_up: IntervalSet
    """Inside ranges that are named so: all idle time in them counts."""
    preparing: IntervalSet
    """Loading, compiling, first calls: idle time that the host spends in them counts."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Stretches in which one device ran nothing, in order."""

    start: Int64
    end: Int64
    launch: Int32
    """Row of the call that launched the operation after the gap; -1: not known, or nothing follows."""
    thread: Int64
    """Thread that launched it, else the one that launches most."""
    before: Mask
    """The operation after the gap was launched before the capture began."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Idle:
    """The idle time of one device, by part; the parts do not overlap and cover every gap."""

    gaps: Gaps
    parts: dict[str, IntervalSet]
    held: IntervalSet
    """Part of ``queue``: backlog from before the capture, in which the device could not have worked for it."""
    waits_ns: Int64
    """Ends of the waits after which the device ran dry."""


def idle_of(
    timeline: Timeline, rows: Int64, busy: IntervalSet, low: int, high: int, once: OneOff | None = None
) -> Idle:
    """Split the time between ``low`` and ``high`` in which a device (its operations are ``rows``) ran nothing."""
    launch = timeline.ops.launch[rows]
    gaps = _gaps(timeline, rows, busy, low, high)
    sets = _host_sets(timeline, feeding_threads(timeline, launch))
    calls = timeline.calls
    if len(calls):
        known = gaps.launch >= 0
        call = np.maximum(gaps.launch, 0)
        begins = np.where(known, np.clip(calls.start_ns[call], gaps.start, gaps.end), gaps.end)
        returns = np.where(known, np.clip(calls.end_ns[call], begins, gaps.end), gaps.end)
        ahead = known & (calls.end_ns[call] <= gaps.start)
    else:
        begins, returns, ahead = gaps.end, gaps.end, np.zeros(len(gaps), bool)
    earlier = bool(gaps.before.any())
    if earlier:
        begins, returns = (np.where(gaps.before, gaps.start, time) for time in (begins, returns))
    queued = ahead | gaps.before | (gaps.end - returns > _LATENCY_NS)
    parts = _host_parts(gaps, begins, np.where(queued, returns, gaps.end), sets)
    parts["queue"] = from_disjoint(returns[queued], gaps.end[queued])
    own = queued & ~gaps.before
    backlog = from_disjoint(returns[own], gaps.end[own]) if earlier else parts["queue"]
    parts[ONE_OFF] = _take_one_off(parts, once) if once is not None else EMPTY
    waits = _attribute_waits(parts, gaps, begins, sets.waiting)
    held = _held(backlog, busy)
    return Idle(gaps, parts, intersect(held, parts["queue"]) if len(held) else held, waits)


def _gaps(timeline: Timeline, rows: Int64, busy: IntervalSet, low: int, high: int) -> Gaps:
    start = np.concatenate(([low], busy.end)) if len(busy) else np.array([low])
    end = np.concatenate((busy.start, [high])) if len(busy) else np.array([high])
    follows = np.searchsorted(timeline.ops.start_ns[rows], end, side="left")
    nothing = follows >= len(rows)
    following = rows[np.minimum(follows, len(rows) - 1)]
    launch = np.where(nothing, UNKNOWN, timeline.ops.launch[following]).astype(np.int32)
    earlier = _launched_before(timeline, rows)
    before = (
        np.zeros(len(end), bool)
        if earlier is None
        else earlier[np.minimum(follows, len(rows) - 1)] & ~nothing
    )
    real = end > start
    if not real.all():
        start, end, launch, before = start[real], end[real], launch[real], before[real]
    usual = main_thread(timeline, timeline.ops.launch[rows])
    thread = np.full(len(start), UNKNOWN if usual is None else usual, np.int64)
    if len(timeline.calls) and timeline.calls.thread[0] != timeline.calls.thread[-1]:
        thread = np.where(launch >= 0, timeline.calls.thread[np.maximum(launch, 0)], thread)
    return Gaps(start, end, launch, thread, before)


def _launched_before(timeline: Timeline, rows: Int64) -> Mask | None:
    """Mark the operations at the beginning of a stream whose launch is not in the capture, while those of later ones are.

    ``None``: there are none.

    A stream runs its work in the order of the launches, so these were launched before the capture began.
    """
    known = timeline.ops.launch[rows] >= 0
    if known.all() or not known.any():
        return None
    streams, stream = distinct(timeline.ops.stream[rows])
    first = np.full(len(streams), -1, np.int64)
    placed = np.flatnonzero(known)
    first[stream[placed][::-1]] = placed[::-1]
    return np.arange(len(rows)) < first[stream]


def _host_parts(gaps: Gaps, begins: Int64, launched: Int64, sets: _HostSets) -> dict[str, IntervalSet]:
    """Split the time before each launching call by what its thread was doing; from there on it launches."""
    short = gaps.end - gaps.start <= _DISPATCH_NS
    plain = ~sets.explains.overlaps(gaps.start, begins)
    other = np.flatnonzero(plain & ~short)
    parts = {
        "launch": from_disjoint(np.where(plain & short, gaps.start, begins), launched),
        "host": from_disjoint(gaps.start[other], begins[other]),
    }
    mixed = np.flatnonzero(~plain)
    rest = from_disjoint(gaps.start[mixed], begins[mixed])
    for name, found in (
        ("data", sets.loading),
        ("allocation", sets.allocating),
        (COLLECTIVE_WAIT, sets.collective),
        ("sync", sets.waiting),
    ):
        parts[name] = intersect(rest, found)
        rest = complement(found, rest)
    dispatch = from_disjoint(gaps.start[mixed][short[mixed]], begins[mixed][short[mixed]])
    parts["launch"] = unite(parts["launch"], intersect(rest, dispatch))
    parts["host"] = unite(parts["host"], complement(dispatch, rest))
    return parts


def _take_one_off(parts: dict[str, IntervalSet], once: OneOff) -> IntervalSet:
    """Move one-off work of the host out of the other parts."""
    taken = []
    for names, found in (
        (("launch", "host", "allocation"), unite(once.warm_up, once.preparing)),
        (("data", "sync", "queue", COLLECTIVE_WAIT), once.warm_up),
    ):
        if len(found):
            taken += [intersect(parts[name], found) for name in names]
            parts.update({name: complement(found, parts[name]) for name in names})
    return unite(*taken) if taken else EMPTY


def _attribute_waits(parts: dict[str, IntervalSet], gaps: Gaps, begins: Int64, waiting: IntervalSet) -> Int64:
    """Move to ``sync`` the work that a host without the wait would have done while the device was busy.

    Return the ends of those waits.
    """
    dry = np.flatnonzero(_touches(waiting, gaps.start) & (begins > gaps.start))
    if not len(dry):
        return np.empty(0, np.int64)
    work = unite(parts["launch"], parts["host"])
    start = gaps.start[dry]
    # Waiting while the device is idle is lost directly; only waiting while it is busy would have put the host ahead.
    waited = complement(parts["sync"], waiting).length_before(start + _DRAINED_NS)
    done = work.length_before(start)
    until = np.append(done[1:], work.length_ns)
    hidden = _hidden(np.diff(waited, prepend=0), until - done)
    blamed = union(start, time_at(work, done + hidden))
    moved = [intersect(parts[name], blamed) for name in ("launch", "host")]
    for name in ("launch", "host"):
        parts[name] = complement(blamed, parts[name])
    parts["sync"] = unite(parts["sync"], *moved)
    last = np.searchsorted(waiting.start, start + _DRAINED_NS, side="right") - 1
    return waiting.end[np.unique(last[last >= 0])]


def _hidden(waited: Int64, work: Int64) -> Int64:
    """Return how much of the work after each wait a host without waits would have done earlier.

    What it is ahead by and does not need after one wait it still has after the next, up to what a queue holds.
    """
    ahead, found = 0, []
    for more, needed in zip(waited.tolist(), work.tolist(), strict=True):
        ahead += more
        found.append(min(ahead, needed))
        ahead = min(ahead - found[-1], _LONGEST_LEAD_NS)
    return np.array(found, np.int64)


def _touches(found: IntervalSet, at: Int64) -> Mask:
    return found.overlaps(at - _DRAINED_NS, at + _DRAINED_NS)


def _held(queue: IntervalSet, busy: IntervalSet) -> IntervalSet:
    long = queue.end - queue.start >= _HELD_NS
    if not long.any():
        return EMPTY
    start, end = queue.start[long], queue.end[long]
    early = busy.length_before(start) <= _HELD_BEFORE * busy.length_ns
    return union(start[early], end[early])
