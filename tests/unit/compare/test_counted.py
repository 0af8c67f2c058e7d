"""What ``compare --run`` predicts of two configurations whose runs did nothing but time passes."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.compare.command import predicted_change
from llm_perf_opt.compare.compare import compare
from llm_perf_opt.compare.data import ExpectedChange
from llm_perf_opt.compare.measure import Plan
from llm_perf_opt.core.errors import InputError
from tests.unit.analysis.roofline.runs_with_operators import TABLES, run

TINY = ["model=llama_tiny", "run.device=cpu", "infer.max_new_tokens=3", "dataset.synthetic_tokens=8"]


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_perf_opt.analysis.roofline.expected_times.tables_of", lambda *_: TABLES)


def predicted(a: list[str], b: list[str], batch: int = 1, common: list[str] = TINY) -> ExpectedChange | None:
    sides = [
        Side("A", ["a"], [run(static=None)], [None], a),
        Side("B", ["b"], [run(batch=batch, static=None)], [None], b),
    ]
    return predicted_change(*sides, compare(*sides), Plan(common, a, b, 1, 60.0))


def test_sides_are_counted_at_their_own_samples_so_that_a_change_is_predicted() -> None:
    found = predicted([], ["infer.batch_size=2"], 2)
    assert found is not None and found.reason is None
    assert {one.name for one in found.metrics} == {"ttft", "tpot", "tokens_per_s"}
    rate = next(one for one in found.metrics if one.name == "tokens_per_s")
    assert rate.ratio == pytest.approx(2, rel=0.01), "in these tables two sequences take no longer than one"


def test_a_setting_of_both_sides_gives_the_type_of_the_weights() -> None:
    common = [*TINY, "model.quantise_weights=int8"]
    found = predicted([], ["model.quantise_weights=null"], common=common)
    assert found is not None
    assert [(one.what, one.a, one.b) for one in found.changed] == [("dtype", "int8", "bfloat16")]
    assert predicted([], ["run.repeats=5"], common=common) is None, "both sides have it"


def test_nothing_is_counted_where_nothing_could_be_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("counted in vain")

    monkeypatch.setattr("llm_perf_opt.stages.static_analysis.analyse", refuse)
    assert predicted([], ["run.repeats=5"]) is None
    found = predicted([], ["infer.batch_size=8", "model.attn_implementation=eager"], 8)
    assert found is not None and found.reason is not None and "model.attn_implementation" in found.reason
    assert not found.metrics and "infer.batch_size" not in found.reason


def test_a_model_that_cannot_be_counted_leaves_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise InputError("no meta kernel")

    monkeypatch.setattr("llm_perf_opt.stages.static_analysis.analyse", refuse)
    found = predicted([], ["infer.batch_size=8"], 8)
    assert found is not None and found.reason is not None and "not counted" in found.reason
