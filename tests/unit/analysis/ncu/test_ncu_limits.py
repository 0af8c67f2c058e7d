"""Where a verdict, a check or an estimate of a kernel changes, in numbers that need no capture."""

from __future__ import annotations

import re

import pytest

from llm_perf_opt.analysis.ncu.kernels import NcuKernelFacts, analyse_ncu
from llm_perf_opt.analysis.ncu.launch import (
    BoundVerdict,
    VendorVerdict,
    agreement,
    analyse_launch,
    check,
    classify,
    measured_work,
    peak_rates,
    rounding_of,
    vendor_verdict,
    vendor_waves,
)
from llm_perf_opt.analysis.ncu.metrics import find
from llm_perf_opt.analysis.ncu.summary import enrich_kernels, ncu_kernels_to_summary
from llm_perf_opt.analysis.ncu.vendor_rules import phase_times, rank, ranked_rules, vendor_rules
from llm_perf_opt.captures.ncu.launches import NcuCapture, NcuLaunch, NcuRule, Quantity
from llm_perf_opt.core import units
from llm_perf_opt.summary import Timings
from tests.text_facts import any_mentions, mentions, mentions_in_order, numbers
from tests.unit.analysis.ncu.test_ncu_facts import GEMM, SOL, facts_of, launch, quantity
from tests.unit.summaries import budget, kernel, one, summary, timings

COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"


@pytest.mark.parametrize(
    ("values", "bound"),
    [
        ({"compute_ratio": 0.6, "dram_ratio": 0.2}, "compute"),  # busy from 60 % on
        ({"compute_ratio": 0.59, "dram_ratio": 0.2}, "latency"),
        ({"compute_ratio": 0.2, "dram_ratio": 0.6}, "dram"),
        ({"compute_ratio": 0.7, "dram_ratio": 0.6}, "balanced"),  # closer than ten points
        ({"compute_ratio": 0.75, "dram_ratio": 0.625}, "compute"),
        ({"compute_ratio": 0.65, "dram_ratio": 0.59}, "compute"),  # only one of them is busy
        ({"compute_ratio": 0.9, "dram_ratio": 0.9}, "balanced"),
        (
            {"compute_ratio": 0.2, "dram_ratio": 0.2, "waves": 1.0},
            "latency",
        ),  # one full wave fills the device
        ({"compute_ratio": 0.2, "dram_ratio": 0.2, "waves": 0.99}, "underfilled"),
        ({"compute_ratio": 0.2, "waves": 0.5}, "underfilled"),
        ({"dram_ratio": 0.2}, "unknown"),
        (
            {"compute_ratio": 0.2, "l2_ratio": 0.7, "memory_ratio": 0.75},
            "l2",
        ),  # the total is one of its parts
        ({"compute_ratio": 0.2, "l2_ratio": 0.7, "memory_ratio": 0.8}, "memory"),  # or some other part
        ({"compute_ratio": 0.2, "l1_elapsed_ratio": 0.3, "l1_ratio": 0.9}, "latency"),
        ({"compute_ratio": 0.2, "l1_ratio": 0.8, "sm_active_cycles": 3.0, "elapsed_cycles": 4.0}, "l1"),
        ({"compute_ratio": 0.2, "l1_ratio": 0.8, "sm_active_cycles": 2.0, "elapsed_cycles": 4.0}, "latency"),
        ({"compute_ratio": 0.2, "l1_ratio": 0.61, "sm_active_cycles": 8.0, "elapsed_cycles": 4.0}, "l1"),
    ],
)
def test_where_a_class_begins(values: dict[str, float], bound: str) -> None:
    assert classify(values, True).bound == bound


