"""A conclusion in one sentence: how much faster at equal work, and why."""

from __future__ import annotations

from llm_perf_opt.core import units
from llm_perf_opt.model.conclusion import Cause, Conclusion, Verdict, Work

NO_CHANGE = 0.01
"""Changes of a capture below this are not told from those between two captures of the same program."""
_LEAST_SHARE = 0.1
"""Of the change: further causes that are worth their place in the sentence."""
_AGAINST_SHARE = 0.25
_MOST_NAMED = 3
_LEAST_OF_WHOLE = 0.01
"""Of the whole: causes that cancel each other are told from here on."""


def verdict_of(found: Conclusion) -> Verdict:
    """Say which way the whole went at equal work."""
    if found.ratio is None:
        return "undecided"
    if abs(found.ratio - 1) < NO_CHANGE:
        return "no change"
    if abs(found.ratio - 1) < found.work.uncertainty_ratio:
        return "not shown"
    return "faster" if found.ratio < 1 else "slower"


def captured_sentence(found: Conclusion) -> str:
    """Return the first sentence of a conclusion from captures."""
    work, unit = found.work, found.work.unit or "unit of work"
    less = work_difference(work)
    if found.verdict == "not shown":
        known = f"the work is known to {units.percent(work.uncertainty_ratio)} only"
        head = f"{less}; per" if less else "Per"
        return (
            f"{head} {unit} no change is shown ({_instead(found, 'against')}; {known}){_moved(found, '; ')}."
        )
    if found.verdict == "no change":
        opposed = _cancelled(found)
        head = f"{less}; per" if less else "Per"
        same = f"{head} {unit} nothing changed{' in sum' if opposed else ''} ({_instead(found, 'against')})"
        return f"{same}{opposed}{_moved(found, '; ')}."
    doubt = (
        ""
        if work.confirmed
        else f" (if a {unit} is the same work on both sides, which the kernels do not show)"
    )
    change = f"{speed(found.ratio)} per {unit}{doubt}: {_instead(found, 'instead of')}"
    head = f"{less} and is {change}" if less else f"B is {change}"
    return f"{head}{because(found)}.{_moved(found, ' ')}{'.' if found.moved else ''}"


def speed(ratio: float | None) -> str:
    """``0.88`` → ``12.0 % faster``; beyond a factor of two as one."""
    if ratio is None or ratio <= 0:
        return "not comparable"
    if ratio >= 2:
        return f"{units.number(ratio)} times slower"
    if ratio <= 0.5:
        return f"{units.number(1 / ratio)} times faster"
    return f"{units.percent(abs(ratio - 1))} {'faster' if ratio < 1 else 'slower'}"


def work_difference(work: Work) -> str:
    """``B holds 12.5 % less work (7 steps instead of 8)``; empty where the work is the same."""
    if work.ratio is None:
        return "B holds another mix of work" if work.phases else ""
    if abs(work.ratio - 1) < 0.0005:
        return ""
    counted = (
        f"{units.count(work.b)} instead of {units.count(work.a)} {work.unit}s"
        if work.a is not None and work.b is not None
        else "launches of the same kernels"
        if work.basis == "launches"
        else ""
    )
    share = units.percent(abs(work.ratio - 1))
    said = f"B holds {share} {'more' if work.ratio > 1 else 'less'} work"
    return f"{said} ({counted})" if counted else said


def because(found: Conclusion) -> str:
    """``, because … (+6.00 ms, 98 % of the change)``; empty where no cause goes the way of the change."""
    change_s = found.change_s or 0.0
    along = [cause for cause in found.causes if cause.change_s * change_s > 0]
    named = [
        cause
        for place, cause in enumerate(along[:_MOST_NAMED])
        if place == 0 or abs(cause.change_s) >= _LEAST_SHARE * abs(change_s)
    ]
    if not named:
        return ""
    against = [
        cause
        for cause in found.causes
        if cause.change_s * change_s < 0 and abs(cause.change_s) >= _AGAINST_SHARE * abs(change_s)
    ]
    said = ", because " + " and ".join(_told(cause, found, shares=True) for cause in named)
    if against:
        said += f"; against it, {_told(against[0], found)}"
    return said


def signed_seconds(value: float) -> str:
    """``-0.002`` → ``−2.00 ms``."""
    return f"{'+' if value >= 0 else '−'}{units.seconds(abs(value))}"


def _told(cause: Cause, found: Conclusion, *, shares: bool = False) -> str:
    """Say a cause with its size; of several units, per unit and in all of A's. A wall-clock is of one answer already."""
    size, work = signed_seconds(cause.change_s), found.work
    if work.a is not None and work.a > 1 and found.whole != "wall_clock":
        size = f"{signed_seconds(cause.change_s / work.a)} per {work.unit}, {size} in all"
    if shares and cause.share_ratio is not None and cause.share_ratio < 0.9995:
        size += f", {units.percent(cause.share_ratio)} of the change"
    return f"{cause.text or cause.name} ({size})"


def _instead(found: Conclusion, word: str) -> str:
    """Both lengths, per unit where units were counted."""
    per = found.work.a or 1.0
    if found.a_s is None or found.b_s is None:
        return ""
    return f"{units.seconds(found.b_s / per)} {word} {units.seconds(found.a_s / per)}"


def _cancelled(found: Conclusion) -> str:
    """Name the largest causes of either direction where they cancel each other."""
    least = _LEAST_OF_WHOLE * (found.a_s or 0.0)
    up = next((cause for cause in found.causes if cause.change_s >= least > 0), None)
    down = next((cause for cause in found.causes if -cause.change_s >= least > 0), None)
    if up is None or down is None:
        return ""
    return f": {_told(down, found)}, but {_told(up, found)}"


def _moved(found: Conclusion, joint: str) -> str:
    if not found.moved:
        return ""
    first = found.moved[0]
    also = [move.text for move in found.moved[1:] if move.came_s >= 0.5 * first.came_s]
    text = "; ".join([first.text, *also])
    return f"{joint}{text if joint.startswith(';') else text[0].upper() + text[1:]}"
