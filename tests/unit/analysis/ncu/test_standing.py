"""Counters next to the run they stand for: weights, phases, launches that are not like the run's, conditions."""

from __future__ import annotations

import csv
import hashlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.ncu.kernels import NcuKernelFacts, analyse_ncu
from llm_perf_opt.analysis.ncu.launch_weights import OFF_BY, RunLaunches, phase_of_filter, profiled_phase
from llm_perf_opt.analysis.ncu.summary import condition_notes, counter_conditions, enrich_kernels
from llm_perf_opt.analysis.ncu.vendor_rules import ranked_rules
from llm_perf_opt.analysis.verdicts import judge
from llm_perf_opt.captures.ncu.launches import (
    LaunchConfiguration,
    NcuCapture,
    NcuLaunch,
    NcuRule,
    NcuSettings,
    Quantity,
)
from llm_perf_opt.captures.ncu.units import parse_unit
from llm_perf_opt.cli import main
from llm_perf_opt.core import units
from llm_perf_opt.stages.ncu.facts import run_configurations
from llm_perf_opt.stages.nsys.facts import nsys_facts
from llm_perf_opt.summary import Kernel, Summary
from llm_perf_opt.summary.file import load_summary
from tests.text_facts import mentions, mentions_in_order
from tests.unit.nsys_exports import call, kernel, nvtx, write_export
from tests.unit.summaries import kernel as row_of
from tests.unit.summaries import summary, timings

SMALL, LARGE, BLOCK = (8, 1, 1), (512, 1, 1), (128, 1, 1)


def quantity(value: float, unit: str) -> Quantity:
    parsed = parse_unit(unit)
    return Quantity(value * parsed.factor, parsed.symbol, repr(value), unit)


def launch(micros: float, grid: tuple[int, int, int] = SMALL, dram: float = 10.0, **more: Any) -> NcuLaunch:
    metrics = {
        "gpu__time_duration.sum": quantity(micros, "us"),
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": quantity(20.0, "%"),
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": quantity(dram, "%"),
    }
    fields: dict[str, Any] = {
        "kernel": "k(int)", "launch_id": "0", "process_id": "1", "grid": grid, "block": BLOCK, "device": "0",
        "compute_capability": "9.0", "metrics": metrics,
    }  # fmt: skip
    return NcuLaunch(**{**fields, **more})


def facts_of(*launches: NcuLaunch) -> list[NcuKernelFacts]:
    return analyse_ncu(NcuCapture(list(launches), "test"))


def in_run(
    grid: tuple[int, int, int], launches: int, micros: float, phase: str | None = "decode"
) -> LaunchConfiguration:
    return LaunchConfiguration("k(int)", phase, grid, BLOCK, launches, round(launches * micros * 1000))


def rows(*phases: str | None, micros: float = 10.0, launches: int = 100) -> list[Kernel]:
    return [
        row_of("k(int)", "gemm", launches * micros / 1e6, phase=phase, launches=launches) for phase in phases
    ]


def test_launches_are_weighted_by_how_often_the_run_has_their_configuration() -> None:
    """One small and one large launch were profiled; the run has 90 of the small and 10 of the large."""
    facts = facts_of(launch(10.0, SMALL, dram=10.0), launch(100.0, LARGE, dram=80.0))
    run = RunLaunches.of([in_run(SMALL, 90, 10.0), in_run(LARGE, 10, 100.0)])
    (row,) = enrich_kernels(rows("decode", micros=19.0), facts, {}, run=run)
    assert row.counters["duration_s"] == pytest.approx((90 * 10e-6 + 10 * 100e-6) / 100)
    assert row.counters["dram_ratio"] == pytest.approx((900 * 0.1 + 1000 * 0.8) / 1900)
    assert row.profiled is not None and row.profiled.representative is True
    assert (row.profiled.configurations, row.profiled.profiled_configurations) == (2, 2)
    assert row.profiled.covered_ratio == 1.0 and row.profiled.duration_ratio == pytest.approx(1.0)
    (plain,) = enrich_kernels(rows("decode", micros=19.0), facts, {})
    assert plain.counters["duration_s"] == pytest.approx(55e-6)  # not weighted: no timeline tells


