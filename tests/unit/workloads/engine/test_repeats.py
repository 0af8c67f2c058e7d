"""How often a workload is measured: exactly as asked, or until its times are narrow, within a limit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from llm_perf_opt.captures.timings import repeat_interval_ratio
from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.summary.statistics import interval_ratio, student_quantile
from llm_perf_opt.workloads.base import (
    LEAST_REPEATS,
    MOST_REPEATS,
    Batch,
    PhaseShapes,
    Sample,
    UntilNarrow,
    stop_reason,
)
from llm_perf_opt.workloads.engine.driver import run_workload
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.engine.results import EngineInfo, PassResult, PassTimings, WorkloadResult
from llm_perf_opt.workloads.setup import planned_passes, workload_config
from tests.unit.small_workloads import workload

STEADY = (1.0, 1.001, 0.999, 1.0005)
NOISY = (1.0, 1.6, 0.7, 1.3, 0.8)


class FakeEngine:
    """Passes that take given times, on a clock of their own."""

    def __init__(self, times: Sequence[float]) -> None:
        self.now, self.passes, self._times = 0.0, 0, times
        self.adapter = self
        self.settles_per_shape, self.compilations, self.proposer = False, None, None

    def info(self) -> EngineInfo:
        return EngineInfo("fake", "real", "Fake", "cpu", "float32", 1, 0.0)

    def notes(self) -> Sequence[str]:
        return []

    def warm_up(self, group: list[Sample]) -> float:
        self.now += 100.0  # is not measuring
        return 100.0

    def run_sample(self, group: list[Sample]) -> tuple[Batch, PassResult]:
        seconds = self._times[self.passes % len(self._times)]
        self.passes, self.now = self.passes + 1, self.now + seconds
        timings = PassTimings(9.0, None, 0.25 * seconds, 0.75 * seconds)  # preprocessing does not count
        return Batch([group[0].id], {}, 8, 0), PassResult(timings, [[1, 2]], 2)

    def shapes(self, batch: Batch, context_tokens: int) -> PhaseShapes:
        return PhaseShapes(1, 8, 0, context_tokens)

    def new_token_limit(self, batch: Batch) -> int:
        return 999

    def text(self, token_ids: Sequence[int]) -> str:
        return "text"


def run(times: Sequence[float], until: UntilNarrow | None, least: int = LEAST_REPEATS) -> WorkloadResult:
    engine = FakeEngine(times)
    wanted = dataclasses.replace(workload("llama", repeats=least), until=until)
    return run_workload(
        wanted, [Sample("one", "text")], engine=cast("Engine", engine), clock=lambda: engine.now
    )


def stopped(result: WorkloadResult) -> tuple[int, str]:
    assert result.measuring is not None
    assert result.measuring.repeats == len(result.batches[0].repeats)
    return result.measuring.repeats, result.measuring.stopped


def test_exactly_as_many_as_requested_however_noisy() -> None:
    assert stopped(run(NOISY, None, least=7)) == (7, "asked")
    assert stopped(run(NOISY, None, least=1)) == (1, "asked")


def test_narrow_times_end_after_the_least_number() -> None:
    result = run(STEADY, UntilNarrow(0.05, 10.0))
    assert stopped(result) == (LEAST_REPEATS, "narrow")
    assert result.measuring is not None
    assert result.measuring.seconds == pytest.approx(4.0005), "the warm-up is not in it"


def test_wide_times_go_on_until_the_interval_is_narrow() -> None:
    count, why = stopped(run((1.0, 1.2, *[1.1] * 40), UntilNarrow(0.05, 1e9)))
    assert why == "narrow" and LEAST_REPEATS < count < MOST_REPEATS


def test_no_repeat_is_begun_that_would_end_after_the_limit() -> None:
    result = run(NOISY, UntilNarrow(0.01, 10.0))
    assert stopped(result)[1] == "time"
    assert result.measuring is not None and 8.0 < result.measuring.seconds <= 10.0
    assert stopped(run(NOISY, UntilNarrow(0.01, 0.5))) == (LEAST_REPEATS, "time"), (
        "never fewer than can decide"
    )


def test_very_short_passes_do_not_repeat_for_ever() -> None:
    assert stopped(run([t / 1e6 for t in NOISY], UntilNarrow(1e-9, 10.0))) == (MOST_REPEATS, "most")


def test_the_document_records_how_often_and_why() -> None:
    document = run(NOISY, UntilNarrow(0.01, 6.0)).to_dict()
    measuring = document["measuring"]
    assert (measuring["repeats"], measuring["stopped"]) == (5, "time")
    assert measuring["interval_ratio"] == pytest.approx(repeat_interval_ratio(document["samples"]))


def test_reason_by_reason() -> None:
    until = UntilNarrow(0.05, 10.0)

    def reason(levels: Sequence[float], passed_s: float) -> str | None:
        return stop_reason(levels, passed_s, least=4, until=until)

    assert reason([0.0, 0.0, 0.0], 99.0) is None
    assert reason([0.0, 0.0, 0.0, 0.0], 1.0) == "narrow"
    assert reason([0.0, 0.5, 0.0, 0.5], 8.0) is None
    assert reason([0.0, 0.5, 0.0, 0.5], 8.1) == "time"


@pytest.mark.parametrize(("degrees", "quantile"), [(3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042)])
def test_students_quantile_as_tables_print_it(degrees: int, quantile: float) -> None:
    assert student_quantile(0.975, degrees) == pytest.approx(quantile, rel=0.01)


def test_interval_of_known_values() -> None:
    values = [math.log(v) for v in (0.9, 1.0, 1.1, 1.0)]
    mean = math.fsum(values) / 4
    half = 3.182 * math.sqrt(sum((v - mean) ** 2 for v in values) / 3 / 4)
    assert interval_ratio(values) == pytest.approx(math.exp(2 * half) - 1, rel=0.02)
    assert interval_ratio(values[:2]) is None


def _workloads() -> Iterator[tuple[list[str], Any, tuple[int, bool]]]:
    yield [], None, (LEAST_REPEATS, True)
    yield ["run.repeats=3"], None, (3, False)
    yield ["run.repeats=3"], 1, (1, False)
    yield ["run.mode=light"], None, (1, False)
    yield ["run.repeats=null", "run.max_measure_s=3"], None, (LEAST_REPEATS, True)


@pytest.mark.parametrize(("overrides", "repeats", "expected"), list(_workloads()))
def test_an_explicit_number_is_exact(
    overrides: list[str], repeats: int | None, expected: tuple[int, bool]
) -> None:
    config = compose_config(["run.device=cpu", *overrides])
    found = workload_config(config, repeats=repeats)
    assert (found.repeats, found.until is not None) == expected
    assert ("and more" in planned_passes(found)) == expected[1]
