"""The real Nsight Compute, every installed generation: what it knows, what it prints, what it accepts."""

from __future__ import annotations

import csv
import io
import subprocess
from pathlib import Path

import pytest
import yaml

from llm_perf_opt.analysis.ncu.kernels import analyse_ncu
from llm_perf_opt.analysis.ncu.metrics import NVPROF_NAMES
from llm_perf_opt.captures.ncu.csv import read_ncu_csv
from llm_perf_opt.captures.ncu.reader import read_ncu
from llm_perf_opt.captures.ncu.report import read_ncu_report
from llm_perf_opt.captures.ncu.units import parse_number, parse_unit, significant_step
from llm_perf_opt.config.keys import CONF_DIR
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.stages.ncu.command import SECTION_PASSES, build_ncu_cmd
from llm_perf_opt.stages.ncu.diagnose import NO_KERNELS
from llm_perf_opt.stages.ncu.probe import device_metrics, known_metrics, probe_ncu
from tests.ncu_support import TOOLS
from tests.needs import example_reports, need

pytestmark = pytest.mark.needs("ncu", "ncu-report")
REPORTS = example_reports()
PRESETS = sorted((CONF_DIR / "profiling" / "ncu").glob("*.yaml"))
each_tool = pytest.mark.parametrize(
    "tool", TOOLS or [Path("ncu")], ids=lambda path: "-".join(path.parts[-5:-2]) or path.name
)
NO_REPORT = [pytest.param(None, marks=pytest.mark.needs("ncu example reports"), id="none")]
some_reports = pytest.mark.parametrize("report", REPORTS[::3] or NO_REPORT, ids=lambda path: path.stem)
each_report = pytest.mark.parametrize(
    "report", REPORTS or NO_REPORT, ids=lambda path: f"{path.stem}-{path.parts[3][:6]}"
)


def newest() -> Path:
    return max(TOOLS, key=lambda tool: probe_ncu(tool).version)


