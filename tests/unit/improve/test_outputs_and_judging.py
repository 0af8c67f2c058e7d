"""What happened to the answers, what is decided from it, and how findings are graded."""

from __future__ import annotations

import math

import pytest

from llm_perf_opt.analysis.statistics import SequentialTest, fewest_blocks
from llm_perf_opt.improve.costs import UnitPass, first_others
from llm_perf_opt.improve.judge import gain_of, grade_findings, judge, ladder
from llm_perf_opt.improve.outputs import (
    Answers,
    changed_workload,
    check_outputs,
    describe_outputs,
    first_difference,
    in_later_passes,
    output_result,
)
from llm_perf_opt.remedies.data import Answered, Effect, Measured, Metric, OutputCheck, SearchSettings, Trial
from llm_perf_opt.summary.statistics import StoppingRule, TrialVerdict


def measured(verdict: TrialVerdict = "gain", change: float = -0.3) -> Measured:
    return Measured(change, change - 0.05, change + 0.05, 20, 1.0, 1 + change, verdict, 0.99)


def trial(name: str, verdict: TrialVerdict, change: float, finding: str | None = "dispatch") -> Trial:
    return Trial(
        name,
        [f"{name}=1"],
        finding,
        0.5,
        measured(verdict, change),
        "equal",
        "keep" if verdict == "gain" else "drop",
        "",
        measured_gain_s=-change,
    )


def test_first_difference_counts_from_one_and_sees_an_early_end() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 2
    assert first_difference([1, 2, 3], [1, 2]) == 3


def test_equal_answers() -> None:
    same = Answers(tokens={"x": [1, 2]})
    check = check_outputs(same, Answers(tokens={"x": [1, 2]}), {"x": [0.0, 1e-6]})
    assert check.tokens_equal is True
    assert check.largest_logit_difference == 1e-6
    assert output_result(check) == "equal"


def test_logits_count_up_to_the_first_other_token_only() -> None:
    check = check_outputs(
        Answers(tokens={"x": [1, 2, 3]}), Answers(tokens={"x": [1, 7, 8]}), {"x": [0.1, 0.2, 50.0]}
    )
    assert (check.first_difference, check.first_sample, check.largest_logit_difference) == (2, "x", 0.2)
    assert "position 2" in describe_outputs(check)


def test_quality_before_and_after() -> None:
    a = Answers(tokens={"x": [1]}, distances={"x": 0.2}, log_likelihoods={"x": [-math.log(8) * 3, 3]})
    b = Answers(tokens={"x": [2]}, distances={"x": 0.4}, log_likelihoods={"x": [-math.log(9) * 3, 3]})
    check = check_outputs(a, b, {})
    assert (check.edit_distance_before_ratio, check.edit_distance_after_ratio) == (0.2, 0.4)
    assert check.perplexity_before == pytest.approx(8)
    assert check.perplexity_after == pytest.approx(9)


def test_no_common_sample_is_not_compared() -> None:
    check = check_outputs(Answers(tokens={"x": [1]}), Answers(tokens={"y": [1]}), {})
    assert check.tokens_equal is None
    assert output_result(check) == "failed"
    assert output_result(None) == "failed"


def test_other_samples_or_prompts_are_other_work() -> None:
    a = Answers(tokens={"x": [1]}, prompt_tokens={"x": 5})
    assert "other samples" in (changed_workload(a, Answers(tokens={"y": [1]}), "nothing") or "")
    shorter = Answers(tokens={"x": [1]}, prompt_tokens={"x": 4})
    assert "4 instead of 5" in (changed_workload(a, shorter, "rounding") or "")
    assert changed_workload(a, shorter, "quality") is None
    assert changed_workload(a, a, "nothing") is None


EQUAL = OutputCheck(tokens_equal=True, samples=2)
OTHER = OutputCheck(tokens_equal=False, samples=2, differing_samples=1, first_difference=14)


@pytest.mark.parametrize(
    ("verdict", "check", "effect", "total", "expected"),
    [
        ("gain", EQUAL, "nothing", -0.3, "keep"),
        ("gain", EQUAL, "rounding", -0.3, "keep"),
        ("gain", EQUAL, "quality", -0.3, "ask"),
        ("gain", OTHER, "nothing", -0.3, "ask"),
        ("gain", None, "nothing", -0.3, "ask"),
        ("gain", EQUAL, "nothing", 0.1, "drop"),
        ("not shown", EQUAL, "nothing", -0.3, "drop"),
        ("no gain", EQUAL, "nothing", -0.3, "drop"),
        ("slower", OTHER, "quality", 0.3, "drop"),
    ],
)
def test_decisions(
    verdict: TrialVerdict, check: OutputCheck | None, effect: Effect, total: float, expected: str
) -> None:
    decision, reason = judge(
        measured(verdict), check, metric="total", effect=effect, total_change=total, settings=SearchSettings()
    )
    assert decision == expected
    assert reason


