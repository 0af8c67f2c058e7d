"""Whole experiments on a tiny model: real engine, real processes. Remedies that fail: ``test_faults``."""

from __future__ import annotations

import re
from typing import Any

from llm_perf_opt import try_remedy
from tests.unit.improve.tiny import FEW


def test_the_same_settings_give_the_same_answers_and_no_gain() -> None:
    """A gain of nine tenths: no noise makes one of nothing."""
    trial = try_remedy([], patch=lambda model: model, least_gain_ratio=0.9, **FEW)
    assert trial.output == "equal"
    assert trial.check is not None
    assert trial.check.largest_logit_difference == 0
    assert trial.check.perplexity_before == trial.check.perplexity_after
    assert trial.measured is not None
    assert trial.decision == "drop"
    assert trial.patch


def test_a_batch_that_the_samples_cannot_fill_is_no_result() -> None:
    trial = try_remedy(["infer.batch_size=8"], patch=lambda model: model, **FEW)
    assert trial.decision == "failed"
    assert re.findall(r"infer\.batch_size=8|\b\d+\b", trial.reason) == ["infer.batch_size=8", "2"]
    assert trial.measured is None


def test_a_whole_batch_of_the_baseline_is_measured() -> None:
    few = {**FEW, "baseline": [*FEW["baseline"], "infer.batch_size=2"], "most_samples": 1}
    trial = try_remedy([], patch=lambda model: model, **few)
    assert trial.check is not None
    assert trial.check.samples == 2


def test_a_patch_that_changes_the_answers_is_seen_and_never_kept() -> None:
    def forget(model: Any) -> None:
        model.model.layers = model.model.layers[:1]

    trial = try_remedy([], patch=forget, **FEW)
    assert trial.output == "differs"
    assert trial.check is not None
    assert trial.check.first_difference is not None
    assert trial.decision in ("ask", "drop")
