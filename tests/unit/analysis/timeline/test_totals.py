"""Numbers of a capture, and of several captures of one run taken together."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.kernels.chains import CHAIN_METRICS
from llm_perf_opt.analysis.timeline.summary import (
    decode_steps_captured,
    joined_attribution,
    joined_budget,
    joined_busy_ratio,
    joined_copies,
    kernel_totals,
    set_kernel_shares,
    summarise_timeline,
    summarise_totals,
    token_metrics,
)
from llm_perf_opt.captures.timeline import KernelTotals, NamedTotal
from llm_perf_opt.summary import Kernel
from tests.unit.summaries import budget, kernel
from tests.unit.timelines import make_timeline

LAUNCH, COPY = "cudaLaunchKernel", "[CUDA memcpy Device-to-Host]"


def test_totals_over_kernels() -> None:
    rows = [
        kernel("a", "gemm", 3.0, launches=4),
        kernel("b", "other", 1.0, launches=1),
        kernel("c", "gemm", None, launches=None),
    ]
    assert kernel_totals(rows) == {
        "kernel_time_s": 4.0,
        "kernel_launches": 5.0,
        "mean_kernel_s": 0.8,
        "unclassified_kernel_time_ratio": 0.25,
    }
    nothing = kernel_totals([])
    assert (nothing["mean_kernel_s"], nothing["unclassified_kernel_time_ratio"]) == (None, None)
    set_kernel_shares(rows, 8.0)
    assert [row.share_ratio for row in rows] == [0.375, 0.125, None]
    set_kernel_shares(rows, 0.0)
    assert [row.share_ratio for row in rows] == [None, None, None]


def test_copies_of_several_captures_add_up_and_the_unknown_stays_unknown() -> None:
    found = joined_copies(
        {"copy_s": 1.0, "copies": 2.0, "copy_bytes": None}, {"copy_s": 0.5, "launches": 9.0}
    )
    assert found == {"copy_s": 1.5, "copies": 2.0}


def test_attribution_of_several_captures_is_weighed_by_device_time() -> None:
    one = (0.5, {"kernel_time_s": 1.0, "copy_s": 1.0, "memset_s": None})
    two = (1.0, {"kernel_time_s": 5.0, "memset_s": 1.0})
    assert joined_attribution(one, two, (None, {"kernel_time_s": 99.0})) == pytest.approx((0.5 * 2 + 6) / 8)
    assert joined_attribution((0.25, {"kernel_time_s": 0.5})) == 0.25
    assert joined_attribution((0.5, {})) is None
    assert joined_attribution() is None


def test_the_whole_of_several_phases_is_their_sum() -> None:
    phases = {
        "prefill": budget(1.0, compute=0.5, host=0.5),
        "decode": budget(3.0, compute=1.0),
        "all": budget(9.0, copy=1.0),
    }
    found = joined_budget(phases)
    assert found is not None
    assert found.span_s == 4.0
    assert {part.name: (part.seconds, part.share_ratio) for part in found.parts} == {
        "compute": (3.5, 0.875),
        "host": (0.5, 0.125),
    }
    assert found.source == "run.sqlite"
    assert joined_budget({"all": budget(9.0, copy=1.0)}) is None
    assert joined_busy_ratio({"prefill": 0.2, "decode": 1.0, "all": 0.0}, phases) == pytest.approx(3.2 / 4)
    assert joined_busy_ratio({"decode": 0.5}, phases) == 0.5
    assert joined_busy_ratio({"all": 0.5}, phases) is None


def test_scalars_of_a_timeline() -> None:
    second = 10**9
    timeline = make_timeline(
        ops=[
            (0, 2 * second, "ampere_sgemm_128x64_nn", 0),
            (2 * second, 3 * second, "my_special_thing", 0),
            (4 * second, 5 * second, COPY, 0),
        ],
        calls=[(0, 1, LAUNCH)],
        ranges=[(0, 2, "decode")],
    )
    timeline.ops.bytes[2] = 1000
    facts = summarise_timeline(timeline)
    metrics = {**facts.metrics, **token_metrics(facts.kernels, decode_steps_captured(None, 2, 3.0))}
    assert {metrics.pop(name) for name in CHAIN_METRICS} == {0.0}
    assert {name: value for name, value in metrics.items() if value is not None} == {
        "kernel_launches": 2.0,
        "kernel_time_s": 3.0,
        "mean_kernel_s": 1.5,
        "unclassified_kernel_time_ratio": pytest.approx(1 / 3),
        "copy_s": 1.0,
        "copy_launches": 1.0,
        "copy_bytes": 1000.0,
        "memset_s": 0.0,
        "memset_launches": 0.0,
        "copy_h2d_s": 0.0,
        "copy_d2h_s": 1.0,
        "copy_d2d_s": 0.0,
        "copy_pageable_s": 0.0,
        "first_launches": 1.0,
        "first_launch_s": 1e-9,
        "repeated_launches": 0.0,
        "repeated_launch_s": 0.0,
        "decode_launches": 2.0,
        "launches_per_token": 0.5,  # two samples of two decoded tokens; the first comes from prefill
    }
    assert facts.kernel_time_classified_ratio == pytest.approx(2 / 3)
    assert [(row.total_s, row.share_ratio) for row in facts.kernels] == [
        (2.0, pytest.approx(2 / 3)),
        (1.0, pytest.approx(1 / 3)),
    ]
    assert {part.name: part.seconds for part in facts.budget["all"].parts}["copy"] == 1.0
    assert {part.name: part.share_ratio for part in facts.budget["all"].parts}["compute"] == pytest.approx(
        0.6
    )
    timeline.ops.bytes[2] = 0
    assert summarise_timeline(timeline).metrics["copy_bytes"] == 0.0
    timeline.ops.bytes[2] = -1
    assert summarise_timeline(timeline).metrics["copy_bytes"] is None


def table(*rows: tuple[str, int, int], copies: tuple[tuple[str, int, int], ...] = ()) -> KernelTotals:
    return KernelTotals(
        "t.csv", tuple(NamedTotal(*row) for row in rows), tuple(NamedTotal(*row) for row in copies)
    )


def launched(phase: str | None, launches: int) -> list[Kernel]:
    return [Kernel("k", "k", "gemm", phase, None, launches, 1.0, 1.0)]


def test_launches_per_token() -> None:
    found = table(
        ("k", 12, 4 * 10**9), copies=(("[CUDA memcpy HtoD]", 3, 10**9), ("[CUDA memset]", 2, 10**9))
    )
    facts = summarise_totals(found)
    assert (facts.metrics["copy_s"], facts.metrics["copies"]) == (2.0, 5.0)
    assert "copy_s" not in summarise_totals(table(("k", 1, 1))).metrics
    # Without phases nothing is known of decode: the launches are of prefill and vision too.
    assert token_metrics(facts.kernels, 4.0) == {"decode_launches": None, "launches_per_token": None}
    assert token_metrics(launched("vision", 12), 4.0) == {"decode_launches": None, "launches_per_token": None}
    assert token_metrics(launched("decode", 12), 2.0) == {"decode_launches": 12.0, "launches_per_token": 6.0}
    both = [*launched("decode", 12), *launched("prefill", 90)]
    assert token_metrics(both, 2.0)["launches_per_token"] == 6.0
    assert token_metrics(launched("decode", 12), None)["launches_per_token"] is None
    assert token_metrics([], 4.0)["launches_per_token"] is None


def test_decode_steps_of_a_capture() -> None:
    assert decode_steps_captured(40, 2, 3.0) == 40.0  # what the capture counts itself
    assert decode_steps_captured(None, 2, 3.0) == 4.0  # the first token of each pass comes from prefill
    assert decode_steps_captured(None, 2, 1.0) is None
    assert decode_steps_captured(None, None, 3.0) is None
    assert decode_steps_captured(None, 2, None) is None


def test_families_and_what_is_classified_of_a_few_nanoseconds() -> None:
    found = summarise_totals(
        table(("ampere_sgemm_128x64_nn", 4, 2), ("sgemm_2", 1, 1), ("my_special_thing", 7, 1))
    )
    totals = {family: (total.launches, total.total_ns) for (_, family), total in found.families.items()}
    assert totals == {"gemm": (5, 3), "other": (7, 1)}
    assert found.kernel_time_classified_ratio == 0.75
    assert summarise_totals(table()).kernel_time_classified_ratio is None