def test_the_sentences_of_the_classes() -> None:
    balanced = classify({"compute_ratio": 0.7, "dram_ratio": 0.65}, True)
    assert balanced.bound == "balanced"
    assert mentions_in_order(balanced.arithmetic, "SM", "70.0 %", "DRAM", "65.0 %")
    assert re.search(r"\b60 ?%.*\b10 ?%", balanced.arithmetic)
    busy = classify({"compute_ratio": 0.8, "l2_ratio": 0.5, "waves": 2.5, "occupancy_ratio": 0.25}, True)
    assert busy.bound == "compute" and re.search(r"\b60 ?%", busy.arithmetic)
    assert mentions_in_order(busy.arithmetic, "SM", "80.0 %", "L2", "50.0 %")
    compute, cache, waves, occupancy = busy.evidence
    assert mentions(compute, "SM", "80.0 %") and mentions(cache, "L2", "50.0 %")
    assert mentions(waves, "2.50") and mentions(occupancy, "25.0 %")
    copying, computing = classify({"compute_ratio": 0.8}, False), classify({"compute_ratio": 0.8}, True)
    assert (copying.bound, computing.bound) == ("issue", "compute")
    assert len(copying.arithmetic) > len(computing.arithmetic), "why it is no compute is said"
    small = classify({"compute_ratio": 0.2, "dram_ratio": 0.3, "waves": 0.25}, True)
    assert small.bound == "underfilled" and mentions(small.arithmetic, "0.25", "30.0 %")


@pytest.mark.parametrize(
    ("ours", "theirs", "code", "names_both"),
    [
        ("l2", "l2", "agrees", False),
        ("unknown", "l2", "unclear", False),
        ("l1", "memory", "partly", True),
        ("compute", "l2", "differs", True),
        ("l2", "compute", "differs", True),
        ("issue", "compute", "partly", False),
        ("underfilled", "latency", "partly", True),
        ("latency", "compute", "differs", True),
    ],
)
def test_two_verdicts_side_by_side(ours: str, theirs: str, code: str, names_both: bool) -> None:
    text = agreement(BoundVerdict(ours, ""), VendorVerdict(theirs, ""))
    assert text is not None
    found, _, why = text.partition(": ")
    assert found == code and bool(why) == (code != "agrees")
    if names_both:
        assert mentions_in_order(why, ours, "NVIDIA", theirs)


def rule(text: str = "", ratio: float | None = None, scope: str | None = None, name: str = "Rule") -> NcuRule:
    return NcuRule("Section", name, "OPT", text, ratio, scope)


def test_only_the_bottleneck_rule_is_a_verdict() -> None:
    text = "Compute is more heavily utilized than Memory"
    assert vendor_verdict([rule(text)]) is None
    assert vendor_verdict([rule("", name="SOLBottleneck"), rule(text, name="Bottleneck")]) == VendorVerdict(
        "compute", text
    )
    mentioned = "a grid of only 2,5 full waves"  # NVIDIA's words
    assert vendor_waves([rule("nothing"), rule(mentioned)]) == 2.5
    assert vendor_waves([rule("nothing")]) is None


# identities

CONSISTENT = {
    "duration_s": 1e-3,
    "dram_bytes": 1e9,
    "dram_bytes_per_s": 1e12,
    "sm_frequency_hz": 1e9,
    "elapsed_cycles": 1e6,
    "dram_peak_bytes_per_cycle": 1000.0,
    "dram_frequency_hz": 2e9,
    "dram_ratio": 0.5,
    "compute_ratio": 1.1,
    "occupancy_ratio": 0.5,
    "theoretical_occupancy_ratio": 0.5,
}


def identity(text: str) -> str:
    """Return which identity a violation is of, by the quantities and units it names."""
    if "compute_ratio" in text:
        return "compute_ratio"
    if "occupancy" in text:
        return "occupancy"
    if "cycles" in text:
        return "clock"
    assert "DRAM" in text
    return "DRAM bandwidth" if "B/s" in text else "DRAM share"


def verdicts(rounding: dict[str, float] | None = None, **changes: float) -> list[tuple[str, bool]]:
    """Identity of each violation, and whether it refuses something."""
    found = check({**CONSISTENT, **changes}, rounding or {})
    return [(identity(violation.text), bool(violation.refused)) for violation in found]


