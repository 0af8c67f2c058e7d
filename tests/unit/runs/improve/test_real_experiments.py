"""Whole experiments on a tiny model: real engine, real processes. Remedies that fail: ``test_faults``."""

from __future__ import annotations

from typing import Any

from llm_perf_opt import try_remedy
from tests.unit.runs.improve.tiny import FEW


def test_the_same_settings_give_the_same_answers_and_no_gain() -> None:
    trial = try_remedy([], patch=lambda model: model, **FEW)
    assert trial.output == "equal"
    assert trial.check is not None
    assert trial.check.largest_logit_difference == 0
    assert trial.check.perplexity_before == trial.check.perplexity_after
    assert trial.measured is not None
    assert trial.decision in ("drop", "keep")
    assert trial.patch


def test_a_patch_that_changes_the_answers_is_seen_and_never_kept() -> None:
    def forget(model: Any) -> None:
        model.model.layers = model.model.layers[:1]

    trial = try_remedy([], patch=forget, **FEW)
    assert trial.output == "differs"
    assert trial.check is not None
    assert trial.check.first_difference is not None
    assert trial.decision in ("ask", "drop")
