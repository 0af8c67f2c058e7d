"""Known answers of real captures, and the algebra behind them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.kernels.match import match_kernels, name_md5, normalised
from llm_perf_opt.analysis.ncu.kernels import NcuKernelFacts, analyse_ncu
from llm_perf_opt.analysis.ncu.launch import (
    BoundVerdict,
    VendorVerdict,
    agreement,
    classify,
    measured_work,
    peak_rates,
    vendor_verdict,
)
from llm_perf_opt.analysis.ncu.summary import enrich_kernels, join_counters, ncu_kernels_to_summary
from llm_perf_opt.analysis.ncu.vendor_rules import best_global_estimate, ranked_rules
from llm_perf_opt.captures.ncu.launches import NcuCapture, NcuLaunch, NcuRule, Quantity
from llm_perf_opt.captures.ncu.reader import read_ncu
from llm_perf_opt.captures.ncu.units import parse_unit
from llm_perf_opt.hardware.resolve import unknown_hardware
from llm_perf_opt.summary import Kernel
from tests.text_facts import any_mentions, mentions, mentions_in_order

SOL = "GPU Speed Of Light Throughput"


def quantity(value: float, unit: str = "") -> Quantity:
    parsed = parse_unit(unit)
    return Quantity(value * parsed.factor, parsed.symbol, repr(value), unit)


def launch(metrics: dict[str, Quantity], kernel: str = "k(int)", **more: object) -> NcuLaunch:
    fields: dict[str, object] = {
        "launch_id": "0",
        "process_id": "1",
        "grid": (340, 1, 1),
        "block": (128, 1, 1),
        "device": "0",
        "compute_capability": "12.0",
    }
    return NcuLaunch(kernel=kernel, metrics=metrics, **{**fields, **more})  # type: ignore[arg-type]


def facts_of(*launches: NcuLaunch) -> list[NcuKernelFacts]:
    return analyse_ncu(NcuCapture(list(launches), "test"))


GEMM = {
    "gpu__time_duration.sum": quantity(20, "us"),
    "dram__bytes_read.sum": quantity(3, "Mbyte"),
    "dram__bytes_write.sum": quantity(1000, "Kbyte"),
    "dram__bytes.sum.per_second": quantity(200, "Gbyte/s"),
    "sm__ops_path_tensor_src_bf16_dst_fp32.sum": quantity(1e9),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": quantity(75, "%"),
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": quantity(30, "%"),
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": quantity(30, "%"),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": quantity(12, "%"),
}


@pytest.fixture(scope="module")
def rtx5090(shared_data: Path) -> dict[int, NcuKernelFacts]:
    return {
        facts.rank or 0: facts
        for facts in analyse_ncu(read_ncu(shared_data / "rtx5090-deepseek-ocr" / "ncu"))
    }


@pytest.mark.parametrize(
    ("rank", "intensity", "tera"), [(3, 380.617, 54.444), (16, 717.592, 113.423), (13, 70.790, 32.451)]
)
def test_known_intensity_and_rate(
    rtx5090: dict[int, NcuKernelFacts], rank: int, intensity: float, tera: float
) -> None:
    facts = rtx5090[rank]
    assert facts.precision == "tensor_bf16"
    assert round(facts.counters["intensity_flops_per_byte"] or 0, 3) == intensity
    assert round((facts.counters["achieved_flops_per_s"] or 0) / 1e12, 3) == tera


def test_no_intensity_of_a_million(rtx5090: dict[int, NcuKernelFacts]) -> None:
    for facts in rtx5090.values():
        for value in [each.intensity_flops_per_byte for each in facts.precisions]:
            assert value is None or value < 1e4


def test_gemv_counts_its_fp32_work_and_copies_have_none(rtx5090: dict[int, NcuKernelFacts]) -> None:
    gemv = rtx5090[1]
    # Two operations per bf16 weight of two bytes: one FLOP per byte.
    assert gemv.precision == "fp32"
    assert gemv.counters["intensity_flops_per_byte"] == pytest.approx(1.0, abs=0.01)
    for rank in (4, 17):
        copy = rtx5090[rank]
        assert copy.precision is None and copy.counters["intensity_flops_per_byte"] is None
        assert copy.counters["achieved_flops_per_s"] is None and copy.bound.bound != "compute"
        counted = [each.precision for each in copy.precisions]
        assert counted and all(each.flops == 0 for each in copy.precisions), "counted, and none executed"
        assert any_mentions(copy.notes, *counted)


def test_our_class_next_to_nvidias(rtx5090: dict[int, NcuKernelFacts]) -> None:
    ours = {rank: facts.bound.bound for rank, facts in rtx5090.items()}
    assert ours == {
        1: "underfilled",
        3: "l2",
        4: "underfilled",
        10: "l2",
        13: "underfilled",
        16: "latency",
        17: "latency",
    }
    assert {facts.agreement for facts in rtx5090.values()} == {"agrees"}
    assert all(facts.violations == [] and facts.consistent for facts in rtx5090.values())


def test_waves_from_the_grid_and_the_occupancy_limits(rtx5090: dict[int, NcuKernelFacts]) -> None:
    assert {rank: round(facts.counters["waves"] or 0, 1) for rank, facts in rtx5090.items()} == {
        1: 0.7, 3: 1.8, 4: 0.0, 10: 7.1, 13: 0.5, 16: 1.8, 17: 1.3,
    }  # fmt: skip
    assert {facts.counters["sm_count"] for facts in rtx5090.values()} == {170}


def test_ceilings_come_from_the_devices_own_counters(rtx5090: dict[int, NcuKernelFacts]) -> None:
    facts = rtx5090[3]
    assert facts.bandwidth_source == "counters"
    assert facts.peak_bytes_per_s == pytest.approx(128 * 13.77e9)
    fp32 = next(each for each in facts.precisions if each.precision == "fp32")
    assert fp32.peak_flops_per_s == pytest.approx(43520 * 2.01e9) and fp32.peak_source == "counters"


def test_every_ncu_name_finds_its_nsys_name_without_the_md5(shared_data: Path) -> None:
    folder = shared_data / "rtx5090-deepseek-ocr"
    with (folder / "nsys" / "all-stage.cuda_gpu_kern_sum.csv").open() as stream:
        names = [row["Name"] for row in csv.DictReader(stream)]
    assert len({normalised(name) for name in names}) == len(names)
    for each in read_ncu(folder / "ncu").launches:
        md5, each.nsys_name_md5 = each.nsys_name_md5, None
        assert name_md5(match_kernels([each], names)[each.kernel]) == md5


def test_md5_beats_the_name_and_an_ambiguous_function_matches_nothing() -> None:
    names = ["void a::f<(int)1>(T1)", "void a::f<(int)2>(T1)", "g(int)"]
    bare = launch({}, kernel="f")
    assert match_kernels([bare], names) == {}
    assert match_kernels([launch({}, kernel="g")], names) == {"g": "g(int)"}
    bare.nsys_name_md5 = name_md5(names[1])
    assert match_kernels([bare], names) == {"f": names[1]}
    assert match_kernels([launch({}, kernel="void f<2>(T1)")], names) == {"void f<2>(T1)": names[1]}


def test_kernels_that_ncu_prints_alike_keep_their_own_counters() -> None:
    """With ``--print-kernel-base function`` only the MD5 in the folder's name says which kernel was profiled."""
    names = ["void a::f<(int)1>(T1)", "void a::f<(int)2>(T1)"]
    run = [Kernel(name, name, "other", None, None, 1, 1e-3, 0.5) for name in names]
    launches = [
        launch({f"{SOL}/Duration": quantity(each, "us")}, kernel="f", nsys_name_md5=name_md5(name))
        for each, name in zip((5, 7), names, strict=True)
    ]
    found = join_counters(NcuCapture(launches, "test"), run, unknown_hardware(None, "test"))
    assert [row.name for row in found.kernels] == names
    assert [row.counters["duration_s"] for row in found.kernels] == [
        pytest.approx(5e-6),
        pytest.approx(7e-6),
    ]
    assert [each.kernel for each in launches] == ["f", "f"]


