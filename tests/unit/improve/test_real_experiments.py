"""Whole experiments on a tiny model: real engine, real processes. Remedies that fail: ``test_faults``."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt import try_remedy
from llm_perf_opt.improve.experiment import run_experiment
from llm_perf_opt.improve.measuring import OUT_OF_BUDGET
from tests.unit.improve.tiny import FEW, spec


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


def programs_of(folder: Path) -> list[str]:
    """Return the command lines of running programs that name a folder."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return [line for line in lines if str(folder) in line]


@pytest.mark.parametrize("own_processes", [False, True])
def test_the_budget_ends_running_processes(own_processes: bool, tmp_path: Path) -> None:
    """The model needs seconds to load and the experiment has half a second: its processes are ended, nothing is measured."""
    cut = run_experiment(replace(spec(), total_s=0.5), tmp_path / "x", own_processes=own_processes)
    assert (cut.failure, cut.failure_kind) == (OUT_OF_BUDGET, "budget")
    assert cut.out_of_budget and cut.measured is None and cut.page is None
    assert programs_of(tmp_path / "x") == []