def test_two_profiled_launches_of_one_configuration_share_its_weight() -> None:
    facts = facts_of(launch(8.0, SMALL), launch(12.0, SMALL), launch(100.0, LARGE))
    run = RunLaunches.of([in_run(SMALL, 30, 10.0), in_run(LARGE, 10, 100.0)])
    (row,) = enrich_kernels(rows("decode"), facts, {}, run=run)
    assert row.counters["duration_s"] == pytest.approx((15 * 8e-6 + 15 * 12e-6 + 10 * 100e-6) / 40)


def test_a_configuration_with_a_small_part_of_the_time_does_not_represent_the_kernel() -> None:
    run = RunLaunches.of([in_run(SMALL, 10, 10.0), in_run(LARGE, 100, 100.0)])
    (row,) = enrich_kernels(rows("decode"), facts_of(launch(10.0, SMALL)), {}, run=run)
    assert row.profiled is not None and row.profiled.representative is False
    assert row.profiled.covered_ratio == pytest.approx(100 / 10_100)
    assert (row.profiled.profiled_configurations, row.profiled.configurations) == (1, 2)
    assert mentions(str(row.profiled.remark), units.percent(row.profiled.covered_ratio))
    assert mentions_in_order(str(row.profiled.remark), "1", "2")


def test_a_grid_the_run_never_has_is_not_representative() -> None:
    run = RunLaunches.of([in_run(LARGE, 100, 100.0)])
    (row,) = enrich_kernels(rows("decode"), facts_of(launch(10.0, SMALL, ranges=("decode",))), {}, run=run)
    assert row.profiled is not None and row.profiled.representative is False
    assert (row.profiled.profiled_configurations, row.profiled.configurations) == (0, 1)
    assert row.profiled.covered_ratio == 0.0
    assert mentions(str(row.profiled.remark), "8 × 1 × 1", "128 × 1 × 1")


@pytest.mark.parametrize(
    ("micros", "fits"), [(10.0, True), (24.0, True), (4.1, True), (26.0, False), (50.0, False), (2.0, False)]
)
@pytest.mark.parametrize("with_configurations", [False, True])
def test_a_launch_several_times_the_runs_mean_is_flagged(
    micros: float, fits: bool, with_configurations: bool
) -> None:
    run = RunLaunches.of([in_run(SMALL, 100, 10.0)] if with_configurations else [])
    (row,) = enrich_kernels(rows("decode"), facts_of(launch(micros)), {}, run=run)
    assert row.profiled is not None
    assert row.profiled.representative is fits and row.counters_are_representative is fits
    assert row.profiled.duration_ratio == pytest.approx(micros / 10.0)
    assert (row.profiled.remark is None) is fits
    if not fits:
        assert f"{OFF_BY:g}" in str(row.profiled.remark) and "×" in str(row.profiled.remark)


def test_without_a_timeline_nothing_is_reported_of_waiting() -> None:
    (row,) = enrich_kernels([], facts_of(launch(10.0)), {})
    assert (
        row.profiled is not None and row.profiled.representative is None and row.counters_are_representative
    )


def test_counters_never_land_on_another_phases_row() -> None:
    found = enrich_kernels(rows("prefill", "decode"), facts_of(launch(10.0, ranges=("decode",))), {})
    assert [(row.phase, bool(row.counters)) for row in found] == [("prefill", False), ("decode", True)]
    only_prefill = enrich_kernels(rows("prefill"), facts_of(launch(10.0, ranges=("sample", "decode"))), {})
    assert [(row.phase, bool(row.counters), row.launches) for row in only_prefill] == [
        ("prefill", False, 100), ("decode", True, None),
    ]  # fmt: skip
    whole = enrich_kernels(rows(None), facts_of(launch(10.0, ranges=("decode",))), {})
    assert [bool(row.counters) for row in whole] == [True]  # a run without phases: the row is of all of it
    assert whole[0].profiled is not None and whole[0].profiled.phase == "decode"


def test_launches_outside_all_phases_are_not_those_of_a_phase() -> None:
    found = enrich_kernels(rows(None, "decode"), facts_of(launch(10.0, ranges=("decode",))), {})
    assert [(row.phase, bool(row.counters)) for row in found] == [(None, False), ("decode", True)]


