"""Dispatch by content, the cache, and the real H100 capture checked by plain SQL."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from pathlib import Path

import numpy as np
import polars
import pytest

from llm_perf_opt.analysis.timeline.attribution import attribute, by_range_and_name
from llm_perf_opt.analysis.timeline.summary import summarise_timeline
from llm_perf_opt.captures import cache
from llm_perf_opt.captures.nsys.reader import export_command, read_nsys
from llm_perf_opt.captures.nsys.sqlite import read_nsys_sqlite
from llm_perf_opt.captures.timeline import OpKind, Timeline
from llm_perf_opt.commands.ingest import main as ingest_main
from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.reporting import render
from llm_perf_opt.reporting.render import write_perfetto, write_tables
from tests.unit.captures.nsys.test_ingest_nsys_sqlite import assert_same
from tests.unit.nsys_exports import call, kernel, nvtx, write_export

KERNEL, RUNTIME, NVTX = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
NAMES = {1: "gemm", 3: "cudaLaunchKernel_v7000"}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    tables = {KERNEL: [kernel(10, 20, 1, 1)], RUNTIME: [call(1, 2, 1, 3)], NVTX: [nvtx(0, 30, "decode")]}
    (tmp_path / "nsys").mkdir()
    return write_export(tmp_path / "nsys" / "run.sqlite", tables, NAMES)


@pytest.fixture(scope="module")
def h100(shared_data: Path) -> Path:
    return shared_data / "h100-nsys" / "h100_2gpu_1s.sqlite"


def test_files_are_detected_by_content(tmp_path: Path, small: Path) -> None:
    renamed = tmp_path / "renamed.bin"
    renamed.write_bytes(small.read_bytes())
    for path in (small, renamed, small.parent, tmp_path):
        found = read_nsys(path)
        assert isinstance(found, Timeline)
        assert len(found.ops) == 1


def test_reports_are_for_the_tool_and_the_command_is_given(tmp_path: Path) -> None:
    report = tmp_path / "my run.nsys-rep"
    report.write_bytes(b"\x01\x02")
    with pytest.raises(InputError) as caught:
        read_nsys(report)
    assert caught.value.data["command"] == export_command(report)
    assert caught.value.hint is not None
    assert "nsys export --type sqlite" in caught.value.hint
    assert f"'{report}'" in caught.value.hint
    with pytest.raises(InputError) as caught:
        read_nsys(tmp_path)
    assert caught.value.data["command"] == export_command(report)


def test_what_is_no_capture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path / "absent.sqlite", tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(InputError) as caught:
            read_nsys(path)
        assert caught.value.data["path"] == str(path) and caught.value.hint


def test_the_cache_gives_the_same_timeline_and_leaves_the_input_alone(tmp_path: Path, small: Path) -> None:
    store = tmp_path / "cache"
    reads: list[Path] = []

    def read(path: Path) -> Timeline:
        reads.append(path)
        return read_nsys_sqlite(path)

    first = cache.cached(small, read, directory=store, smallest=0)
    second = cache.cached(small, read, directory=store, smallest=0)
    assert len(reads) == 1
    assert_same(first, second)
    assert [one.name for one in small.parent.iterdir()] == ["run.sqlite"]
    os.utime(small, ns=(1, 1))
    cache.cached(small, read, directory=store, smallest=0)
    assert len(reads) == 2


@pytest.mark.parametrize("damage", ["cut", "empty", "garbage", "other"])
def test_a_damaged_cache_is_as_good_as_none(tmp_path: Path, small: Path, damage: str) -> None:
    store = tmp_path / "cache"
    first = cache.cached(small, read_nsys_sqlite, directory=store, smallest=0)
    (entry,) = store.iterdir()
    whole = entry.read_bytes()
    broken = {
        "cut": whole[:-70],
        "empty": b"",
        "garbage": os.urandom(4000),
        "other": whole.replace(b'"identity"', b'"identitx"'),
    }
    entry.write_bytes(broken[damage])
    assert_same(first, cache.cached(small, read_nsys_sqlite, directory=store, smallest=0))
    assert entry.read_bytes() == whole


def test_no_cache_where_it_cannot_be_or_shall_not_be(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert len(cache.cached(small, read_nsys_sqlite, directory=blocked / "cache", smallest=0).ops) == 1
    monkeypatch.setenv(cache.CACHE_VARIABLE, "off")
    assert cache.cache_directory() is None
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "mine"))
    assert cache.cache_directory() == tmp_path / "mine"
    read_nsys(small)
    assert not (tmp_path / "mine").exists()  # small captures are not cached


def test_h100_sums_equal_plain_sql(h100: Path) -> None:
    timeline = read_nsys(h100)
    assert isinstance(timeline, Timeline)
    database = sqlite3.connect(f"file:{h100}?mode=ro&immutable=1", uri=True)
    for kind, table in ((OpKind.KERNEL, "KERNEL"), (OpKind.COPY, "MEMCPY"), (OpKind.MEMSET, "MEMSET")):
        rows = timeline.ops.kind == kind
        for device in (0, 1):
            here = rows & (timeline.ops.device == device)
            query = f"SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_{table} WHERE deviceId = ?"
            found = (int(here.sum()), int((timeline.ops.end_ns - timeline.ops.start_ns)[here].sum()))
            assert found == database.execute(query, (device,)).fetchone()
    assert (
        int(timeline.ops.bytes[timeline.ops.kind == OpKind.COPY].sum())
        == database.execute("SELECT sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY").fetchone()[0]
    )
    assert "nsys 2026.2.1.210, schema 3.25.0" in timeline.source
    database.close()


def test_h100_kernels_by_range_equal_an_interval_join(h100: Path) -> None:
    """The same question in SQL: every range of the launching thread that is open when the call begins."""
    timeline = read_nsys(h100)
    assert isinstance(timeline, Timeline)
    database = sqlite3.connect(":memory:")
    with sqlite3.connect(f"file:{h100}?mode=ro&immutable=1", uri=True) as original:
        original.backup(database)
    original.close()
    database.execute("CREATE INDEX by_thread ON NVTX_EVENTS (globalTid, start, end)")
    database.execute("CREATE INDEX by_id ON CUPTI_ACTIVITY_KIND_RUNTIME (correlationId)")
    rows = database.execute(
        """
        SELECT DISTINCT k.rowid, k.end - k.start, s.value,
               CASE WHEN instr(n.text, ', op_id = ') THEN substr(n.text, 1, instr(n.text, ', op_id = ') - 1) ELSE n.text END
        FROM CUPTI_ACTIVITY_KIND_KERNEL k
        JOIN StringIds s ON s.id = k.demangledName
        JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
          ON r.correlationId = k.correlationId AND k.globalPid = (r.globalTid / 0x1000000) * 0x1000000
        JOIN NVTX_EVENTS n ON n.globalTid = r.globalTid AND n.eventType = 59 AND r.start BETWEEN n.start AND n.end
        """
    ).fetchall()
    database.close()
    expected: dict[tuple[str, str], list[int]] = {}
    for _, duration, name, label in rows:
        label = label.split(", seq = ")[0]
        entry = expected.setdefault((label, name), [0, 0])
        entry[0] += 1
        entry[1] += duration
    found = {
        (label, name): [total.launches, total.total_ns]
        for (label, name), total in by_range_and_name(timeline, attribute(timeline)).items()
    }
    assert len(expected) > 50
    assert found == expected


def test_h100_busy_time_equals_a_plain_sweep(h100: Path) -> None:
    timeline = read_nsys(h100)
    assert isinstance(timeline, Timeline)
    facts = summarise_timeline(timeline)
    assert facts.busy_by_device["all"].keys() == {0, 1}
    span = round(facts.budget["all"].span_s * 1e9)
    for device, ratio in facts.busy_by_device["all"].items():
        rows = timeline.ops.device == device
        busy, reach = 0, 0
        for start, end in sorted(
            zip(timeline.ops.start_ns[rows].tolist(), timeline.ops.end_ns[rows].tolist(), strict=True)
        ):
            busy += max(0, end - max(start, reach))
            reach = max(reach, end)
        assert ratio == pytest.approx(busy / span, rel=1e-12)
    assert facts.kernel_time_classified_ratio == 1.0
    assert facts.time_attributed_ratio == 0.0  # operators and FSDP ranges, but nothing that names a phase


def test_h100_results_do_not_depend_on_the_run(h100: Path) -> None:
    left, right = (
        summarise_timeline(read_nsys_sqlite(h100)),
        summarise_timeline(read_nsys_sqlite(h100, use_pages=False)),
    )
    assert left == right


def test_tables_and_trace(tmp_path: Path, h100: Path) -> None:
    timeline = read_nsys_sqlite(h100)
    files = write_tables(timeline, tmp_path)
    assert [one.name for one in files] == [
        "timeline_kernels.parquet", "timeline_kernels.csv", "timeline_ranges.parquet", "timeline_ranges.csv",
    ]  # fmt: skip
    kernels = polars.read_parquet(tmp_path / "timeline_kernels.parquet")
    assert kernels["launches"].sum() == len(timeline.ops)
    assert kernels["total_ns"].sum() == int((timeline.ops.end_ns - timeline.ops.start_ns).sum())
    assert kernels.schema["phase"] == polars.String
    ranges = polars.read_csv(tmp_path / "timeline_ranges.csv")
    assert ranges["instances"].sum() == len(timeline.ranges)
    assert ranges["host_ns"].sum() == int((timeline.ranges.end_ns - timeline.ranges.start_ns).sum())
    trace = write_perfetto(timeline, tmp_path / "timeline.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sum(one["ph"] == "X" for one in events) == len(timeline.ops) + len(timeline.calls) + len(
        timeline.ranges
    )
    starts = {one["id"] for one in events if one["ph"] == "s"}
    ends = [one["id"] for one in events if one["ph"] == "f"]
    assert starts == set(ends)
    assert len(ends) == int((timeline.ops.launch >= 0).sum())
    assert trace.read_bytes() == write_perfetto(timeline, tmp_path / "again.json.gz").read_bytes()


def test_a_large_trace_for_perfetto_is_written_on_request(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(render, "MOST_EVENTS", 0)
    trace = tmp_path / "out" / "nsys" / layout.PERFETTO
    for asked in ([], ["--perfetto"], []):
        assert ingest_main(["--nsys", str(small), "--out", str(tmp_path / "out"), *asked]) == 0
        assert trace.is_file() == bool(asked)  # without the option, also that of an earlier time is gone
        assert ("left out" in capsys.readouterr().err) != bool(asked)


def test_the_drawing_is_one_step_in_order(small: Path) -> None:
    timeline = read_nsys_sqlite(small)
    drawing = summarise_timeline(timeline).timeline
    assert drawing["phase"] == "decode"
    assert drawing["span_s"] == pytest.approx(30e-9)
    lanes = {lane["name"]: lane["events"] for lane in drawing["lanes"]}
    assert list(lanes) == ["ranges", "CUDA calls", "kernels, stream 7"]
    (event,) = lanes["kernels, stream 7"]
    assert event == {
        "name": "gemm",
        "start_s": pytest.approx(10e-9),
        "end_s": pytest.approx(20e-9),
        "family": "gemm",
    }
    assert np.isclose(lanes["CUDA calls"][0]["start_s"], 1e-9)
