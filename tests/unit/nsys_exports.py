"""Small hand-made nsys exports for tests: the columns of the real schemas that matter, rows as given."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

PUSH_POP, START_END, MARK = 59, 60, 34

OLD = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "start end deviceId contextId streamId correlationId globalPid demangledName shortName",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start end deviceId contextId streamId correlationId globalPid bytes copyKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start end deviceId contextId streamId correlationId globalPid value bytes",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start end deviceId contextId streamId correlationId globalPid syncType eventId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue callchainId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start end deviceId graphId graphExecId contextId streamId correlationId globalPid",
    "NVTX_EVENTS": "start end eventType rangeId category color text globalTid endGlobalTid textId domainId",
    "TARGET_INFO_GPU": "vmId id name",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid numMultiprocessors",
    "PROCESSES": "globalPid pid name",
    "META_DATA_EXPORT": "name value",
    "EXPORT_META_DATA": "name value",
}


def process_id(pid: int) -> int:
    return 1 << 48 | pid << 24


def thread_id(pid: int, tid: int) -> int:
    return process_id(pid) | tid


def write_export(
    path: Path,
    tables: Mapping[str, Iterable[Mapping[str, object]]],
    strings: Mapping[int, str] | None = None,
    *,
    schema: str = "2024.2",
    extra_columns: Mapping[str, Sequence[str]] | None = None,
    page_size: int = 4096,
) -> Path:
    """Write an export; only the tables named are there, as in a real (lazy) one."""
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA page_size={page_size}")
    database.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", (strings or {}).items())
    meta = "EXPORT_META_DATA" if schema == "2022.4" else "META_DATA_EXPORT"
    versions = [("EXPORT_PRODUCT_VERSION", f"{schema}.1"), ("EXPORT_SCHEMA_VERSION", "3.0.0")]
    everything = {meta: [{"name": name, "value": value} for name, value in versions], **tables}
    for name, rows in everything.items():
        columns = [*OLD[name].split(), *(extra_columns or {}).get(name, ())]
        kind = {"text": "TEXT", "name": "TEXT", "value": "TEXT"}
        declared = ", ".join(f'"{column}" {kind.get(column, "INTEGER")}' for column in columns)
        database.execute(f"CREATE TABLE {name} ({declared})")
        marks = ", ".join("?" * len(columns))
        database.executemany(
            f"INSERT INTO {name} VALUES ({marks})", ([row.get(column) for column in columns] for row in rows)
        )
    database.commit()
    database.close()
    return path


def kernel(start: int, end: int, correlation: int | None, name: int, **more: object) -> dict[str, object]:
    row: dict[str, object] = {
        "start": start, "end": end, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": correlation,
        "globalPid": process_id(1), "demangledName": name, "shortName": name,
    }  # fmt: skip
    return row | more


def call(
    start: int, end: int, correlation: int | None, name: int, thread: int | None = None
) -> dict[str, object]:
    where = thread if thread is not None else thread_id(1, 1)
    return {"start": start, "end": end, "eventClass": 0, "globalTid": where, "correlationId": correlation,
            "nameId": name, "returnValue": 0}  # fmt: skip


def nvtx(
    start: int,
    end: int | None,
    text: str | None,
    *,
    thread: int | None = None,
    kind: int = PUSH_POP,
    text_id: int | None = None,
) -> dict[str, object]:
    where = thread if thread is not None else thread_id(1, 1)
    return {
        "start": start,
        "end": end,
        "eventType": kind,
        "text": text,
        "textId": text_id,
        "globalTid": where,
        "domainId": 0,
    }