def test_numbers_that_agree_raise_no_problem() -> None:
    assert verdicts() == []
    assert check({}, {}) == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"dram_bytes": 1.029e9}, []),  # three percent between replays are normal
        ({"dram_bytes": 1.03e9}, []),
        ({"dram_bytes": 0.971e9}, []),
        ({"dram_bytes": 1.04e9}, [("DRAM bandwidth", False)]),
        ({"dram_bytes": 1.49e9}, [("DRAM bandwidth", False)]),
        ({"dram_bytes": 1.5e9}, [("DRAM bandwidth", False)]),
        ({"dram_bytes": 1.51e9}, [("DRAM bandwidth", True)]),
        ({"dram_bytes": 0.0}, [("DRAM bandwidth", True)]),
        ({"dram_bytes": 500.0, "dram_bytes_per_s": 1.0, "dram_ratio": 0.0}, []),  # too little to compare
        ({"dram_bytes": 1000.0, "dram_bytes_per_s": 1.0, "dram_ratio": 0.0}, [("DRAM bandwidth", True)]),
        ({"elapsed_cycles": 1.12e6}, []),  # clocks ramp: a tenth more
        ({"elapsed_cycles": 1.14e6}, [("clock", False)]),
        ({"elapsed_cycles": 1.59e6}, [("clock", False)]),
        ({"elapsed_cycles": 1.61e6}, [("clock", True)]),
        ({"dram_ratio": 0.48}, []),
        ({"dram_ratio": 0.47}, [("DRAM share", False)]),  # moved more than the share says was busy
        ({"dram_ratio": 0.49 / 1.5}, [("DRAM share", False)]),
        ({"dram_ratio": 0.3}, [("DRAM share", True)]),
        ({"dram_ratio": 0.9}, []),
        ({"compute_ratio": 1.11}, [("compute_ratio", True)]),
        ({"compute_ratio": -0.01}, [("compute_ratio", True)]),
        ({"compute_ratio": 0.0}, []),
        ({"occupancy_ratio": 0.511}, []),
        ({"occupancy_ratio": 0.513}, [("occupancy", False)]),
    ],
)
def test_where_a_problem_begins(changes: dict[str, float], found: list[tuple[str, bool]]) -> None:
    assert verdicts(**changes) == found


def test_what_printing_rounded_away_is_allowed_for() -> None:
    assert verdicts(dram_bytes=1.1e9) == [("DRAM bandwidth", False)]
    assert (
        verdicts({"dram_bytes": 0.04, "duration_s": 0.02, "dram_bytes_per_s": 0.02}, dram_bytes=1.1e9) == []
    )
    assert verdicts({"elapsed_cycles": 0.1}, elapsed_cycles=1.2e6) == []
    assert verdicts({"dram_ratio": 0.1}, dram_ratio=0.45) == []
    assert verdicts({"occupancy_ratio": 0.1}, occupancy_ratio=0.55) == []
    assert rounding_of(quantity(12.5, "us")) == pytest.approx(0.05 / 12.5)
    assert rounding_of(quantity(0.0, "us")) == 0.0


def test_what_is_refused_is_what_the_numbers_came_from() -> None:
    (found,) = check({**CONSISTENT, "dram_bytes": 9e9}, {})
    assert found.refused == {"dram_bytes", "duration_s", "dram_bytes_per_s"}
    assert mentions_in_order(found.text, "9.00 TB/s", "1.00 TB/s")
    (found,) = check({**CONSISTENT, "elapsed_cycles": 9e6}, {})
    assert found.refused == {"duration_s"}
    (found,) = check({**CONSISTENT, "dram_ratio": 0.1}, {})
    assert found.refused == {"dram_ratio", "dram_bytes_per_s"}
    assert mentions_in_order(found.text, "50.0 %", "10.0 %")


# work and ceilings


def test_ceilings_of_vector_units_are_two_operations_per_multiply_add() -> None:
    name = "sm__sass_thread_inst_executed_op_{}fma_pred_on.sum.peak_sustained"
    metrics = {name.format(letter): quantity(value) for letter, value in (("f", 100.0), ("d", 50.0))}
    assert peak_rates(metrics, 3.0) == {"fp32": 600.0, "fp64": 300.0}
    assert peak_rates(metrics, None) == {}
    tensor = "sm__ops_path_tensor_src_bf16_dst_fp32_sparsity_{}.sum.peak_sustained"
    both = {tensor.format("on"): quantity(200.0), tensor.format("off"): quantity(100.0)}
    assert peak_rates(both, 2.0) == {"tensor_bf16": 200.0}
    assert peak_rates({tensor.format("off"): quantity(0.0)}, 2.0) == {}