def test_launches_in_ranges_that_name_no_phase_are_in_no_phase() -> None:
    found = enrich_kernels(rows("decode"), facts_of(launch(10.0, ranges=("warmup",))), {})
    assert [(row.phase, bool(row.counters)) for row in found] == [("decode", False), (None, True)]


def test_without_phases_in_the_capture_the_grid_gives_the_phase() -> None:
    facts = facts_of(launch(10.0, SMALL), launch(100.0, LARGE))
    both = enrich_kernels(rows("prefill", "decode", micros=50.0), facts, {})
    assert [row.counters["ncu_launches"] for row in both] == [2.0, 2.0]
    run = RunLaunches.of([in_run(LARGE, 100, 100.0, "prefill"), in_run(SMALL, 100, 10.0, "decode")])
    shown = enrich_kernels(rows("prefill", "decode"), facts, {}, run=run)
    assert [row.counters["duration_s"] for row in shown] == pytest.approx([100e-6, 10e-6])


@pytest.mark.parametrize(
    ("expression", "phase"),
    [
        ("decode/", "decode"),
        ("regex:decode.*/", "decode"),
        ("LLM@prefill/", "prefill"),
        ("regex:LLM@decode.*/", "decode"),
        ("sample/decode", "decode"),
        ("[sample/*/vision]", "vision"),
        ("step/", None),
    ],
)
def test_the_phase_of_a_filter(expression: str, phase: str | None) -> None:
    assert phase_of_filter(expression) == phase


def test_a_page_without_ranges_is_of_the_phase_ncu_was_set_to_profile() -> None:
    shown = NcuSettings("base", "all", ("regex:decode.*/",), "cmd.txt")
    assert profiled_phase(launch(1.0, settings=shown)) == "decode"
    assert profiled_phase(launch(1.0, settings=shown._replace(nvtx_include=("decode/", "prefill/")))) is None
    assert profiled_phase(launch(1.0, settings=shown, ranges=("prefill",))) == "prefill"
    assert profiled_phase(launch(1.0)) is None


def test_the_verdict_leaves_out_what_does_not_represent_the_run() -> None:
    def verdict(micros: float) -> str:
        (row,) = enrich_kernels(rows("decode"), facts_of(launch(micros, dram=90.0)), {})
        return judge(summary(kernels=[row], timings=timings(decode=1.0)))["decode"].bound

    assert verdict(12.0) == "memory"
    assert verdict(40.0) == "unknown"


def test_no_gain_from_a_rule_of_a_launch_that_is_not_the_runs() -> None:
    rule = NcuRule("SpeedOfLight", "SOLBottleneck", "OPT", "text", 0.5, "global")
    facts = facts_of(launch(10.0, rules=[rule], ranges=("decode",)))
    shares = {"k(int)": {"prefill": 0.9, "decode": 0.5}}
    (row,) = ranked_rules(facts, shares, {"prefill": 1.0, "decode": 2.0})
    assert (row.phase, row.gain_upper_s) == ("decode", 0.5)
    (doubted,) = ranked_rules(facts, shares, {"decode": 2.0}, {"k(int)": {"decode": "it lasts 9 × the mean"}})
    assert doubted.gain_upper_s is None and "9 × the mean" in doubted.arithmetic
    (elsewhere,) = ranked_rules(facts, {"k(int)": {"prefill": 0.9}}, {"prefill": 1.0})
    assert elsewhere.gain_upper_s is None


def test_conditions_are_recorded_and_reported() -> None:
    shown = NcuSettings("none", "all", ("decode/",), "run.ncu-rep")
    capture = NcuCapture([launch(10.0, settings=shown), launch(11.0, settings=shown)], "x")
    found = counter_conditions(capture, [])
    assert (found.clock_control, found.cache_control, found.launches) == ("none", "all", 2)
    assert found.phases == ["decode"] and found.source == "run.ncu-rep"
    assert len(condition_notes(found, [])) == 1


