"""The host side of an nsys export: CUDA calls, waits and NVTX ranges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_perf_opt.core.ranks import rank_in_mark
from llm_perf_opt.ingest.linking import (
    UNKNOWN,
    distinct,
    launching_rows,
    order_by_thread,
    process_of,
)
from llm_perf_opt.ingest.nsys.schema import Export
from llm_perf_opt.ingest.nsys.sqlite_pages import NULL, Int64
from llm_perf_opt.ingest.nsys.text_pool import TextPool, operator_name
from llm_perf_opt.model.timeline import HostCalls, Ranges

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
NVTX = "NVTX_EVENTS"

_SYNC_LABELS = {1: "Event sync", 3: "Stream sync", 4: "Context sync"}
_STREAM_WAIT = 2  # cudaStreamWaitEvent: the device waits, the host does not
_PUSH_POP, _START_END, _MARK = 59, 60, 34

SYNC_PREFIX = "[CUDA synchronization]"
"""Names host calls made from the synchronisation table: the host was blocked, whatever the call is called."""


def known(values: Int64, fallback: int = UNKNOWN) -> Int64:
    """Replace SQL NULL, in place."""
    missing = values == NULL
    if missing.any():
        values[missing] = fallback
    return values


def named(export: Export, ids: Int64, pool: TextPool, kind: str) -> Int64:
    """Turn string ids into indices of the pool."""
    used, position = distinct(ids)
    found = export.strings(used.tolist())
    return picked([pool.add(found.get(one, unnamed(kind, one))) for one in used.tolist()], position)


def unnamed(kind: str, string_id: int) -> str:
    """Stand in for a name that the export does not hold."""
    return f"[{kind} without a name, string id {string_id}]"


def picked(index: list[int], position: Int64) -> Int64:
    """``index[position]``, also when there is nothing to pick."""
    return np.array(index, np.int64)[position] if index else np.empty(0, np.int64)


def read_calls(export: Export, pool: TextPool) -> tuple[HostCalls, Int64]:
    """CUDA calls, and the waits that the synchronisation table adds to them; and their correlation ids."""
    empty = np.empty(0, np.int64)
    start = end = thread = correlation = name = empty
    if export.has(CALLS):
        export.require(CALLS, "start", "end", "globalTid", "correlationId", "nameId")
        columns = export.read(CALLS, ("start", "end", "globalTid", "correlationId", "nameId"))
        columns = export.doubts.possible(CALLS, columns)
        start, end = columns.pop("start"), columns.pop("end")
        thread, correlation = known(columns.pop("globalTid")), known(columns.pop("correlationId"))
        name = named(export, columns.pop("nameId"), pool, "call")
    waits = _waits(export, pool, thread, start, correlation)
    if waits is not None:
        start, end, thread, name = (
            np.concatenate(pair) for pair in zip((start, end, thread, name), waits, strict=True)
        )
        # A wait launches nothing: its correlation id must not compete with the call it belongs to.
        correlation = np.concatenate((correlation, np.full(len(waits[0]), UNKNOWN, np.int64)))
    order = order_by_thread(thread, start, end)
    calls = HostCalls(start[order], end[order], thread[order], name[order].astype(np.int32))
    return calls, correlation[order]


def _waits(
    export: Export, pool: TextPool, thread: Int64, start: Int64, correlation: Int64
) -> tuple[Int64, Int64, Int64, Int64] | None:
    if not export.has(SYNCS, "start", "end", "syncType"):
        return None
    columns = export.read(SYNCS, ("start", "end", "correlationId", "globalPid", "syncType"))
    columns = export.doubts.possible(SYNCS, columns)
    blocking = columns["syncType"] != _STREAM_WAIT
    columns = {name: values[blocking] for name, values in columns.items()}
    call = launching_rows(
        process_of(thread), correlation, start, known(columns["globalPid"]), known(columns["correlationId"])
    )
    where = columns["globalPid"].copy()  # the process stands for its unknown thread
    where[call >= 0] = thread[call[call >= 0]]
    labels = _SYNC_LABELS | export.labels("ENUM_CUPTI_SYNC_TYPE")
    kinds, position = distinct(columns["syncType"])
    index = [pool.add(f"{SYNC_PREFIX} {labels.get(kind, f'type {kind}')}") for kind in kinds.tolist()]
    return columns["start"], columns["end"], known(where), picked(index, position)


@dataclass(frozen=True, slots=True)
class NvtxEvents:
    """What the program wrote into the capture."""

    ranges: Ranges
    """In order; parents are not linked yet."""
    process_wide: npt.NDArray[np.bool_]
    """Which ranges hold for the whole process."""
    ranks: list[list[int]]
    """Process, rank and number of ranks, of processes that say so."""


def read_nvtx(export: Export, pool: TextPool, last_ns: int) -> NvtxEvents:
    """Read ranges, and the marks by which ranks are known."""
    empty = np.empty(0, np.int64)
    if not export.has(NVTX):
        none = empty.astype(np.int32)
        return NvtxEvents(Ranges(empty, empty, empty, none, none), empty.astype(bool), [])
    export.require(NVTX, "start", "end", "eventType", "globalTid")
    text = "text" if export.has(NVTX, "text") else None
    columns = export.read(
        NVTX,
        ("start", "end", "eventType", "globalTid", "textId", "text"),
        text="text" if text else None,
        pool=pool,
    )
    ranks = _marked_ranks(columns, pool)
    is_range = (columns["eventType"] == _PUSH_POP) | (columns["eventType"] == _START_END)
    columns = {name: values[is_range] for name, values in columns.items()}
    # A range that was still open when the capture ended lasts until then.
    columns["end"] = known(columns["end"], max(last_ns, int(columns["start"].max(initial=0))))
    columns["end"] = np.maximum(columns["end"], columns["start"])
    columns = export.doubts.possible(NVTX, columns)
    start, end, thread = columns["start"], columns["end"], known(columns["globalTid"])
    name = _range_names(export, pool, columns)
    order = order_by_thread(thread, start, end)
    ranges = Ranges(
        start[order],
        end[order],
        thread[order],
        name[order].astype(np.int32),
        np.full(len(order), UNKNOWN, np.int32),
    )
    return NvtxEvents(ranges, columns["eventType"][order] == _START_END, ranks)


def _marked_ranks(columns: dict[str, Int64], pool: TextPool) -> list[list[int]]:
    """Find the marks by which ranks make themselves known; they are plain strings."""
    if "text" not in columns:
        return []
    is_mark = (columns["eventType"] == _MARK) & (columns["text"] != NULL) & (columns["globalTid"] != NULL)
    texts, processes = columns["text"][is_mark], process_of(columns["globalTid"][is_mark])
    told = {
        text: found
        for text in np.unique(texts).tolist()
        if 0 <= text < len(pool.strings) and (found := rank_in_mark(pool.strings[text])) is not None
    }
    by_process = {
        process: told[text]
        for process, text in zip(processes.tolist(), texts.tolist(), strict=True)
        if text in told
    }
    return [[process, *found] for process, found in sorted(by_process.items(), key=lambda one: one[1])]


def _range_names(export: Export, pool: TextPool, columns: dict[str, Int64]) -> Int64:
    """Plain strings come as ``text``, registered ones as ``textId``."""
    name = columns["text"].copy() if "text" in columns else np.full(len(columns["start"]), UNKNOWN, np.int64)
    name[name == NULL] = UNKNOWN
    registered = np.flatnonzero((name < 0) & (columns["textId"] != NULL))
    ids, position = distinct(columns["textId"][registered])
    found = export.strings(ids.tolist())
    index = [pool.add(operator_name(found[one])) if one in found else UNKNOWN for one in ids.tolist()]
    name[registered] = picked(index, position)
    if (name < 0).any():
        name[name < 0] = pool.add("[range without a name]")
    return name
