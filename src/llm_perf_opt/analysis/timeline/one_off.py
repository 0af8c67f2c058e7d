"""Costs that occur once: the first use of a kernel, warm-up, compilation, autotuning, growth of the allocator's pool.

A capture dominated by them does not represent the steady state. They are found by names (ranges, calls, Python frames), and by
comparing the first launch of a kernel with all later launches: lazy module loading makes the first launch call take
milliseconds where others take microseconds. Time is only ever taken from a device that runs nothing.
"""

from __future__ import annotations

import re

import numpy as np

from llm_perf_opt.analysis.intervals import EMPTY, IntervalSet, complement, union, unite
from llm_perf_opt.analysis.timeline.compilations import steady_compilations
from llm_perf_opt.analysis.timeline.idle import OneOff, frame_threads, is_warm_up, named, named_spans
from llm_perf_opt.captures.timeline import Int64, Timeline

_PREPARES = re.compile(
    r"\(dynamo_timed\)|auto[-_ ]?tun(?:e|ing)|\bjit[-_ ]?compil|nvrtc|ptxas|triton.*compil|compile_fx"
    r"|(?:capture|record)[-_ ]?(?:cuda|hip)?[-_ ]?graph|(?:cuda|hip)[-_ ]?graph[-_ ]?(?:capture|record)",
    re.IGNORECASE,
)
_PREPARING_FRAME = re.compile(
    r"torch/_dynamo/convert_frame\.py|torch/_inductor/(?:async_compile|scheduler|graph)\.py|torch/_inductor/codegen/"
    r"|compile_fx\.py\(\d+\): (?:compile_fx|_?compile_fx_inner|fx_codegen_and_compile|codegen_and_compile)"
    r"|triton_heuristics\.py\(\d+\): (?:_?precompile|autotune_to_one_config|benchmark_all_configs|coordinate_descent\w*)"
    r"|triton/runtime/autotuner\.py\(\d+\): _?bench|triton/testing\.py\(\d+\): do_bench|triton/compiler/|triton/runtime/build\.py"
    r"|torch/utils/cpp_extension\.py",
)
_LOADING_CALL = re.compile(
    r"ModuleLoad|LibraryLoad|LinkCreate|LinkComplete|GraphInstantiate|DevicePrimaryCtx|^(?:cu|hip)Init$|CtxCreate",
    re.IGNORECASE,
)
_GROWS = re.compile(r"^(?:cuda|cu|hip)(?:Ext)?(?:Malloc|MemAlloc|MemCreate|MemMap|HostAlloc)", re.IGNORECASE)
_SHRINKS = re.compile(r"^(?:cuda|cu|hip)(?:Free|MemFree|MemUnmap|MemRelease)", re.IGNORECASE)
FIRST_NS = 200_000
"""A first launch call at least this long loads something; a launch takes 5 to 20 µs."""
_FIRST_TIMES = 10
"""Times the median of all other launch calls."""
_LATER_LAUNCHES = 10
"""Fewer do not tell how long a launch usually takes."""
_FIRST_OPERATOR_NS = 1_000_000
_LATER_CALLS = 2


def is_preparing(name: str) -> bool:
    """Whether a range compiles, tunes or records something that later steps use."""
    return bool(_PREPARES.search(name))


def is_preparing_frame(name: str) -> bool:
    """Whether a Python function is open only while something is compiled or tuned."""
    return bool(_PREPARING_FRAME.search(name))


def _is_loading_call(name: str) -> bool:
    """Whether a call loads code or creates a context."""
    return bool(_LOADING_CALL.search(name))


def first_launches(timeline: Timeline) -> tuple[Int64, Int64]:
    """Return the calls that launch a kernel for the first time in the capture, and all other launching calls."""
    ops = timeline.ops
    known = ops.launch >= 0
    rows = slice(None) if known.all() else np.flatnonzero(known)
    call = ops.launch[rows]
    first = np.full(len(timeline.names) + 1, -1, np.int64)
    first[ops.name[rows][::-1]] = call[::-1]  # of equal names the earliest is written last
    firsts = np.unique(first[first >= 0])
    launching = np.zeros(len(timeline.calls), bool)
    launching[call] = True
    launching[firsts] = False
    return firsts, np.flatnonzero(launching)


def one_off_metrics(timeline: Timeline) -> dict[str, float | None]:
    """Compare first launches with later ones; nothing without launching calls."""
    if not len(timeline.calls) or not (timeline.ops.launch >= 0).any():
        return {}
    length = timeline.calls.end_ns - timeline.calls.start_ns
    first, later = first_launches(timeline)
    return {
        "first_launches": float(len(first)),
        "first_launch_s": float(length[first].sum()) / 1e9,
        "repeated_launches": float(len(later)),
        "repeated_launch_s": float(length[later].sum()) / 1e9,
    }


