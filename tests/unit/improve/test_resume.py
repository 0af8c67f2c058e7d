"""A search through the command line whose experiments stand in: interrupted, gone on with, taken back; what lies in its directory."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.improve import baseline
from llm_perf_opt.improve import improve as improve_module
from llm_perf_opt.improve.experiment import Outcome
from llm_perf_opt.improve.measuring import Spec
from llm_perf_opt.improve.page import headline
from llm_perf_opt.improve.plan import plan
from llm_perf_opt.improve.search import Search
from llm_perf_opt.remedies.data import TIME_IS_OVER, Improvement, load_improvement
from llm_perf_opt.summary import Summary
from tests.unit.improve.test_search import REMEDIES, Effects, finding, result, runner, situation
from tests.unit.summaries import summary

MODE, CACHE, EAGER = (
    "infer.inference_mode=true",
    "model.cache=preallocated",
    "model.attn_implementation=eager",
)
Run = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A baseline that is there already."""
    made: Summary = summary(findings=[finding("growing-cache", 0.1), finding("dispatch", 0.05)])
    made.workload.program = None

    def start(path: Path) -> baseline.Start:
        return baseline.Start(path, made, ["model=llama_tiny"])

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(baseline, "read_run", start)
    monkeypatch.setattr(baseline, "run_first", lambda _, out, **_limits: start(out / baseline.FOLDER))


def improve(monkeypatch: pytest.MonkeyPatch, run: Run, *expected: str) -> int:
    made = functools.partial(Search, runner=run, clock=lambda: 0.0)
    monkeypatch.setattr(improve_module, "Search", made)
    return main(["improve", *expected, "--quiet"])


def stopped_at(number: int, effects: Effects) -> Run:
    """The experiment of this number is interrupted, and leaves a file."""
    seen: list[Spec] = []
    plain = runner(effects, seen)

    def run(spec: Spec, folder: Path, **more: Any) -> Outcome:
        if len(seen) + 1 == number:
            folder.mkdir(parents=True)
            raise KeyboardInterrupt
        return plain(spec, folder, **more)

    return run


def test_an_interrupted_search_reports_its_results_and_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a b"
    run = stopped_at(2, {CACHE: 0.5})
    assert improve(monkeypatch, run, "--try", CACHE, "--try", MODE, "--out", str(out)) == 130
    output = capsys.readouterr().out
    assert re.search(rf"^best .*{re.escape(CACHE)}", output, re.MULTILINE)
    (command,) = [line[line.index("llm-perf-opt") :] for line in output.splitlines() if "--resume" in line]
    assert shlex.split(command) == ["llm-perf-opt", "improve", "--resume", str(out)]
    made = load_improvement(out)
    assert (made.status, made.best.overrides) == ("interrupted", [CACHE])


def test_a_search_goes_on_as_it_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = ("--only", "growing-cache", "--error", "0.1", "--pairs", "20", "--samples", "3", "--seed", "7")
    run = stopped_at(2, {CACHE: 0.5})
    assert improve(monkeypatch, run, "model=llama_tiny", *begun, "--out", str(tmp_path / "o")) == 130
    first = load_improvement(tmp_path / "o")
    seen: list[Spec] = []
    assert improve(monkeypatch, runner({CACHE: 0.5}, seen), "--resume", str(tmp_path / "o")) == 0
    made = load_improvement(tmp_path / "o")
    assert {trial.finding for trial in made.tried if trial.role == "single"} == {"growing-cache"}
    assert made.method == first.method
    assert {(spec.alpha, spec.settings.most_blocks, spec.settings.most_samples) for spec in seen} == {
        (0.1 / first.method.tests, 20, 3)
    }
    assert made.best.overrides == [CACHE]


