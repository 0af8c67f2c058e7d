"""Files made to hurt: trees of pages that never end, generated columns, and more of everything than a program has."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.captures.kineto.reader import read_kineto
from llm_perf_opt.captures.nsys.export import open_export
from llm_perf_opt.captures.nsys.sqlite import read_nsys_sqlite
from llm_perf_opt.captures.timeline import DEEPEST_NESTING, LONGEST_NAME, MOST_DEVICES
from llm_perf_opt.core.errors import InputError
from tests.unit import kineto_traces as kineto
from tests.unit import nsys_exports

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"


def export(path: Path, count: int = 3000) -> Path:
    tables = {
        KERNELS: [nsys_exports.kernel(1000 * n, 1000 * n + 500, n + 1, 1) for n in range(count)],
        CALLS: [nsys_exports.call(1000 * n - 300, 1000 * n - 200, n + 1, 2) for n in range(count)],
    }
    return nsys_exports.write_export(path, tables, {1: "gemm", 2: "cudaLaunchKernel"})


def point_to(path: Path, table: str, target: int | None = None) -> None:
    """Let every child of a table's root page be one page: the root itself, or another."""
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    with sqlite3.connect(path) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    start = (root - 1) * size
    assert data[start] == 5, "an interior page"
    child = (target or root).to_bytes(4, "big")
    for cell in range(int.from_bytes(data[start + 3 : start + 5], "big")):
        place = int.from_bytes(data[start + 12 + 2 * cell : start + 14 + 2 * cell], "big")
        data[start + place : start + place + 4] = child
    data[start + 8 : start + 12] = child
    path.write_bytes(data)


@pytest.mark.parametrize("table", [KERNELS, CALLS])
def test_a_page_that_points_to_itself_is_refused(tmp_path: Path, table: str) -> None:
    path = export(tmp_path / "cycle.sqlite")
    point_to(path, table)
    with pytest.raises(InputError, match="damaged"):
        read_nsys_sqlite(path)


def test_a_page_that_is_used_many_times_is_refused(tmp_path: Path) -> None:
    path = export(tmp_path / "shared.sqlite")
    with sqlite3.connect(path) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (KERNELS,)).fetchone()
    point_to(path, KERNELS, root + 1)
    with pytest.raises(InputError, match="used twice"):
        read_nsys_sqlite(path)


def test_a_query_that_takes_more_steps_than_the_file_can_hold_is_ended(tmp_path: Path) -> None:
    path = export(tmp_path / "small.sqlite", 10)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    with pytest.raises(InputError, match="damaged"), open_export(path) as found:
        found.database.execute(endless).fetchall()


@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
def test_generated_columns_do_not_shift_the_others(tmp_path: Path, kind: str) -> None:
    """A kernel of 100 µs stays one of 100 µs."""
    path = export(tmp_path / "generated.sqlite", 50)
    with sqlite3.connect(path) as database:
        database.execute(
            f"CREATE TABLE other (length INTEGER GENERATED ALWAYS AS (7) {kind}, start INTEGER, [end] INTEGER, deviceId INTEGER, "
            "contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER)"
        )
        columns = (
            "start, [end], deviceId, contextId, streamId, correlationId, globalPid, demangledName, shortName"
        )
        database.execute(f"INSERT INTO other ({columns}) SELECT {columns} FROM {KERNELS}")
        database.execute(f"DROP TABLE {KERNELS}")
        database.execute(f"ALTER TABLE other RENAME TO {KERNELS}")
    database.close()
    timeline = read_nsys_sqlite(path)
    assert len(timeline.ops) == 50
    assert set((timeline.ops.end_ns - timeline.ops.start_ns).tolist()) == {500}


def launched(count: int, **arguments: Any) -> list[dict[str, Any]]:
    """Kernels; an argument ``device=True`` gives each a device of its own."""
    events = []
    for number in range(count):
        kernel = kineto.kernel(arguments.get("name", "gemm"), 10.0 * number + 3, 5.0, number + 1)
        if arguments.get("device"):
            kernel["args"]["device"] = number
        events += [kineto.call("cudaLaunchKernel", 10.0 * number, 2.0, number + 1), kernel]
    return events


def nested(depth: int) -> list[dict[str, Any]]:
    return [kineto.annotation(f"range {n}", float(n), 4.0 * depth - 2 * n) for n in range(depth)]


@pytest.mark.parametrize(
    ("events", "what"),
    [
        (launched(MOST_DEVICES + 1, device=True), "devices"),
        (launched(1, name="k" * (LONGEST_NAME + 1)), "name of a kernel"),
        ([*launched(5), *nested(DEEPEST_NESTING + 5)], "ranges inside one another"),
    ],
    ids=["devices", "name", "nesting"],
)
def test_more_than_a_program_has_is_refused(tmp_path: Path, events: list[dict[str, Any]], what: str) -> None:
    path = kineto.write(tmp_path / "trace.json", kineto.document(events))
    with pytest.raises(InputError, match=what):
        read_kineto(path)


def test_as_much_as_a_program_may_have_is_read(tmp_path: Path) -> None:
    events = [*launched(MOST_DEVICES, device=True, name="k" * LONGEST_NAME), *nested(DEEPEST_NESTING)]
    path = kineto.write(tmp_path / "trace.json", kineto.document(events))
    assert len(read_kineto(path).timeline.ops) == MOST_DEVICES