def test_without_counters_nothing_is_invented() -> None:
    (facts,) = facts_of(launch({f"{SOL}/Duration": quantity(5, "us")}))
    assert facts.counters["duration_s"] == pytest.approx(5e-6)
    assert facts.precision is None and facts.bound.bound == "unknown" and facts.vendor is None
    assert facts.counters["compute_ratio"] is None and facts.counters["dram_bytes"] is None
    assert facts.precisions == []
    assert any("sm__ops_path_tensor_src_" in note for note in facts.notes), "what to collect"


def test_launches_of_one_kernel_are_joined_by_work_bytes_and_time() -> None:
    slow = {
        **GEMM,
        "gpu__time_duration.sum": quantity(60, "us"),
        "dram__bytes.sum.per_second": quantity(66.67, "Gbyte/s"),
    }
    slow["sm__throughput.avg.pct_of_peak_sustained_elapsed"] = quantity(25, "%")
    (facts,) = facts_of(launch(GEMM), launch(slow))
    assert facts.launches == 2
    assert facts.counters["duration_s"] == pytest.approx(40e-6)
    assert facts.counters["intensity_flops_per_byte"] == pytest.approx(2e9 / 8e6)
    assert facts.counters["achieved_flops_per_s"] == pytest.approx(2e9 / 80e-6)
    assert facts.counters["compute_ratio"] == pytest.approx((0.75 * 20 + 0.25 * 60) / 80)