def test_ones_own_remedies_are_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    effects = {CACHE: 0.5, MODE: 0.8}
    own = ("--try", CACHE, "--try", MODE, "--out", str(tmp_path / "o"))
    assert improve(monkeypatch, stopped_at(3, effects), *own) == 130
    assert improve(monkeypatch, runner(effects, []), "--resume", str(tmp_path / "o")) == 0
    made = load_improvement(tmp_path / "o")
    assert (made.best.overrides, made.best.confirmed, made.status) == ([CACHE, MODE], True, "complete")
    assert (made.method.own, made.method.only) == ([CACHE, MODE], [])


def test_another_search_is_not_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert improve(monkeypatch, runner({}, []), "--try", MODE, "--out", str(tmp_path / "o")) == 0
    for phrase in (("--only", "threads"), ("--error", "0.2"), ("--metric", "ttft"), ("model=llama_tiny",)):
        assert improve(monkeypatch, runner({}, []), "--resume", str(tmp_path / "o"), *phrase) == 2
        assert phrase[0] in (output := capsys.readouterr().err) or "its own configuration" in output


def test_what_is_taken_back_is_not_advertised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lucky, later = runner({CACHE: 0.5}, []), runner({CACHE: 1.2}, [])
    best = tmp_path / "config" / "best.yaml"
    there: list[bool] = []

    def run(spec: Spec, folder: Path, *, own_processes: bool = False) -> Outcome:
        there.append(best.exists())
        return (later if own_processes else lucky)(spec, folder, own_processes=own_processes)

    assert improve(monkeypatch, run, "--try", CACHE, "--out", str(tmp_path)) == 0
    made = load_improvement(tmp_path)
    assert there == [False, True]
    assert not best.exists()
    assert (made.best.overrides, made.best.command) == ([], None)
    for page in ("improve.md", "improve.html"):
        text = (tmp_path / page).read_text()
        assert "llm-perf-opt run" not in text
        # It says more than that nothing showed a gain: there was one, and it was taken back.
        assert headline(made) in text and headline(made) != headline(replace(made, tried=made.tried[:1]))


def crashed(outcome: Outcome) -> None:
    outcome.failure, outcome.measured = "it crashed (signal 6)", None


def other_tokens(outcome: Outcome) -> None:
    assert outcome.check is not None
    outcome.check.tokens_equal, outcome.check.first_difference = False, 3


def not_on_the_whole(outcome: Outcome) -> None:
    outcome.total_change = 0.1


def not_shown(outcome: Outcome) -> None:
    assert outcome.measured is not None
    outcome.measured.verdict = "not shown"


def not_shown_and_other_tokens(outcome: Outcome) -> None:
    not_shown(outcome)
    other_tokens(outcome)


def confirmed_as(change: Callable[[Outcome], None], out: Path) -> Improvement:
    plain = runner({EAGER: 0.5}, [])

    def run(spec: Spec, folder: Path, *, own_processes: bool = False) -> Outcome:
        outcome = plain(spec, folder, own_processes=own_processes)
        if own_processes:
            change(outcome)
        return outcome

    made = result()
    Search(plan(REMEDIES[:2], situation()), made, out, 1e3, lambda _: None, run, lambda: 0.0).run()
    return made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (crashed, "signal 6"),
        (other_tokens, "position 3"),
        (not_on_the_whole, None),
        (not_shown_and_other_tokens, "position 3"),
    ],
)
def test_a_failed_confirmation_withdraws_the_best(
    change: Callable[[Outcome], None], message: str | None, tmp_path: Path
) -> None:
    made = confirmed_as(change, tmp_path)
    assert (made.best.overrides, made.ladder) == ([], [])
    assert made.tried[-1].role == "confirmation"
    assert (message or made.tried[-1].reason) in made.notes[0]


def test_a_gain_that_is_only_not_shown_again_stays_unconfirmed(tmp_path: Path) -> None:
    made = confirmed_as(not_shown, tmp_path)
    assert (made.best.overrides, made.best.confirmed, made.notes) == ([EAGER], False, [])


