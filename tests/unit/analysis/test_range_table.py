"""A capture without device work shows the ranges it has."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.analysis.captures import join_captures
from llm_perf_opt.analysis.facts import Capture, Facts
from llm_perf_opt.analysis.range_table import range_totals
from llm_perf_opt.analysis.timeline.summary import summarise_timeline
from llm_perf_opt.captures.timeline import KernelTotals, NamedTotal
from tests.text_facts import mentions
from tests.unit.timelines import make_timeline

RANGES = [(0, 4_000_000_000, "prefill"), (0, 1_000_000_000, "mlp"), (2_000_000_000, 4_000_000_000, "mlp")]


def test_ranges_of_a_capture_on_a_cpu_reach_the_report() -> None:
    found = make_timeline(ranges=RANGES)
    capture = Capture(Path("cpu.sqlite"), found, summarise_timeline(found), tool="nsys")
    (section,) = join_captures(Facts(stage="nsys", captures=[capture])).sections
    assert mentions(section.title, "cpu.sqlite")
    (table,) = section.tables
    assert table.rows == [
        ["prefill", "prefill", "1", "4.00 s", "4.00 s", "4.00 s"],
        ["mlp", "–", "2", "3.00 s", "1.50 s", "2.00 s"],
    ]


def test_a_capture_with_kernels_needs_no_range_table() -> None:
    found = make_timeline(ops=[(0, 10, "k", 0)], calls=[(0, 1, "cudaLaunchKernel")], ranges=RANGES)
    capture = Capture(Path("gpu.sqlite"), found, summarise_timeline(found), tool="nsys")
    assert join_captures(Facts(stage="nsys", captures=[capture])).sections == []


def test_totals_of_ranges() -> None:
    found = KernelTotals("x.csv", ranges=(NamedTotal("a", 2, 10), NamedTotal("b", 1, 30, max_ns=30)))
    assert [(row.name, row.mean_ns, row.longest_ns) for row in range_totals(found)] == [
        ("b", 30, 30),
        ("a", 5, None),
    ]
    assert range_totals(make_timeline()) == []


def test_ranges_of_ranks_are_shown_next_to_one_another() -> None:
    """Each captured range by itself; a rank that has none of a range is left out of its row."""
    captures = []
    for label, rank, length in (("a", 0, 2), ("a", 1, 4), ("b", 0, 8), ("b", 1, 6)):
        found = make_timeline(ranges=[(0, length * 10**9, "decode")])
        path = Path(f"ranks/{rank}/nsys/run.{label}.rank{rank}.sqlite")
        captures.append(Capture(path, found, summarise_timeline(found), tool="nsys"))
    joined = join_captures(Facts(stage="nsys", captures=captures))
    first, second = joined.sections
    assert mentions(first.title, "2", "run.a.sqlite") and mentions(second.title, "2", "run.b.sqlite")
    assert [one.tables[0].rows[0][3:] for one in joined.sections] == [
        ["3.00 s", "2.00 s", "0", "4.00 s", "1"],
        ["7.00 s", "6.00 s", "1", "8.00 s", "0"],
    ]
    assert [row.rank for row in joined.ranks] == [0, 1]