@given(st.lists(st.tuples(st.floats(1, 1e3), st.floats(1, 1e3)), min_size=1, max_size=6))
def test_a_joined_share_lies_between_its_parts(pairs: list[tuple[float, float]]) -> None:
    name = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
    launches = [
        launch({"gpu__time_duration.sum": quantity(time, "us"), name: quantity(share / 10, "%")})
        for time, share in pairs
    ]
    (facts,) = facts_of(*launches)
    shares = [share / 1000 for _, share in pairs]
    value = facts.counters["compute_ratio"]
    assert value is not None and min(shares) - 1e-9 <= value <= max(shares) + 1e-9


def test_units_lost_on_the_way_are_refused() -> None:
    wrong = {
        **GEMM,
        "dram__bytes_read.sum": quantity(3, "byte"),
        "dram__bytes_write.sum": quantity(1, "byte"),
    }
    (facts,) = facts_of(launch(wrong))
    assert not facts.consistent
    assert (
        facts.counters["intensity_flops_per_byte"] is None and facts.counters["achieved_flops_per_s"] is None
    )
    (violation,) = facts.parts[0].violations
    assert violation.refused == {"dram_bytes", "duration_s", "dram_bytes_per_s"}
    assert violation.text in facts.violations and violation.text.count("B/s") == 2
    assert any(violation.text in note and mentions(note, *violation.refused) for note in facts.notes)


def test_a_share_above_one_is_refused() -> None:
    wrong = {**GEMM, "sm__throughput.avg.pct_of_peak_sustained_elapsed": quantity(7500, "%")}
    (facts,) = facts_of(launch(wrong))
    assert facts.counters["compute_ratio"] is None and not facts.consistent


@pytest.mark.parametrize("bandwidth", [194, 200, 206])
def test_noise_between_replays_is_accepted(bandwidth: float) -> None:
    (facts,) = facts_of(launch({**GEMM, "dram__bytes.sum.per_second": quantity(bandwidth, "Gbyte/s")}))
    assert facts.violations == []


