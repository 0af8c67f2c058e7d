"""The track record of findings: how often their advice helped, by rule and machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from llm_perf_opt.analysis.improve.judge import holds_phase
from llm_perf_opt.model.history import FindingRecord, FindingRow
from llm_perf_opt.model.improve import Improvement
from llm_perf_opt.model.statistics import percentile

HELPED = frozenset({"confirmed", "partly"})
NOT_SHOWN = "not shown"


def finding_rows(result: Improvement, search: str, *, size: int, mtime_ns: int) -> Iterator[FindingRow]:
    """Yield a row for every finding that a search graded."""
    for grade in result.grades:
        yield FindingRow(
            search=search,
            file_size=size,
            file_mtime_ns=mtime_ns,
            started=result.started,
            device=result.baseline.device,
            model=result.baseline.model,
            metric=result.metric,
            finding=grade.finding,
            phase=grade.phase,
            grade=grade.grade,
            predicted_gain_s=grade.predicted_gain_s,
            measured_gain_s=grade.measured_gain_s,
            helped=grade.helped,
            tried=grade.tried,
        )


def track_records(rows: Iterable[FindingRow]) -> list[FindingRecord]:
    """Sum up the searches of each rule on each machine, those tried most often first.

    A search by a metric that does not contain the phase of a finding says nothing of it.
    """
    grouped: dict[tuple[str, str | None, str | None], list[FindingRow]] = defaultdict(list)
    for row in rows:
        if not holds_phase(row.metric, row.phase):
            continue
        grouped[row.finding, row.phase, row.device].append(row)
    found = []
    for (finding, phase, device), group in grouped.items():
        told = [row for row in group if row.grade != NOT_SHOWN]
        found.append(
            FindingRecord(
                finding=finding,
                phase=phase,
                device=device,
                trials=len(told),
                helped=sum(row.grade in HELPED for row in told),
                not_shown=len(group) - len(told),
                predicted_gain_s=_median(row.predicted_gain_s for row in group),
                measured_gain_s=_median(row.measured_gain_s for row in group),
                last=max((row.started for row in group), default=None),
            )
        )
    return sorted(found, key=lambda r: (-r.trials, -r.helped, r.finding, r.phase or "", r.device or ""))


def record_words(helped: int, trials: int, *, where: str) -> str | None:
    """Say how often advice helped; ``None``: no search could tell."""
    if not trials:
        return None
    return f"helped in {helped} of {trials} {'trial' if trials == 1 else 'trials'} {where}"


def _median(values: Iterable[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return percentile(known, 0.5) if known else None
