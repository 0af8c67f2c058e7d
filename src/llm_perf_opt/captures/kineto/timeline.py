"""Host and device side of a torch trace, and the launch of each device operation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llm_perf_opt.captures.kineto.columns import Columns, Table, rank_label
from llm_perf_opt.captures.timeline import UNKNOWN, DeviceOps, HostCalls, HostSpans, Int32, Int64, Ranges
from llm_perf_opt.core.arrays import link_ranges, order_by_thread, order_by_time
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.limits import MOST_NS


@dataclass(slots=True)
class Host:
    """Annotations and calls, linked."""

    ranges: Ranges
    calls: HostCalls
    correlation: Int64
    """Of every call, distinguished by rank; -1: unknown."""
    range_of_call: Int32
    ranks: RankLabels
    ambiguous: bool = False
    """Several processes used the same correlation id."""

    def unique_operator_ids(self, ids: Int64, thread: Int32) -> Int64:
        """Make the operator ids of several ranks distinct."""
        return self.ranks.unique_ids(ids, self.ranks.of_thread[thread])


def host_side(columns: Columns, origin_ns: int) -> Host:
    """Order annotations and calls by thread, and find the annotation around every call."""
    start, end = _times(columns.ranges, origin_ns)
    thread = columns.ranges.take("thread").astype(np.int64)
    order = order_by_thread(thread, start, end)
    start, end, thread = start[order], end[order], thread[order]
    range_name = columns.ranges.take("name")[order]

    call_start, call_end = _times(columns.calls, origin_ns)
    call_thread = columns.calls.take("thread").astype(np.int64)
    order = order_by_thread(call_thread, call_start, call_end)
    calls = HostCalls(
        call_start[order], call_end[order], call_thread[order], columns.calls.take("name")[order]
    )
    ranks = RankLabels(columns)
    correlation = ranks.unique_ids(columns.calls.take("correlation")[order], ranks.of_thread[calls.thread])
    parent, inside = link_ranges(start, end, thread, np.zeros(len(start), bool), calls.thread, calls.start_ns)
    return Host(Ranges(start, end, thread, range_name, parent), calls, correlation, inside, ranks)


def frame_spans(columns: Columns, origin_ns: int) -> HostSpans:
    """Return the Python frames in order."""
    start, end = _times(columns.frames, origin_ns)
    thread = columns.frames.take("thread").astype(np.int64)
    order = order_by_thread(thread, start, end)
    return HostSpans(start[order], end[order], thread[order], columns.frames.take("name")[order])


def _times(table: Table, origin_ns: int) -> tuple[Int64, Int64]:
    start = table.take("start")
    if origin_ns:
        start += origin_ns
    return start, start + table.take("dur")


class RankLabels:
    """Several ranks in one file, distinguished by the label in front of their process ids."""

    def __init__(self, columns: Columns) -> None:
        labels = [rank_label(pid) for pid, _ in columns.threads]
        # A label is used only if a device's launches have the same one.
        matched = set(columns.ranks) <= set(labels)
        numbers = dict.fromkeys([*columns.ranks, *labels]) if matched else {}
        number = {label: place for place, label in enumerate(numbers)}
        self.count = max(1, len(number))
        self.of_thread: Int64 = np.array([number.get(label, 0) for label in labels] or [0], dtype=np.int64)

    def unique_ids(self, ids: Int64, rank: Int64) -> Int64:
        """Make ids of several ranks unique. Ids count from one; zero and below mean "none"."""
        return np.where(ids > 0, ids * self.count + rank if self.count > 1 else ids, UNKNOWN)


def device_side(columns: Columns, origin_ns: int, host: Host) -> tuple[DeviceOps, Int64]:
    """Return the device operations in time order, and the operator id of each (-1: unknown)."""
    table = columns.device
    start, end = _times(table, origin_ns)
    order = order_by_time(start, end)
    start, end = start[order], end[order]
    rank = table.take("rank")[order].astype(np.int64)
    launch = _launches(host, start, host.ranks.unique_ids(table.take("correlation")[order], rank))
    inside = np.full(len(order), UNKNOWN, np.int32)
    if len(host.calls):
        inside = np.where(launch >= 0, host.range_of_call[launch], UNKNOWN).astype(np.int32)
    ops = DeviceOps(
        start_ns=start,
        end_ns=end,
        kind=table.take("kind")[order],
        name=table.take("name")[order],
        device=_device_numbers(table.take("device")[order], rank if host.ranks.count > 1 else rank * 0),
        stream=table.take("stream")[order],
        process=_processes(columns, host, launch),
        launch=launch,
        range=inside,
        bytes=table.take("bytes")[order],
    )
    return ops, host.ranks.unique_ids(table.take("external")[order], rank)


def _device_numbers(device: Int32, rank: Int64) -> Int32:
    """Renumber devices when several ranks each have a device 0."""
    if not len(rank) or not rank.any():
        return device
    pairs, code = np.unique(np.stack((device, rank)), axis=1, return_inverse=True)
    return device if len(np.unique(pairs[0])) == pairs.shape[1] else code.astype(np.int32)


def _launches(host: Host, start: Int64, correlation: Int64) -> Int32:
    """Row of the call that launched each operation.

    Ids are unique in one process. Where they repeat (several ranks merged into one file), the last call with
    the id that began before the operation is taken.
    """
    known = np.flatnonzero(host.correlation >= 0)
    order = known[np.lexsort((host.calls.start_ns[known], host.correlation[known]))]
    keys, begin = host.correlation[order], host.calls.start_ns[order]
    first = np.searchsorted(keys, correlation, side="left")
    behind = np.searchsorted(keys, correlation, side="right")
    best = first.copy()
    host.ambiguous = int((behind - first).max(initial=0)) > 1
    for later in range(1, int((behind - first).max(initial=0))):
        candidate = np.minimum(first + later, len(keys) - 1)
        better = (first + later < behind) & (begin[candidate] <= start)
        best[better] = candidate[better]
    found = (behind > first) & (correlation >= 0)
    launch = np.full(len(start), UNKNOWN, np.int32)
    launch[found] = order[best[found]]
    return launch


def _processes(columns: Columns, host: Host, launch: Int32) -> Int64:
    """Process that launched each operation; the only process of the trace if the launch is unknown."""
    pids = np.array([process_id(pid) for pid, _ in columns.threads], dtype=np.int64)
    if not len(pids):
        return np.full(len(launch), UNKNOWN, np.int64)
    only = int(pids[0]) if (pids == pids[0]).all() else UNKNOWN
    if not len(host.calls):
        return np.full(len(launch), only, np.int64)
    return np.where(launch >= 0, pids[host.calls.thread[launch]], only)


def process_id(value: Any) -> int:
    """Return a process or thread id as a number, also after a rank's label; -1 if invalid."""
    digits = re.search(r"(?<!\d)\d{1,15}$", value, re.ASCII) if isinstance(value, str) else None
    if digits:
        return int(digits[0])
    whole = isinstance(value, float) and abs(value) < 2**53 and value.is_integer()
    return int(value) if whole else UNKNOWN