def printed(tool: Path, report: Path, *options: str) -> str:
    argv = [str(tool), "--import", str(report), "--csv", *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout


@each_tool
def test_what_an_installed_ncu_reports_about_itself(tool: Path) -> None:
    capabilities = probe_ncu(tool)
    assert capabilities.version[0] >= 2020 and capabilities.chips
    assert {"SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "SchedulerStats"} <= capabilities.sections
    assert "full" in capabilities.sets and "Identifier" not in capabilities.sections
    assert capabilities.per_launch_config is (capabilities.version >= (2023,))


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_presets_request_only_what_exists(preset: Path) -> None:
    capabilities = probe_ncu(newest())
    content = yaml.safe_load(preset.read_text())
    cli = content["ncu_cli"]
    assert set(cli["sections"]) <= capabilities.sections
    assert cli["set"] in capabilities.sets
    # A chip newer than the installed ncu is checked by the names its predecessors have.
    wanted = [chip for chip in content.get("chips") or () if chip in capabilities.chips]
    known = known_metrics(newest(), tuple(wanted) or capabilities.default_chips)
    assert len(known) > 1000
    unknown = [name for name in cli["metrics"] or () if name.partition(".")[0] not in known]
    # What a launch itself tells (its grid, its registers) is collected without being listed.
    assert [name for name in unknown if not name.startswith("launch__")] == []


def test_nvprof_names_are_unknown_and_their_replacements_known() -> None:
    known = known_metrics(newest(), ("ga102",))
    for old, new in NVPROF_NAMES.items():
        assert old not in known
        assert [name for name in new if name.partition(".")[0] not in known] == []


def test_sections_with_a_known_cost_exist() -> None:
    assert set(SECTION_PASSES) <= probe_ncu(newest()).sections


def test_metrics_of_this_machines_gpu_or_none() -> None:
    assert isinstance(device_metrics(newest()), frozenset)


@each_report
def test_every_value_equals_what_the_tool_prints_in_base_units(report: Path) -> None:
    """The package and the command line read the same file; both must end in the same SI values."""
    rows = list(csv.reader(io.StringIO(printed(newest(), report, "--page", "raw", "--print-units", "base"))))
    header, unit_row, *values = rows
    launches = read_ncu_report(report).launches
    assert len(launches) == len(values)
    compared = 0
    for launch, row in zip(launches, values, strict=True):
        cells = dict(zip(header, row, strict=True))
        assert launch.kernel == cells["Kernel Name"]
        assert str(launch.grid) == cells["Grid Size"] and str(launch.block) == cells["Block Size"]
        assert launch.compute_capability == cells["CC"]
        for name, unit, cell in zip(header, unit_row, row, strict=True):
            if name not in launch.metrics:
                assert "__" not in name or not cell, f"{name} is printed but not read"
                continue
            number = parse_number(cell)
            quantity = launch.metrics[name]
            if number is None:
                # Words, and metrics with samples only: an empty cell is not a measured 0.
                assert quantity.value is None, name
                continue
            assert quantity.value is not None, name
            factor = parse_unit(unit).factor
            rounding = significant_step(cell) * factor
            assert quantity.value == pytest.approx(number * factor, rel=1e-9, abs=1.01 * rounding), name
            compared += 1
    assert compared > 500


@some_reports
def test_scaled_units_raw_and_details_pages_agree_with_the_report(report: Path, tmp_path: Path) -> None:
    """ncu scales every value on its own by default; each page, read back, gives the report's facts."""
    (facts,) = analyse_ncu(read_ncu_report(report))
    for page, options in (
        ("raw", ()),
        ("details", ("--print-details", "all")),
        ("details", ("--print-details", "all", "--print-metric-name", "name")),
        ("details", ("--print-details", "all", "--print-metric-name", "label-name")),
    ):
        path = tmp_path / "page.csv"
        path.write_text(printed(newest(), report, "--page", page, *options))
        (again,) = analyse_ncu(read_ncu_csv(path))
        assert again.bound.bound == facts.bound.bound and again.precision == facts.precision
        for name in (
            "duration_s",
            "compute_ratio",
            "l2_ratio",
            "dram_ratio",
            "waves",
            "occupancy_ratio",
            "sm_count",
        ):
            assert again.counters[name] == pytest.approx(facts.counters[name], rel=0.01), (
                page,
                options,
                name,
            )
        for name in ("intensity_flops_per_byte", "achieved_flops_per_s", "dram_bytes"):
            if facts.counters[name] is not None:
                assert again.counters[name] == pytest.approx(facts.counters[name], rel=0.02), (
                    page,
                    options,
                    name,
                )
        assert again.violations == [] or facts.violations


@each_tool
def test_pages_of_every_generation(tool: Path, tmp_path: Path) -> None:
    """An older ncu cannot open newer reports: each prints those that came with it."""
    own = sorted((tool.parent.parent / "share" / "doc" / "nsight-compute").rglob("*.ncu-rep"))
    if not own:
        need("ncu example reports")
        return
    for page in ("raw", "details"):
        path = tmp_path / f"{page}.csv"
        path.write_text(printed(tool, own[0], "--page", page))
        (launch,) = read_ncu(path).launches
        (facts,) = analyse_ncu(read_ncu(path))
        assert facts.counters["duration_s"] and facts.bound.bound != "unknown"
        assert launch.notes == [] and facts.violations == []
    (report,) = analyse_ncu(read_ncu_report(own[0]))
    assert report.counters["duration_s"] == pytest.approx(facts.counters["duration_s"], rel=1e-3)


@some_reports
def test_rules_of_the_package_and_of_the_page_are_the_same(report: Path, tmp_path: Path) -> None:
    path = tmp_path / "details.csv"
    path.write_text(printed(newest(), report, "--page", "details"))
    by_page = {(rule.name, rule.kind, rule.text) for rule in read_ncu_csv(path).launches[0].rules}
    by_package = {(rule.name, rule.kind, rule.text) for rule in read_ncu_report(report).launches[0].rules}
    names = {name for name, _, _ in by_page}
    assert names <= {name for name, _, _ in by_package}
    assert len(by_page & by_package) >= 0.7 * len(by_page)


@pytest.mark.parametrize("content", [b"", b"garbage", b"NVR\x00" + b"\x01" * 400])
def test_corrupt_reports_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read") as caught:
        read_ncu(path)
    assert caught.value.hint


@pytest.mark.needs("ncu example reports")
def test_a_report_cut_in_the_middle_is_refused(tmp_path: Path) -> None:
    data = REPORTS[0].read_bytes()
    path = tmp_path / "cut.ncu-rep"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError):
        read_ncu(path)


@each_tool
def test_the_whole_command_is_accepted(tool: Path, tmp_path: Path) -> None:
    """Every option at once, on a program without kernels: ncu must complain about nothing but that."""
    capabilities = probe_ncu(tool)
    argv = build_ncu_cmd(
        tmp_path / "run",
        ["/bin/sleep", "0.3"],
        nvtx_expr=["decode*", "prefill@LLM", "A/*/B"],
        kernel_regex=r"((^|[^A-Za-z0-9_])Kernel2<(.*[^A-Za-z0-9_])?cutlass_80($|[^A-Za-z0-9_]))",
        kernel_name_base="demangled",
        set_name="roofline",
        metrics=["gpu__time_duration.sum", "dram__bytes_read.sum"],
        sections=["SpeedOfLight", "Occupancy"],
        replay_mode="kernel",
        filter_mode="per-launch-config" if capabilities.per_launch_config else "per-gpu",
        launch_skip=1,
        launch_count=2,
        log_file=tmp_path / "ncu.log",
        executable=str(tool),
    )
    subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    log = (tmp_path / "ncu.log").read_text()
    assert NO_KERNELS in log and "==ERROR==" not in log
    assert not (tmp_path / "run.ncu-rep").exists()
