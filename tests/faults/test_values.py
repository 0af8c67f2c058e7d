"""Values that were once believed: each is refused by file and field with exit 3, or left out, counted and said."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.captures.documents import load_static
from llm_perf_opt.captures.kineto.reader import read_kineto
from llm_perf_opt.captures.nsys.csv import read_nsys_csv
from llm_perf_opt.captures.nsys.sqlite import read_nsys_sqlite
from llm_perf_opt.captures.timings import load_timings
from llm_perf_opt.cli import main
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.summary.file import load_summary, save_summary
from tests.faults.fuzz import seeds
from tests.unit import kineto_traces, nsys_exports
from tests.unit.report_summaries import full_summary


def _json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


SHORT = {"samples": 2, "new_tokens": 8, "prefill_s": 0.1, "decode_s": 0.7}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("decode_s", -2.0), ("decode_s", 1e300), ("decode_s", 1e-300), ("decode_s", 1_419_247), ("decode_s", "1.234"),
        ("samples", 10**30), ("samples", -1), ("new_tokens", 1e300), ("batch_size", 0.5), ("prefill_s", [1]),
    ],
)  # fmt: skip
def test_a_time_or_count_that_cannot_be_is_refused_by_its_name(key: str, value: Any, tmp_path: Path) -> None:
    path = _json(tmp_path / "t.json", {**SHORT, key: value})
    with pytest.raises(InputError, match=key) as caught:
        load_timings(path)
    assert "t.json" in caught.value.message
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("key", "value"), [("decode_s", -2.0), ("decode_s", 0.0), ("prefill_s", 1e12), ("token_s", [-1])]
)
def test_an_engines_document_is_checked_too(key: str, value: Any, tmp_path: Path) -> None:
    document = seeds.timings()[1]
    document["samples"][0]["repeats"][0][key] = value
    with pytest.raises(InputError, match=rf"samples\[0\]\.repeats\[0\]\.{key}"):
        load_timings(_json(tmp_path / "timings.json", document))


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        ({"Instances": "10,0"}, "Instances"), ({"Instances": "1.5"}, "Instances"), ({"Total Time (ns)": "1.234"}, "Total Time"),
        ({"Total Time (ns)": "-5"}, "Total Time"), ({"Total Time (ns)": "1e30"}, "Total Time"), ({"Instances": "inf"}, "Instances"),
        ({"Min (ns)": "-1"}, "Min"), ({"Instances": "9" * 5000}, "Instances"),
    ],
)  # fmt: skip
def test_numbers_of_another_locale_or_size_are_refused_by_column(
    cells: dict[str, str], column: str, tmp_path: Path
) -> None:
    names = ("Time (%)", "Total Time (ns)", "Instances", "Min (ns)", "Name")
    row = {
        "Time (%)": "100",
        "Total Time (ns)": "1000",
        "Instances": "10",
        "Min (ns)": "1",
        "Name": "k",
        **cells,
    }
    path = tmp_path / "kern_sum.csv"
    path.write_text(",".join(names) + "\n" + ",".join(f'"{row[name]}"' for name in names) + "\n")
    with pytest.raises(InputError, match=column) as caught:
        read_nsys_csv(path)
    assert "kern_sum.csv" in caught.value.message


GOOD = kineto_traces.kernel("gemm", 100.0, 10.0, 1)


@pytest.mark.parametrize(
    "bad",
    [
        {"dur": -1.0}, {"dur": 1.419247e12}, {"dur": None}, {"ts": None}, {"ts": 1e300}, {"ts": -1e300},
        {"ts": "NaN"}, {"dur": "1e999999999"}, {"ts": 1.5e15},
    ],
)  # fmt: skip
def test_one_bad_event_is_left_out_counted_and_reported(bad: dict[str, Any], tmp_path: Path) -> None:
    events = [GOOD, GOOD, {**GOOD, **bad}, GOOD]
    timeline = read_kineto(_json(tmp_path / "t.json", kineto_traces.document(events))).timeline
    assert len(timeline.ops) == 3
    assert set((timeline.ops.end_ns - timeline.ops.start_ns).tolist()) == {10_000}
    assert any("left out" in warning and "1 " in warning for warning in timeline.warnings)


def test_a_trace_without_durations_is_refused(tmp_path: Path) -> None:
    events = [{key: value for key, value in GOOD.items() if key != "dur"}] * 5
    with pytest.raises(InputError, match=r"\b5 of 5\b.*'ts'.*'dur'"):
        read_kineto(_json(tmp_path / "t.json", kineto_traces.document(events)))


@pytest.mark.parametrize("end", [None, 5, -(2**62), 2**62])
def test_one_bad_row_of_an_export_is_left_out_counted_and_reported(end: int | None, tmp_path: Path) -> None:
    rows = [nsys_exports.kernel(100 * n, 100 * n + 50, n, 1) for n in range(1, 9)]
    path = nsys_exports.write_export(tmp_path / "e.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": rows}, {1: "k"})
    with sqlite3.connect(path) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = ? WHERE rowid = 3", (end,))
    timeline = read_nsys_sqlite(path)
    assert len(timeline.ops) == 7
    (warning,) = [text for text in timeline.warnings if "CUPTI_ACTIVITY_KIND_KERNEL" in text]
    assert "1 of 8" in warning
    with sqlite3.connect(path) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = ?", (end,))
    with pytest.raises(InputError, match=r"e\.sqlite: CUPTI_ACTIVITY_KIND_KERNEL: 8 of 8\b"):
        read_nsys_sqlite(path)


@pytest.mark.parametrize(
    ("place", "value"),
    [(("modules", 0, "depth"), 10**9), (("params", "total"), -1), (("kv_bytes_per_token",), -1.0)],
)
def test_a_static_document_that_cannot_be_is_refused_by_its_field(
    place: tuple[Any, ...], value: Any, tmp_path: Path
) -> None:
    document = seeds.statics()[0]
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(InputError, match=str(place[-1])):
        load_static(_json(tmp_path / "static_compute.json", document))


def test_a_summary_that_cannot_be_is_neither_read_nor_written(tmp_path: Path) -> None:
    summary = full_summary()
    summary.kernels[0].share_ratio = 1.4
    with pytest.raises(InputError, match=r"kernels\[0\]\.share_ratio: .*\b0\b.*\b1\b"):
        save_summary(summary, tmp_path)
    assert not (tmp_path / "summary.json").exists()
    document = seeds.summaries()[0]
    document["timings"]["tokens_per_s"]["median"] = -2.0
    with pytest.raises(InputError, match=r"timings\.tokens_per_s\.median: .*\b0\b"):
        load_summary(_json(tmp_path / "summary.json", document))


def test_a_packed_bomb_is_refused_and_the_limit_can_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b'{"traceEvents": [' + b" " * (64 << 20) + json.dumps(GOOD).encode() + b"]}"
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(text, 9))
    with pytest.raises(InputError, match=r"bomb\.json\.gz\b.*\d bytes") as caught:
        read_kineto(path)
    assert "LLM_PERF_OPT_MAX_UNPACK_FACTOR" in str(caught.value)
    monkeypatch.setenv("LLM_PERF_OPT_MAX_UNPACK_FACTOR", "2000")
    assert len(read_kineto(path).timeline.ops) == 1


def test_what_never_ends_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ingest", "--timings", "/dev/zero", "--out", str(tmp_path / "out")]) == 3
    assert "/dev/zero" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_data_type_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _json(tmp_path / "t.json", SHORT)
    assert main(["ingest", "--timings", str(path), "--dtype", "float3", "--out", str(tmp_path / "o")]) == 2
    message, _, hint = capsys.readouterr().err.partition("fix:")
    assert "--dtype float3" in message and "float32" in hint
