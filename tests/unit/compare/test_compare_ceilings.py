"""Utilisation of two sides is compared against one ceiling, or not at all."""

from __future__ import annotations

import re

import pytest

from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.compare.compare import common_bandwidth, common_peak, compare
from llm_perf_opt.compare.data import Comparison, PhaseChange
from llm_perf_opt.summary import Hardware, Peak, Summary, Utilisation, Workload
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
    return [note for note in result.notes if "MFU" in note or "MBU" in note]


def side_at(note: str, value: str) -> str:
    """Return the side that a note names nearest to a value."""
    place = note.index(value)
    return min(re.finditer(r"\b[AB]\b", note), key=lambda found: abs(found.start() - place))[0]


def test_a_slower_run_never_looks_better_used_because_its_ceiling_was_measured_under_load() -> None:
    fast, slow = run(1.0), run(1.37, flops_per_s=72e9, bytes_per_s=9e9, under_load=True)
    unloaded = run(1.37, flops_per_s=72e9, bytes_per_s=9e9)
    use_a, use_b = fast.utilisation["prefill"], slow.utilisation["prefill"]
    assert (use_b.mfu_ratio or 0) > 1.8 * (use_a.mfu_ratio or 0), "the captures have the problem"
    result = compared(fast, slow)
    for what in ("MFU", "MBU"):
        assert use_row(result, what).ratio == pytest.approx(1 / 1.37)
    assert use_row(result, "MFU").a == use_a.mfu_ratio
    peak, bandwidth = common_peak(fast, slow), common_bandwidth(fast, slow)
    assert (peak.scale_a, peak.scale_b) == (1.0, pytest.approx(72 / 181)) and peak.comparable
    assert (bandwidth.scale_a, bandwidth.scale_b) == (1.0, pytest.approx(9 / 20)) and bandwidth.comparable
    mfu, mbu = ceiling_notes(result)
    assert "MFU" in mfu and "float32" in mfu and "MBU" in mbu
    for note, kept, left in ((mfu, "181 GFLOP/s", "72.0 GFLOP/s"), (mbu, "20.0 GB/s", "9.00 GB/s")):
        assert (side_at(note, kept), side_at(note, left)) == ("A", "B")
    for note, plain in zip((mfu, mbu), ceiling_notes(compared(fast, unloaded)), strict=True):
        assert len(note) > len(plain), "that it was measured under load is said"
    back = compared(slow, fast)
    assert use_row(back, "MFU").ratio == pytest.approx(1.37)
    assert side_at(ceiling_notes(back)[0], "181 GFLOP/s") == "B"


def test_equal_ceilings_need_no_note() -> None:
    result = compared(run(1.0), run(1.37))
    assert use_row(result, "MFU").ratio == pytest.approx(1 / 1.37)
    assert ceiling_notes(result) == []


def test_a_data_sheet_is_better_known_than_a_higher_measurement() -> None:
    result = compared(run(1.0, flops_per_s=150e9, source="catalogue"), run(1.0))
    assert use_row(result, "MFU").ratio == pytest.approx(1.0)
    assert side_at(ceiling_notes(result)[0], "150 GFLOP/s") == "A"
    assert use_row(result, "MFU").a == pytest.approx(WORK_FLOPS / 150e9)


@pytest.mark.parametrize("name", ["Intel Xeon", None])
def test_two_devices_have_no_common_ceiling(name: str | None) -> None:
    a, b = run(1.0), run(1.0, name=name, flops_per_s=90e9)
    result = compared(a, b)
    row = use_row(result, "MFU")
    assert row.ratio is None and row.a is not None and row.b is not None
    assert not common_peak(a, b).comparable
    (note,) = ceiling_notes(result)
    assert "MFU" in note and "AMD EPYC" in note and (name or "B") in note
    assert use_row(result, "MBU").ratio == pytest.approx(1.0), "the same bandwidth is a common ceiling"


def test_two_data_types_have_no_common_peak() -> None:
    a, b = run(1.0), run(1.0, dtype="bfloat16", flops_per_s=360e9)
    result = compared(a, b)
    assert use_row(result, "MFU").ratio is None and not common_peak(a, b).comparable
    (note,) = ceiling_notes(result)
    assert "MFU" in note and {"float32", "bfloat16"} <= set(re.findall(r"\w+", note))