def test_work_counted_per_cycle_needs_the_cycles() -> None:
    name = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
    metrics = {
        name.format(op): quantity(value) for op, value in (("fadd", 1.0), ("fmul", 2.0), ("ffma", 3.0))
    }
    (work,) = measured_work(metrics, 2.0, 10.0)
    assert (work.precision, work.flops) == ("fp32", 180.0)
    assert measured_work(metrics, None, 10.0) == measured_work(metrics, 2.0, None) == []
    absolute = {"sm__ops_path_tensor_src_bf16.sum": quantity(7.0)}
    both = {**absolute, "sm__ops_path_tensor_src_bf16.sum.per_cycle_elapsed": quantity(9.0)}
    assert [work.flops for work in measured_work(both, 1.0, 1.0)] == [7.0]  # counted beats computed
    several = measured_work({**absolute, **metrics}, 2.0, 10.0)
    assert [work.precision for work in several] == ["fp32", "tensor_bf16"]  # the most first


def test_work_of_all_instructions_is_not_added_to_that_of_each() -> None:
    names = {"": 7.0, "_op_hmma": 3.0, "_op_hgmma": 4.0}
    metrics = {
        f"sm__ops_path_tensor{op}_src_bf16_dst_fp32.sum": quantity(value) for op, value in names.items()
    }
    assert [work.flops for work in measured_work(metrics, 1.0, 1.0)] == [7.0]


def test_labels_of_the_roofline_section_map_to_their_counters() -> None:
    label = "Predicated-On {} Thread Instructions Executed Per Cycle"
    peak = "Theoretical Predicated-On FFMA Thread Instructions Executed"
    chart = "GPU Speed Of Light Roofline Chart"
    metrics = {f"Other Section/{label.format(op)}": quantity(99.0) for op in ("FADD", "FMUL", "FFMA")}
    metrics |= {
        f"{chart}/{label.format(op)}": quantity(value)
        for op, value in (("FADD", 1.0), ("FMUL", 2.0), ("FFMA", 3.0))
    }
    metrics |= {f"Other Section/{peak}": quantity(99.0), f"{chart}/{peak}": quantity(50.0)}
    (work,) = measured_work(metrics, 2.0, 10.0)
    assert (work.precision, work.flops) == ("fp32", 180.0)
    assert peak_rates(metrics, 10.0) == {"fp32": 1000.0}


def test_waves_are_blocks_over_what_fits_at_once() -> None:
    limits = {
        "launch__occupancy_limit_registers": quantity(4, "block"),
        "launch__occupancy_limit_warps": quantity(2, "block"),
        "launch__occupancy_limit_barriers": quantity(0, "block"),
        "launch__sm_count": quantity(85),
    }
    assert analyse_launch(launch(limits, grid=(17, 10, 3))).values["waves"] == 3.0
    given = {**limits, "launch__waves_per_multiprocessor": quantity(7.0)}
    assert analyse_launch(launch(given)).values["waves"] == 7.0
    text = launch({}, rules=[rule("a grid of only 0.5 full waves")])
    assert analyse_launch(text).values["waves"] == 0.5
    assert "waves" not in analyse_launch(launch({}, grid=None)).values


@pytest.mark.parametrize(
    ("capability", "lanes"),
    [("12.0", 128), ("8.0", 64), ("8.6", 128), ("7.5", 64), ("6.0", 64), ("6.1", 128), (None, 128)],
)
def test_the_number_of_sms_from_the_ceiling_of_one_cycle(capability: str | None, lanes: int) -> None:
    metrics = {"sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained": quantity(100.0 * lanes)}
    assert analyse_launch(launch(metrics, compute_capability=capability)).values["sm_count"] == 100.0