def test_a_remarkable_deviation_is_reported_but_not_refused() -> None:
    (facts,) = facts_of(launch({**GEMM, "dram__bytes.sum.per_second": quantity(240, "Gbyte/s")}))
    assert facts.violations and facts.consistent and facts.counters["intensity_flops_per_byte"] == 250


def test_no_dram_traffic_gives_no_intensity_but_a_rate() -> None:
    metrics = {
        **GEMM,
        "dram__bytes_read.sum": quantity(0, "byte"),
        "dram__bytes_write.sum": quantity(0, "byte"),
    }
    del metrics["dram__bytes.sum.per_second"]
    (facts,) = facts_of(launch(metrics))
    assert facts.counters["intensity_flops_per_byte"] is None
    assert facts.counters["achieved_flops_per_s"] == pytest.approx(5e13)
    assert facts.counters["dram_bytes"] == 0
    (note,) = [note for note in facts.notes if "intensity" in note]
    assert "DRAM" in note


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"sm__ops_path_tensor_src_fp16_dst_fp32.sum": 8.0}, {"tensor_fp16": 8}),
        (
            {
                "sm__ops_path_tensor_src_fp16_dst_fp32.sum": 8.0,
                "sm__ops_path_tensor_src_fp16_dst_fp32_sparsity_off.sum": 5.0,
                "sm__ops_path_tensor_src_fp16_dst_fp32_sparsity_on.sum": 3.0,
                "sm__ops_path_tensor_src_fp16_dst_fp16.sum": 2.0,
            },
            {"tensor_fp16": 10},
        ),
        (
            {
                "sm__ops_path_tensor_op_hmma_src_bf16_dst_fp32_sparsity_off.sum": 1.0,
                "sm__ops_path_tensor_op_hmma_src_bf16_dst_fp32_sparsity_on.sum": 2.0,
                "sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32_sparsity_off.sum": 4.0,
                "sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32_sparsity_on.sum": 0.0,
            },
            {"tensor_bf16": 7},
        ),
        (
            {"sm__ops_path_tensor_src_fp16.sum": 9.0, "sm__ops_path_tensor_src_fp16_dst_fp32.sum": 9.0},
            {"tensor_fp16": 9},
        ),
        (
            {"sm__ops_path_tensor_src_fp8.sum": 9.0, "sm__ops_path_tensor_src_fp64.sum": 1.0},
            {"tensor_fp8": 9, "tensor_fp64": 1},
        ),
        ({"sm__ops_path_tensor_src_int8.sum": 9.0}, {}),
        ({"sm__ops_path_tensor_src_tf32_dst_fp32.sum.per_cycle_elapsed": 3.0}, {"tensor_tf32": 6000}),
        (
            {
                "smsp__sass_thread_inst_executed_op_hadd_pred_on.sum": 1.0,
                "smsp__sass_thread_inst_executed_op_hmul_pred_on.sum": 2.0,
                "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum": 3.0,
            },
            {"fp16": 9},
        ),
        ({"smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": 1.0}, {}),
    ],
)
def test_work_by_precision(names: dict[str, float], expected: dict[str, float]) -> None:
    work = measured_work({name: quantity(value) for name, value in names.items()}, 1e-6, 2e9)
    assert {each.precision: each.flops for each in work} == pytest.approx(expected)


def test_tensor_roofline_labels_of_the_details_page() -> None:
    section = "GPU Speed Of Light Hierarchical Roofline Chart (Tensor Core)"
    metrics = {
        f"{section}/DRAM Achieved Value (Src:bf16 Dst:fp32 Sparsity:off)/Tensor Operations Per Cycle": quantity(
            100, "inst"
        ),
        f"{section}/L2 Cache Achieved Value (Src:bf16 Dst:fp32 Sparsity:off)/Tensor Operations Per Cycle": quantity(
            100, "inst"
        ),
        f"{section}/DRAM Roofline (Src:bf16 Dst:fp32 Sparsity:off)/Theoretical Tensor Operations": quantity(
            1000, "inst"
        ),
        f"{section}/DRAM Roofline (Src:bf16 Dst:fp32 Sparsity:on)/Theoretical Tensor Operations": quantity(
            2000, "inst"
        ),
    }
    (work,) = measured_work(metrics, 1e-6, 2e9)
    assert (work.precision, work.flops) == ("tensor_bf16", pytest.approx(2e5))
    assert peak_rates(metrics, 2e9) == {"tensor_bf16": 2e12}


