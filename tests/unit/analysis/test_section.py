"""The report's table of a processor's work."""

from __future__ import annotations

from llm_perf_opt.analysis.cpu import PhaseClock, phase_work, work_section
from tests.text_facts import mentions
from tests.unit.summaries import operator


def test_one_row_per_phase_and_part() -> None:
    rows = [operator("aten::mm", 10, 0.5), operator("aten::mul", 10, 0.1)]
    work = phase_work(rows, PhaseClock(1.2, 1.0), operator_cost_s=1e-6)
    assert work is not None
    (section,) = work_section({"decode": work})
    (table,) = section.tables
    assert table.rows[0] == ["decode", "matrix", "500 ms", "50.0 %", "aten::mm", "50.0 %"]
    assert table.rows[1][:4] == ["decode", "dispatch", "400 ms", "40.0 %"]
    assert table.rows[1][4:] == ["", ""]
    assert mentions(section.paragraphs[0], "1.20") and mentions(section.paragraphs[1], "1.00 µs")


def test_a_cost_that_was_not_measured_is_reported() -> None:
    work = phase_work([operator("aten::mm", 10, 0.5)], PhaseClock())
    assert work is not None
    (section,) = work_section({"decode": work})
    assert work.of == "operators" and mentions(section.paragraphs[0], "operators")
    assert "µs" not in section.paragraphs[1] and mentions(section.paragraphs[1], "views")


def test_nothing_without_work() -> None:
    assert work_section({}) == []