def test_dram_traffic_is_counted_or_made_of_its_rate() -> None:
    def traffic(**metrics: float) -> tuple[float | None, list[str]]:
        units = {"dram__bytes.sum.per_second": "byte/second", "gpu__time_duration.sum": "second"}
        names = {name.replace("_per_second", ".sum.per_second"): value for name, value in metrics.items()}
        names = {name if "." in name else f"{name}.sum": value for name, value in names.items()}
        found = analyse_launch(launch({n: quantity(v, units.get(n, "byte")) for n, v in names.items()}))
        return found.values.get("dram_bytes"), found.notes

    assert traffic(dram__bytes_read=3.0, dram__bytes_write=1.0) == (4.0, [])
    assert traffic(dram__bytes_read=3.0, dram__bytes_write=1.0, dram__bytes=5.0) == (5.0, [])
    assert traffic(dram__bytes_read=3.0) == (None, [])
    value, notes = traffic(dram__bytes_per_second=8.0, gpu__time_duration=2.0)
    assert value == 16.0
    (note,) = notes
    assert "DRAM" in note


def test_the_ceiling_of_memory_is_bytes_per_cycle_times_its_clock() -> None:
    metrics = {
        "dram__bytes.sum.peak_sustained": quantity(128, "byte/cycle"),
        "dram__cycles_elapsed.avg.per_second": quantity(2, "Ghz"),
    }
    assert analyse_launch(launch(metrics)).peak_bytes_per_s == 256e9
    del metrics["dram__cycles_elapsed.avg.per_second"]
    assert analyse_launch(launch(metrics)).peak_bytes_per_s is None


# several launches of a kernel


def test_kernels_come_by_rank_then_by_time() -> None:
    def timed(name: str, seconds: float, rank: int | None = None) -> NcuLaunch:
        return launch({f"{SOL}/Duration": quantity(seconds, "second")}, kernel=name, rank=rank)

    rows = facts_of(
        timed("short", 1.0), timed("twice", 2.0), timed("twice", 2.0), timed("long", 3.0), timed("2nd", 0.1, 2), timed("1st", 0.1, 1)
    )  # fmt: skip
    assert [row.kernel for row in rows] == ["1st", "2nd", "twice", "long", "short"]


def test_what_some_launches_lack_is_noted() -> None:
    without = {name: value for name, value in GEMM.items() if name != COMPUTE}
    (facts,) = facts_of(launch(GEMM), launch(GEMM), launch(without))
    (note,) = [note for note in facts.notes if "compute_ratio" in note]
    assert numbers(note) == ["2", "3"]
    assert facts.counters["compute_ratio"] == pytest.approx(0.75)
    untimed = {name: value for name, value in GEMM.items() if "time_duration" not in name}
    (facts,) = facts_of(launch(GEMM), launch(untimed))
    assert facts.counters["achieved_flops_per_s"] is None  # the work of both, the time of one
    assert facts.counters["intensity_flops_per_byte"] == pytest.approx(250)


def test_shares_without_times_are_plain_means() -> None:
    (facts,) = facts_of(launch({COMPUTE: quantity(20, "%")}), launch({COMPUTE: quantity(40, "%")}))
    assert facts.counters["compute_ratio"] == pytest.approx(0.3)


def test_bytes_and_work_are_means_per_launch() -> None:
    more = {
        **GEMM,
        "dram__bytes_read.sum": quantity(2, "Mbyte"),
        "dram__bytes.sum.per_second": quantity(150, "Gbyte/s"),
    }
    more["sm__ops_path_tensor_src_bf16_dst_fp32.sum"] = quantity(3e9)
    (facts,) = facts_of(launch(GEMM), launch(more))
    assert facts.counters["dram_bytes"] == pytest.approx(3.5e6)
    assert facts.counters["flops"] == pytest.approx(2e9)
    assert facts.counters["intensity_flops_per_byte"] == pytest.approx(4e9 / 7e6)


