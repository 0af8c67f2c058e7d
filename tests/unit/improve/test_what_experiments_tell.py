"""What a search takes from its experiments: the baseline's own value, and a reason where one could not be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.improve.baseline import Start
from llm_perf_opt.improve.experiment import Outcome
from llm_perf_opt.improve.improve import Request, _new_result, make_plan
from llm_perf_opt.improve.measuring import Spec
from llm_perf_opt.improve.plan import plan
from llm_perf_opt.improve.search import Search
from llm_perf_opt.remedies.base import Machine
from llm_perf_opt.remedies.data import Measured, Metric, SearchSettings
from llm_perf_opt.summary import Stat
from tests.unit.improve.test_search import REMEDIES, result, runner, situation
from tests.unit.summaries import summary


def start(*overrides: str) -> Start:
    made = summary()
    made.workload.samples = 20
    times = made.timings
    times.ttft_s = times.decode_s = times.tokens_per_s = Stat(100.0, 90.0, 110.0, 100.0, 5.0, 20)
    return Start(Path("/run"), made, ["model=llama_tiny", *overrides])


@pytest.mark.parametrize("error", [InputError("passes.jsonl is cut off"), OSError(28, "No space left")])
def test_an_experiment_that_cannot_be_read_ends_itself_and_not_the_search(
    error: Exception, tmp_path: Path
) -> None:
    plain = runner({"model.cache=preallocated": 0.5}, [])

    def run(spec: Spec, folder: Path, **more: Any) -> Outcome:
        if "model.attn_implementation=eager" in spec.b:
            raise error
        return plain(spec, folder, **more)

    made = result()
    Search(plan(REMEDIES[:2], situation()), made, tmp_path, 1000.0, lambda _: None, run, lambda: 0.0).run()
    failed = made.tried[0]
    assert (failed.remedy, failed.decision) == ("eager", "failed")
    assert failed.reason.startswith(type(error).__name__)
    assert made.best.overrides == ["model.cache=preallocated"]


def test_the_value_of_the_baseline_is_that_of_its_own_side_where_no_run_gives_it(tmp_path: Path) -> None:
    """A run's tokens per second are those of decode; an experiment's count the time to the first token, too."""
    made = result()
    made.metric, made.baseline.metric_value, made.baseline.tokens_per_s = "tokens_per_s", None, 100.0

    def run(spec: Spec, *_: Any, **__: Any) -> Outcome:
        a = 60.0 if "model.attn_implementation=eager" not in spec.a else 90.0
        return Outcome(Measured(0.5, 0.4, 0.6, 20, a, 1.5 * a, "gain", 0.99), None)

    Search(plan(REMEDIES[:2], situation()), made, tmp_path, 1000.0, lambda _: None, run, lambda: 0.0).run()
    assert (made.baseline.metric_value, made.baseline.tokens_per_s) == (60.0, 60.0)


@pytest.mark.parametrize(
    ("metric", "overrides", "known"),
    [("total", [], True), ("total", ["run.threads=1"], False), ("tokens_per_s", [], False)],
)
def test_only_a_run_of_the_same_configuration_gives_the_value_of_the_baseline(
    metric: Metric, overrides: list[str], known: bool
) -> None:
    request = Request(run=Path("/run"), overrides=overrides, metric=metric)
    value = _new_result(request, start(*overrides), Path("/out")).baseline.metric_value
    assert (value is not None) == known


def test_batches_are_no_larger_than_the_samples_that_are_measured() -> None:
    request = Request(metric="tokens_per_s", settings=SearchSettings(only=["batch-size"]))
    planned = make_plan(request, start(), Machine(cpus=2))
    assert [each.overrides for each in planned.candidates] == [
        ("infer.batch_size=2",),
        ("infer.batch_size=4",),
    ]
