"""Summaries of nsys stats, old and new, whole and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.analysis.timeline.summary import summarise_totals, token_metrics
from llm_perf_opt.captures.nsys.csv import read_nsys_csv
from llm_perf_opt.captures.nsys.reader import read_nsys
from llm_perf_opt.captures.timeline import KernelTotals
from llm_perf_opt.core.errors import InputError

OLD = (
    "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),GridXYZ,BlockXYZ,Name"
)
NEW = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"


def write(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_bytes((end.join(lines) + end).encode())
    return path


def test_rows_of_one_name_are_added_up(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.csv",
        OLD,
        '60.0,600,6,100.0,90.0,10,300,5.0,"  32    1    1","  128    1    1","void k<int, float>(T1)"',
        '40.0,400,2,200.0,200.0,5,250,None,"  64    1    1","  128    1    1","void k<int, float>(T1)"',
        '0.0,7,1,7,7,7,7,None,"1 1 1","1 1 1",other',
        "",
    )
    totals = read_nsys_csv(path)
    assert [
        (one.name, one.count, one.total_ns, one.min_ns, one.max_ns, one.median_ns) for one in totals.kernels
    ] == [
        ("void k<int, float>(T1)", 8, 1000, 5, 300, None),
        ("other", 1, 7, 7, 7, 7.0),
    ]
    assert totals.facts["report"] == "gpukernsum"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks(tmp_path: Path, end: str, mark: str) -> None:
    path = write(tmp_path / "x.csv", mark + NEW, "100.0,600,6,100.0,,10,300,,gemm", "", end=end)
    (kernel,) = read_nsys_csv(path).kernels
    assert (kernel.name, kernel.total_ns, kernel.median_ns, kernel.std_ns) == ("gemm", 600, None, None)


def test_banner_of_stats_to_the_screen_is_skipped(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.csv",
        "Processing [a.sqlite] with [cuda_gpu_kern_sum.py]... ",
        "",
        NEW,
        "100.0,1,1,1,1,1,1,,k",
        "",
    )
    assert read_nsys_csv(path).kernels[0].name == "k"


def test_other_reports(tmp_path: Path) -> None:
    tables = {
        "nvtx": ("Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Style,Range", "1,5,1,5,5,5,5,0,PushPop,:decode"),
        "api": ("Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name", "1,6,2,3,3,3,3,0,cudaLaunchKernel"),
        "mem": ("Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation", "1,7,3,2,2,2,2,0,[CUDA memcpy HtoD]"),
        "kernels": (NEW, "100,8,4,2,2,2,2,0,k"),
    }  # fmt: skip
    for name, lines in tables.items():
        write(tmp_path / f"{name}.csv", *lines, "")
    (tmp_path / "unrelated.csv").write_text("a,b\n1,2\n")
    found = read_nsys(tmp_path)
    assert isinstance(found, KernelTotals)
    assert [(one.name, one.count, one.total_ns) for one in found.ranges] == [("decode", 1, 5)]
    assert [(one.name, one.count) for one in found.calls] == [("cudaLaunchKernel", 2)]
    assert [(one.name, one.total_ns) for one in found.copies] == [("[CUDA memcpy HtoD]", 7)]
    assert [(one.name, one.count) for one in found.kernels] == [("k", 4)]
    assert summarise_totals(found).metrics["copy_s"] == pytest.approx(7e-9)


def test_a_cut_last_row_is_left_out_and_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", NEW, "90.0,600,6,100.0,1,10,300,1,gemm", "10.0,60,6,10")
    totals = read_nsys_csv(path)
    assert [one.name for one in totals.kernels] == ["gemm"]
    assert "cut off" in totals.warnings[0]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([""], "is empty"),
        (["a,b,c", "1,2,3"], "a, b, c"),
        ([NEW, "90.0,600,6", "10.0,60,6,10,1,1,1,1,k"], r"\b2\b.*\b3\b.*\b9\b"),
        ([NEW, "90.0,six,6,1,1,1,1,1,k"], "'six'"),
        ([NEW, "90.0,,6,1,1,1,1,1,k"], r"\b2\b.*Total Time"),
    ],
)
def test_damaged_tables_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_nsys_csv(write(tmp_path / "x.csv", *lines))


def test_the_real_summary_adds_up(shared_data: Path) -> None:
    folder = shared_data / "rtx5090-deepseek-ocr" / "nsys"
    totals = read_nsys(folder / "all-stage.cuda_gpu_kern_sum.csv")
    assert isinstance(totals, KernelTotals)
    assert len(totals.kernels) == 113
    assert sum(one.total_ns for one in totals.kernels) == 4_946_064_742
    assert sum(one.count for one in totals.kernels) == 1_695_983
    facts = summarise_totals(totals)
    # All stages together: how many of the launches are decode's is not known.
    assert token_metrics(facts.kernels, 20 * 63)["launches_per_token"] is None
    assert sum(kernel.share_ratio or 0 for kernel in facts.kernels) == pytest.approx(1)
    assert facts.budget == {}
    assert facts.time_attributed_ratio is None
