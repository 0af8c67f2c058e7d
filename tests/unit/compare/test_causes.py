"""Samples in pairs, and parts that add up to the change of the whole."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.compare.compare import compare
from llm_perf_opt.summary import Summary, Workload
from tests.unit.compare.test_compare import document
from tests.unit.summaries import kernel, summary, timings


def timed(tokens: float = 11.0, **fields: Any) -> Summary:
    clock = timings(prefill=0.2, decode=2.0)
    return summary(timings=clock, workload=Workload(samples=3, new_tokens=tokens), **fields)


def test_samples_are_paired_by_name() -> None:
    result = compare(
        Side("A", [], [timed()], [document()]), Side("B", [], [timed()], [document(1.5, samples=2)])
    )
    totals = [row for row in result.samples if row.metric == "total"]
    assert [row.sample for row in totals] == ["s0", "s1"]
    assert all(1.4 < row.ratio < 1.5 for row in totals)
    assert {row.metric for row in result.samples} == {"total", "ttft", "tpot"}


def test_phases_add_up_and_fewer_steps_are_distinguished_from_faster_steps() -> None:
    same = compare(Side("A", [], [timed()], [document()]), Side("B", [], [timed()], [document(1.5)]))
    (split,) = same.splits
    assert [cause.name for cause in split.causes] == ["prefill", "decode"]
    assert abs(split.causes[0].change_s) < 1e-9
    assert split.b_s == pytest.approx(sum(cause.b_s for cause in split.causes))
    fewer = compare(Side("A", [], [timed()], [document()]), Side("B", [], [timed(6.0)], [document(0.25)]))
    (split,) = fewer.splits
    assert [(cause.name.partition(":")[0], cause.kind) for cause in split.causes] == [
        ("prefill", None),
        ("decode", "steps"),
        ("decode", None),
    ]
    steps, speed = split.causes[1:]
    assert "5" in steps.name and steps.b_s == pytest.approx(steps.a_s * 5 / 10)
    assert split.b_s - split.a_s == pytest.approx(sum(cause.change_s for cause in split.causes))
    assert steps.b_s == speed.a_s
    assert steps.change_s < 0 and speed.change_s < 0
    assert abs(steps.change_s + speed.change_s - (speed.b_s - steps.a_s)) < 1e-12


def test_kernel_time_by_family_needs_both_captures() -> None:
    one, two = timed(kernels=[kernel("gemm_a", "gemm", 1.0)]), timed(kernels=[kernel("gemm_a", "gemm", 3.0)])
    result = compare(Side("A", [], [one], [None]), Side("B", [], [two], [None]))
    (split,) = [split for split in result.splits if split.whole == "kernel_time"]
    assert [(cause.name, cause.change_s) for cause in split.causes] == [("gemm", 2.0)]
    assert (split.a_s, split.b_s) == (1.0, 3.0)
    alone = compare(Side("A", [], [one], [None]), Side("B", [], [timed()], [None]))
    assert [split.whole for split in alone.splits] == ["wall_clock"]
    assert result.samples == []