# Names of the devices of a trace, from any key that has them.


_LIST = "deviceProperties"
_NAMES_OF_AN_ENTRY = ("name", "deviceName", "device_name", "gpu_name", "gpuName", "productName")
_NAMING_KEY = re.compile(r"(\w+_)?(gpu|device|accelerator)_?(name|model)s?", re.IGNORECASE)
_BY_PROPERTIES: dict[tuple[Any, ...], str] = {
    (9, 4, 64, 304, 192): "AMD Instinct MI300X",
    (9, 4, 64, 304, 256): "AMD Instinct MI325X",
    (9, 4, 64, 228, 128): "AMD Instinct MI300A",
    (9, 0, 64, 110, 64): "AMD Instinct MI250X",
}
"""Architecture, wave size, compute units and GiB; models that share all of them (MI250 and MI210, MI350X and MI355X) are left out."""
_DEEPEST = 6
"""Levels of the metadata that are looked through."""


def device_names(metadata: Mapping[str, Any], used: Iterable[int]) -> dict[int, str]:
    """Return the name of every device that ran something and whose name is certain.

    By its id first. Recorders number devices differently (ROCm counts processors as well), so a device that is
    not listed has the name of all listed ones where that is one and the same, else the one name that any other
    key of the trace gives.
    """
    wanted = sorted(device for device in used if device >= 0)
    listed = _listed(metadata)
    names = set(listed.values()) or set(_named_elsewhere(metadata, 0))
    common = next(iter(names)) if len(names) == 1 else None
    found = {device: listed.get(device, common) for device in wanted}
    return {device: name for device, name in found.items() if name is not None}