def test_an_earlier_refuted_whole_does_not_empty_a_later_one(tmp_path: Path) -> None:
    """The first whole was slower; another remedy that is found later stands by itself."""
    made = confirmed_as(lambda outcome: setattr(outcome, "total_change", 0.1), tmp_path)
    assert made.best.overrides == []
    seen: list[Spec] = []
    effects = {EAGER: 0.5, MODE: 0.4}
    planned = plan(REMEDIES[:3], situation())
    Search(planned, made, tmp_path, 1e3, lambda _: None, runner(effects, seen), lambda: 0.0).run()
    assert made.best.overrides == [MODE]
    assert made.best.confirmed


def test_a_search_that_goes_on_makes_no_more_tests_than_it_planned(tmp_path: Path) -> None:
    made = result()
    made.method = replace(made.method, tests=4)
    Search(
        plan(REMEDIES, situation()),
        made,
        tmp_path,
        1e3,
        lambda _: None,
        runner({EAGER: 0.5}, []),
        lambda: 0.0,
    ).run()
    assert [trial.role for trial in made.tried if trial.measured is not None] == [
        "single",
        "single",
        "confirmation",
    ]
    (reason,) = {item.reason for item in made.not_tried}
    assert reason != TIME_IS_OVER and "tests" in reason


def test_what_a_killed_process_leaves_is_not_complete(tmp_path: Path) -> None:
    statuses: list[str] = []
    Search(
        plan(REMEDIES[:2], situation()), made := result(), tmp_path, 1e3, lambda r: statuses.append(r.status),
        runner({}, []), lambda: 0.0,
    ).run()  # fmt: skip
    assert statuses == [*["interrupted"] * 3, "complete"], "once before the first experiment"
    assert made.status == "complete"


def test_notes_on_time_are_gone_once_there_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    effects = {CACHE: 0.5, MODE: 0.8}
    own = ("--try", CACHE, "--try", MODE, "--out", str(tmp_path / "o"))
    assert improve(monkeypatch, stopped_at(3, effects), *own) == 130
    made = load_improvement(tmp_path / "o")
    made.notes = [f"x was not measured once more, as a whole: {TIME_IS_OVER}"]
    improve_module.save_improvement(made, tmp_path / "o")
    assert improve(monkeypatch, runner(effects, []), "--resume", str(tmp_path / "o")) == 0
    assert load_improvement(tmp_path / "o").notes == []


def test_a_search_that_is_killed_in_its_first_experiment_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is there before the first experiment begins."""
    out = tmp_path / "search"

    def look(spec: Spec, folder: Path, *, own_processes: bool = False) -> Outcome:
        found = load_improvement(out)
        assert found.status == "interrupted" and found.tried == [] and found.method.tests > 0
        raise KeyboardInterrupt

    arguments = ["model=llama_tiny", "--out", str(out), "--try", MODE]
    assert improve(monkeypatch, look, *arguments) == 130
    assert improve(monkeypatch, runner({MODE: 0.5}, []), "--resume", str(out)) == 0
    assert load_improvement(out).best.overrides == [MODE]


def test_the_best_of_a_search_can_be_the_start_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    arguments = ["model=llama_tiny", "--out", str(first), "--try", MODE]
    assert improve(monkeypatch, runner({MODE: 0.5}, []), *arguments) == 0
    requested: list[list[str]] = []
    run_first = baseline.run_first

    def noted(overrides: Any, out: Path, *more: Any, **named: Any) -> baseline.Start:
        requested.append(list(overrides))
        return replace(run_first(overrides, out, *more, **named), overrides=list(overrides))

    monkeypatch.setattr(baseline, "run_first", noted)
    assert (
        improve(monkeypatch, runner({CACHE: 0.9}, []), str(first), "--out", str(second), "--try", CACHE) == 0
    )
    assert requested == [["model=llama_tiny", MODE]]
    assert load_improvement(second).baseline.overrides == requested[0]
    assert load_improvement(second).best.overrides == [CACHE]