@pytest.mark.parametrize(("peak", "doubted"), [(4.6e13, False), (4.5e13, True), (9e13, False)])
def test_a_rate_above_its_ceiling_is_doubted(peak: float, doubted: bool) -> None:
    capture = NcuCapture([launch(GEMM)], "test")  # 50 TFLOP/s
    (facts,) = analyse_ncu(capture, peak_flops_per_s={"bfloat16": peak})
    assert any_mentions(facts.notes, "tensor_bf16", "50.0 TFLOP/s", units.flops_per_s(peak)) is doubted
    assert facts.precisions[0].peak_source == "catalogue"


def test_a_kernel_that_only_moves_data_is_not_called_compute_bound() -> None:
    busy = {
        COMPUTE: quantity(80, "%"),
        "lts__throughput.avg.pct_of_peak_sustained_elapsed": quantity(10, "%"),
    }
    none = {**busy, "sm__ops_path_tensor_src_bf16.sum": quantity(0.0)}
    (copied,) = facts_of(launch(busy, kernel="CatArrayBatchedCopy"))
    assert copied.bound.bound == "issue"
    (unknown,) = facts_of(launch(busy, kernel="my_kernel"))
    assert unknown.bound.bound == "compute"
    (counted,) = facts_of(launch(none, kernel="CatArrayBatchedCopy"))
    assert counted.precision is None
    assert any_mentions(counted.notes, "tensor_bf16")
    assert [(each.precision, each.flops) for each in counted.precisions] == [("tensor_bf16", 0.0)]


def test_each_rule_is_kept_once_with_its_largest_estimate() -> None:
    first = launch(GEMM, rules=[rule("a", 0.2, "global"), rule("x", None, name="Other")])
    second = launch(GEMM, rules=[rule("b", 0.4, "global"), rule("y", None, name="Other")])
    (facts,) = facts_of(first, second)
    assert [(each.name, each.text, each.speedup_ratio) for each in facts.rules] == [
        ("Rule", "b", 0.4),
        ("Other", "x", None),
    ]
    (back,) = facts_of(second, first)
    assert back.rules[0].speedup_ratio == 0.4


def test_what_was_measured_goes_to_the_rows_of_its_phase() -> None:
    rows = [kernel("k(int)", "gemm", 1.0, phase=phase) for phase in ("prefill", "decode")]
    (facts,) = facts_of(
        launch(GEMM, ranges=("decode",), rules=[rule("", 0.25, "global"), rule("", 0.5, "local", "Other")])
    )
    done = enrich_kernels(rows, [facts], {})
    assert [row.bound for row in done] == [None, "compute"]
    assert done[1].estimated_speedup_ratio == 0.25
    assert done[1].counters["ncu_launches"] == 1.0
    elsewhere = enrich_kernels([kernel("k(int)", "gemm", 1.0, phase="vision")], [facts], {})
    assert [(row.phase, row.bound) for row in elsewhere] == [("vision", None), ("decode", "compute")]
    (alone,) = enrich_kernels([], [facts], {"k(int)": "named"}, lambda name: (name.upper(), "gemm"))
    assert (alone.name, alone.short_name, alone.family, alone.total_s) == ("named", "NAMED", "gemm", None)
    assert ncu_kernels_to_summary([facts])[0].short_name == facts.function


# NVIDIA's estimates


def fact(*rules: NcuRule, phase: str | None = None, name: str = "k") -> NcuKernelFacts:
    (found,) = facts_of(launch({}, kernel=name, ranges=(phase,) if phase else ()))
    found.rules = list(rules)
    return found


def test_an_estimate_is_a_share_of_its_phase() -> None:
    (row,) = ranked_rules([fact(rule("", 0.5, "global"))], {"k": {"decode": 0.25}}, {"decode": 2.0})
    assert row.gain_upper_s == 0.25
    assert mentions_in_order(row.arithmetic, "50.0 %", "25.0 %", "decode", "2.00 s", "250 ms")
    (local,) = ranked_rules([fact(rule("", 0.5, "local"))], {"k": {"decode": 0.25}}, {"decode": 2.0})
    assert local.rule.speedup_scope == "local" and local.gain_upper_s == 0.25
    assert len(local.arithmetic) > len(row.arithmetic), "that it is of one unit is said"
    (row,) = ranked_rules([fact(rule("", 0.5, "global"))], {"k": {"decode": 0.25}}, {})
    assert (row.share_ratio, row.gain_upper_s) == (0.25, None)
    assert mentions(row.arithmetic, "50.0 %") and numbers(row.arithmetic) == ["50.0"]
    assert ranked_rules([fact(rule("", None))], {}, {}) == []