def _listed(metadata: Mapping[str, Any]) -> dict[int, str]:
    entries = metadata.get(_LIST)
    found = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("id"), int):
            name = next((text for key in _NAMES_OF_AN_ENTRY if (text := _text(entry.get(key)))), None)
            name = name or _name_by_properties(entry)
            if name is not None:
                found[entry["id"]] = name
    return found


def _name_by_properties(entry: Mapping[str, Any]) -> str | None:
    """ROCm may write an empty name; then units and memory identify the model if unique."""
    keys = ("computeMajor", "computeMinor", "warpSize", "numSms", "totalGlobalMem")
    values = [entry.get(key) for key in keys]
    if not all(isinstance(value, int) for value in values):
        return None
    *units, memory = values
    return _BY_PROPERTIES.get((*units, round(memory / 2**30)))  # type: ignore[operator]


def _named_elsewhere(node: Mapping[str, Any], depth: int) -> Iterator[str]:
    for key, value in node.items():
        if _NAMING_KEY.fullmatch(key):
            texts = (_text(one) for one in (value if isinstance(value, list) else [value]))
            yield from (text for text in texts if text is not None)
        elif isinstance(value, dict) and depth < _DEEPEST and key != _LIST:
            yield from _named_elsewhere(value, depth + 1)


def _text(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


# Invalid events: a few are left out and reported; if most are invalid, the file is damaged.


def refuse_impossible(path: Path, columns: Columns) -> None:
    """Reject a trace in which most events have no valid time."""
    if 2 * columns.impossible > columns.timed:
        raise InputError(
            f"{path}: traceEvents: {columns.impossible} of {columns.timed} events have no 'ts' or 'dur', "
            "or one that is negative or impossible",
            hint="write the trace again; if a tool rewrote it, use the original",
            path=str(path),
        )


def leave_out_far_off(columns: Columns) -> list[str]:
    """Leave out events more than a week away from the others (a time of zero among times since 1970)."""
    tables = (columns.device, columns.calls, columns.operators, columns.ranges, columns.frames)
    starts = [table.peek("start") for table in tables]
    longest = [int(table.peek("dur").max(initial=0)) for table in tables]
    bounds = [(int(s.min()), int(s.max()) + most) for s, most in zip(starts, longest, strict=True) if len(s)]
    if not bounds or max(last for _, last in bounds) - min(first for first, _ in bounds) <= MOST_NS:
        return []  # without a column of ends
    ends = [start + table.peek("dur") for start, table in zip(starts, tables, strict=True)]
    used = [(int(s.min()), int(e.max())) for s, e in zip(starts, ends, strict=True) if len(s)]
    if max(last for _, last in used) - min(first for first, _ in used) <= MOST_NS:
        return []
    middle = int(np.median(np.concatenate(starts)))
    left_out = 0
    for start, end, table in zip(starts, ends, tables, strict=True):
        near = (start >= middle - MOST_NS // 2) & (end <= middle + MOST_NS // 2)
        left_out += int((~near).sum())
        table.keep(near)
    return [f"{left_out} events are days away from all others and were left out"]
