"""A search whose proposals come from Optuna: the verdicts, the output check and the limits stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.improve.measuring import Spec
from llm_perf_opt.improve.plan import plan
from llm_perf_opt.process.tools import has_package
from llm_perf_opt.remedies.data import Improvement
from tests.unit.improve.test_search import REMEDIES, remedy, result, runner, situation

needs_optuna = pytest.mark.needs("optuna")
EFFECTS = {
    "model.attn_implementation=eager": 0.5,
    "model.cache=preallocated": 0.8,
    "infer.inference_mode=true": 1.3,
}


def search(
    out: Path, found: Improvement | None = None, trials: int = 12, budget_s: float = 1e6, **more: Any
) -> tuple[Improvement, list[Spec]]:
    from llm_perf_opt.improve.optuna import OptunaSearch

    pixels = remedy("pixels", "infer.mode=tiny", effect="quality")
    made, seen = found or result(), list[Spec]()
    OptunaSearch(
        plan([*REMEDIES, pixels], situation()),
        made,
        out,
        budget_s,
        saved=lambda _: None,
        runner=runner(EFFECTS, seen, **more),
        clock=lambda: 0.0,
        trials=trials,
    ).run()
    return made, seen


@pytest.mark.skipif(has_package("optuna"), reason="Optuna is installed")
def test_without_optuna_the_error_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["improve", "model=llama_tiny", "--search", "optuna"]) == 2
    assert 'pip install "llm-perf-opt[optuna]"' in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@needs_optuna
def test_it_begins_with_the_findings_and_ends_with_a_confirmed_best(tmp_path: Path) -> None:
    made, seen = search(tmp_path)
    assert [trial.remedy for trial in made.tried[:2]] == ["eager", "cache"]
    assert made.tried[-1].role == "confirmation"
    assert made.tried[-1].how == "own processes"
    assert sum(trial.role != "confirmation" for trial in made.tried) <= 12
    assert "model.attn_implementation=eager" in made.best.overrides
    assert made.best.confirmed
    assert all(spec.alpha == pytest.approx(0.05 / 13) for spec in seen)
    assert {item.remedy for item in made.not_tried} == {"pixels"}


@needs_optuna
def test_combinations_are_proposed_and_nothing_is_measured_twice(tmp_path: Path) -> None:
    made, seen = search(tmp_path, trials=20)
    assert any(trial.role == "combination" for trial in made.tried)
    proposals = [tuple(trial.overrides) for trial in made.tried if trial.role != "confirmation"]
    assert len(set(proposals)) == len(proposals)
    for spec in seen:
        keys = [item.partition("=")[0] for item in spec.b]
        assert len(set(keys)) == len(keys)
    both = {"model.attn_implementation=eager", "model.cache=preallocated"}
    assert set(made.best.overrides) == both


@needs_optuna
def test_other_answers_are_never_kept(tmp_path: Path) -> None:
    made, _ = search(tmp_path, equal=lambda spec: "model.attn_implementation=eager" not in spec.b)
    assert "model.attn_implementation=eager" not in made.best.overrides
    decisions = {trial.decision for trial in made.tried if "eager" in trial.remedy}
    assert "ask" in decisions
    assert "keep" not in decisions


@needs_optuna
def test_the_same_seed_gives_the_same_trials_and_a_resumed_search_continues(tmp_path: Path) -> None:
    whole, _ = search(tmp_path)
    again, _ = search(tmp_path)
    assert [trial.overrides for trial in again.tried] == [trial.overrides for trial in whole.tried]
    half = result()
    half.tried = whole.tried[:4]
    resumed, seen = search(tmp_path, found=half)
    assert [trial.overrides for trial in resumed.tried] == [trial.overrides for trial in whole.tried]
    measured = [trial for trial in resumed.tried[4:] if trial.measured is not None]
    assert len(seen) == len(measured)


@needs_optuna
def test_the_time_ends_it(tmp_path: Path) -> None:
    made, seen = search(tmp_path, budget_s=1.0)
    assert seen == []  # a budget is kept
    assert made.status == "out of time"
    assert "0 of 12 proposals" in made.notes[0]
