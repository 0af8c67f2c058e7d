"""Whole experiments on a tiny model: real engine, real processes, remedies that fail."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt import try_remedy
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.runs.improve.experiment import run_experiment
from llm_perf_opt.runs.improve.spec import Spec

TINY = ["model=llama_tiny", "infer.max_new_tokens=3", "dataset.synthetic_tokens=8", "infer.warmup_rounds=0"]
FEW: dict[str, Any] = {"baseline": TINY, "most_blocks": 6, "limit_s": 30.0}


def crash(_: Any) -> None:
    os.abort()


def hang(_: Any) -> None:
    time.sleep(600)


def spec(patch: str | None, limit_s: float = 20.0) -> Spec:
    return Spec(TINY, TINY, "total", 0.05, 0.02, 6, limit_s, 0, 2, patch=patch)


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


def test_a_patch_that_raises_is_a_failed_trial() -> None:
    def broken(_: Any) -> None:
        raise ValueError("no such layer")

    trial = try_remedy([], patch=broken, **FEW)
    assert (trial.decision, trial.reason) == ("failed", "ValueError: no such layer")


def test_other_work_is_refused_and_an_impossible_setting_told() -> None:
    assert "refused" in try_remedy(["infer.max_new_tokens=2"], **FEW).reason
    assert "model.cache=static" in try_remedy(["model.compile=true"], **FEW).reason
    with pytest.raises(ConfigError):
        try_remedy([], **FEW)


def test_a_crash_is_recorded(tmp_path: Path) -> None:
    outcome = run_experiment(spec(f"{__name__}:crash"), tmp_path / "x")
    assert outcome.failure is not None
    assert "crashed (signal 6)" in outcome.failure


@pytest.mark.slow
def test_what_does_not_end_is_given_up(tmp_path: Path) -> None:
    outcome = run_experiment(spec(f"{__name__}:hang", limit_s=1.0), tmp_path / "x", warm_up_s=8.0)
    assert outcome.failure is not None
    assert "did not come to an end" in outcome.failure


@pytest.mark.slow
def test_two_processes_take_turns(tmp_path: Path) -> None:
    wanted = spec(None)
    wanted.b = [*TINY, "run.env.MALLOC_ARENA_MAX='2'"]
    wanted.environment = {"b": {"MALLOC_ARENA_MAX": "2"}}
    outcome = run_experiment(wanted, tmp_path / "x", own_processes=True)
    assert outcome.failure is None
    assert outcome.measured is not None
    assert outcome.measured.blocks >= 1
    assert outcome.check is not None
    assert outcome.check.tokens_equal
    assert outcome.page is not None
    assert outcome.page.is_file()
