"""What tables predict of a candidate, and how that ranks it; outside the tables the finding's bound stays."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.improve.configurations import composed
from llm_perf_opt.improve.judge import grade_findings, measured_gain_s
from llm_perf_opt.improve.page import improve_console, improve_html, improve_markdown, trial_table
from llm_perf_opt.improve.plan import Planned, TablePredictor, plan
from llm_perf_opt.remedies.base import Machine, Remedy, Situation, fixed, own_remedy
from llm_perf_opt.remedies.data import Baseline, Best, Improvement, Measured, SearchSettings
from llm_perf_opt.summary import Finding, Summary
from tests.unit.analysis.roofline.runs_with_operators import TABLES, run

BASE = ["model=llama_tiny", "run.device=cpu"]


def predictor(
    summary: Summary | None = None, metric: Any = "total", base: list[str] = BASE
) -> TablePredictor:
    return TablePredictor(summary or run(), base, metric, TABLES)


def planned(
    *remedies: Remedy, metric: Any = "total", summary: Summary | None = None, bound_s: float = 0.5
) -> Planned:
    finding = Finding("dispatch", "host-bound", "decode", [], bound_s, "", "advice", "high")
    situation = Situation(composed(BASE), metric, Machine(8), [finding], phases=("prefill", "decode"))
    return plan(remedies, situation, predict=predictor(summary, metric))


def test_a_larger_batch_is_predicted_as_throughput_and_as_latency() -> None:
    rate = predictor(metric="tokens_per_s")(["infer.batch_size=8"])
    assert rate is not None and rate.by == "measured operators" and rate.source == "vllm 1.0"
    assert rate.change_ratio == pytest.approx(7.0, rel=0.05), "the same steps for eight answers"
    assert rate.gain_s is not None and rate.gain_s > 0
    later = predictor()(["infer.batch_size=8"])
    assert later is not None and later.gain_s is not None and later.gain_s < 0, "no answer is earlier for it"


def test_32_bits_before_are_a_roofline_and_more_ranks_have_sums() -> None:
    found = predictor(run(dtype="float32"))(["model.dtype=bfloat16"])
    assert found is not None and found.by == "roofline" and found.measured_share_ratio == 0
    ranks = predictor()(["run.ranks=2"])
    assert ranks is not None and ranks.gain_s is not None and ranks.by == "measured operators"


def test_a_processor_and_settings_without_tables_keep_the_bound_with_the_reason() -> None:
    on_cpu = predictor(run("Some CPU", "float32"))(["model.dtype=bfloat16"])
    assert on_cpu is not None and on_cpu.gain_s is None
    assert on_cpu.source is not None and "Some CPU" in on_cpu.source
    more = predictor()(["infer.batch_size=8", "run.threads=2"])
    assert more is not None and more.gain_s is None
    assert more.source is not None and "run.threads" in more.source and "batch_size" not in more.source
    assert predictor()(["run.threads=2"]) is None, "nothing that tables know of"
    assert predictor()(["infer.batch_size=none"]) is None, "the experiment says what is wrong with it"


def test_predictions_rank_before_bounds_and_bounds_stay_where_tables_do_not_reach() -> None:
    batch = own_remedy("infer.batch_size=8")
    small = Remedy("small", "small", fixed("run.threads=2"), answers=("dispatch",))
    dtype = Remedy("dtype", "dtype", fixed("model.dtype=bfloat16"), answers=("dispatch",))
    found = planned(batch, small, metric="tokens_per_s")
    # The bound of half a second is larger than all an answer takes here, so the bound still comes first.
    assert [each.predicted_by for each in found.candidates] == ["bound", "measured operators"]
    found = planned(small, batch, metric="tokens_per_s", bound_s=1e-3)
    assert [each.remedy.name for each in found.candidates] == ["infer.batch_size=8", "small"]
    found = planned(dtype, summary=run("Some CPU", "float32"), bound_s=1e-3)
    trial = found.candidates[0].trial([], "single")
    assert (trial.predicted_by, trial.predicted_gain_s) == ("bound", 1e-3)
    assert trial.predicted_source is not None and "Some CPU" in trial.predicted_source


def test_steps_of_a_remedy_stay_in_order_whatever_is_predicted_of_each() -> None:
    sizes = Remedy(
        "batch-size",
        "more",
        lambda _: [["infer.batch_size=2"], ["infer.batch_size=4"], ["infer.batch_size=8"]],
        grows="steps",
    )
    found = planned(sizes, metric="tokens_per_s")
    gains = [each.gain_s or 0.0 for each in found.candidates]
    assert gains == sorted(gains), "each is predicted better than the one before, and is tried after it"
    assert found.candidates[0].name == "infer.batch_size=2"


def test_a_trial_on_top_of_others_has_the_bound_only() -> None:
    candidate = planned(
        Remedy("b", "b", fixed("infer.batch_size=8"), answers=("dispatch",)), metric="tokens_per_s"
    ).candidates[0]
    alone, later = candidate.trial([], "single"), candidate.trial(["model.compile=true"], "combination")
    assert alone.predicted_by == "measured operators" and alone.bound_gain_s == 0.5
    assert later.predicted_by == "bound" and later.predicted_gain_s == 0.5 and later.predicted_source is None


def improvement() -> Improvement:
    candidate = planned(
        Remedy("b", "b", fixed("infer.batch_size=8"), answers=("dispatch",)), metric="tokens_per_s"
    ).candidates[0]
    trial = candidate.trial([], "single")
    trial.measured = Measured(6.0, 5.0, 7.0, 20, 70.0, 490.0, "gain", 0.99)
    trial.decision, trial.output = "keep", "equal"
    result = Improvement(
        "tokens_per_s",
        Baseline(BASE, 70.0, total_s=0.14),
        SearchSettings(0.05, 3, 0.02, 80, 0, "a bound"),
        Best([], None, None, None),
        tried=[trial],
    )
    trial.measured_gain_s = measured_gain_s(trial, result)
    result.grades = grade_findings(result.tried, result.metric)
    return result


def test_the_grade_compares_the_prediction_with_what_was_measured() -> None:
    result = improvement()
    (grade,) = result.grades
    assert grade.predicted_by == "measured operators" and grade.grade == "confirmed"
    assert grade.measured_gain_s == pytest.approx(0.14 * 6 / 7), "at this rate, so much earlier"
    assert grade.predicted_gain_s == pytest.approx(0.131 * 7 / 8, rel=0.1)


def test_pages_name_what_predicted_and_what_it_rests_on() -> None:
    result = improvement()
    output = improve_console(result)
    assert "by measured operators (9" in output and "vllm 1.0)" in output and "measured 120 ms" in output
    for page in (improve_html(result), improve_markdown(result)):
        assert "measured operators" in page and "Predicted by" in page
        assert "Predicted change" in page
    # The finding's own bound stands beside what the tables predict.
    details = [text for row in trial_table(result, "single").rows for _, text in row.details]
    assert [text for text in details if "500 ms" in text] and "500 ms" in improve_html(result)
