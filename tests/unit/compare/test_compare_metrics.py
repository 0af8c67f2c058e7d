"""Where the numbers of a comparison come from, what gates say of them, and what is noted beside them."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from llm_perf_opt.analysis.metrics import (
    METRICS,
    Evidence,
    measured_in_turns,
    run_series,
    side_series,
    summary_scalars,
    timing_scalars,
)
from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.compare.compare import compare
from llm_perf_opt.compare.data import GateResult, Method
from llm_perf_opt.compare.gates import Gate, apply_gate, gate_exit_code, parse_gate
from llm_perf_opt.compare.work import CAPTURED_PART
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.units import format_p_value, format_signed_percent
from llm_perf_opt.summary import LedgerRow, Summary, Utilisation, Workload
from tests.unit.summaries import budget, kernel, one, static, summary, timings

METHOD = Method(0.95, 0.05, 200, 1)


def sample(
    name: str = "s", new_tokens: int | None = 5, batch: int | None = 2, **repeat: Any
) -> dict[str, Any]:
    return {"id": name, "new_tokens": new_tokens, "batch_size": batch, "repeats": [repeat]}


def values(**fields: Any) -> dict[str, float]:
    found = run_series({"samples": [sample(**fields)]})
    return {name: samples["s"][0] for name, samples in found.items()}


def test_metrics_of_one_repeat() -> None:
    found = values(preprocess_s=0.25, vision_s=0.5, prefill_s=1.0, decode_s=8.0, components={"sam_s": 0.125})
    assert found == {
        "preprocess": 0.25,
        "vision": 0.5,
        "prefill": 1.0,
        "ttft": 1.5,
        "decode": 8.0,
        "tpot": 2.0,  # four steps make five tokens
        "total": 9.5,
        "tokens_per_s": 1.0,  # of two sequences
        "component.sam": 0.125,
    }


def test_metrics_that_cannot_be_made_are_absent() -> None:
    assert values(prefill_s=1.0) == {"prefill": 1.0, "ttft": 1.0}
    assert values(decode_s=8.0, new_tokens=1) == {"decode": 8.0}  # no step was timed
    assert values(decode_s=8.0, new_tokens=2, batch=None) == {
        "decode": 8.0,
        "tpot": 8.0,
        "tokens_per_s": 0.125,
    }
    assert values(decode_s=8.0, new_tokens=None) == {"decode": 8.0}
    assert values(decode_s=8.0, token_s=[1.0, 2.0, 9.0])["tpot"] == 2.0


def test_scalars_of_captures() -> None:
    rows = [
        kernel("a", "gemm", 1.0, launches=3),
        kernel("b", "gemm", 2.0, launches=4),
        kernel("c", "x", None),
    ]
    rows[2].launches = None
    data = summary(kernels=rows, metrics={"copy_s": 0.5, "launches_per_token": 7.0})
    data.utilisation = {"decode": Utilisation(device_busy_ratio=0.25)}
    expected = {
        "kernel_time": 3.0,
        "copy_time": 0.5,
        "launches": 7.0,
        "launches_per_token": 7.0,
        "device_busy": 0.25,
    }
    assert summary_scalars(data) == expected
    data.utilisation["all"] = Utilisation(device_busy_ratio=0.75)
    assert summary_scalars(data)["device_busy"] == 0.75
    assert summary_scalars(summary()) == {}


def test_scalars_of_timings() -> None:
    timed = timings(vision=0.5, prefill=1.0, decode=8.0)
    timed.components = {"sam_s": one(0.25)}
    found = timing_scalars(summary(timings=timed))
    assert found == {
        "vision": 0.5,
        "prefill": 1.0,
        "ttft": 1.5,
        "decode": 8.0,
        "total": 9.5,
        "component.sam": 0.25,
    }
    assert "total" not in timing_scalars(summary(timings=timings(decode=8.0)))
    raw = side_series([summary(timings=timed)], [{"samples": [sample(decode_s=2.0)]}])
    assert raw["decode"].runs == [{"s": [2.0]}]  # raw values win over the summary's medians
    assert "vision" not in raw
    twice = {"samples": [{"id": "s", "repeats": [{"vision_s": 1.0}, {"vision_s": 2.0}]}]}
    assert side_series([summary()], [twice])["vision"].runs == [{"s": [1.0, 2.0]}]
    assert side_series([summary()], [twice], by_repeat=True)["vision"].runs == [{"s": [1.0]}, {"s": [2.0]}]


def test_in_turns_needs_one_run_per_side_with_the_same_mark() -> None:
    x, y = {"interleaved": "x"}, {"interleaved": "y"}
    assert measured_in_turns([x], [x])
    assert not measured_in_turns([x], [y])
    assert not measured_in_turns([x], [{}])
    assert not measured_in_turns([{}], [{}])
    assert not measured_in_turns([None], [None])
    assert not measured_in_turns([x, x], [x, x])


# gates


def test_what_gates_allow() -> None:
    assert parse_gate("tpot:+3%") == parse_gate(" tpot:3 % ") == Gate("tpot", 1.03)
    assert parse_gate("tokens_per_s:-3%") == parse_gate("tokens_per_s:3%") == Gate("tokens_per_s", 0.97)
    assert parse_gate("tpot:.5%") == Gate("tpot", 1.005)
    assert parse_gate("tpot:+150%") == Gate("tpot", 2.5)
    assert parse_gate("tokens_per_s:-99.5%").limit_ratio == pytest.approx(0.005)
    assert parse_gate("component.x:+1%") == Gate("component.x", 1.01)
    with pytest.raises(ConfigError, match="100 %"):
        parse_gate("tokens_per_s:-100%")
    with pytest.raises(ConfigError, match="tpot:-3%") as caught:
        parse_gate("tpot:-3%")
    assert caught.value.hint == "--gate tpot:+3%"
    with pytest.raises(ConfigError, match=r"tokens_per_s:\+3%") as caught:
        parse_gate("tokens_per_s:+3%")
    assert caught.value.hint == "--gate tokens_per_s:-3%"
    with pytest.raises(ConfigError) as caught:
        parse_gate("tpto:+3%")
    assert caught.value.data["key"] == "tpto"
    assert caught.value.hint is not None
    assert [name for name in METRICS if re.search(rf"\b{name}\b", caught.value.hint)] == ["tpot"]


def rounds(*ratios: float) -> Evidence:
    return Evidence(
        1.0, sorted(ratios)[len(ratios) // 2], "rounds", tuple(math.log(ratio) for ratio in ratios)
    )


@pytest.mark.parametrize(
    ("gate", "ratio", "status"),
    [
        ("tpot:+100%", 2.0, "passed"),  # exactly the limit is allowed
        ("tpot:+100%", 2.01, "regression"),
        ("tpot:+100%", 0.5, "passed"),
        ("tokens_per_s:-50%", 0.5, "passed"),
        ("tokens_per_s:-50%", 0.49, "regression"),
        ("tokens_per_s:-50%", 2.0, "passed"),
    ],
)
def test_a_gate_at_its_limit(gate: str, ratio: float, status: str) -> None:
    result = apply_gate(parse_gate(gate), rounds(*[ratio] * 5), METHOD)
    assert result.status == status, result.reason
    assert result.ratio == pytest.approx(ratio)
    assert result.low_ratio == pytest.approx(ratio)


def test_the_sentence_of_a_gate() -> None:
    result = apply_gate(parse_gate("tpot:+3%"), rounds(*[1.1] * 5), METHOD)
    assert (result.status, result.limit_ratio, result.p_value) == ("regression", 1.03, pytest.approx(1 / 32))
    assert (result.ratio, result.low_ratio, result.high_ratio) == pytest.approx((1.1, 1.1, 1.1))
    for fact in ("+10.0 %", "5 rounds", "+3.0 %", "p = 0.0312"):
        assert fact in result.reason
    few = apply_gate(parse_gate("tpot:+3%"), rounds(*[1.1] * 4), METHOD)
    assert (few.status, few.ratio) == ("not enough data", 1.1)
    assert "4 rounds" in few.reason and "compare --run --rounds 8" in few.reason
    half = apply_gate(parse_gate("tpot:+3%"), rounds(1.5, 1.5, 1.5, 0.9, 0.9), METHOD)
    assert half.status == "undecided"
    pair = Evidence(1.0, 3.0, "repeats", blocks_a=(0.0, 0.0), blocks_b=(1.0, 1.0))
    two = apply_gate(parse_gate("tpot:+3%"), pair, METHOD)
    assert (two.status, two.ratio) == ("not enough data", 3.0) and "2 repeats" in two.reason
    alone = apply_gate(parse_gate("tpot:+3%"), Evidence(1.0, 3.0, None), METHOD)
    assert (alone.status, alone.ratio) == ("not enough data", 3.0) and "run.repeats=3" in alone.reason
    absent = apply_gate(parse_gate("tpot:+3%"), None, METHOD)
    assert (absent.status, absent.ratio) == ("not enough data", None) and "tpot" in absent.reason


def test_three_clear_repeats_on_both_sides_are_a_regression() -> None:
    three = Evidence(2.0, 3.0, "repeats", blocks_a=(0.0, 0.0, 0.0), blocks_b=(1.0, 1.0, 1.0))
    result = apply_gate(parse_gate("tpot:+3%"), three, METHOD)
    assert (result.status, result.p_value) == ("regression", pytest.approx(0.05))
    two = Evidence(2.0, 3.0, "repeats", blocks_a=(0.0, 0.0), blocks_b=(1.0, 1.0))
    assert apply_gate(parse_gate("tpot:+3%"), two, METHOD).ratio == 1.5


@pytest.mark.parametrize(
    ("gate", "at", "beyond"), [("tpot:+100%", 2.0, 3.0), ("tokens_per_s:-50%", 0.5, 0.4)]
)
def test_an_interval_that_touches_the_limit_decides_nothing(gate: str, at: float, beyond: float) -> None:
    result = apply_gate(parse_gate(gate), rounds(*[at] * 20, *[beyond] * 6), METHOD)
    assert result.p_value == pytest.approx(1 / 64)
    assert result.status in ("undecided", "passed")


def test_numbers_in_sentences() -> None:
    assert format_signed_percent(1.031) == "+3.1 %"
    assert format_signed_percent(0.9) == "-10.0 %"
    assert format_p_value(0.001) == "p = 0.00100"
    assert format_p_value(0.0009) == "p < 0.001"


@pytest.mark.parametrize(
    ("status", "code", "strict_code"),
    [("passed", 0, 0), ("regression", 1, 1), ("undecided", 0, 1), ("not enough data", 0, 1)],
)
def test_exit_codes_of_gates(status: Any, code: int, strict_code: int) -> None:
    passed = GateResult("tpot", 1.0, "passed", None, None, None, None, "")
    results = [passed, GateResult("tpot", 1.0, status, None, None, None, None, "")]
    assert gate_exit_code(results, strict=False) == code
    assert gate_exit_code(results, strict=True) == strict_code


# the whole


def side(*summaries: Summary, documents: list[Any] | None = None) -> Side:
    return Side("x", ["x"], list(summaries), documents or [None] * len(summaries))


def test_a_metric_of_one_side_is_shown_with_its_mean() -> None:
    a = {"samples": [{"id": "s", "repeats": [{"vision_s": 1.0}, {"vision_s": 2.0}]}]}
    b = {"samples": [{"id": "s", "repeats": [{"prefill_s": 4.0}]}]}
    found = {
        row.name: row
        for row in compare(side(summary(), documents=[a]), side(summary(), documents=[b])).metrics
    }
    assert (found["vision"].outcome, found["vision"].a, found["vision"].b) == ("only in A", 1.5, None)
    assert (found["prefill"].outcome, found["prefill"].a, found["prefill"].b) == ("only in B", None, 4.0)
    assert list(found) == ["vision", "prefill", "ttft"]
    zero = {"samples": [{"id": "s", "repeats": [{"vision_s": 0.0}]}]}
    (row, *_) = compare(side(summary(), documents=[a]), side(summary(), documents=[zero])).metrics
    assert (row.outcome, row.ratio) == ("not enough data", None)


@pytest.mark.parametrize(("n", "outcome", "p"), [(5, "not enough data", None), (6, "worse", 2 / 64)])
def test_six_rounds_show_a_difference_and_five_do_not(n: int, outcome: str, p: float | None) -> None:
    a = side(*[summary(timings=timings(decode=2.0)) for _ in range(n)])
    b = side(*[summary(timings=timings(decode=3.0)) for _ in range(n)])
    (row,) = compare(a, b).metrics
    assert (row.outcome, row.n, row.blocks) == (outcome, n, "rounds")
    assert row.p_value == (None if p is None else pytest.approx(p))
    assert (row.a, row.b, row.ratio) == (2.0, 3.0, pytest.approx(1.5))
    assert (row.low_ratio, row.high_ratio) == (pytest.approx(1.5), pytest.approx(1.5))


def test_differences_between_the_sides_are_listed() -> None:
    a = summary(workload=Workload(model="m", samples=1000, new_tokens=10.5))
    b = summary(workload=Workload(model="m", samples=1000, new_tokens=10.0))
    a.environment = {"torch": "2.8", "packages": {"transformers": "5.0"}}
    b.environment = {"torch": "2.9", "packages": {"transformers": "5.0"}}
    a.static, b.static = static(), None
    found = [(d.what, d.a, d.b) for d in compare(side(a), side(b)).differences]
    assert found == [
        ("new tokens", "10.5", "10"),
        ("torch version", "2.8", "2.9"),
        ("parameters", "10", None),
    ]


def test_notes_of_unequal_captures() -> None:
    a = summary(kernels=[kernel("k", "gemm", 1.0)], workload=Workload(samples=3))
    b = summary(kernels=[kernel("k", "gemm", 1.0)], workload=Workload(samples=3))
    assert compare(side(a), side(b)).notes == []
    uneven = compare(side(a, a), side(b))
    assert (uneven.a.runs, uneven.b.runs) == (2, 1)
    (note,) = uneven.notes
    assert re.findall(r"\d+", note)[:2] == ["2", "1"]
    b.kernels = []
    assert compare(side(a), side(b)).notes == []


def test_samples_of_one_side_are_named_up_to_five() -> None:
    def timed(*names: str) -> Side:
        return side(summary(), documents=[{"samples": [sample(name, decode_s=1.0) for name in names]}])

    def named(a: Side, b: Side) -> str:
        (note,) = [note for note in compare(a, b).notes if "b, c, d, e, f" in note]
        return note

    note = named(timed("a"), timed("a", *"bcdef"))
    assert re.search(r"\bB\b", note) and re.findall(r"\d+", note) == ["5"] and "…" not in note
    assert note != named(timed("a", *"bcdef"), timed("a")), "it says on which side"
    note = named(timed("a", *"bcdefg"), timed("a"))
    assert re.search(r"\bA\b", note) and re.findall(r"\d+", note) == ["6"]
    assert "f …" in note and not re.search(r"\bg\b", note)
    strangers = compare(timed("x1"), timed("x2")).notes
    assert not any("x1" in note or "x2" in note for note in strangers)


def test_modules_and_phases_with_nothing_measured_are_left_out_below_the_top() -> None:
    a, b = summary(), summary()
    a.ledger = [
        LedgerRow("top", "decode", 1),
        LedgerRow("top.x", "decode", 2),
        LedgerRow("top.y", "decode", 2, measured_s=2.0, measured_source="hooks", launches=4, flops=8.0),
    ]
    b.ledger = [
        LedgerRow("top.y", "decode", 2, measured_s=3.0, measured_source="hooks", launches=6, flops=9.0),
        LedgerRow("top.z", "decode", 2, measured_s=1.0),
    ]
    a.budget = {"decode": budget(2.0, compute=0.5, copy=0.0)}
    b.budget = {"decode": budget(2.0, compute=0.25, copy=0.0, sync=0.5)}
    found = compare(side(a), side(b))
    assert [(row.module, row.a_s, row.b_s, row.ratio) for row in found.modules] == [
        ("top", None, None, None),
        ("top.y", 2.0, 3.0, 1.5),
        ("top.z", None, 1.0, None),
    ]
    assert (found.modules[1].a_launches, found.modules[1].b_launches) == (4, 6)
    assert (found.modules[1].a_flops, found.modules[1].b_flops) == (8.0, 9.0)
    assert [(row.what, row.a, row.b, row.ratio) for row in found.phases] == [
        (f"{CAPTURED_PART}compute", 1.0, 0.5, 0.5),
        (f"{CAPTURED_PART}sync", None, 1.0, None),
    ]


def levels(*seconds: float) -> Side:
    """One run per value."""
    return side(*[summary(timings=timings(decode=value)) for value in seconds])


@pytest.mark.parametrize("changed", [1.1, 0.9])
def test_a_difference_in_few_rounds_out_of_many_is_not_shown(changed: float) -> None:
    """The ranks of those that changed agree, but the typical round did not change."""
    (row,) = compare(levels(*[1.0] * 26), levels(*[1.0] * 20, *[changed] * 6)).metrics
    assert row.p_value == pytest.approx(2 / 64)
    assert row.ratio == 1.0
    assert row.outcome == "no difference shown"


def repeats(*seconds: float) -> Side:
    """One run with several repeats."""
    rows = [{"decode_s": value} for value in seconds]
    return side(summary(), documents=[{"samples": [{"id": "s", "new_tokens": 2, "repeats": rows}]}])


def test_a_difference_as_large_as_the_drift_inside_a_run_is_not_shown() -> None:
    drifting = compare(repeats(*[0.75] * 4, *[1.125] * 4), repeats(*[1.25] * 8)).metrics[0]
    assert drifting.p_value is not None and drifting.p_value < 0.001
    assert drifting.outcome == "no difference shown"
    steady = compare(repeats(*[1.0] * 8), repeats(*[1.25] * 8)).metrics[0]
    assert steady.outcome == "worse"


def test_which_device_a_side_ran_on() -> None:
    named, shown = summary(), summary(workload=Workload(device="cuda:0"))
    shown.hardware.name = None
    found = compare(side(named), side(shown))
    assert (found.a.device, found.b.device) == ("GPU", "cuda:0")


def test_the_side_without_raw_timings_is_named() -> None:
    raw = side(summary(timings=timings(decode=1.0)), documents=[{"samples": [sample(decode_s=1.0)]}])
    first, second = set(compare(levels(1.0), raw).notes), set(compare(raw, levels(1.0)).notes)
    (of_a,), (of_b,) = first - second, second - first
    assert re.search(r"\bA\b", of_a) and re.search(r"\bB\b", of_b)
    assert not (first - second) & set(compare(raw, raw).notes)
    row = next(row for row in compare(levels(1.0), raw).metrics if row.name == "decode")
    assert (row.low_ratio, row.high_ratio) == (None, None)


def test_tokens_are_compared_only_where_both_decoded() -> None:
    def decoded(tokens: float, **phases: float) -> Side:
        return side(summary(timings=timings(**phases), workload=Workload(new_tokens=tokens)))

    def notes_of(a: Side, b: Side) -> list[str]:
        return [note for note in compare(a, b).notes if "tokens" in note]

    (text,) = notes_of(decoded(3.0, decode=1.0), decoded(4.0, decode=1.0))
    assert "decode" in text and "total" in text
    assert notes_of(decoded(3.0, decode=1.0), decoded(3.0, decode=1.0)) == []
    assert notes_of(decoded(3.0, decode=1.0), decoded(4.0, prefill=1.0)) == []
