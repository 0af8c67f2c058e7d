"""Utilisation of two sides is compared against one ceiling, or not at all."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.compare.compare import Side, compare
from llm_perf_opt.model.comparison import Comparison, PhaseChange
from llm_perf_opt.model.summary import Hardware, Peak, Summary, Utilisation, Workload
from tests.unit.summaries import summary, timings

WORK_FLOPS = 20e9
WORK_BYTES = 2e9


def run(
    seconds: float,
    *,
    flops_per_s: float = 181e9,
    bytes_per_s: float = 20e9,
    name: str | None = "AMD EPYC",
    source: str = "probe",
    dtype: str = "float32",
    under_load: bool | None = None,
) -> Summary:
    """A prefill of fixed work that took so long, against these ceilings, as its own report says."""
    hardware = Hardware(name, "cpu", {dtype: Peak(flops_per_s, source)}, bytes_per_s, source)
    hardware.measured_under_load = under_load
    use = Utilisation(
        mfu_ratio=WORK_FLOPS / (seconds * flops_per_s), mbu_ratio=WORK_BYTES / (seconds * bytes_per_s)
    )
    return summary(
        hardware=hardware,
        workload=Workload(dtype=dtype),
        timings=timings(prefill=seconds),
        utilisation={"prefill": use},
    )


def compared(a: Summary, b: Summary) -> Comparison:
    return compare(Side("a", ["a"], [a], [None]), Side("b", ["b"], [b], [None]))


def use_row(result: Comparison, what: str) -> PhaseChange:
    (row,) = [row for row in result.phases if row.what == what]
    return row


def ceiling_notes(result: Comparison) -> list[str]:
    return [note for note in result.notes if note.startswith(("MFU", "MBU"))]


def test_a_slower_run_never_looks_better_used_because_its_ceiling_was_measured_under_load() -> None:
    fast, slow = run(1.0), run(1.37, flops_per_s=72e9, bytes_per_s=9e9, under_load=True)
    use_a, use_b = fast.utilisation["prefill"], slow.utilisation["prefill"]
    assert (use_b.mfu_ratio or 0) > 1.8 * (use_a.mfu_ratio or 0), "the captures have the problem"
    result = compared(fast, slow)
    for what in ("MFU", "MBU"):
        assert use_row(result, what).ratio == pytest.approx(1 / 1.37)
    assert use_row(result, "MFU").a == use_a.mfu_ratio
    assert ceiling_notes(result) == [
        "MFU of both sides is against one ceiling, A's 181 GFLOP/s (float32 peak); the report of B is against "
        "72.0 GFLOP/s, measured while other programs used the processor.",
        "MBU of both sides is against one ceiling, A's 20.0 GB/s (memory bandwidth); the report of B is against "
        "9.00 GB/s, measured while other programs used the processor.",
    ]
    back = compared(slow, fast)
    assert use_row(back, "MFU").ratio == pytest.approx(1.37)
    assert "B's 181 GFLOP/s" in ceiling_notes(back)[0]


def test_equal_ceilings_need_no_words() -> None:
    result = compared(run(1.0), run(1.37))
    assert use_row(result, "MFU").ratio == pytest.approx(1 / 1.37)
    assert ceiling_notes(result) == []


def test_a_data_sheet_is_better_known_than_a_higher_measurement() -> None:
    result = compared(run(1.0, flops_per_s=150e9, source="catalogue"), run(1.0))
    assert use_row(result, "MFU").ratio == pytest.approx(1.0)
    assert "A's 150 GFLOP/s" in ceiling_notes(result)[0]


@pytest.mark.parametrize("name", ["Intel Xeon", None])
def test_two_devices_have_no_common_ceiling(name: str | None) -> None:
    result = compared(run(1.0), run(1.0, name=name, flops_per_s=90e9))
    row = use_row(result, "MFU")
    assert row.ratio is None and row.a is not None and row.b is not None
    assert ceiling_notes(result)[0].startswith("MFU is not compared: AMD EPYC and ")
    assert use_row(result, "MBU").ratio == pytest.approx(1.0), "the same bandwidth is a common ceiling"


def test_two_data_types_have_no_common_peak() -> None:
    result = compared(run(1.0), run(1.0, dtype="bfloat16", flops_per_s=360e9))
    assert use_row(result, "MFU").ratio is None
    assert ceiling_notes(result) == ["MFU is not compared: float32 and bfloat16 have different peaks."]
