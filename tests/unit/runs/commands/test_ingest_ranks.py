"""``ingest`` with several captures: options given again, folders, and ranks that files are named for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.model.summary import Summary
from llm_perf_opt.model.summary_file import load_summary
from tests.unit import kineto_traces as kineto
from tests.unit import nsys_exports
from tests.unit.timelines import ALL_REDUCE

LATE_US = 400.0


def events(late_us: float) -> list[dict[str, Any]]:
    """Two collectives of 100 µs each, which this rank enters ``late_us`` after the first one could."""
    found = []
    for number in range(2):
        start = 600.0 * number
        enter, end = start + 100.0 + late_us, start + 600.0
        found += [
            kineto.op("aten::mm", start, 20.0, 10 * number + 1),
            kineto.call("cudaLaunchKernel", start + 1, 2.0, 10 * number + 1),
            kineto.kernel("gemm", start + 10, enter - start - 10, 10 * number + 1, 10 * number + 1),
            kineto.call("cudaLaunchKernel", start + 5, 2.0, 10 * number + 2),
            kineto.kernel(ALL_REDUCE, enter, end - enter, 10 * number + 2, stream=20),
        ]
    return found


def trace(path: Path, rank: int | None, late_us: float = 0.0) -> Path:
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    return kineto.write(path, kineto.document(events(late_us), **info))


def export(path: Path, late_ns: int) -> Path:
    """An nsys export of one rank that computes and then enters one collective."""
    enter = 1_000 + 100_000 + late_ns
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            nsys_exports.kernel(1_000, enter, 1, 1),
            nsys_exports.kernel(enter, 1_000_000, 2, 3),
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [nsys_exports.call(100, 200, 1, 2), nsys_exports.call(300, 400, 2, 2)],
    }
    strings = {1: "gemm", 2: "cudaLaunchKernel_v7000", 3: ALL_REDUCE}
    return nsys_exports.write_export(path, tables, strings)


def ingest(out: Path, *arguments: object) -> Summary:
    assert main(["ingest", "--out", str(out), *(str(argument) for argument in arguments)]) == 0
    return load_summary(out)


def straggles(found: Summary) -> None:
    assert [row.rank for row in found.ranks] == [0, 1]
    assert found.communication is not None
    assert found.communication.straggler == 1
    assert [row.source for row in found.ranks] == sorted(row.source or "" for row in found.ranks)


def test_a_second_trace_does_not_replace_the_first(tmp_path: Path) -> None:
    first, second = trace(tmp_path / "a.json", 0), trace(tmp_path / "b.json", 1, LATE_US)
    found = ingest(tmp_path / "run", "--trace", first, "--trace", second)
    straggles(found)
    assert found.metrics["kernel_launches"] == 8
    assert next(op.calls for op in found.operators if op.name == "aten::mm") == 4
    assert found.findings[0].id == "straggler"
    assert found.findings[0].gain_upper_s == pytest.approx(2 * LATE_US * 1e-6)
    assert [part for part in found.run.command if part.startswith("--trace=")] == [
        f"--trace={first}",
        f"--trace={second}",
    ]


def test_the_same_file_twice_is_one(tmp_path: Path) -> None:
    path = trace(tmp_path / "a.json", None)
    found = ingest(tmp_path / "run", "--trace", path, "--trace", path)
    assert found.metrics["kernel_launches"] == 4
    assert found.ranks == []


def test_a_folder_of_traces_is_all_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    trace(folder / "rank1.json.gz", None, LATE_US)
    trace(folder / "rank0.json.gz", None)
    (folder / "notes.txt").write_text("not a trace", encoding="utf-8")
    straggles(ingest(tmp_path / "run", "--trace", folder))


def test_a_rank_given_twice_is_said(tmp_path: Path) -> None:
    paths = [trace(tmp_path / f"{name}.json", rank) for name, rank in (("a", 0), ("b", 1), ("c", 1))]
    found = ingest(tmp_path / "run", *(word for path in paths for word in ("--trace", path)))
    assert any("Rank 1 was given twice: b.json is used, c.json is left out" in note for note in found.notes)
    assert found.metrics["kernel_launches"] == 8


def test_a_folder_without_a_trace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    assert main(["ingest", "--out", str(tmp_path / "run"), "--trace", str(folder)]) != 0
    said = capsys.readouterr().err
    assert "holds no torch profiler trace (.json or .json.gz)" in said
    assert "give the folder that the profiler wrote its traces to" in said


def test_one_of_several_that_is_missing_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path / "a.json", 0)
    arguments = ["--trace", str(path), "--trace", str(tmp_path / "gone.json")]
    assert main(["ingest", "--out", str(tmp_path / "run"), *arguments]) != 0
    assert "gone.json does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["options", "folder"])
def test_exports_of_nsys_are_joined_alike(tmp_path: Path, given: str) -> None:
    folder = tmp_path / "exports"
    folder.mkdir()
    files = [export(folder / f"run.rank{rank}.sqlite", rank * 400_000) for rank in (0, 1)]
    arguments = ["--nsys", folder] if given == "folder" else ["--nsys", files[1], "--nsys", files[0]]
    found = ingest(tmp_path / "run", *arguments)
    straggles(found)
    assert found.ranks[0].waits_s == pytest.approx(400e-6)


def test_ranks_of_different_tools_are_not_mixed(tmp_path: Path) -> None:
    found = ingest(
        tmp_path / "run",
        "--trace",
        trace(tmp_path / "rank0.json", 0),
        "--nsys",
        export(tmp_path / "rank1.sqlite", 0),
    )
    assert len(found.ranks) < 2
    assert found.metrics["kernel_launches"] == 2  # of the tool that disturbs the run less