def find_one_off(timeline: Timeline, threads: Int64, low: int, high: int) -> OneOff:
    """Collect the one-off work of these threads between ``low`` and ``high``."""
    calls, first = timeline.calls, np.empty(0, np.int64)
    rows = [np.empty(0, np.int64)]
    if len(calls):
        first, later = first_launches(timeline)
        rows += [_loading(timeline, first, later), _growth(timeline, low, high)]
    chosen = np.concatenate(rows)
    chosen = chosen[np.isin(calls.thread[chosen], threads)]
    named_so = (timeline.ranges, timeline.operators)
    preparing = unite(
        *(named_spans(timeline, table, threads, is_preparing) for table in named_so),
        named_spans(timeline, timeline.frames, frame_threads(timeline, threads), is_preparing_frame),
        named_spans(timeline, calls, threads, _is_loading_call),
        union(calls.start_ns[chosen], calls.end_ns[chosen]),
        _first_operators(timeline, threads, first),
    )
    recurs = steady_compilations(timeline) if len(preparing) else EMPTY
    return OneOff(
        warm_up=unite(*(named_spans(timeline, table, threads, is_warm_up) for table in named_so)),
        preparing=complement(recurs, preparing) if len(recurs) else preparing,
    )


def _loading(timeline: Timeline, first: Int64, later: Int64) -> Int64:
    """First launches that take far longer than launches do: they load the kernel's module."""
    if len(later) < _LATER_LAUNCHES:
        return np.empty(0, np.int64)
    length = timeline.calls.end_ns - timeline.calls.start_ns
    long = first[length[first] >= FIRST_NS]
    return long[length[long] >= _FIRST_TIMES * float(np.median(length[later]))] if len(long) else long


def _growth(timeline: Timeline, low: int, high: int) -> Int64:
    """Allocating calls of a pool that grows and then stays: nothing is freed, and most launches come after the last."""
    calls, launches = timeline.calls, timeline.ops.launch[timeline.ops.launch >= 0]
    grows = np.flatnonzero(
        named(timeline.names, calls.name, lambda name: bool(_GROWS.search(name)))[calls.name]
    )
    if not len(grows):
        return grows
    shrinks = np.flatnonzero(
        named(timeline.names, calls.name, lambda name: bool(_SHRINKS.search(name)))[calls.name]
    )
    grows, shrinks = (
        rows[(calls.end_ns[rows] > low) & (calls.start_ns[rows] < high)] for rows in (grows, shrinks)
    )
    if not len(grows) or len(shrinks) or len(launches) < _LATER_LAUNCHES:
        return np.empty(0, np.int64)
    after = calls.start_ns[launches] > calls.end_ns[grows].max()
    return grows if after.sum() > len(launches) / 2 else np.empty(0, np.int64)


def _first_operators(timeline: Timeline, threads: Int64, first: Int64) -> IntervalSet:
    """Operators whose first call takes far longer than their later ones and launches a kernel for the first time."""
    spans = timeline.operators
    long = np.flatnonzero(spans.end_ns - spans.start_ns >= _FIRST_OPERATOR_NS)
    long = long[np.isin(spans.thread[long], threads)]
    if not len(long) or not len(first):
        return EMPTY
    at = np.sort(timeline.calls.start_ns[first])
    holds = np.searchsorted(at, spans.end_ns[long]) > np.searchsorted(at, spans.start_ns[long])
    chosen = [row for row in _earliest(timeline, long[holds]) if _outlasts_later(timeline, row)]
    return union(spans.start_ns[chosen], spans.end_ns[chosen])


def _earliest(timeline: Timeline, rows: Int64) -> list[int]:
    """Of every name the earliest of these calls."""
    spans = timeline.operators
    found: dict[int, int] = {}
    for row in rows.tolist():
        known = found.setdefault(int(spans.name[row]), row)
        if spans.start_ns[row] < spans.start_ns[known]:
            found[int(spans.name[row])] = row
    return list(found.values())


def _outlasts_later(timeline: Timeline, row: int) -> bool:
    spans = timeline.operators
    same = np.flatnonzero(spans.name == spans.name[row])
    if int(spans.start_ns[same].min()) < int(spans.start_ns[row]):
        return False
    later = same[spans.start_ns[same] > spans.start_ns[row]]
    if len(later) < _LATER_CALLS:
        return False
    usual = float(np.median(spans.end_ns[later] - spans.start_ns[later]))
    return int(spans.end_ns[row] - spans.start_ns[row]) >= _FIRST_TIMES * max(usual, 1.0)