@pytest.mark.parametrize("clocks", ["base", "none", "boost"])
@pytest.mark.parametrize("caches", ["all", "none"])
def test_the_note_follows_the_conditions(clocks: str, caches: str) -> None:
    shown = NcuSettings(clocks, caches, (), "run.ncu-rep")
    capture = NcuCapture([launch(10.0, settings=shown)], "x")
    (note,) = condition_notes(counter_conditions(capture, []), [])
    assert mentions(note, "run.ncu-rep") and "clock" in note and "cache" in note
    assert [word for word in ("base", "boost") if mentions(note, word)] == (
        [] if clocks == "none" else [clocks]
    )
    assert ("flush" in note) is (caches == "all")


def test_conditions_that_are_not_recorded_are_reported_as_such() -> None:
    shown = NcuSettings("none", "all", (), "run.ncu-rep")
    found = counter_conditions(NcuCapture([launch(10.0, settings=shown), launch(11.0)], "x"), [])
    assert found.clock_control is None and found.cache_control is None
    (note,) = condition_notes(found, [])
    assert "clock" in note and "cache" in note and "run.ncu-rep" not in note


def test_a_capture_without_phases_next_to_a_run_with_them_is_reported() -> None:
    capture = NcuCapture([launch(10.0)], "x")
    done = enrich_kernels(rows("prefill", "decode"), analyse_ncu(capture), {})
    notes = condition_notes(counter_conditions(capture, done), done)
    (note,) = [note for note in notes if "NVTX" in note]
    assert "phase" in note
    shown = NcuSettings("base", "all", ("decode/",), "cmd.txt")
    phased = NcuCapture([launch(10.0, settings=shown)], "x")
    done = enrich_kernels(rows("prefill", "decode"), analyse_ncu(phased), {})
    assert not any("NVTX" in note for note in condition_notes(counter_conditions(phased, done), done))


# --- from an export ---------------------------------------------------------------------------------------

GRID = {"gridY": 1, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """A prefill launch of a large grid, three decode launches of a small one, and a kernel outside both."""
    launches = [(0, 500, 100), (2000, 8, 10), (3000, 8, 12), (4000, 8, 14), (9000, 1, 5)]
    tables: dict[str, Any] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            kernel(start + 50, start + 50 + time, number, 1, gridX=grid, **GRID)
            for number, (start, grid, time) in enumerate(launches, 1)
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            call(start + 10, start + 20, number, 2) for number, (start, _, _) in enumerate(launches, 1)
        ],
        "NVTX_EVENTS": [nvtx(0, 1000, "prefill"), nvtx(1500, 5000, "decode")],
    }
    names = {1: "k(int)", 2: "cudaLaunchKernel"}
    more = {"CUPTI_ACTIVITY_KIND_KERNEL": ("gridX", *GRID)}
    return write_export(tmp_path / "run.sqlite", tables, strings=names, extra_columns=more)


def test_configurations_of_an_export_by_phase(export: Path) -> None:
    found = run_configurations(nsys_facts(export).captures)
    assert sorted(found, key=lambda each: str(each.phase)) == [
        LaunchConfiguration("k(int)", None, (1, 1, 1), BLOCK, 1, 5),
        LaunchConfiguration("k(int)", "decode", SMALL, BLOCK, 3, 36),
        LaunchConfiguration("k(int)", "prefill", (500, 1, 1), BLOCK, 1, 100),
    ]


def test_an_export_without_grids_gives_no_configuration(tmp_path: Path) -> None:
    tables = {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel(0, 10, None, 1)]}
    path = write_export(tmp_path / "run.sqlite", tables, strings={1: "k(int)"})
    assert run_configurations(nsys_facts(path).captures) == []


def test_configurations_of_the_real_export_add_up_to_its_kernels(shared_data: Path) -> None:
    path = shared_data / "h100-nsys" / "h100_2gpu_1s.sqlite"
    facts = nsys_facts(path)
    found = run_configurations(facts.captures)
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        shapes = "gridX, gridY, gridZ, blockX, blockY, blockZ"
        wanted = {
            (name, grid, block): (launches, time)
            for name, *shape, launches, time in database.execute(
                f"SELECT value, {shapes}, COUNT(*), SUM(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL "
                f"JOIN StringIds ON id = demangledName GROUP BY value, {shapes}"
            )
            for grid, block in [(tuple(shape[:3]), tuple(shape[3:]))]
        }
    ours: dict[Any, tuple[int, int]] = {}
    for each in found:
        before = ours.get((each.kernel, each.grid, each.block), (0, 0))
        ours[each.kernel, each.grid, each.block] = (before[0] + each.launches, before[1] + each.total_ns)
    assert ours == wanted


