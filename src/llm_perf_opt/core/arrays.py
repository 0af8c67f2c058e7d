"""Integer columns as NumPy arrays: distinct values, exact sums, orders, enclosing intervals, and which call launched what.

Captures hold millions of rows, so everything here is vectorised and close to linear. Readers (:mod:`llm_perf_opt.captures`)
and :mod:`llm_perf_opt.analysis` share it; it is independent of file formats.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Integers = TypeVar("Integers", Int64, Int32)
UNKNOWN = -1
_THREAD_BITS = 24
"""A global thread id is (process << 24 | thread), as nsys counts them."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
"""Parameters of glibc's ``mallopt``."""


def reuse_freed_memory() -> None:
    """Let glibc keep freed arrays of up to 32 MiB for the next ones; elsewhere nothing happens.

    By default it returns each to the kernel, which clears every page again: a tenth of the time of reading a large capture.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        mallopt(_M_TOP_PAD, 64 << 20)
        mallopt(_M_ARENA_MAX, 1)  # what one thread frees, another can use


def process_of(thread: Int64) -> Int64:
    """Return the global process ids of global thread ids."""
    return thread >> _THREAD_BITS << _THREAD_BITS


def distinct_of_sorted(values: Int64) -> Int64:
    """Return the distinct values of a sorted array, without sorting it again."""
    if len(values) and values[0] == values[-1]:
        return values[:1]
    first = np.concatenate((np.ones(min(1, len(values)), bool), values[1:] != values[:-1]))
    return values[np.flatnonzero(first)]


def distinct_values(values: Integers) -> Integers:
    """Return the distinct values ascending, as ``np.unique`` does; few or dense values are marked instead of hashed."""
    if not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    if low == high:
        return values[:1].copy()
    if high - low > 4 * len(values) + (1 << 16):
        return np.unique(values)
    seen = np.zeros(high - low + 1, bool)
    seen[values - low if low else values] = True
    found: Integers = (np.flatnonzero(seen) + low).astype(values.dtype)
    return found


def distinct(values: Int64) -> tuple[Int64, Int64]:
    """Return (distinct values ascending, position of each value among them), as ``np.unique`` does.

    Ids are dense, so marking them in a table is much cheaper than sorting.
    """
    if not len(values):
        return values, values
    low, high = int(values.min()), int(values.max())
    if high - low > 4 * len(values) + (1 << 16):
        found, inverse = np.unique(values, return_inverse=True)
        return found, inverse.reshape(-1)
    seen = np.zeros(high - low + 1, bool)
    seen[values - low] = True
    number = np.cumsum(seen) - 1
    return np.flatnonzero(seen) + low, number[values - low]


def exact_sums(code: Int64, values: Int64, groups: int) -> Int64:
    """Integer sums by group. ``bincount`` adds doubles, exact below 2**53, so halves are summed separately."""
    high = np.bincount(code, weights=(values >> 24).astype(np.float64), minlength=groups).astype(np.int64)
    low = np.bincount(code, weights=(values & 0xFFFFFF).astype(np.float64), minlength=groups).astype(np.int64)
    return (high << 24) + low


def order_by_time(start: Int64, end: Int64) -> Int64:
    """Return the stable order by (start, end); cheap when the rows are nearly sorted, as captures are."""
    order = np.argsort(start, kind="stable")
    first, last = start[order], end[order]
    ties_out_of_order = (first[1:] == first[:-1]) & (last[1:] < last[:-1])
    return np.lexsort((end, start)) if ties_out_of_order.any() else order


def by_stream(device: Int32, stream: Int64) -> Int64:
    """Return the order by device and stream of rows that are in time order, which is kept within each."""
    one = len(stream) and (device == device[0]).all() and (stream == stream[0]).all()
    return np.arange(len(stream)) if one else np.lexsort((stream, device))


def order_by_thread(thread: Int64, start: Int64, end: Int64) -> Int64:
    """Return the stable order by (thread, start, longest first)."""
    order = np.argsort(start, kind="stable")
    first, last = start[order], end[order]
    if ((first[1:] == first[:-1]) & (last[1:] > last[:-1])).any():
        order = np.lexsort((-end, start))
    if not len(thread) or int(thread.min()) == int(thread.max()):
        return order
    threads = distinct_values(thread)
    code = np.searchsorted(threads, thread[order])
    small = code.astype(np.int16) if len(threads) < 32768 else code
    return order[np.argsort(small, kind="stable")]


def enclosing(end: Int64) -> Int32:
    """For intervals sorted by (start, longest first): the nearest earlier one around each; -1 for none.

    That is the nearest earlier one that ends no earlier. All intervals jump to their candidate's candidate
    at once, so that a chain of siblings is crossed in logarithmic rounds.
    """
    parent = np.arange(-1, len(end) - 1, dtype=np.int32)
    ends_later = np.zeros(len(end), bool)
    np.less(end[:-1], end[1:], out=ends_later[1:])
    active = np.flatnonzero(ends_later).astype(np.int32)
    own_end, candidate = end[active], parent[active]
    while len(active):
        candidate = parent[candidate]
        parent[active] = candidate
        too_short = candidate >= 0
        too_short &= end[candidate] < own_end
        active, own_end, candidate = active[too_short], own_end[too_short], candidate[too_short]
    return parent


def innermost(start: Int64, end: Int64, parent: Int64 | Int32, at: Int64) -> Int64:
    """Return the row of the latest-started interval open at each time in ``at``; -1 outside all.

    Both ends belong to the interval. The candidate is the last one started; while it has ended, the answer
    can only be one that contains it.
    """
    row = np.searchsorted(start, at, side="right") - 1
    open_rows = np.flatnonzero(row >= 0)
    while len(open_rows):
        ended = end[row[open_rows]] < at[open_rows]
        open_rows = open_rows[ended]
        row[open_rows] = parent[row[open_rows]]
        open_rows = open_rows[row[open_rows] >= 0]
    return row


def launching_rows(
    call_process: Int64, call_correlation: Int64, call_start: Int64, process: Int64, correlation: Int64
) -> Int32:
    """Return the row of the call with the same process and correlation id; -1 where there is none.

    Correlation ids are counted per process. Should several calls share one, the earliest is the launch.
    A correlation id below zero means "not known" on either side.
    """
    found = np.full(len(process), UNKNOWN, np.int32)
    if _all_one(process) and _all_one(call_process) and int(correlation.min()) >= 0:
        calls = np.flatnonzero(call_correlation >= 0)
        if len(calls) and process[0] == call_process[0]:
            found[:] = _match(call_correlation[calls], call_start[calls], calls, correlation)
        return found
    for one in distinct_values(process):
        calls = np.flatnonzero((call_process == one) & (call_correlation >= 0))
        rows = np.flatnonzero((process == one) & (correlation >= 0))
        if len(calls) and len(rows):
            found[rows] = _match(call_correlation[calls], call_start[calls], calls, correlation[rows])
    return found


def _all_one(values: Int64) -> bool:
    return bool(len(values)) and int(values.min()) == int(values.max())


def _match(keys: Int64, start: Int64, values: Int64, wanted: Int64) -> Int64:
    low, high = int(keys.min()), int(keys.max())
    if high - low > 8 * len(keys) + (1 << 20):
        return _match_sparse(keys, start, values, wanted)
    table = np.full(high - low + 1, UNKNOWN, np.int32)
    table[keys - low] = values
    if (table[keys - low] != values).any():
        late_first = np.lexsort((-values, -start))  # the last assignment wins
        table[keys[late_first] - low] = values[late_first]
    inside = (wanted >= low) & (wanted <= high)
    return np.where(inside, table[np.where(inside, wanted - low, 0)], UNKNOWN)


def _match_sparse(keys: Int64, start: Int64, values: Int64, wanted: Int64) -> Int64:
    order = np.lexsort((values, start, keys))
    keys, values = keys[order], values[order]
    position = np.minimum(np.searchsorted(keys, wanted, side="left"), len(keys) - 1)
    return np.where(keys[position] == wanted, values[position], UNKNOWN)


def link_ranges(
    start: Int64,
    end: Int64,
    thread: Int64,
    process_wide: npt.NDArray[np.bool_],
    call_thread: Int64,
    call_start: Int64,
) -> tuple[Int32, Int32]:
    """Return (parent of every range, innermost range of every call).

    Ranges and calls must be ordered by (thread, start, longest first). Push/pop ranges hold for their thread;
    ``process_wide`` ones (NVTX start/end) for every thread of their process.
    """
    parent = np.full(len(start), UNKNOWN, np.int32)
    inside = np.full(len(call_thread), UNKNOWN, np.int32)
    wide = np.flatnonzero(process_wide)
    wide_process = process_of(thread[wide])
    for one in np.union1d(distinct_of_sorted(thread), distinct_of_sorted(call_thread)):
        first, last = np.searchsorted(thread, (one, one + 1))
        rows = np.arange(first, last)
        if len(wide):
            others = wide[(wide_process == process_of(one)) & (thread[wide] != one)]
            rows = np.concatenate((rows, others))
            rows = rows[np.lexsort((-end[rows], start[rows]))]
        if not len(rows):
            continue
        row_start, row_end = start[rows], end[rows]
        above = enclosing(row_end)
        own = thread[rows] == one
        parent[rows[own]] = np.where(above >= 0, rows[above], UNKNOWN)[own]
        begin, stop = np.searchsorted(call_thread, (one, one + 1))
        found = innermost(row_start, row_end, above, call_start[begin:stop])
        inside[begin:stop] = np.where(found >= 0, rows[found], UNKNOWN)
    return parent, inside
