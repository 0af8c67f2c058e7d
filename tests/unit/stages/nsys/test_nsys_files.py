from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from llm_perf_opt.stages.nsys.run import (
    collect_reports,
    find_importer,
    find_nsys_summary,
    generated_paths,
    remove_earlier_outputs,
    sqlite_of,
    unfinished_streams,
)
from llm_perf_opt.stages.workload import folder_state


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_generated_block() -> None:
    text = (
        "app: Generated: no\nGenerated:\n    /a b/run.1.nsys-rep\n    /a b/run.2.nsys-rep\nmore\nGenerated:\n"
    )
    assert generated_paths(text) == [Path("/a b/run.1.nsys-rep"), Path("/a b/run.2.nsys-rep")]
    assert generated_paths("nothing") == []


def test_reports_in_order_and_only_of_this_base(tmp_path: Path) -> None:
    for name in ("run.10.nsys-rep", "run.2.nsys-rep", "run.decode.nsys-rep", "other.nsys-rep", "run.sqlite"):
        write(tmp_path / name)
    write(tmp_path / "run.3.nsys-rep", "")
    found = collect_reports(tmp_path / "run", "", tmp_path / "scratch", {})
    assert [path.name for path in found] == ["run.2.nsys-rep", "run.10.nsys-rep"]
    assert [p.name for p in collect_reports(tmp_path / "run.decode", "", tmp_path, {})] == [
        "run.decode.nsys-rep"
    ]


def test_a_stale_report_is_never_fresh(tmp_path: Path) -> None:
    write(tmp_path / "run.nsys-rep")
    assert collect_reports(tmp_path / "run", "", tmp_path / "scratch", folder_state(tmp_path)) == []


@pytest.mark.parametrize("skew_s", [-86_400, -60, 60, 86_400])
def test_a_file_server_whose_clock_differs_does_not_make_a_report_stale(tmp_path: Path, skew_s: int) -> None:
    before = folder_state(tmp_path)
    report = write(tmp_path / "run.nsys-rep")
    there = time.time() + skew_s
    os.utime(report, (there, there))
    assert collect_reports(tmp_path / "run", "", tmp_path / "scratch", before) == [report]


def test_a_report_written_over_an_earlier_one_is_fresh(tmp_path: Path) -> None:
    report = write(tmp_path / "run.nsys-rep", "one")
    before = folder_state(tmp_path)
    report.write_text("two")
    assert collect_reports(tmp_path / "run", "", tmp_path / "scratch", before) == [report]


def test_a_report_left_in_scratch_is_moved_into_place(tmp_path: Path) -> None:
    left = write(tmp_path / "scratch" / "nsys-report-1234.nsys-rep", "report")
    foreign = write(tmp_path / "elsewhere" / "nsys-report-9.nsys-rep")
    (tmp_path / "out").mkdir()
    text = f"Generated:\n    {foreign}\n    {left}\n"
    found = collect_reports(tmp_path / "out" / "run", text, tmp_path / "scratch", {})
    assert found == [tmp_path / "out" / "run.nsys-rep"]
    assert found[0].read_text() == "report"
    assert foreign.exists()


def test_earlier_outputs_go_and_others_stay(tmp_path: Path) -> None:
    gone = [
        "run.nsys-rep",
        "run.2.nsys-rep",
        "run.decode.sqlite",
        "run.qdstrm",
        "summary.csv",
        "summary_x.csv",
    ]
    kept = ["notes.txt", "mine.nsys-rep", "runner.nsys-rep"]
    for name in gone + kept:
        write(tmp_path / name)
    remove_earlier_outputs(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_streams_and_names(tmp_path: Path) -> None:
    stream = write(tmp_path / "a" / "nsys-report-1.qdstrm")
    assert unfinished_streams((tmp_path / "a", tmp_path / "missing")) == [stream]
    assert sqlite_of(Path("/x/run.decode.1.nsys-rep")) == Path("/x/run.decode.1.sqlite")


@pytest.mark.contract("A9")
@pytest.mark.parametrize(
    "place",
    [
        "nsys/summary.csv",
        "nsys/summary_cuda_gpu_kern_sum.csv",
        "nsys/summary_gpukernsum.csv",
        "nsys/run_gpukernsum.csv",
        "tmp/stage2/20251029-000000/nsys/summary_cuda_gpu_kern_sum.csv",
        "tmp/stage2/nsys/summary_gpukernsum.csv",
        "stage2/nsys/summary.csv",
    ],
)
def test_A9_old_summary_locations_are_found(tmp_path: Path, place: str) -> None:
    assert find_nsys_summary(tmp_path) is None
    path = write(tmp_path / place, "Time (%)\n")
    assert find_nsys_summary(tmp_path) == path


@pytest.mark.contract("E3")
def test_E3_a_missing_or_empty_summary_is_no_error_and_the_new_place_wins(tmp_path: Path) -> None:
    assert find_nsys_summary(tmp_path / "missing") is None
    write(tmp_path / "nsys" / "summary_gpukernsum.csv", "")
    assert find_nsys_summary(tmp_path) is None
    write(tmp_path / "tmp" / "stage2" / "a" / "nsys" / "summary.csv")
    new = write(tmp_path / "nsys" / "summary.csv")
    assert find_nsys_summary(tmp_path) == new


@pytest.mark.parametrize(
    ("tool", "importer"),
    [
        ("opt/2024.2/target-linux-x64/nsys", "opt/2024.2/host-linux-x64/QdstrmImporter"),
        (
            "usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64/nsys",
            "usr/lib/nsight-systems/host-linux-x64/QdstrmImporter",
        ),
    ],
    ids=["nvidia", "debian"],
)
def test_the_importer_of_an_installation(tmp_path: Path, tool: str, importer: str) -> None:
    link = tmp_path / "bin" / "nsys"
    link.parent.mkdir()
    link.symlink_to(write(tmp_path / tool))
    assert find_importer(str(link)) is None
    expected = write(tmp_path / importer)
    assert find_importer(str(link)) == expected