def test_a_kernel_profiled_in_one_phase_is_of_that_phase() -> None:
    shares = {"k": {"decode": 0.25, "prefill": 0.5}}
    phases = [row.phase for row in ranked_rules([fact(rule("", 0.5), phase="decode")], shares, {})]
    assert phases == ["decode"]
    phases = [row.phase for row in ranked_rules([fact(rule("", 0.5), phase="vision")], shares, {})]
    assert phases == ["vision"]  # profiled where the run does not have it: said of no other phase


def test_rules_are_ranked_by_gain_then_scope_then_share_then_estimate() -> None:
    rules = [
        rule("local", 0.9, "local", "a"),
        rule("less", 0.2, "global", "b"),
        rule("more", 0.3, "global", "c"),
        rule("none", 0.0, "global", "a"),
    ]
    assert [row.rule.text for row in ranked_rules([fact(*rules)], {}, {})] == [
        "more",
        "less",
        "none",
        "local",
    ]
    timed = ranked_rules([fact(*rules)], {"k": {"decode": 0.5}}, {"decode": 1.0})
    assert [row.rule.text for row in timed] == ["local", "more", "less", "none"]
    by_share = ranked_rules(
        [fact(rules[1], name="k"), fact(rules[2], name="l")], {"k": {"x": 0.5}, "l": {"x": 0.1}}, {}
    )
    assert [row.kernel for row in by_share] == ["k", "l"]


def test_gains_of_decode_count_for_every_step_of_a_sample() -> None:
    data = summary(
        timings=timings(prefill=4.0, decode=10.0, tpot=0.1),
        kernels=[kernel("p", "gemm", 1.0, phase="prefill"), kernel("d", "gemm", 1.0, phase="decode")],
        budget={"prefill": budget(2.0), "decode": budget(4.0)},
    )
    facts = [fact(rule("", 0.5, "global"), name="p"), fact(rule("", 0.5, "global"), name="d")]
    rows = rank(data, facts, {})
    assert [(row.kernel, row.gain_upper_s) for row in rows] == [
        ("d", pytest.approx(0.5 * 0.25 * 0.1)),  # of one token; a hundred of them in a sample
        ("p", pytest.approx(0.5 * 0.5 * 4.0)),
    ]
    unknown = fact(rule("", 0.5, "global"), name="unseen")  # not in the timeline
    assert [row.kernel for row in rank(data, [unknown, *facts], {})] == ["d", "p", "unseen"]
    assert (
        next(row.kernel for row in rank(data, [unknown, fact(rule("", 0.1, "global"), name="d")], {})) == "d"
    )
    shown = vendor_rules(data, facts, {})
    assert [(row.kernel, row.phase, row.share_ratio, row.estimated_ratio) for row in shown] == [
        ("d", "decode", 0.25, 0.5),
        ("p", "prefill", 0.5, 0.5),
    ]


def test_shares_of_rows_in_one_phase_add_up_and_none_exceeds_the_phase() -> None:
    rows = [
        kernel("k", "gemm", 1.0),
        kernel("k", "gemm", 0.5),
        kernel("other", "gemm", 9.0),
        kernel("k", "gemm", None),
    ]
    data = summary(kernels=rows, metrics={"measured_wall_s": 6.0})
    (row,) = rank(data, [fact(rule("", 0.5, "global"))], {})
    assert (row.phase, row.share_ratio) == ("all", pytest.approx(0.25))
    data.metrics["measured_wall_s"] = 0.5
    rows[1].total_s = None
    assert rank(data, [fact(rule("", 0.5, "global"))], {})[0].share_ratio == 1.0
    rows[0].phase = "decode"  # the wall-clock of the whole is not that of a phase
    assert rank(data, [fact(rule("", 0.5, "global"))], {})[0].share_ratio is None


