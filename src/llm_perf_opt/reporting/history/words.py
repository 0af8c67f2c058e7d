"""The words of a history, the same on the page and on the console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from llm_perf_opt.analysis.compare.gate import p_text, signed_percent
from llm_perf_opt.analysis.history.changes import UNSTEADY_ALPHA
from llm_perf_opt.analysis.history.record import record_words
from llm_perf_opt.core import units
from llm_perf_opt.model.history import Change, FindingRecord, History, HistoryMethod, LeftOut, Trend

_MOST_CAME = 6
_MOST_NAMED = 5
_FORMATS: dict[str, Callable[[float | None], str]] = {
    "s": units.seconds,
    "bytes": units.size,
    "ratio": units.percent,
    "count": units.count,
}


def formatter(unit: str) -> Callable[[float | None], str]:
    """Return how values of a unit are written."""
    return _FORMATS.get(unit, lambda value: units.number(value, unit))


def level(trend: Trend, value: float) -> str:
    """Write a value of a trend."""
    return formatter(trend.unit)(value)


def trend_name(trend: Trend) -> str:
    """Name a trend within its configuration and machine."""
    return (
        trend.metric
        if trend.phase in (None, trend.metric) or trend.metric == "tpot"
        else f"{trend.metric} ({trend.phase})"
    )


def change_words(trend: Trend, change: Change) -> str:
    """Say how much a level changed, where, and how sure that is."""
    first = trend.points[change.place]
    span = f"{signed_percent(change.low_ratio)} to {signed_percent(change.high_ratio)}"
    where = f"from run {first.run} ({first.started})"
    if (change.earliest, change.latest) != (change.place, change.place):
        runs = (trend.points[change.earliest].run, trend.points[change.latest].run)
        where += f", at the earliest {runs[0]}, at the latest {runs[1]}"
    doubt = f"; {change.doubt}" if change.doubt else ""
    return (
        f"{change.outcome}: {signed_percent(change.ratio)} ({span}, {p_text(change.p_value)}) {where}{doubt}"
    )


def drift_words(trend: Trend) -> str | None:
    """Say that a trend drifts or wanders; ``None``: it does neither."""
    if trend.drift_ratio is None:
        if trend.wanders:
            return "the level wanders from run to run, so that only changes that come at once are shown"
        return None
    return f"a drift of {signed_percent(trend.drift_ratio)} from the first run to the last, which no step describes better"


def came_words(change: Change) -> str:
    """Say what came with a change."""
    if not change.came_with:
        return "nothing that is recorded (commit and versions are the same)"
    said = [f"{c.what} {_short(c.before)} → {_short(c.after)}" for c in change.came_with[:_MOST_CAME]]
    more = len(change.came_with) - len(said)
    return ", ".join(said) + (f" and {more} more" if more else "")


def _short(value: str | None) -> str:
    if value is None:
        return units.MISSING
    is_hash = len(value) == 40 and all(letter in "0123456789abcdef" for letter in value)
    return value[:12] if is_hash else value


def finding_words(record: FindingRecord) -> str:
    """Say how the advice of a rule did on a machine."""
    words = record_words(record.helped, record.trials, where="here") or "no trial could tell"
    more = f"; {record.not_shown} could not tell" if record.not_shown and record.trials else ""
    return f"{words}{more}"


def left_out_lines(left_out: Sequence[LeftOut]) -> list[str]:
    """Count what was left out by its reason, and name some of each."""
    by_reason: Counter[str] = Counter(entry.reason.partition(":")[0] for entry in left_out)
    lines = []
    for reason, many in by_reason.most_common():
        names = [entry.path for entry in left_out if entry.reason.partition(":")[0] == reason][:_MOST_NAMED]
        lines.append(f"left out: {many} ({reason}): {', '.join(names)}{' …' if many > len(names) else ''}")
    return lines


def nothing_words(history: History) -> str:
    """Say why there is no trend at all."""
    if history.left_out:
        return "no run with such a metric is left: what was left out, and why, is below"
    return "no run has such a metric"


def method_words(method: HistoryMethod) -> str:
    """Say how changes were found and how often that errs."""
    tested = "1 trend was tested" if method.tested == 1 else f"{method.tested} trends were tested"
    return (
        f"Changes: {method.name}, {method.permutations} permutations, alpha {method.alpha:g}; at least {method.least_runs} "
        f"runs, {method.least_side} on either side, and a change of {method.least_change_ratio:.0%}. {tested}: "
        f"with nothing changed about {method.tested * method.alpha:.2g} of them would show a change, and up to "
        f"{method.tested * UNSTEADY_ALPHA:.2g} where neighbouring runs are alike."
    )
