"""Our tables against those of the real ``nsys stats``, every generation found on this machine."""

from __future__ import annotations

import contextlib
import csv
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.analysis.timeline.attribution import attribute, by_range_and_name
from llm_perf_opt.captures.nsys.csv import read_nsys_csv
from llm_perf_opt.captures.nsys.sqlite import read_kernel_totals, read_nsys_sqlite
from llm_perf_opt.process import tools as checks
from llm_perf_opt.stages.nsys.probe import probe_nsys
from tests.nsys_support import ask_tool

TOOLS = checks.find_tools("nsys")
pytestmark = pytest.mark.needs("nsys")
every_version = pytest.mark.parametrize("tool", TOOLS or [None])


def stats(tool: Path, source: Path, folder: Path, *reports: str) -> Path:
    """Run the report by the name that this generation has for it; nsys tells failure by text and files only."""
    names = [name for name in reports if name in probe_nsys(tool).reports]
    assert names, f"{tool} knows none of {reports}"
    base = folder / names[0]
    command = [tool, "stats", "-r", names[0], "-f", "csv", "-o", base, source]
    return ask_tool(command, folder / f"{names[0]}_{names[0]}.csv")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    path = tmp_path_factory.mktemp("generated") / "trace.sqlite"
    generator = repository / "benchmarks" / "gen_nsys_sqlite.py"
    options = ["--kernels", "3000", "--layers", "3", "--registered", "--graph-decode"]
    subprocess.run(
        [sys.executable, str(generator), *options, "--out", str(path)], check=True, capture_output=True
    )
    return path


@every_version
def test_kernel_sums_agree(tool: Path, generated: Path, tmp_path: Path) -> None:
    table = read_nsys_csv(stats(tool, generated, tmp_path, "cuda_gpu_kern_sum", "gpukernsum"))
    ours = read_kernel_totals(generated)
    assert {one.name: (one.count, one.total_ns) for one in table.kernels} == {
        one.name: (one.count, one.total_ns) for one in ours.kernels
    }


@every_version
def test_kernels_by_range_agree(tool: Path, generated: Path, tmp_path: Path) -> None:
    path = stats(tool, generated, tmp_path, "nvtx_kern_sum", "nvtxkernsum")
    expected: dict[tuple[str, str], list[int]] = {}
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            name = row["NVTX Range"].removeprefix(":").removeprefix("default:")
            entry = expected.setdefault((name, row["Kernel Name"]), [0, 0])
            entry[0] += int(row["Kern Inst"])
            entry[1] += int(row["Total Time (ns)"])
    timeline = read_nsys_sqlite(generated)
    found = {
        key: [one.launches, one.total_ns]
        for key, one in by_range_and_name(timeline, attribute(timeline)).items()
    }
    assert found == expected


@every_version
def test_the_h100_capture_agrees(tool: Path, shared_data: Path, tmp_path: Path) -> None:
    source = tmp_path / "h100.sqlite"  # a copy: nsys may write beside it
    source.write_bytes((shared_data / "h100-nsys" / "h100_2gpu_1s.sqlite").read_bytes())
    table = read_nsys_csv(stats(tool, source, tmp_path, "cuda_gpu_kern_sum", "gpukernsum"))
    ours = {one.name: (one.count, one.total_ns) for one in read_kernel_totals(source).kernels}
    assert {one.name: (one.count, one.total_ns) for one in table.kernels} == ours
    copies = read_nsys_csv(stats(tool, source, tmp_path, "cuda_gpu_mem_time_sum", "gpumemtimesum")).copies
    timeline = read_nsys_sqlite(source)
    lengths = timeline.ops.end_ns - timeline.ops.start_ns
    assert sum(one.total_ns for one in copies) == int(lengths[timeline.ops.kind != 0].sum())
    assert sum(one.count for one in copies) == int((timeline.ops.kind != 0).sum())


_CAPTURES = 3


def _has_ranges(tool: Path, report: Path, folder: Path) -> bool:
    """Ask SQLite itself whether the tool recorded any range of the program."""
    output = folder / "probe.sqlite"
    output.unlink(missing_ok=True)
    ask_tool([tool, "export", "--type", "sqlite", "--output", output, report], output)
    with contextlib.closing(sqlite3.connect(output)) as base:
        known = {name for (name,) in base.execute("SELECT name FROM sqlite_master")}
        if "NVTX_EVENTS" not in known:
            return False
        return bool(base.execute("SELECT count(*) FROM NVTX_EVENTS WHERE end IS NOT NULL").fetchone()[0])


@every_version
def test_real_exports_are_read_lazy_and_complete(tool: Path, tmp_path: Path) -> None:
    """A capture without a GPU: no CUPTI tables at all, or (``--lazy=false``) all of them, empty."""
    target = Path(__file__).with_name("nvtx_target.py")
    report = tmp_path / "run.nsys-rep"
    profile = [tool, "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-o", report]
    for _ in range(_CAPTURES):
        ask_tool([*profile, sys.executable, target, "--rounds", "2"], report)
        if _has_ranges(tool, report, tmp_path):
            break
        report.unlink()  # on a loaded machine nsys now and then ends without the program's ranges
    for lazy in ("true", "false"):
        output = tmp_path / f"lazy-{lazy}.sqlite"
        ask_tool([tool, "export", "--type", "sqlite", f"--lazy={lazy}", "--output", output, report], output)
        timeline = read_nsys_sqlite(output)
        names = [timeline.names[one] for one in timeline.ranges.name]
        names = [one for one in names if not one.startswith("llm_perf_opt.")]  # is anybody listening?
        assert names == ["prefill", "decode"] * 2
        assert attribute(timeline).phases == ("prefill", "decode")
        assert len(timeline.ops) == 0
        assert timeline.facts["tool_version"] in timeline.source
        assert any("no device activity" in warning for warning in timeline.warnings)