def test_catalogue_fills_only_missing_ceilings() -> None:
    metrics = {
        **GEMM,
        "dram__bytes.sum.peak_sustained": quantity(128, "byte/cycle"),
        "dram__cycles_elapsed.avg.per_second": quantity(14, "Ghz"),
    }
    (facts,) = analyse_ncu(
        NcuCapture([launch(metrics)], "test"), peak_flops_per_s={"bfloat16": 2e14}, peak_bytes_per_s=1.0
    )
    assert facts.peak_bytes_per_s == pytest.approx(128 * 14e9) and facts.bandwidth_source == "counters"
    (head,) = facts.precisions
    assert (head.peak_flops_per_s, head.peak_source) == (2e14, "catalogue")


@pytest.mark.parametrize(
    ("values", "arithmetic", "bound"),
    [
        ({"compute_ratio": 0.85, "l2_ratio": 0.3, "dram_ratio": 0.2}, True, "compute"),
        ({"compute_ratio": 0.85, "l2_ratio": 0.3, "dram_ratio": 0.2}, None, "compute"),
        ({"compute_ratio": 0.85, "l2_ratio": 0.3, "dram_ratio": 0.2}, False, "issue"),
        ({"compute_ratio": 0.7, "l2_ratio": 0.65, "dram_ratio": 0.2}, True, "balanced"),
        ({"compute_ratio": 0.2, "l2_ratio": 0.3, "dram_ratio": 0.9}, True, "dram"),
        ({"compute_ratio": 0.2, "l1_ratio": 0.9, "l2_ratio": 0.3, "dram_ratio": 0.2}, True, "l1"),
        (
            {"compute_ratio": 0.2, "l1_ratio": 0.9, "sm_active_cycles": 10, "elapsed_cycles": 100},
            True,
            "latency",
        ),
        ({"compute_ratio": 0.2, "memory_ratio": 0.9}, True, "memory"),
        ({"compute_ratio": 0.2, "dram_ratio": 0.2, "waves": 0.9}, True, "underfilled"),
        ({"compute_ratio": 0.9, "dram_ratio": 0.2, "waves": 0.9}, True, "compute"),
        ({"compute_ratio": 0.2, "dram_ratio": 0.2, "waves": 3.0}, True, "latency"),
        ({"compute_ratio": 0.2}, True, "unknown"),
        ({"dram_ratio": 0.95}, None, "dram"),
        ({}, None, "unknown"),
    ],
)
def test_classes(values: dict[str, float], arithmetic: bool | None, bound: str) -> None:
    verdict = classify(values, arithmetic)
    assert verdict.bound == bound and verdict.arithmetic


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("This kernel grid is too small to fill the available resources on this device", "underfilled"),
        ("Memory is more heavily utilized than Compute: Look at the Memory Workload Analysis section to identify the L1 bottleneck.", "l1"),
        ("Memory is more heavily utilized than Compute: Look at the Memory Workload Analysis report section to see where the memory system bottleneck is.", "memory"),
        ("Compute is more heavily utilized than Memory: Look at the Compute Workload Analysis section", "compute"),
        ("Compute and Memory are well-balanced: To reduce runtime, both computation and memory traffic must be reduced.", "balanced"),
        ("This workload exhibits low compute throughput and memory bandwidth utilization", "latency"),
        ("The kernel is utilizing greater than 80.0% of the available compute or memory performance of the device. Start by analyzing DRAM in the Memory Workload Analysis section.", "dram"),
        ("The kernel is utilizing greater than 80.0% of the available compute or memory performance. Start by analyzing workloads in the Compute Workload Analysis section.", "compute"),
        ("Something new", None),
    ],
)  # fmt: skip
def test_nvidias_sentences(text: str, bound: str | None) -> None:
    verdict = vendor_verdict([NcuRule("SpeedOfLight", "SOLBottleneck", "OPT", text, None, None)])
    assert verdict == VendorVerdict(bound, text)


