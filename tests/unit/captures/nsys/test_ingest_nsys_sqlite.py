"""nsys SQLite exports become timelines: every generation, exact answers, the file untouched."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt.analysis.timeline.attribution import attribute, by_path_and_name, by_range_and_name
from llm_perf_opt.captures.nsys.export import open_export
from llm_perf_opt.captures.nsys.sqlite import read_kernel_totals, read_nsys_sqlite
from llm_perf_opt.captures.timeline import OpKind, Timeline
from llm_perf_opt.core.errors import InputError
from tests.text_facts import mentions
from tests.unit.nsys_exports import MARK, START_END, call, kernel, nvtx, process_id, thread_id, write_export
from tests.unit.timelines import by_innermost

KERNEL, RUNTIME, NVTX = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
NAMES = {
    1: "gemm",
    2: "softmax",
    3: "cudaLaunchKernel_v7000",
    4: "cudaGraphLaunch_v10000",
    5: "registered range",
}


def ranges_of_ops(timeline: Timeline) -> list[str | None]:
    return [
        timeline.names[timeline.ranges.name[row]] if row >= 0 else None for row in timeline.ops.range.tolist()
    ]


def assert_same(left: Timeline, right: Timeline) -> None:
    assert left.names == right.names
    assert (left.source, left.devices, left.facts, left.warnings) == (
        right.source, right.devices, right.facts, right.warnings,
    )  # fmt: skip
    for table in ("ops", "calls", "ranges"):
        for field in fields(getattr(left, table)):
            mine, other = (
                getattr(getattr(left, table), field.name),
                getattr(getattr(right, table), field.name),
            )
            assert mine.dtype == other.dtype, (table, field.name)
            np.testing.assert_array_equal(mine, other, err_msg=f"{table}.{field.name}")


@pytest.fixture(scope="module")
def generator(repository: Path) -> Path:
    return repository / "benchmarks" / "gen_nsys_sqlite.py"


VARIANTS = {
    "2022": ["--schema", "2022.4"],
    "2024 graphs, registered names, disorder": [
        "--schema",
        "2024.2",
        "--graph-decode",
        "--registered",
        "--disorder",
        "64",
    ],
    "2026 operators": ["--schema", "2026.2", "--op-ranges", "4"],
    "2026 disorder": ["--schema", "2026.2", "--disorder", "7", "--nvtx-depth", "2"],
    "no ranges": ["--nvtx-depth", "0"],
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_generated_exports_give_the_exact_answers(
    tmp_path: Path, generator: Path, options: list[str]
) -> None:
    path = tmp_path / "trace.sqlite"
    command = [
        sys.executable,
        str(generator),
        "--kernels",
        "6000",
        "--layers",
        "4",
        *options,
        "--out",
        str(path),
    ]
    subprocess.run(command, check=True, capture_output=True)
    truth = json.loads((tmp_path / "trace.sqlite.truth.json").read_text())
    before = path.read_bytes()
    timeline = read_nsys_sqlite(path)
    attribution = attribute(timeline)

    kernels = timeline.ops.kind == OpKind.KERNEL
    assert int(kernels.sum()) == truth["kernels"]
    assert int((timeline.ops.end_ns - timeline.ops.start_ns)[kernels].sum()) == truth["kernel_ns"]
    assert int((timeline.ops.kind == OpKind.COPY).sum()) == truth["memcpy"]
    found = {
        f"{label}\t{name}": [one.launches, one.total_ns]
        for (label, name), one in by_range_and_name(timeline, attribution).items()
    }
    assert found == truth["by_range_kernel"]
    assert {
        label or "": [one.launches, one.total_ns]
        for label, one in by_innermost(timeline, attribution).items()
    } == truth["by_innermost"]
    by_name: dict[str, list[int]] = {}
    for (_, name), total in by_path_and_name(timeline, attribution).items():
        entry = by_name.setdefault(timeline.names[name], [0, 0])
        entry[0] += total.launches
        entry[1] += total.total_ns
    assert by_name == truth["by_name"]
    assert_same(timeline, read_nsys_sqlite(path, use_pages=False))
    assert path.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["trace.sqlite", "trace.sqlite.truth.json"]


def test_rows_in_any_order_give_the_same_timeline(tmp_path: Path) -> None:
    kernels = [kernel(100 + 10 * (i // 2), 105 + 10 * (i // 2) + i % 2, i, 1 + i % 2) for i in range(40)]
    calls = [call(5 * i, 5 * i + 3, i, 3) for i in range(40)]
    ranges = [
        nvtx(0, 99, "decode"),
        nvtx(100, 220, "prefill"),
        nvtx(0, 50, "layer.0"),
        nvtx(51, 99, "layer.1"),
    ]
    forward = write_export(tmp_path / "a.sqlite", {KERNEL: kernels, RUNTIME: calls, NVTX: ranges}, NAMES)
    backward = write_export(
        tmp_path / "b.sqlite", {KERNEL: kernels[::-1], RUNTIME: calls[::-1], NVTX: ranges[::-1]}, NAMES
    )
    left, right = read_nsys_sqlite(forward), read_nsys_sqlite(backward)
    assert ranges_of_ops(left) == ranges_of_ops(right)
    np.testing.assert_array_equal(left.ops.start_ns, right.ops.start_ns)
    np.testing.assert_array_equal(left.ops.end_ns, right.ops.end_ns)


def test_the_range_is_that_of_the_launch_not_of_the_kernel(tmp_path: Path) -> None:
    """The kernel runs long after its range has closed, while another range is open."""
    tables = {
        KERNEL: [kernel(1000, 1100, 7, 1)],
        RUNTIME: [call(10, 20, 7, 3)],
        NVTX: [nvtx(0, 100, "prefill"), nvtx(900, 1200, "decode")],
    }
    timeline = read_nsys_sqlite(write_export(tmp_path / "x.sqlite", tables, NAMES))
    assert ranges_of_ops(timeline) == ["prefill"]


def test_correlation_ids_are_counted_per_process(tmp_path: Path) -> None:
    other = thread_id(2, 9)
    tables = {
        KERNEL: [kernel(100, 110, 7, 1), kernel(100, 120, 7, 2, globalPid=process_id(2), deviceId=1)],
        RUNTIME: [call(10, 20, 7, 3), call(30, 40, 7, 3, other)],
        NVTX: [nvtx(0, 50, "first"), nvtx(0, 50, "second", thread=other)],
    }
    timeline = read_nsys_sqlite(write_export(tmp_path / "x.sqlite", tables, NAMES))
    assert ranges_of_ops(timeline) == ["first", "second"]
    assert timeline.ops.device.tolist() == [0, 1]


def test_a_process_that_is_not_stated_is_the_only_one(tmp_path: Path) -> None:
    tables = {
        KERNEL: [kernel(100, 110, 7, 1, globalPid=None)],
        RUNTIME: [call(10, 20, 7, 3)],
        NVTX: [nvtx(0, 50, "decode")],
    }
    timeline = read_nsys_sqlite(write_export(tmp_path / "x.sqlite", tables, NAMES))
    assert ranges_of_ops(timeline) == ["decode"]


def test_the_quick_look_gives_the_same_totals(tmp_path: Path) -> None:
    kernels = [kernel(10 * i, 10 * i + 1 + i % 7, i, 1 + i % 2) for i in range(1000)]
    path = write_export(tmp_path / "x.sqlite", {KERNEL: kernels}, NAMES)
    expected = {
        "gemm": (500, sum(1 + i % 7 for i in range(0, 1000, 2))),
        "softmax": (500, sum(1 + i % 7 for i in range(1, 1000, 2))),
    }
    for use_pages in (True, False):
        totals = read_kernel_totals(path, use_pages=use_pages)
        assert {one.name: (one.count, one.total_ns) for one in totals.kernels} == expected
    empty = read_kernel_totals(write_export(tmp_path / "y.sqlite", {NVTX: [nvtx(0, 1, "x")]}))
    assert empty.kernels == ()
    assert empty.warnings


def test_devices_are_numbered_as_the_machine_does(tmp_path: Path) -> None:
    """Two processes that each see one GPU both call it device 0."""
    tables = {
        KERNEL: [kernel(100, 110, 1, 1), kernel(100, 120, 1, 1, globalPid=process_id(2))],
        "TARGET_INFO_CUDA_DEVICE": [{"gpuId": 4, "cudaId": 0, "pid": 1}, {"gpuId": 5, "cudaId": 0, "pid": 2}],
        "TARGET_INFO_GPU": [
            {"id": 4, "name": "GPU four"},
            {"id": 5, "name": "GPU five"},
            {"id": 6, "name": "idle"},
        ],
    }
    timeline = read_nsys_sqlite(write_export(tmp_path / "x.sqlite", tables, NAMES))
    assert timeline.ops.device.tolist() == [4, 5]
    assert timeline.devices == {4: "GPU four", 5: "GPU five"}


def test_all_kernels_of_a_graph_belong_to_its_launch(tmp_path: Path) -> None:
    tables = {
        KERNEL: [kernel(100 + i, 101 + i, 7, 1, graphNodeId=i) for i in range(5)],
        RUNTIME: [call(10, 20, 7, 4)],
        NVTX: [nvtx(0, 30, "decode")],
    }
    path = write_export(tmp_path / "x.sqlite", tables, NAMES, extra_columns={KERNEL: ["graphNodeId"]})
    assert ranges_of_ops(read_nsys_sqlite(path)) == ["decode"] * 5


def test_whole_graphs_count_as_device_work(tmp_path: Path) -> None:
    row = {
        "start": 100,
        "end": 150,
        "deviceId": 0,
        "streamId": 7,
        "correlationId": 7,
        "globalPid": process_id(1),
    }
    tables = {
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [row],
        RUNTIME: [call(10, 20, 7, 4)],
        NVTX: [nvtx(0, 30, "decode")],
    }
    timeline = read_nsys_sqlite(write_export(tmp_path / "x.sqlite", tables, NAMES))
    assert [timeline.names[name] for name in timeline.ops.name] == ["[CUDA graph]"]
    assert ranges_of_ops(timeline) == ["decode"]
    assert any("--cuda-graph-trace=node" in warning for warning in timeline.warnings)


def test_registered_and_plain_names_marks_and_open_ranges(tmp_path: Path) -> None:
    tables = {
        KERNEL: [kernel(500, 600, 7, 1), kernel(610, 620, 8, 1), kernel(630, 640, 9, 1)],
        RUNTIME: [call(10, 20, 7, 3), call(40, 50, 8, 3), call(60, 70, 9, 3)],
        NVTX: [
            nvtx(0, 30, None, text_id=5),
            nvtx(12, None, "a mark", kind=MARK),
            nvtx(35, 55, "aten::mm, seq = 3, op_id = 17, sizes = [[1, 2]]"),
            nvtx(58, None, "still open"),
        ],
    }
    timeline = read_nsys_sqlite(write_export(tmp_path / "x.sqlite", tables, NAMES))
    assert ranges_of_ops(timeline) == ["registered range", "aten::mm", "still open"]
    assert timeline.ranges.end_ns.max() == 640


def test_start_end_ranges_hold_for_every_thread_of_their_process(tmp_path: Path) -> None:
    worker, stranger = thread_id(1, 2), thread_id(2, 1)
    tables = {
        KERNEL: [
            kernel(500, 600, 7, 1),
            kernel(610, 620, 8, 1),
            kernel(630, 640, 9, 1, globalPid=process_id(2)),
        ],
        RUNTIME: [call(10, 20, 7, 3, worker), call(40, 50, 8, 3, worker), call(12, 20, 9, 3, stranger)],
        NVTX: [nvtx(0, 100, "decode", kind=START_END), nvtx(35, 60, "layer.0", thread=worker)],
    }
    timeline = read_nsys_sqlite(write_export(tmp_path / "x.sqlite", tables, NAMES))
    assert ranges_of_ops(timeline) == ["decode", "layer.0", None]
    layer = [timeline.names[name] for name in timeline.ranges.name].index("layer.0")
    assert timeline.names[timeline.ranges.name[timeline.ranges.parent[layer]]] == "decode"


def test_copies_memsets_and_waits(tmp_path: Path) -> None:
    base = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": process_id(1)}
    tables = {
        "CUPTI_ACTIVITY_KIND_MEMCPY": [
            {"start": 10, "end": 20, "correlationId": 1, "bytes": 64, "copyKind": 1, **base},
            {"start": 30, "end": 40, "correlationId": 2, "bytes": 32, "copyKind": 99, **base},
        ],
        "CUPTI_ACTIVITY_KIND_MEMSET": [
            {"start": 50, "end": 60, "correlationId": 3, "value": 0, "bytes": 16, **base}
        ],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
            {"start": 70, "end": 80, "correlationId": 4, "syncType": 3, **base},
            {"start": 71, "end": 72, "correlationId": 5, "syncType": 2, **base},
        ],
        RUNTIME: [call(69, 81, 4, 3)],
    }
    timeline = read_nsys_sqlite(write_export(tmp_path / "x.sqlite", tables, NAMES))
    names = [timeline.names[name] for name in timeline.ops.name]
    assert names == ["[CUDA memcpy Host-to-Device]", "[CUDA memcpy kind 99]", "[CUDA memset]"]
    assert timeline.ops.bytes.tolist() == [64, 32, 16]
    calls = [
        (timeline.names[name], thread)
        for name, thread in zip(timeline.calls.name, timeline.calls.thread, strict=True)
    ]
    assert calls == [
        ("cudaLaunchKernel_v7000", thread_id(1, 1)),
        ("[CUDA synchronization] Stream sync", thread_id(1, 1)),
    ]


def test_unknown_string_ids_and_missing_launches_are_reported(tmp_path: Path) -> None:
    tables = {KERNEL: [kernel(1, 2, 7, 4711), kernel(3, 4, None, 1)], RUNTIME: [call(0, 1, 8, 3)]}
    timeline = read_nsys_sqlite(write_export(tmp_path / "x.sqlite", tables, NAMES))
    assert mentions(timeline.names[timeline.ops.name[0]], "4711")
    assert timeline.ops.launch.tolist() == [-1, -1]
    assert any(mentions(warning, "2 of 2") for warning in timeline.warnings)


@pytest.mark.parametrize("page_size", [512, 4096, 65536])
def test_pages_and_cursor_agree_on_long_names_and_every_integer_size(tmp_path: Path, page_size: int) -> None:
    """Names longer than a page spill over to other pages; integers take 0 to 8 bytes."""
    sizes = [0, 1, 2, 127, 128, -1, -128, -129, 2**15, 2**23, 2**31 - 1, 2**31, 2**47, 2**62]
    texts = ["", "x", "n" * 57, "n" * 58, "n" * 500, "é" * 4000, "m" * 20000, "decode"]
    ranges = [
        nvtx(abs(size), abs(size) + 1 + i, texts[i % len(texts)], text_id=size)
        for i, size in enumerate(sizes * 40)
    ]
    kernels = [
        kernel(abs(size), abs(size) + 5, size if size >= 0 else None, 1, streamId=size) for size in sizes * 40
    ]
    path = write_export(tmp_path / "x.sqlite", {KERNEL: kernels, NVTX: ranges}, NAMES, page_size=page_size)
    assert_same(read_nsys_sqlite(path), read_nsys_sqlite(path, use_pages=False))


def test_deleted_rows_stay_deleted(tmp_path: Path) -> None:
    path = write_export(tmp_path / "x.sqlite", {KERNEL: [kernel(i, i + 1, i, 1) for i in range(5000)]}, NAMES)
    with sqlite3.connect(path) as database:
        database.execute(f"DELETE FROM {KERNEL} WHERE correlationId % 3 = 0")
    timeline = read_nsys_sqlite(path)
    assert len(timeline.ops) == 3333
    assert_same(timeline, read_nsys_sqlite(path, use_pages=False))


def test_the_schema_is_named(tmp_path: Path) -> None:
    for schema in ("2022.4", "2026.2"):
        path = write_export(
            tmp_path / f"{schema}.sqlite", {KERNEL: [kernel(1, 2, 3, 1)]}, NAMES, schema=schema
        )
        with open_export(path) as export:
            assert export.schema == f"nsys {schema}.1, schema 3.0.0"
        assert f"nsys {schema}.1" in read_nsys_sqlite(path).source


def test_an_export_without_device_data_is_noted(tmp_path: Path) -> None:
    timeline = read_nsys_sqlite(write_export(tmp_path / "x.sqlite", {NVTX: [nvtx(0, 5, "decode")]}))
    assert len(timeline.ops) == 0
    assert len(timeline.ranges) == 1
    assert any(mentions(warning, "GPU", "CUDA") for warning in timeline.warnings)


def test_broken_and_unrelated_files_are_refused(tmp_path: Path) -> None:
    good = write_export(
        tmp_path / "good.sqlite", {KERNEL: [kernel(i, i + 1, i, 1) for i in range(20000)]}, NAMES
    )
    whole = good.read_bytes()
    cases = {
        "missing": (None, "no such file"),
        "empty": (b"", "is empty"),
        "text": (b"hello", "not a SQLite file"),
        "cut": (whole[: len(whole) // 2], "damaged"),
        "garbled": (whole[:4096] + b"\x5a" * (len(whole) - 4096), "damaged"),
    }
    for name, (content, message) in cases.items():
        path = tmp_path / f"{name}.sqlite"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_nsys_sqlite(path)
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as database:
        database.execute("CREATE TABLE songs (title TEXT)")
    with pytest.raises(InputError, match="songs"):
        read_nsys_sqlite(foreign)


def test_an_export_in_the_making_is_refused(tmp_path: Path) -> None:
    path = write_export(tmp_path / "x.sqlite", {KERNEL: [kernel(1, 2, 3, 1)]}, NAMES)
    (tmp_path / "x.sqlite-wal").write_bytes(b"something")
    with pytest.raises(InputError, match="being written"):
        read_nsys_sqlite(path)


def test_columns_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    path = write_export(tmp_path / "x.sqlite", {KERNEL: [kernel(1, 2, 3, 1)]}, NAMES)
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE {KERNEL} SET streamId = 'seven'")
    with pytest.raises(InputError, match=r"streamId.*'seven'"):
        read_nsys_sqlite(path)
    with sqlite3.connect(path) as database:
        database.execute(f"ALTER TABLE {KERNEL} RENAME COLUMN start TO begin")
    with pytest.raises(InputError, match=rf"{KERNEL}.*\bstart\b"):
        read_nsys_sqlite(path)
