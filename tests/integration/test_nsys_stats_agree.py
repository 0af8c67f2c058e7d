"""Our tables against those of the real ``nsys stats``, every generation found on this machine."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.analysis.timeline.attribution import attribute, by_range_and_name
from llm_perf_opt.ingest.nsys.csv import read_nsys_csv
from llm_perf_opt.ingest.nsys.sqlite import read_kernel_totals, read_nsys_sqlite
from llm_perf_opt.process import tools as checks

TOOLS = checks.find_tools("nsys")
pytestmark = pytest.mark.nsys
every_version = pytest.mark.parametrize(
    "tool", TOOLS or [pytest.param(None, marks=pytest.mark.skip(reason="Nsight Systems is not installed"))]
)


def stats(tool: Path, source: Path, folder: Path, *reports: str) -> Path:
    """Run the first report that this generation knows; nsys tells failure by text and files only."""
    for report in reports:
        base = folder / report
        command = [str(tool), "stats", "-r", report, "-f", "csv", "-o", str(base), str(source)]
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=120)
        written = [one for one in folder.glob(f"{report}*.csv") if one.stat().st_size]
        if written:
            return written[0]
    pytest.fail(f"{tool} knows none of {reports}")


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


@every_version
def test_real_exports_are_read_lazy_and_complete(tool: Path, tmp_path: Path) -> None:
    """A capture without a GPU: no CUPTI tables at all, or (``--lazy=false``) all of them, empty."""
    target = Path(__file__).with_name("nvtx_target.py")
    report = tmp_path / "run.nsys-rep"
    profile = [str(tool), "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-o", str(report)]
    for _ in range(2):  # the tool now and then loses its agent on a loaded machine
        subprocess.run(
            [*profile, sys.executable, str(target), "--rounds", "2"],
            check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=120, start_new_session=True,
        )  # fmt: skip
        if report.exists():
            break
    for lazy in ("true", "false"):
        output = tmp_path / f"lazy-{lazy}.sqlite"
        export = [
            str(tool),
            "export",
            "--type",
            "sqlite",
            f"--lazy={lazy}",
            "--output",
            str(output),
            str(report),
        ]
        subprocess.run(export, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=120)
        timeline = read_nsys_sqlite(output)
        names = [timeline.names[one] for one in timeline.ranges.name]
        names = [one for one in names if not one.startswith("llm_perf_opt.")]  # is anybody listening?
        assert names == ["prefill", "decode"] * 2
        assert attribute(timeline).phases == ("prefill", "decode")
        assert len(timeline.ops) == 0
        assert timeline.facts["tool_version"] in timeline.source
        assert any("no device activity" in warning for warning in timeline.warnings)
