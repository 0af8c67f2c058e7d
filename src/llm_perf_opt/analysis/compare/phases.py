"""What limits each phase on either side, how much of the hardware it uses, and where its captured time goes."""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.analysis.compare.ceilings import CommonCeiling, common_bandwidth, common_peak
from llm_perf_opt.model.comparison import PhaseChange
from llm_perf_opt.model.summary import Budget, Summary

_PHASES = ("vision", "encode", "prefill", "ttft", "mixed", "decode", "total", "all")


@dataclass(frozen=True, slots=True)
class _Use:
    label: str
    field: str
    """Of :class:`~llm_perf_opt.model.summary.Utilisation`."""
    ceiling: CommonCeiling


def compare_phases(a: Summary, b: Summary) -> tuple[list[PhaseChange], list[str]]:
    """Return a row per phase and quantity, and what to know about the utilisation in them."""
    uses = (
        _Use("MFU", "mfu_ratio", common_peak(a, b)),
        _Use("MBU", "mbu_ratio", common_bandwidth(a, b)),
        _Use("device busy", "device_busy_ratio", CommonCeiling()),
    )
    rows: list[PhaseChange] = []
    told: set[str] = set()
    for phase in dict.fromkeys((*_PHASES, *a.budget, *b.budget)):
        one, two = a.verdicts.get(phase), b.verdicts.get(phase)
        if one is not None or two is not None:
            rows.append(
                PhaseChange(phase, "limited by", "", one.bound if one else None, two.bound if two else None)
            )
        for use in uses:
            found = _utilisation(phase, use, a, b)
            rows.extend(found)
            told |= {use.label for row in found if row.a is not None and row.b is not None}
        rows.extend(_budget_parts(phase, a, b))
    return rows, [use.ceiling.note for use in uses if use.ceiling.note is not None and use.label in told]


def _utilisation(phase: str, use: _Use, a: Summary, b: Summary) -> list[PhaseChange]:
    one = _scaled(getattr(a.utilisation.get(phase), use.field, None), use.ceiling.scale_a)
    two = _scaled(getattr(b.utilisation.get(phase), use.field, None), use.ceiling.scale_b)
    rows = _row(phase, use.label, "ratio", one, two)
    if not use.ceiling.comparable:
        for row in rows:
            row.ratio = None
    return rows


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _budget_parts(phase: str, a: Summary, b: Summary) -> list[PhaseChange]:
    left, right = (_part_seconds(side.budget[phase]) if phase in side.budget else {} for side in (a, b))
    return [
        row
        for name in dict.fromkeys((*left, *right))
        for row in _row(phase, f"captured time: {name}", "s", left.get(name), right.get(name))
    ]


def _part_seconds(budget: Budget) -> dict[str, float]:
    """Name → seconds; parts of one name differ in their owners only."""
    found: dict[str, float] = {}
    for part in budget.parts:
        found[part.name] = found.get(part.name, 0.0) + part.seconds
    return found


def _row(phase: str, what: str, unit: str, a: float | None, b: float | None) -> list[PhaseChange]:
    if not a and not b:
        return []
    return [PhaseChange(phase, what, unit, a, b, b / a if a and b is not None else None)]
