"""What a search comes to: which trials are kept together, what that gives, and what takes it back."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.analysis.improve.outputs import output_words
from llm_perf_opt.model.improve import Improvement, Trial


def overrides_of(kept: Sequence[Trial]) -> list[str]:
    """Return the settings of all trials together."""
    return [item for trial in kept for item in trial.overrides]


def confirmation_of(result: Improvement, overrides: Sequence[str]) -> Trial | None:
    """Return the experiment that measured these settings once more against the baseline; ``None``: there is none."""
    return next(
        (t for t in result.tried if t.role == "confirmation" and t.overrides == list(overrides)), None
    )


def why_taken_back(again: Trial) -> str | None:
    """Say why what was kept is not kept after all, now that it was measured again; ``None``: it stays.

    A gain that is only not shown a second time stays, as one that is not confirmed.
    """
    if again.decision == "keep":
        return None
    if again.decision == "drop" and again.measured is not None:
        if again.measured.verdict in ("slower", "no gain"):
            return f"it showed {again.measured.verdict}"
        if again.measured.verdict == "not shown":
            return None if again.output == "equal" else output_words(again.check)
    return again.reason


def is_taken_back(result: Improvement, overrides: Sequence[str]) -> bool:
    """Return whether these settings were measured again and lost what they had."""
    again = confirmation_of(result, overrides)
    return again is not None and why_taken_back(again) is not None


def set_best(result: Improvement, kept: Sequence[Trial]) -> None:
    """The whole as it was confirmed; else the steps multiplied, whose ends are the product of theirs.

    How to run it is for whoever writes its configuration.
    """
    best = result.best
    best.overrides = overrides_of(kept)
    best.change_ratio = best.low = best.high = best.output = best.command = None
    best.confirmed = False
    again = confirmation_of(result, best.overrides)
    if again is not None and again.measured is not None and again.decision != "failed":
        found = again.measured
        best.change_ratio, best.low, best.high = found.change_ratio, found.low, found.high
        best.output, best.confirmed = again.output, again.decision == "keep"
        return
    known = [trial.measured for trial in kept if trial.measured is not None]
    if not known:
        return
    best.change_ratio = best.low = best.high = 1.0
    for found in known:
        best.change_ratio *= 1 + found.change_ratio
        best.low *= 1 + found.low
        best.high *= 1 + found.high
    best.change_ratio, best.low, best.high = best.change_ratio - 1, best.low - 1, best.high - 1
    best.output = "equal" if all(trial.output == "equal" for trial in kept) else "differs"