def test_the_published_run_flags_the_launches_that_are_not_its_own(shared_data: Path, tmp_path: Path) -> None:
    """Independent arithmetic on the files: duration of each profiled launch ÷ the average nsys prints."""
    folder = shared_data / "rtx5090-deepseek-ocr"
    table = folder / "nsys" / "all-stage.cuda_gpu_kern_sum.csv"
    arguments = ["ingest", "--nsys", table, "--ncu", folder / "ncu", "--out", tmp_path / "run"]
    assert main([str(argument) for argument in arguments]) == 0
    found: Summary = load_summary(tmp_path / "run")
    with table.open(encoding="utf-8", newline="") as stream:
        average = {row["Name"]: float(row["Avg (ns)"]) for row in csv.DictReader(stream)}
    profiled = {row.name: row for row in found.kernels if row.profiled is not None}
    assert len(profiled) == 7
    ranks = {
        int(path.name.split("_")[1]): path.name.split("_")[2]
        for path in (folder / "ncu").iterdir()
        if path.is_dir()
    }
    flagged = set()
    for name, row in profiled.items():
        ratio = (row.counters["duration_s"] or 0.0) * 1e9 / average[name]
        assert row.profiled is not None and row.profiled.duration_ratio == pytest.approx(ratio, rel=1e-4)
        assert row.counters_are_representative is (1 / OFF_BY <= ratio <= OFF_BY)
        digest = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
        flagged |= {
            rank for rank, md5 in ranks.items() if md5 == digest and not row.counters_are_representative
        }
    assert flagged == {3, 17}
    assert found.counters is not None and found.counters.clock_control is None
    assert found.counters.not_representative == 2
    unfit = [row.profiled for row in profiled.values() if not row.counters_are_representative]
    remarks = [str(each.remark) for each in unfit if each is not None]
    (note,) = [note for note in found.notes if all(remark in note for remark in remarks)]
    assert mentions_in_order(note, "2", "7")
    text = (tmp_path / "run" / "kernels.md").read_text(encoding="utf-8")
    assert text.count("(not representative)") == 2


PAGE = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","gpu__time_duration.sum"\n"","","","","","","","","","","","ns"\n'
    '"0","1","p","h","k(int)","1","7","(128, 1, 1)","(8, 1, 1)","0","9.0","13"\n'
    '"1","1","p","h","k(int)","1","7","(128, 1, 1)","(500, 1, 1)","0","9.0","110"\n'
)


def test_ingest_joins_an_export_and_a_page_by_grid_and_phase(export: Path, tmp_path: Path) -> None:
    """The page knows no phases; the large grid is prefill's, the small one decode's, and none is of the third row."""
    page = tmp_path / "ncu" / "raw.csv"
    page.parent.mkdir()
    page.write_text(PAGE, encoding="utf-8")
    (page.parent / "cmd.txt").write_text("ncu --cache-control none ./app\n", encoding="utf-8")
    arguments = ["ingest", "--nsys", export, "--ncu", page.parent, "--out", tmp_path / "out"]
    assert main([str(argument) for argument in arguments]) == 0
    found = load_summary(tmp_path / "out")
    durations = {row.phase: row.counters.get("duration_s") for row in found.kernels}
    assert durations[None] is None
    assert durations["prefill"] == pytest.approx(110e-9) and durations["decode"] == pytest.approx(13e-9)
    by_phase = {row.phase: row.profiled for row in found.kernels}
    assert by_phase["decode"] is not None and by_phase["decode"].duration_ratio == pytest.approx(13 / 12)
    assert found.counters is not None
    assert (found.counters.clock_control, found.counters.cache_control) == ("base", "none")
    (note,) = [note for note in found.notes if "cmd.txt" in note]
    assert "cache" in note and "flush" not in note