def test_a_rate_gains_upwards() -> None:
    assert gain_of(0.4, "tokens_per_s") == 0.4
    assert gain_of(-0.4, "total") == 0.4


def test_the_ladder_multiplies() -> None:
    steps = ladder(2.0, [trial("a", "gain", -0.5), trial("b", "gain", -0.1)])
    assert [step.value for step in steps] == pytest.approx([1.0, 0.9])
    assert ladder(None, [trial("a", "gain", -0.5)]) == []


def test_grades_of_findings() -> None:
    grades = {
        grade.finding: grade
        for grade in grade_findings(
            [
                trial("a", "gain", -0.4),
                trial("b", "slower", 0.2),
                trial("c", "slower", 0.3, "growing-cache"),
                trial("d", "gain", -0.05, "launch-bound"),
                trial("e", "not shown", -0.1, "host-sync"),
                trial("f", "gain", -0.4, None),
            ],
            "total",
        )
    }
    assert set(grades) == {"dispatch", "growing-cache", "launch-bound", "host-sync"}
    assert (grades["dispatch"].helped, grades["dispatch"].tried, grades["dispatch"].grade) == (
        1,
        2,
        "confirmed",
    )
    assert grades["growing-cache"].grade == "wrong"
    assert grades["launch-bound"].grade == "partly"
    assert grades["host-sync"].grade == "not shown"


def test_a_remedy_grades_every_finding_it_answers() -> None:
    both = trial("compile", "gain", -0.4, "module-gap")
    both.answers = [Answered("module-gap", "decode", 0.5), Answered("dispatch", "decode", 0.2)]
    other = trial("threads", "slower", 0.2, "dispatch")
    other.answers = [Answered("dispatch", "decode", 0.2)]
    grades = {grade.finding: grade for grade in grade_findings([both, other], "total")}
    assert {name: (g.helped, g.tried, g.predicted_gain_s, g.grade) for name, g in grades.items()} == {
        "module-gap": (1, 1, 0.5, "confirmed"),
        "dispatch": (1, 2, 0.2, "confirmed"),
    }


def test_a_trial_that_failed_or_was_dropped_does_not_confirm_a_finding() -> None:
    failed, elsewhere = trial("compile", "gain", -0.4), trial("batch", "gain", -0.1, "padding-waste")
    failed.decision, failed.reason = "failed", "side B compiles again in every pass"
    elsewhere.decision, elsewhere.reason = "drop", "faster on most samples, but not on all of them together"
    assert [(g.finding, g.helped, g.grade) for g in grade_findings([failed, elsewhere], "total")] == [
        ("padding-waste", 0, "wrong")
    ]


@pytest.mark.parametrize(
    ("metric", "graded"),
    [
        ("total", ["vision", "prefill", "decode", None]),
        ("tokens_per_s", ["vision", "prefill", "decode", None]),
        ("ttft", ["vision", "prefill", None]),
        ("tpot", ["decode", None]),
    ],
)
def test_a_metric_is_not_used_for_a_phase_it_does_not_contain(
    metric: Metric, graded: list[str | None]
) -> None:
    one = trial("threads", "no gain", 0.0)
    one.answers = [Answered("dispatch", phase, 0.2) for phase in ("vision", "prefill", "decode", None)]
    assert [grade.phase for grade in grade_findings([one], metric)] == graded


def test_answers_of_later_passes_count() -> None:
    equal = OutputCheck(tokens_equal=True, samples=2)
    assert in_later_passes(equal, {"a": None, "b": None}) == equal
    later = in_later_passes(equal, {"a": None, "b": 7})
    assert (later.tokens_equal, later.first_difference, later.differing_samples) == (False, 7, 1)
    unsteady = in_later_passes(equal, {"a": 3, "b": 7})
    assert unsteady.tokens_equal is None and "every time" in (unsteady.reason or "")
    passes = [UnitPass("a", 0, 0), UnitPass("b", 0, 0, first_other=9), UnitPass("b", 1, 0, first_other=4)]
    assert first_others(passes) == {"a": None, "b": 4}


@pytest.mark.parametrize(("alpha", "fewest"), [(0.05, 8), (0.05 / 14, 12)])
def test_the_fewest_pairs_show_a_gain_when_all_of_them_are_large(alpha: float, fewest: int) -> None:
    assert fewest_blocks(alpha) == fewest
    for most in (fewest - 2, fewest):
        test = SequentialTest(StoppingRule(alpha, 0.02, most))
        verdicts = [test.add(-3.0 - 0.4 * (place % 2)) for place in range(most)]
        assert ("gain" in verdicts) == (most == fewest)
