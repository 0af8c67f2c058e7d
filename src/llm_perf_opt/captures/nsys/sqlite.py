"""An nsys SQLite export, of any generation, as a :class:`Timeline`.

Kernels are joined to the call that launched them by (process, correlation id); all kernels of one CUDA graph
share the id of their ``cudaGraphLaunch``. The range of a kernel is the innermost one open on the launching
thread when that call began.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_perf_opt.captures.nsys.export import Export, open_export
from llm_perf_opt.captures.nsys.sqlite_pages import NULL, Int64
from llm_perf_opt.captures.nsys.text_pool import TextPool, operator_name
from llm_perf_opt.captures.nsys.validation import device_ids, sizes
from llm_perf_opt.captures.timeline import (
    DeviceOps,
    HostCalls,
    KernelTotals,
    NamedTotal,
    OpKind,
    Ranges,
    Timeline,
)
from llm_perf_opt.core.arrays import (
    UNKNOWN,
    distinct,
    distinct_values,
    exact_sums,
    launching_rows,
    link_ranges,
    order_by_thread,
    order_by_time,
    process_of,
)
from llm_perf_opt.core.ranks import rank_in_mark

# The host side of an nsys export: CUDA calls, waits and NVTX ranges.


CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
NVTX = "NVTX_EVENTS"
_CALL_COLUMNS = ("start", "end", "globalTid", "correlationId", "nameId")
_SYNC_LABELS = {1: "Event sync", 3: "Stream sync", 4: "Context sync"}
_STREAM_WAIT = 2  # cudaStreamWaitEvent: the device waits, the host does not
_PUSH_POP, _START_END, _MARK = 59, 60, 34
_SYNC_PREFIX = "[CUDA synchronization]"
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
    """Return a placeholder for a missing name."""
    return f"[{kind} without a name, string id {string_id}]"


def picked(index: list[int], position: Int64) -> Int64:
    """``index[position]``, also when there is nothing to pick."""
    return np.array(index, np.int64)[position] if index else np.empty(0, np.int64)


def _read_calls(export: Export, pool: TextPool) -> tuple[HostCalls, Int64]:
    """CUDA calls, and the waits that the synchronisation table adds to them; and their correlation ids."""
    empty = np.empty(0, np.int64)
    start = end = thread = correlation = name = empty
    if export.has(CALLS):
        export.require(CALLS, *_CALL_COLUMNS)
        columns = export.read(CALLS, _CALL_COLUMNS)
        columns = export.problems.possible(CALLS, columns)
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
    if not export.has(_SYNCS, "start", "end", "syncType"):
        return None
    columns = export.read(_SYNCS, ("start", "end", "correlationId", "globalPid", "syncType"))
    columns = export.problems.possible(_SYNCS, columns)
    blocking = columns["syncType"] != _STREAM_WAIT
    columns = {name: values[blocking] for name, values in columns.items()}
    call = launching_rows(
        process_of(thread), correlation, start, known(columns["globalPid"]), known(columns["correlationId"])
    )
    where = columns["globalPid"].copy()  # the process represents its unknown thread
    where[call >= 0] = thread[call[call >= 0]]
    labels = _SYNC_LABELS | export.labels("ENUM_CUPTI_SYNC_TYPE")
    kinds, position = distinct(columns["syncType"])
    index = [pool.add(f"{_SYNC_PREFIX} {labels.get(kind, f'type {kind}')}") for kind in kinds.tolist()]
    return columns["start"], columns["end"], known(where), picked(index, position)


@dataclass(frozen=True, slots=True)
class _NvtxEvents:
    """NVTX events of the program."""

    ranges: Ranges
    """In order; parents are not linked yet."""
    process_wide: npt.NDArray[np.bool_]
    """Which ranges hold for the whole process."""
    ranks: list[list[int]]
    """Process, rank and number of ranks, of processes that say so."""


def _read_nvtx(export: Export, pool: TextPool, last_ns: int) -> _NvtxEvents:
    """Read ranges, and the marks that identify ranks."""
    empty = np.empty(0, np.int64)
    if not export.has(NVTX):
        none = empty.astype(np.int32)
        return _NvtxEvents(Ranges(empty, empty, empty, none, none), empty.astype(bool), [])
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
    columns = export.problems.possible(NVTX, columns)
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
    return _NvtxEvents(ranges, columns["eventType"][order] == _START_END, ranks)


def _marked_ranks(columns: dict[str, Int64], pool: TextPool) -> list[list[int]]:
    """Find the marks that identify ranks; they are plain strings."""
    if "text" not in columns:
        return []
    is_mark = (columns["eventType"] == _MARK) & (columns["text"] != NULL) & (columns["globalTid"] != NULL)
    texts, processes = columns["text"][is_mark], process_of(columns["globalTid"][is_mark])
    reported = {
        text: found
        for text in np.unique(texts).tolist()
        if 0 <= text < len(pool.strings) and (found := rank_in_mark(pool.strings[text])) is not None
    }
    by_process = {
        process: reported[text]
        for process, text in zip(processes.tolist(), texts.tolist(), strict=True)
        if text in reported
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


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"
_OP_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_DIRECTIONS = {
    1: "Host-to-Device", 2: "Device-to-Host", 3: "Host-to-Array", 4: "Array-to-Host", 5: "Array-to-Array",
    6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device", 9: "Host-to-Host", 10: "Peer-to-Peer",
    11: "Unified Host-to-Device", 12: "Unified Device-to-Host", 13: "Unified Device-to-Device",
}  # fmt: skip


@dataclass(slots=True)
class _Ops:
    """Device operations of one table, before they are ordered."""

    start: Int64
    end: Int64
    device: Int64
    stream: Int64
    correlation: Int64
    process: Int64
    name: Int64
    kind: OpKind
    bytes: Int64 | None = None


def read_nsys_sqlite(path: Path, *, use_pages: bool = True) -> Timeline:
    """Read an export. ``use_pages=False`` reads every row through a cursor (slower, same result)."""
    with open_export(Path(path), use_pages=use_pages) as export:
        pool = TextPool()
        warnings: list[str] = []
        with ThreadPoolExecutor(max_workers=1) as worker:
            export.read_ahead(worker, CALLS, _CALL_COLUMNS)
            tables = [table for table in _device_operations(export, pool) if len(table.start)]
            calls, call_correlation = _read_calls(export, pool)
        nvtx = _read_nvtx(export, pool, _last_time(tables, calls))
        ranges, process_wide = nvtx.ranges, nvtx.process_wide
        facts = {**_facts(export), **({"rank_processes": nvtx.ranks} if nvtx.ranks else {})}
        if not tables and not len(calls) and not len(ranges):
            warnings.append("the export contains no kernels, no CUDA calls and no NVTX ranges")
        parent, range_of_call = link_ranges(
            ranges.start_ns, ranges.end_ns, ranges.thread, process_wide, calls.thread, calls.start_ns
        )
        ranges = Ranges(ranges.start_ns, ranges.end_ns, ranges.thread, ranges.name, parent)
        call_process = process_of(calls.thread)
        ops, devices = _ordered_ops(export, tables, calls, call_process, call_correlation, range_of_call)
        warnings += [*export.problems.warnings(), *_what_is_missing(export, ops)]
        return Timeline(
            source=f"{export.path.name} ({export.schema})",
            names=pool.strings,
            ops=ops,
            calls=calls,
            ranges=ranges,
            devices=devices,
            facts=facts,
            warnings=tuple(warnings),
        )


def read_kernel_totals(path: Path, *, use_pages: bool = True) -> KernelTotals:
    """Read only kernel totals by name: a fast overview of a large export."""
    with open_export(Path(path), use_pages=use_pages) as export:
        source = f"{export.path.name} ({export.schema})"
        if not export.has(KERNELS):
            return KernelTotals(source, warnings=("no kernels in the capture",))
        name = _name_column(export)
        columns = export.problems.possible(KERNELS, export.read(KERNELS, ("start", "end", name)))
        used, group = distinct(columns[name])
        total = exact_sums(group, columns["end"] - columns["start"], len(used)).tolist()
        count = np.bincount(group, minlength=len(used)).tolist()
        found = export.strings(used.tolist())
        by_name: dict[str, tuple[int, int]] = {}
        for string, launches, time in zip(used.tolist(), count, total, strict=True):
            label = found.get(string, unnamed("kernel", string))
            before = by_name.get(label, (0, 0))
            by_name[label] = (before[0] + launches, before[1] + time)
        rows = [NamedTotal(label, launches, time) for label, (launches, time) in by_name.items()]
        ordered = tuple(sorted(rows, key=lambda row: (-row.total_ns, row.name)))
        return KernelTotals(source, ordered, warnings=tuple(export.problems.warnings()))


def _name_column(export: Export) -> str:
    return "demangledName" if export.has(KERNELS, "demangledName") else "shortName"


def _device_operations(export: Export, pool: TextPool) -> list[_Ops]:
    readers = ((KERNELS, _kernels), (_GRAPHS, _graphs), (COPIES, _copies), (_MEMSETS, _memsets))
    return [reader(export, pool) for table, reader in readers if export.has(table)]


def _read_ops(export: Export, table: str, *more: str) -> dict[str, Int64]:
    export.require(table, "start", "end", *more)
    return export.problems.possible(table, export.read(table, (*_OP_COLUMNS, *more)))


def _ops(columns: dict[str, Int64], name: Int64, kind: OpKind, size: Int64 | None = None) -> _Ops:
    start, end, device, stream, correlation, process = (columns.pop(one) for one in _OP_COLUMNS)
    return _Ops(
        start,
        end,
        device_ids(known(device)),
        known(stream),
        known(correlation),
        known(process),
        name,
        kind,
        size,
    )


def _kernels(export: Export, pool: TextPool) -> _Ops:
    name = _name_column(export)
    columns = _read_ops(export, KERNELS, name)
    return _ops(columns, named(export, columns.pop(name), pool, "kernel"), OpKind.KERNEL)


def _graphs(export: Export, pool: TextPool) -> _Ops:
    """Whole CUDA graphs, when they were traced without their nodes."""
    columns = _read_ops(export, _GRAPHS)
    return _ops(columns, np.full(len(columns["start"]), pool.add("[CUDA graph]"), np.int64), OpKind.KERNEL)


def _copies(export: Export, pool: TextPool) -> _Ops:
    columns = _read_ops(export, COPIES, "bytes", "copyKind")
    labels = _DIRECTIONS | export.labels("ENUM_CUDA_MEMCPY_OPER")
    kinds, position = distinct(columns.pop("copyKind"))
    index = [pool.add(f"[CUDA memcpy {labels.get(kind, f'kind {kind}')}]") for kind in kinds.tolist()]
    return _ops(columns, picked(index, position), OpKind.COPY, sizes(known(columns.pop("bytes"))))


def _memsets(export: Export, pool: TextPool) -> _Ops:
    columns = _read_ops(export, _MEMSETS, "bytes")
    name = np.full(len(columns["start"]), pool.add("[CUDA memset]"), np.int64)
    return _ops(columns, name, OpKind.MEMSET, sizes(known(columns.pop("bytes"))))


def _last_time(tables: list[_Ops], calls: HostCalls) -> int:
    ends = [table.end for table in tables] + [calls.end_ns]
    return max(int(end.max(initial=0)) for end in ends)


def _ordered_ops(
    export: Export,
    tables: list[_Ops],
    calls: HostCalls,
    call_process: Int64,
    call_correlation: Int64,
    range_of_call: Any,
) -> tuple[DeviceOps, dict[int, str]]:
    """Join launches and ranges, number the devices, and order everything by (start, end, row)."""

    def joined(field: str) -> Int64:
        parts = [getattr(table, field) for table in tables]
        for table in tables:
            setattr(table, field, None)  # large captures: avoid holding data twice
        return np.concatenate(parts) if len(parts) > 1 else (parts[0] if parts else np.empty(0, np.int64))

    sizes = [len(table.start) for table in tables]
    kind = np.repeat(np.array([table.kind for table in tables], np.int8), sizes)
    size = np.concatenate(
        [
            np.full(n, UNKNOWN, np.int64) if t.bytes is None else t.bytes
            for t, n in zip(tables, sizes, strict=True)
        ]
        or [np.empty(0, np.int64)]
    )
    start, end = joined("start"), joined("end")
    order = order_by_time(start, end)
    start, end, kind, size = start[order], end[order], kind[order], size[order]
    process, correlation = joined("process")[order], joined("correlation")[order]
    if len(call_process) and (process < 0).any() and int(call_process.min()) == int(call_process.max()):
        process[process < 0] = call_process[0]  # not recorded, but there is only one
    launch = launching_rows(call_process, call_correlation, calls.start_ns, process, correlation)
    del correlation
    inside = np.where(launch >= 0, range_of_call[launch], UNKNOWN) if len(calls) else launch
    device, names = _devices(export, joined("device")[order], process)
    name, stream = joined("name")[order].astype(np.int32), joined("stream")[order]
    ops = DeviceOps(start, end, kind, name, device, stream, process, launch, inside.astype(np.int32), size)
    return ops, names


def _devices(export: Export, device: Int64, process: Int64) -> tuple[Any, dict[int, str]]:
    """Number devices as the machine does: each process counts only the ones visible to it."""
    gpus = {
        key: str(name)
        for key, name in export.rows("TARGET_INFO_GPU", "id", "name")
        if name and isinstance(key, int)
    }
    mapping = {
        (pid, cuda): gpu
        for gpu, cuda, pid in export.rows("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
        if isinstance(gpu, int) and isinstance(cuda, int) and isinstance(pid, int) and 0 <= gpu < 2**31
    }
    result = device.astype(np.int32)
    for one in distinct_values(process).tolist() if mapping else []:
        rows = process == one
        pid = one >> 24 & 0xFFFFFF
        local = distinct_values(device[rows]).tolist()
        if all((pid, number) in mapping for number in local):
            for number in local:
                result[rows & (device == number)] = mapping[pid, number]
    used = distinct_values(result).tolist()
    return result, {number: gpus[number] for number in used if number in gpus}


def _facts(export: Export) -> dict[str, Any]:
    processes = {str(pid): str(name) for pid, name in export.rows("PROCESSES", "pid", "name") if name}
    return {
        "tool": "nsys",
        "tool_version": export.product_version,
        "schema_version": export.schema_version,
        "processes": processes if len(processes) <= 64 else {},
    }


def _what_is_missing(export: Export, ops: DeviceOps) -> list[str]:
    warnings = []
    if not len(ops):
        warnings.append("no device activity in the capture: nothing ran on a GPU, or CUDA was not traced")
    elif not export.has(CALLS):
        warnings.append(
            "no CUDA calls in the capture: kernels cannot be traced to the code that launched them"
        )
    orphans = int((ops.launch < 0).sum())
    if orphans and export.has(CALLS):
        warnings.append(f"{orphans} of {len(ops)} device operations were launched before the capture began")
    if not export.has(NVTX):
        warnings.append("no NVTX ranges in the capture: phases are not known")
    if export.has(_GRAPHS):
        warnings.append(
            "CUDA graphs were traced as a whole: capture with --cuda-graph-trace=node to see their kernels"
        )
    return warnings


# Grid and block of every kernel of an nsys export: read only to weight counters, not with the timeline.


_SHAPE_COLUMNS = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")


def read_launch_shapes(path: Path, *, use_pages: bool = True) -> tuple[Int64, Int64] | None:
    """Return the starts of all kernels in the order of a timeline, and their shapes (rows × 6); ``None`` without.

    The order is that of :func:`~llm_perf_opt.captures.nsys.sqlite.read_nsys_sqlite`, so that rows correspond to its kernels.
    """
    with open_export(Path(path), use_pages=use_pages) as export:
        if not export.has(KERNELS, "start", "end", *_SHAPE_COLUMNS):
            return None
        found = export.problems.possible(KERNELS, export.read(KERNELS, ("start", "end", *_SHAPE_COLUMNS)))
        order = order_by_time(found["start"], found["end"])
        return found["start"][order], np.stack([found[name][order] for name in _SHAPE_COLUMNS], axis=1)
