"""The track record of a rule: which searches count."""

from __future__ import annotations

from llm_perf_opt.history.data import FindingRow
from llm_perf_opt.history.rows import track_records


def row(metric: str, phase: str | None, grade: str) -> FindingRow:
    return FindingRow("s", 1, 1, "2026-01-01", "CPU", "m", metric, "dispatch", phase, grade, 0.1, 0.1, 0, 1)


def test_a_search_by_another_phases_metric_does_not_count() -> None:
    rows = [
        row("total", "decode", "confirmed"),
        row("ttft", "decode", "wrong"),
        row("tpot", "prefill", "wrong"),
    ]
    assert [(r.phase, r.helped, r.trials) for r in track_records(rows)] == [("decode", 1, 1)]
