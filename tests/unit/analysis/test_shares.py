"""Shares are parts of a whole: they sum to one, never pass it, and stay unknown where the whole is unknown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.shares import (
    OF_KERNELS,
    OF_SAMPLE,
    OF_SPAN,
    add_gain_shares,
    add_operator_shares,
    add_run_shares,
    add_shares,
    by_run_share,
    kernel_families,
    wall_clock_split,
)
from llm_perf_opt.summary import Budget, BudgetPart, Finding, Kernel, Operator, Stat, Timings
from tests.unit.report_summaries import bare_summary, full_summary

SECONDS = st.floats(1e-9, 1e4, allow_nan=False)


def one(value: float | None) -> Stat | None:
    return None if value is None else Stat(value, value, value, value, None, 1)


@given(st.lists(st.none() | SECONDS, min_size=4, max_size=4), st.booleans())
def test_wall_clock_parts_sum_to_the_span(values: list[float | None], nested: bool) -> None:
    preprocess, vision, prefill, decode = map(one, values)
    timings = Timings(preprocess_s=preprocess, vision_s=vision, prefill_s=prefill, decode_s=decode)
    split = wall_clock_split(timings, prefill_includes_vision=nested)
    if split is None:
        assert all(value is None for value in values)
        return
    assert math.isclose(sum(part.seconds for part in split.parts), split.span_s)
    assert math.isclose(sum(part.share_ratio for part in split.parts), 1.0)
    names = [part.name for part in split.parts]
    assert ("vision" in names) == (vision is not None and not (nested and prefill is not None))


def test_wall_clock_without_times_is_unknown() -> None:
    assert wall_clock_split(Timings()) is None


def kernel(name: str, family: str, total: float | None, launches: int | None = 1) -> Kernel:
    return Kernel(name, name, family, None, None, launches, total, None)


def test_families_are_summed_and_ranked_and_unknown_time_stays_unknown() -> None:
    kernels = [
        kernel("a", "gemm", 1.0, 2),
        kernel("a", "gemm", 1.0, 3),
        kernel("b", "copy", 6.0),
        kernel("c", "sort", None, None),
    ]
    found = {f.family: (f.kernels, f.launches, f.total_s, f.share_ratio) for f in kernel_families(kernels)}
    assert found == {
        "copy": (1, 1, 6.0, 0.75),
        "gemm": (1, 5, 2.0, 0.25),
        "sort": (1, None, None, None),
    }
    assert list(found) == ["copy", "gemm", "sort"]
    assert kernel_families([]) == []


def test_operator_shares_are_of_device_time_where_there_is_any() -> None:
    operators = [
        Operator("a", 1, 3.0, 3.0, 1.0, 1.0, "decode"),
        Operator("b", 1, 1.0, 1.0, 3.0, 3.0, "decode"),
        Operator("c", 1, 1.0, 1.0, None, None, "prefill"),
        Operator("d", 1, 4.0, 4.0, None, None, "prefill"),
        Operator("e", 1, 0.0, 0.0, None, None, None),
    ]
    add_operator_shares(operators)
    assert [(op.share_ratio, op.share_of) for op in operators] == [
        (0.25, "device"),
        (0.75, "device"),
        (0.2, "host"),
        (0.8, "host"),
        (None, "host"),
    ]


@pytest.mark.parametrize(("gain", "share"), [(0.25, 0.25), (5.0, 1.0), (None, None)])
def test_gains_are_shares_of_the_sample_and_never_more_than_it(
    gain: float | None, share: float | None
) -> None:
    summary = full_summary()
    assert summary.wall_clock is not None and summary.wall_clock.span_s == pytest.approx(1.0)
    finding = Finding("x", "x", None, [], gain, "", "", "high")
    summary.findings = [finding]
    add_gain_shares(summary)
    assert finding.gain_share_ratio == (None if share is None else pytest.approx(share))
    assert finding.gain_of == (None if share is None else OF_SAMPLE)


def test_gains_without_a_clock_are_shares_of_what_was_captured() -> None:
    summary = bare_summary()
    finding = Finding("x", "x", None, [], 0.5, "", "", "high")
    summary.findings = [finding]
    add_shares(summary)
    assert finding.gain_share_ratio is None and finding.gain_of is None
    summary.metrics["kernel_time_s"] = 1.0
    add_shares(summary)
    assert (finding.gain_share_ratio, finding.gain_of) == (0.5, OF_KERNELS)
    summary.budget["decode"] = Budget(2.0, [])
    add_shares(summary)
    assert (finding.gain_share_ratio, finding.gain_of) == (0.25, OF_SPAN)
    summary.budget["all"] = Budget(5.0, [])
    add_shares(summary)
    assert (finding.gain_share_ratio, finding.gain_of) == (0.1, OF_SPAN)


def test_operators_are_weighed_by_the_wall_clock_of_their_phase() -> None:
    operators = [
        Operator("conv", 1, 3.0, 3.0, None, None, "vision"),
        Operator("mm", 1, 1.0, 1.0, None, None, "decode"),
        Operator("outside", 1, 9.0, 9.0, None, None, None),
    ]
    add_operator_shares(operators)
    clock = Budget(10.0, [BudgetPart("vision", 2.0, 0.2), BudgetPart("decode", 8.0, 0.8)])
    add_run_shares(operators, clock)
    assert [op.run_share_ratio for op in operators] == pytest.approx([0.2, 0.8, None])
    assert [op.name for op in by_run_share(operators)] == ["mm", "conv", "outside"]
    add_run_shares(operators, None)
    assert [op.run_share_ratio for op in operators] == pytest.approx([3 / 13, 1 / 13, 9 / 13])


def test_vision_is_a_part_of_its_own_unless_set_to_be_in_prefill() -> None:
    timings = Timings(vision_s=one(1.0), prefill_s=one(2.0), decode_s=one(5.0), source="timings.json")
    apart = wall_clock_split(timings)
    assert apart is not None
    assert [(part.name, part.seconds, part.share_ratio) for part in apart.parts] == [
        ("vision", 1.0, 0.125),
        ("prefill", 2.0, 0.25),
        ("decode", 5.0, 0.625),
    ]
    assert apart.source == "timings.json"
    nested = wall_clock_split(timings, prefill_includes_vision=True)
    assert nested is not None
    assert (nested.span_s, [part.name for part in nested.parts]) == (7.0, ["prefill", "decode"])
    alone = wall_clock_split(Timings(vision_s=one(1.0)), prefill_includes_vision=True)
    assert alone is not None and alone.span_s == 1.0  # no prefill that could hold it
    summary = bare_summary()
    summary.timings = timings
    add_shares(summary)
    assert summary.wall_clock == apart
    add_shares(summary, prefill_includes_vision=True)
    assert summary.wall_clock == nested
    assert wall_clock_split(Timings(decode_s=one(0.0))) is None


def test_shares_of_nothing_are_unknown() -> None:
    assert [family.share_ratio for family in kernel_families([kernel("a", "gemm", 0.0)])] == [None]
    tied = [
        kernel("a", "sort", 1.0),
        kernel("b", "copy", 1.0),
        kernel("c", "gemm", 0.5),
        kernel("d", "conv", None),
    ]
    assert [family.family for family in kernel_families(tied)] == ["copy", "sort", "gemm", "conv"]
    on_device = [
        Operator("a", 1, 3.0, 3.0, 0.5, 0.5, "decode"),
        Operator("b", 1, 3.0, 3.0, None, None, "decode"),
    ]
    add_operator_shares(on_device)
    assert [op.share_ratio for op in on_device] == [1.0, 0.0]
    summary = bare_summary()
    summary.findings = [Finding("x", "x", None, [], 0.5, "", "", "high")]
    summary.budget["all"] = Budget(0.0, [])
    summary.metrics["kernel_time_s"] = 2.0
    add_shares(summary)
    assert (summary.findings[0].gain_share_ratio, summary.findings[0].gain_of) == (0.25, OF_KERNELS)
