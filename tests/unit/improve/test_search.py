"""The search: order, growth of the combination, limits, resumption; experiments stand in by what they would give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.improve.configurations import checked
from llm_perf_opt.improve.experiment import Outcome
from llm_perf_opt.improve.measuring import OUT_OF_BUDGET, Spec
from llm_perf_opt.improve.outputs import Answers
from llm_perf_opt.improve.page import cut_by_budget, improve_markdown
from llm_perf_opt.improve.plan import Planned, plan
from llm_perf_opt.improve.search import Search
from llm_perf_opt.remedies.base import Machine, Remedy, Situation, fixed
from llm_perf_opt.remedies.data import Baseline, Best, Improvement, Measured, OutputCheck, SearchSettings
from llm_perf_opt.summary import Finding

BASE = ["model=llama_tiny"]


def finding(name: str, gain: float, phase: str = "decode") -> Finding:
    return Finding(name, name, phase, [], gain, "", "", "high")


def remedy(name: str, *overrides: str, answers: tuple[str, ...] = (), **more: Any) -> Remedy:
    return Remedy(name=name, title=name, options=fixed(*overrides), answers=answers, **more)


REMEDIES = [
    remedy("cache", "model.cache=preallocated", answers=("growing-cache",)),
    remedy("eager", "model.attn_implementation=eager", answers=("eager-attention",)),
    remedy("mode", "infer.inference_mode=true"),
    remedy("half", "model.dtype=bfloat16", effect="rounding"),
    remedy("bad", "infer.max_new_tokens=3"),
    remedy("broken", "model.compile=true"),
    remedy("other", "model.cache=static"),
]


def situation(**more: Any) -> Situation:
    return Situation(
        config=checked(BASE),
        metric="total",
        machine=Machine(cpus=4),
        findings=[finding("growing-cache", 0.1), finding("eager-attention", 0.5)],
        **more,
    )


def result() -> Improvement:
    return Improvement(
        metric="total",
        baseline=Baseline(list(BASE), 1.0, total_s=1.0),
        method=SearchSettings(bound=""),
        best=Best([], None, None, None),
    )


Effects = dict[str, float]


def runner(
    effects: Effects,
    seen: list[Spec],
    *,
    equal: Callable[[Spec], bool] = lambda _: True,
    too_small: float = 0.02,
) -> Callable[..., Outcome]:
    """Give an outcome by the settings that only B has: their factors multiply."""

    def run(spec: Spec, folder: Path, *, own_processes: bool = False) -> Outcome:
        seen.append(spec)
        factor = 1.0
        for item in spec.b:
            factor *= effects.get(item, 1.0) if item not in spec.a else 1.0
        change = factor - 1
        verdict = "gain" if change < -too_small else "slower" if change > 0 else "no gain"
        verdict = "not shown" if -too_small <= change < -0.02 else verdict
        answers = Answers(tokens={"x": [1]}, prompt_tokens={"x": 1})
        return Outcome(
            measured=Measured(change, change - 0.01, change + 0.01, 20, 1.0, factor, verdict, 0.99),  # type: ignore[arg-type]
            check=OutputCheck(
                tokens_equal=equal(spec), samples=1, first_difference=None if equal(spec) else 3
            ),
            answers={"a": answers, "b": answers},
            total_change=change,
            how="own processes" if own_processes else "one process",
        )

    return run


def search(
    effects: Effects,
    out: Path,
    remedies: list[Remedy] = REMEDIES,
    found: Improvement | None = None,
    clock: Callable[[], float] | None = None,
    **more: Any,
) -> tuple[Improvement, list[Spec], Planned]:
    planned = plan(remedies, situation())
    seen: list[Spec] = []
    made = found or result()
    Search(
        planned,
        made,
        out,
        1000.0,
        saved=lambda _: None,
        runner=runner(effects, seen, **more),
        clock=clock or (lambda: 0.0),
    ).run()
    return made, seen, planned


def test_the_finding_with_the_largest_bound_comes_first_and_quality_last() -> None:
    planned = plan(
        [remedy("pixels", "infer.mode=tiny", effect="quality", answers=("eager-attention",)), *REMEDIES],
        situation(),
    )
    names = [candidate.remedy.name for candidate in planned.candidates]
    assert names[:2] == ["eager", "cache"]
    assert names[-1] == "pixels"


def test_what_helps_is_kept_and_grows_only_by_what_helps_on_top(tmp_path: Path) -> None:
    effects = {
        "model.attn_implementation=eager": 0.5,
        "model.cache=preallocated": 0.9,
        "infer.inference_mode=true": 1.2,
    }
    made, seen, _ = search(effects, tmp_path)
    decisions = {t.remedy: t.decision for t in made.tried if t.role == "single"}
    assert decisions == {
        "eager": "keep", "cache": "keep", "mode": "drop", "half": "drop", "bad": "failed", "broken": "failed", "other": "drop",
    }  # fmt: skip
    assert made.best.overrides == ["model.attn_implementation=eager", "model.cache=preallocated"]
    assert made.best.change_ratio == pytest.approx(0.45 - 1)
    assert made.best.confirmed
    assert [step.value for step in made.ladder] == pytest.approx([0.5, 0.45])
    assert made.tried[-1].role == "confirmation"
    assert made.tried[-1].how == "own processes"
    assert all(spec.alpha == pytest.approx(0.05 / 16) for spec in seen)


def test_a_gain_that_vanishes_with_another_is_not_in_the_best(tmp_path: Path) -> None:
    made, _, _ = search(
        {"model.attn_implementation=eager": 0.5, "model.cache=preallocated": 0.9},
        tmp_path,
        equal=lambda spec: "model.attn_implementation=eager" not in spec.a,
    )
    # On top of the first the second changes tokens: then it is not kept by itself.
    assert made.best.overrides == ["model.attn_implementation=eager"]
    assert [t.decision for t in made.tried if t.role == "combination"] == ["ask"]


def test_a_gain_that_is_gone_when_measured_again_is_not_kept(tmp_path: Path) -> None:
    """The first measurement was lucky: in new processes the same setting is slower."""
    seen: list[Spec] = []
    lucky, later = (
        runner({"model.attn_implementation=eager": 0.5}, seen),
        runner({"model.attn_implementation=eager": 1.2}, seen),
    )

    def run(spec: Spec, folder: Path, *, own_processes: bool = False) -> Outcome:
        return (later if own_processes else lucky)(spec, folder, own_processes=own_processes)

    made = result()
    Search(plan(REMEDIES[:2], situation()), made, tmp_path, 1000.0, lambda _: None, run, lambda: 0.0).run()
    assert [trial.decision for trial in made.tried] == ["drop", "drop", "drop"]
    assert [trial.role for trial in made.tried] == ["single", "single", "confirmation"]
    again = made.tried[2].measured
    assert (
        again is not None and again.verdict == "slower" and made.tried[2].overrides == made.tried[0].overrides
    )
    assert made.tried[0].reason.endswith("slower") and made.tried[0].reason != made.tried[2].reason
    assert [(grade.helped, grade.grade) for grade in made.grades] == [(0, "wrong"), (0, "wrong")]
    assert made.best.overrides == []
    assert made.ladder == []
    (note,) = made.notes
    assert note.startswith("model.attn_implementation=eager ") and note.endswith("slower")


def test_all_together_that_does_not_hold_leaves_the_strongest(tmp_path: Path) -> None:
    """Both help one on top of the other in one process; in new ones the whole is slower, and the strongest alone is not."""
    effects = {"model.attn_implementation=eager": 0.5, "model.cache=preallocated": 0.9}
    plain = runner(effects, [])

    def run(spec: Spec, folder: Path, *, own_processes: bool = False) -> Outcome:
        both = own_processes and {*effects} <= {*spec.b}
        return (runner({"model.cache=preallocated": 3.0}, []) if both else plain)(
            spec, folder, own_processes=own_processes
        )

    made = result()
    planned = plan(REMEDIES[:2], situation())
    Search(planned, made, tmp_path, 1000.0, lambda _: None, run, lambda: 0.0).run()
    assert made.best.overrides == ["model.attn_implementation=eager"]
    assert made.best.confirmed and made.best.change_ratio == pytest.approx(-0.5)
    grown = next(trial for trial in made.tried if trial.role == "combination")
    assert grown.measured is not None and grown.measured.verdict == "gain"
    assert grown.decision == "drop" and grown.reason.endswith("slower")
    assert len([trial for trial in made.tried if trial.measured is not None]) <= planned.tests


def test_what_depends_on_a_remedy_is_tried_again_on_top_of_it(tmp_path: Path) -> None:
    """Fewer threads are slower alone, and faster where the step is compiled."""
    remedies = [
        remedy("compile-decode", "model.compile=true", "model.cache=static"),
        remedy("threads", "run.threads=1", again_on=("compile-decode",)),
        remedy("mode", "infer.inference_mode=true"),
    ]
    alone = {"model.compile=true": 0.5, "run.threads=1": 1.2}
    seen: list[Spec] = []

    def run(spec: Spec, folder: Path, *, own_processes: bool = False) -> Outcome:
        effects = {**alone, "run.threads=1": 0.6} if "model.compile=true" in spec.b else alone
        return runner(effects, seen)(spec, folder, own_processes=own_processes)

    made = result()
    planned = plan(remedies, situation())
    Search(planned, made, tmp_path, 1000.0, lambda _: None, run, lambda: 0.0).run()
    assert made.best.overrides == ["model.compile=true", "model.cache=static", "run.threads=1"]
    assert [(trial.remedy, trial.role) for trial in made.tried if trial.role == "combination"] == [
        ("threads", "combination")
    ], "what does not depend on it is not tried again"
    assert planned.tests == 3 + 2 + 1 + 1 + 2


def test_a_confirmation_that_does_not_fit_twice_shares_the_weights(tmp_path: Path) -> None:
    plain, how = runner({"model.attn_implementation=eager": 0.5}, []), []

    def run(spec: Spec, folder: Path, *, own_processes: bool = False) -> Outcome:
        how.append(own_processes)
        outcome = plain(spec, folder, own_processes=own_processes)
        if own_processes:
            outcome.measured, outcome.failure = None, "side B: CUDA has none left"
            outcome.failure_kind = "memory"
        return outcome

    made = result()
    Search(plan(REMEDIES[:2], situation()), made, tmp_path, 1000.0, lambda _: None, run, lambda: 0.0).run()
    assert how == [False, False, True, False]
    assert made.best.confirmed and made.best.overrides == ["model.attn_implementation=eager"]


def test_steps_that_were_left_out_are_named_once(tmp_path: Path) -> None:
    steps = Remedy(
        "batch", "batch", lambda _: [["infer.batch_size=2"], ["infer.batch_size=4"]], grows="steps"
    )
    now = [0.0]

    def clock() -> float:
        now[0] += 300.0
        return now[0]

    made, _, _ = search({}, tmp_path, [steps, *REMEDIES], clock=clock)
    names = [" ".join(item.overrides) for item in made.not_tried]
    assert len(names) == len({*names})


def test_small_gains_that_alone_are_not_shown_are_tried_at_once(tmp_path: Path) -> None:
    effects = {
        "model.attn_implementation=eager": 0.5,
        "model.cache=preallocated": 0.95,
        "infer.inference_mode=true": 0.96,
    }
    made, _, _ = search(effects, tmp_path, too_small=0.07)
    bundle = next(trial for trial in made.tried if trial.remedy == "cache + mode")
    assert (bundle.role, bundle.decision) == ("combination", "keep")
    assert bundle.on_top_of == ["model.attn_implementation=eager"]
    assert made.best.overrides == [*bundle.on_top_of, *bundle.overrides] and made.best.confirmed
    one = {"model.cache=preallocated": 0.95}
    assert not any(" + " in t.remedy for t in search(one, tmp_path / "one", too_small=0.07)[0].tried)


def test_nothing_is_begun_when_the_baseline_took_all_the_time(tmp_path: Path) -> None:
    """A budget is kept; the page says what was cut and how to go on."""
    made = result()
    made.budget_s = 120.0
    Search(
        plan(REMEDIES, situation()),
        made,
        tmp_path,
        1.0,
        saved=lambda _: None,
        runner=runner({}, []),
        clock=lambda: 0.0,
    ).run()
    assert made.tried == [] and made.status == "out of time"
    assert {item.remedy for item in cut_by_budget(made)} == {each.name for each in REMEDIES}
    page = improve_markdown(made, "/searches/one")
    assert "improve --resume /searches/one" in page.partition("\n## ")[0]
    assert "Nothing was tried" in page


def test_an_experiment_has_the_time_that_is_left_and_one_that_is_cut_is_no_trial(tmp_path: Path) -> None:
    """Loading and warming up count: what is not measured when the budget ends says nothing of the remedy."""
    now: list[float] = [0.0]
    seen: list[float | None] = []

    def run(spec: Spec, folder: Path, *, own_processes: bool = False) -> Outcome:
        seen.append(spec.total_s)
        now[0] += 90.0 if len(seen) == 1 else spec.total_s or 0.0
        if len(seen) == 1:
            return runner({}, [])(spec, folder, own_processes=own_processes)
        return Outcome(None, None, failure=OUT_OF_BUDGET, out_of_budget=True)

    made = result()
    Search(plan(REMEDIES, situation()), made, tmp_path, 120.0, lambda _: None, run, lambda: now[0]).run()
    assert seen == [60.0, 30.0] and now[0] == 120.0
    assert len(made.tried) == 1 and made.status == "out of time"
    assert len(cut_by_budget(made)) == len(REMEDIES) - 1


def test_a_remedy_that_takes_too_long_to_start_leaves_time_to_the_others(tmp_path: Path) -> None:
    now = [0.0]

    def run(spec: Spec, folder: Path, *, own_processes: bool = False) -> Outcome:
        if "model.attn_implementation=eager" in spec.b:
            now[0] += spec.total_s or 0.0
            return Outcome(None, None, failure=OUT_OF_BUDGET, out_of_budget=True)
        now[0] += 20.0
        return runner({}, [])(spec, folder, own_processes=own_processes)

    made = result()
    Search(plan(REMEDIES[:3], situation()), made, tmp_path, 120.0, lambda _: None, run, lambda: now[0]).run()
    assert [item.remedy for item in cut_by_budget(made)] == ["eager"]
    assert {trial.remedy for trial in made.tried} == {"cache", "mode"}
    assert made.status == "out of time" and now[0] == 100.0


def test_of_each_remedy_one_setting_is_tried_on_top_of_the_others(tmp_path: Path) -> None:
    """So many tests are planned: the family error holds."""
    settings = ["model.cache=preallocated", "model.cache=static", "infer.inference_mode=true"]
    caches = Remedy(name="caches", title="", options=lambda _: [[item] for item in settings])
    first = remedy("eager", "model.attn_implementation=eager")
    effects = {"model.attn_implementation=eager": 0.5, **dict.fromkeys(settings, 0.9)}
    made, seen, planned = search(
        effects, tmp_path, [first, caches], equal=lambda s: "model.attn_implementation=eager" not in s.a
    )
    assert [t.decision for t in made.tried if t.role == "combination"] == ["ask"]
    assert made.best.overrides == ["model.attn_implementation=eager"]
    assert len(seen) <= planned.tests


def test_a_trial_that_failed_is_not_tried_with_others(tmp_path: Path) -> None:
    plain = runner({"model.cache=preallocated": 0.95, "infer.inference_mode=true": 0.96}, [], too_small=0.07)

    def failing(spec: Spec, folder: Path, *, own_processes: bool = False) -> Outcome:
        outcome = plain(spec, folder, own_processes=own_processes)
        outcome.failure = "side B compiles again in every pass"
        return outcome

    made, planned = result(), plan(REMEDIES[:3], situation())
    Search(planned, made, tmp_path, 1000.0, lambda _: None, failing, lambda: 0.0).run()
    assert [(t.role, t.decision) for t in made.tried] == [("single", "failed")] * 3


def test_other_answers_are_never_kept(tmp_path: Path) -> None:
    made, _, _ = search(
        {"model.dtype=bfloat16": 0.5}, tmp_path, equal=lambda spec: "model.dtype=bfloat16" not in spec.b
    )
    assert {t.remedy: t.decision for t in made.tried}["half"] == "ask"
    assert made.best.overrides == []


def test_other_work_is_refused_and_a_bad_configuration_is_a_failed_trial(tmp_path: Path) -> None:
    made, seen, _ = search({}, tmp_path)
    reasons = {t.remedy: t.reason for t in made.tried}
    assert "refused" in reasons["bad"]
    assert "infer.max_new_tokens" in reasons["bad"]
    assert "model.cache=static" in reasons["broken"]
    assert not any("infer.max_new_tokens=3" in spec.b for spec in seen)


def test_settings_of_the_same_key_are_not_combined(tmp_path: Path) -> None:
    made, _, _ = search({"model.cache=preallocated": 0.5, "model.cache=static": 0.6}, tmp_path)
    assert made.best.overrides == ["model.cache=preallocated"]
    assert not [t for t in made.tried if t.role == "combination"]


def test_ordered_settings_end_where_the_next_is_no_better(tmp_path: Path) -> None:
    threads = Remedy(
        name="threads",
        title="",
        options=lambda _: [[f"run.threads={n}"] for n in (3, 2, 1)],
        grows="steps",
    )
    # Slower than the baseline, or a smaller gain than the step before: either way the next is no better.
    for second in (1.1, 0.85):
        effects = {"run.threads=3": 0.8, "run.threads=2": second, "run.threads=1": 0.1}
        made, _, _ = search(effects, tmp_path, [threads])
        singles = [t.overrides for t in made.tried if t.role == "single"]
        assert singles == [["run.threads=3"], ["run.threads=2"]]
        assert [item.overrides for item in made.not_tried] == [["run.threads=1"]]
    better, _, _ = search(
        {"run.threads=3": 0.8, "run.threads=2": 0.7, "run.threads=1": 0.6}, tmp_path, [threads]
    )
    assert better.best.overrides == ["run.threads=1"]


def test_the_time_is_kept_and_something_of_it_for_what_was_found(tmp_path: Path) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 30.0
        return now[0]

    # Each look at the clock takes 30 s of 1000: with the reserve, singles end at 700 s, and the confirmation has its time.
    many = [remedy(f"threads {n}", f"run.threads={n}") for n in range(1, 60)]
    made, _, _ = search(
        {"model.attn_implementation=eager": 0.5}, tmp_path, remedies=[*REMEDIES[:2], *many], clock=clock
    )
    assert made.status == "out of time"
    assert 2 < len(made.tried) < len(many)
    assert made.tried[-1].role == "confirmation"
    assert made.best.confirmed
    now[0] = 990.0
    late, _, _ = search({}, tmp_path, clock=lambda: now.__setitem__(0, now[0] + 1000.0) or now[0])
    assert late.tried == [] and late.status == "out of time"
    assert {item.remedy for item in late.not_tried} == {each.name for each in REMEDIES}


def test_combinations_leave_time_for_the_confirmation(tmp_path: Path) -> None:
    """Each experiment takes a tenth of the time: six alone, and of five combinations those that leave time for the last."""
    names = (
        "infer.inference_mode=true",
        "model.cache=preallocated",
        "model.attn_implementation=eager",
        "run.threads=1",
        "run.phase_threads.decode=1",
        "run.top_n_kernels=3",
    )
    now, plain = [0.0], runner(dict.fromkeys(names, 0.9), [])

    def run(spec: Spec, folder: Path, *, own_processes: bool = False) -> Outcome:
        now[0] += 100.0
        return plain(spec, folder, own_processes=own_processes)

    made = result()
    planned = plan([remedy(name, name) for name in names], situation())
    Search(planned, made, tmp_path, 1000.0, lambda _: None, run, lambda: now[0]).run()
    assert [trial.role for trial in made.tried] == 6 * ["single"] + 3 * ["combination"] + ["confirmation"]
    assert made.best.confirmed and len(made.best.overrides) == 4


def test_an_interrupted_search_keeps_what_it_measured_and_goes_on(tmp_path: Path) -> None:
    effects = {"model.attn_implementation=eager": 0.5}
    made, planned, seen = result(), plan(REMEDIES, situation()), list[Spec]()
    plain = runner(effects, seen)

    def interrupted(spec: Spec, folder: Path, **more: Any) -> Outcome:
        if len(seen) == 2:
            raise KeyboardInterrupt
        return plain(spec, folder, **more)

    saved: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        Search(
            planned,
            made,
            tmp_path,
            1000.0,
            lambda r: saved.append(r.status),
            interrupted,
            lambda: 0.0,
        ).run()
    assert made.status == "interrupted"
    assert saved[-1] == "interrupted"
    before = len(made.tried)
    again, later, _ = search(effects, tmp_path, found=made)
    assert len(later) == len([t for t in again.tried[before:] if t.measured is not None])
    assert again.status == "complete"
    assert again.best.overrides == ["model.attn_implementation=eager"]


def test_remedies_with_an_equal_setting_in_common_are_combined(tmp_path: Path) -> None:
    """Both need a static cache: that is no conflict, and it is set once."""
    remedies = [
        remedy("compile-decode", "model.compile=true", "model.cache=static"),
        remedy("experts", "model.experts_implementation=eager", "model.cache=static"),
        remedy("cache", "model.cache=preallocated"),
        remedy("static", "model.cache=static"),
    ]
    effects = {
        "model.compile=true": 0.5,
        "model.experts_implementation=eager": 0.8,
        "model.cache=preallocated": 0.9,
        "model.cache=static": 0.95,
    }
    made, _, _ = search(effects, tmp_path, remedies)
    assert made.best.overrides == [
        "model.compile=true",
        "model.cache=static",
        "model.experts_implementation=eager",
    ]
    grown = [trial.remedy for trial in made.tried if trial.role == "combination"]
    assert grown == ["experts"], "neither what sets the key otherwise nor what is contained already"


@pytest.mark.parametrize(("allow", "kept"), [("nothing", False), ("rounding", False), ("quality", True)])
def test_quality_is_built_upon_where_the_user_allows_it(tmp_path: Path, allow: Any, kept: bool) -> None:
    remedies = [
        remedy("int8", "model.quantise_weights=int8", effect="quality"),
        remedy("compile-decode", "model.compile=true", "model.cache=static", effect="rounding"),
    ]
    effects = {"model.quantise_weights=int8": 0.5, "model.compile=true": 0.7}
    made = result()
    made.method = SearchSettings(bound="", allow=allow)
    other_tokens = "model.quantise_weights=int8"
    search(
        effects,
        tmp_path,
        remedies,
        made,
        equal=lambda spec: (other_tokens in spec.a) == (other_tokens in spec.b),
    )
    expected = ["model.compile=true", "model.cache=static"]
    assert made.best.overrides == ([other_tokens, *expected] if kept else expected)
    assert made.best.confirmed and made.best.output == ("differs" if kept else "equal")
    planned = plan(remedies, situation(), allow=allow)
    assert [each.remedy.name for each in planned.candidates] == (
        ["int8", "compile-decode"] if kept else ["compile-decode", "int8"]
    )


def test_other_tokens_of_a_remedy_that_should_leave_them_are_never_kept() -> None:
    from llm_perf_opt.improve.judge import is_allowed

    allowed = {
        (effect, allow): is_allowed(effect, SearchSettings(allow=allow))  # type: ignore[arg-type]
        for effect in ("nothing", "rounding", "quality")
        for allow in ("nothing", "rounding", "quality")
    }
    assert {pair for pair, value in allowed.items() if value} == {
        ("rounding", "rounding"),
        ("rounding", "quality"),
        ("quality", "quality"),
    }