def test_agreement_is_stated_not_assumed() -> None:
    ours = BoundVerdict("l2", "")
    assert agreement(ours, None) is None
    assert agreement(ours, VendorVerdict("l2", "")) == "agrees"
    assert str(agreement(ours, VendorVerdict("dram", ""))).startswith("partly")
    assert str(agreement(ours, VendorVerdict("compute", ""))).startswith("differs")
    assert str(agreement(ours, VendorVerdict(None, ""))).startswith("unclear")


def test_rules_become_ranked_time(rtx5090: dict[int, NcuKernelFacts]) -> None:
    facts = list(rtx5090.values())
    shares = {rtx5090[1].kernel: {"decode": 0.25}, rtx5090[3].kernel: {"decode": 0.06, "prefill": 0.3}}
    rows = ranked_rules(facts, shares, {"decode": 0.011, "prefill": 0.098})
    first = rows[0]
    assert (first.kernel, first.phase) == (rtx5090[3].kernel, "prefill")
    assert first.gain_upper_s == pytest.approx(0.3817 * 0.3 * 0.098)
    assert mentions_in_order(first.arithmetic, "38.2 %", "30.0 %", "prefill", "98.0 ms", "11.2 ms")
    gains = [row.gain_upper_s or 0.0 for row in rows]
    assert gains == sorted(gains, reverse=True)
    assert any(row.gain_upper_s is None and row.share_ratio is None for row in rows)


def test_only_global_estimates_are_of_run_time() -> None:
    rules = [NcuRule("S", "a", "OPT", "", 0.8, "local"), NcuRule("S", "b", "OPT", "", 0.3, "global")]
    assert best_global_estimate(rules) == 0.3 and best_global_estimate(rules[:1]) is None


def test_rows_of_the_summary(rtx5090: dict[int, NcuKernelFacts]) -> None:
    facts = list(rtx5090.values())
    nsys_name = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(T1::Params)"
    known = Kernel(nsys_name, "gemm", "gemm", "decode", None, 10, 1.0, 0.5)
    rows = enrich_kernels([known], facts, match_kernels(facts, [nsys_name]))
    assert len(rows) == 7 and rows[0].bound == "l2" and rows[0].launches == 10
    assert rows[0].counters["intensity_flops_per_byte"] == pytest.approx(380.617, abs=5e-4)
    assert rows[0].estimated_speedup_ratio == pytest.approx(0.3817) and rows[0].agreement == "agrees"
    vendor = rtx5090[3].vendor
    assert vendor is not None and vendor.bound == "l2" and rows[0].vendor_verdict == vendor.text
    texts = [rule.text for rule in rtx5090[3].rules if rule.name in ("SOLBottleneck", "Bottleneck")]
    assert vendor.text in texts, "in NVIDIA's own words"
    alone = ncu_kernels_to_summary(facts)
    assert all(row.total_s is None and row.share_ratio is None for row in alone)


def test_kernels_in_different_ranges_are_different_rows() -> None:
    rows = facts_of(
        launch(GEMM, ranges=("prefill",)),
        launch(GEMM, ranges=("decode", "layer 3")),
        launch(GEMM, ranges=("decode",)),
    )
    assert sorted((row.phase or "", row.launches) for row in rows) == [("decode", 2), ("prefill", 1)]