def test_at_most_a_hundred_rules_are_shown() -> None:
    many = [rule("", 0.5, "global", f"r{i}") for i in range(101)]
    assert len(vendor_rules(summary(), [fact(*many)], {})) == 100


def test_prefill_is_its_own_time_where_it_is_known() -> None:
    data = summary(timings=Timings(prefill_s=one(1.0), ttft_s=one(3.0), decode_s=one(4.0)))
    assert phase_times(data) == {"prefill": 1.0, "all": 7.0}


def test_the_precision_with_the_most_work_is_the_headline() -> None:
    name = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    vector = {name.format(op): quantity(value) for op, value in (("fadd", 1e6), ("fmul", 0.0), ("ffma", 0.0))}
    (facts,) = facts_of(launch({**vector, **GEMM}))
    assert facts.precision == "tensor_bf16"
    assert [(each.precision, each.flops) for each in facts.precisions] == [
        ("tensor_bf16", 1e9),
        ("fp32", 1e6),
    ]


def test_counters_that_no_launch_has_are_not_noted_one_by_one() -> None:
    (facts,) = facts_of(launch(GEMM), launch(GEMM))
    assert facts.counters["waves"] is None
    absent = [name for name, value in facts.counters.items() if value is None]
    assert "waves" in absent and not any(name in note for name in absent for note in facts.notes)


# where a quantity is found


def value_of(name: str, metrics: dict[str, Quantity]) -> float | None:
    found = find(metrics, name)
    return found[1].value if found else None


def test_a_counter_without_a_value_leaves_the_next_best() -> None:
    missing = Quantity(None, "s", "n/a", "us")
    metrics = {"gpu__time_duration.sum": missing, f"{SOL}/Duration": quantity(5, "us")}
    assert value_of("duration_s", metrics) == pytest.approx(5e-6)
    assert value_of("duration_s", {"gpu__time_duration.sum": missing}) is None
    both = {f"{SOL}/Duration": quantity(5, "us"), "gpu__time_duration.sum": quantity(7, "us")}
    assert value_of("duration_s", both) == pytest.approx(7e-6)


@pytest.mark.parametrize(
    ("name", "metric", "unit", "taken"),
    [
        ("memory_ratio", f"{SOL}/Memory Throughput", "%", True),
        (
            "memory_ratio",
            f"{SOL}/Memory Throughput",
            "Gbyte/second",
            False,
        ),  # the same label, another quantity
        ("duration_s", f"{SOL}/Duration", "", False),
        ("duration_s", f"{SOL}/Duration", "us", True),
        ("sm_count", "launch__sm_count", "SM", True),  # counts are counts whatever word stands beside them
        ("sm_count", "launch__sm_count", "", True),
        ("sm_count", "launch__sm_count", "%", False),
        ("block_limit_warps", "launch__occupancy_limit_warps", "", True),
        ("waves", "launch__waves_per_multiprocessor", "%", False),
    ],
)
def test_a_metric_in_another_unit_is_another_quantity(name: str, metric: str, unit: str, taken: bool) -> None:
    assert (find({metric: quantity(5, unit)}, name) is not None) is taken


def test_labels_of_roofline_sections_only() -> None:
    chart = "GPU Speed Of Light Roofline Chart"
    assert find({f"{chart}/SM Frequency": quantity(2, "Ghz")}, "roofline_frequency_hz") is not None
    assert find({"Some Section/SM Frequency": quantity(2, "Ghz")}, "roofline_frequency_hz") is None
    assert find({f"{chart}/Another Frequency": quantity(2, "Ghz")}, "roofline_frequency_hz") is None


def test_what_has_no_known_gain_or_share_comes_last() -> None:
    half = rule("", 0.5, "global")
    facts = [fact(half, name="a"), fact(half, name="b")]
    assert [row.kernel for row in ranked_rules(facts, {"b": {"x": 0.5}}, {"x": 0.5})] == ["b", "a"]
    assert [row.kernel for row in ranked_rules(facts, {"b": {"x": 0.5}}, {})] == ["b", "a"]
