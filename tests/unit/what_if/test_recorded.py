"""Step times fitted to records, and loads predicted from them."""

from __future__ import annotations

import numpy as np
import pytest

from llm_perf_opt.captures.serving.records import StepRows, Steps
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.what_if.recorded import RecordedTimes, _option, fit_steps
from llm_perf_opt.what_if.simulate import Limits, Load, Step, mean, simulate


def recorded(
    count: int, seed: int = 3, gap_s: float = 0.001, intake_s: float = 0.0, first_tokens: bool = True
) -> Steps:
    """Steps of 5 ms, 0.2 ms per decoding request and 0.05 ms per prompt token, with 5 % of noise.

    ``intake_s``: added to the step before a prompt, during which its request arrives.
    """
    rows, chance, end = StepRows(), np.random.default_rng(seed), 0.0
    for place in range(count):
        decoding = int(chance.integers(1, 32))
        tokens = int(chance.integers(50, 400)) if place % 4 == 0 else 0
        took = (0.005 + 2e-4 * decoding + 5e-5 * tokens) * float(chance.uniform(0.95, 1.05))
        took += intake_s if place % 4 == 3 else 0.0
        end += took + gap_s
        rows.add(
            end_s=end, duration_s=took, prefill=(1 if tokens else 0, tokens), decode=(decoding, decoding),
            first_tokens=int(tokens > 0) if first_tokens else -1,
        )  # fmt: skip
    return rows.table()


def test_planted_costs_are_found() -> None:
    fit = fit_steps(recorded(400))
    # The gap before the next step is part of the fixed cost.
    assert fit.fixed_s + fit.entry_s * 0.25 == pytest.approx(0.006, rel=0.15)
    assert fit.decode_s == pytest.approx(2e-4, rel=0.1)
    assert fit.prefill_s == pytest.approx(5e-5, rel=0.15)
    assert fit.low_ratio < 1 < fit.high_ratio


@pytest.mark.parametrize("intake_s", [0.0, 0.004])
def test_work_for_requests_that_arrive_during_a_step_is_found(intake_s: float) -> None:
    fit = fit_steps(recorded(400, intake_s=intake_s))
    assert fit.intake_s == pytest.approx(intake_s, abs=5e-4)
    assert fit.decode_s == pytest.approx(2e-4, rel=0.1)


def test_prompts_without_a_recorded_first_token_are_no_arrivals() -> None:
    assert fit_steps(recorded(400, intake_s=0.004, first_tokens=False)).intake_s == 0.0


def test_only_the_chosen_steps_are_fitted() -> None:
    steps = recorded(400)
    steps.duration_s[200:] *= 5
    steps.end_s[:] = np.cumsum(steps.duration_s)
    fit = fit_steps(steps, np.arange(400) < 200)
    assert fit.steps == 200 and fit.decode_s == pytest.approx(2e-4, rel=0.15)


def test_the_gap_before_a_prompt_counts_where_requests_waited() -> None:
    rows = StepRows()
    for place in range(60):
        rows.add(end_s=0.1 * (place + 1), duration_s=0.02, prefill=(1, 100), decode=(0, 0), waiting=place % 2)
    # 29 steps follow one after which a request was waiting: 100 ms; the others came after idle time: 20 ms.
    assert fit_steps(rows.table()).seconds(Step(0, 0.0, ((100, 0),), 1)) == pytest.approx(
        (29 * 0.1 + 31 * 0.02) / 60
    )


def test_a_long_step_changes_the_mean_and_not_the_shape() -> None:
    steps = recorded(400)
    steps.duration_s[100] = 1.0
    fit = fit_steps(steps)
    assert fit.decode_s / fit.prefill_s == pytest.approx(2e-4 / 5e-5, rel=0.35)


def test_few_steps_are_refused() -> None:
    with pytest.raises(InputError, match="steps"):
        fit_steps(recorded(5))


def test_a_load_is_predicted_from_the_fit() -> None:
    fit = fit_steps(recorded(400))
    ends = {
        end: mean(
            simulate(Load(200, 20, concurrency=4), Limits(2048, 64), RecordedTimes(fit, end, 0.004)).e2e_s
        )
        for end in ("low", "expected", "high")
    }
    assert ends["low"] is not None and ends["expected"] is not None and ends["high"] is not None
    assert ends["low"] < ends["expected"] < ends["high"]
    alone = fit.seconds(Step(4, 800.0))
    assert ends["expected"] > 19 * alone


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["vllm", "serve", "--max-num-seqs", "8"], 8),
        (["--max-num-seqs=16"], 16),
        (["--max_num_seqs", "4"], 4),
        (["--max-num-seqs"], 256),
        (["--max-num-seqs", "-3"], 256),
        ([], 256),
    ],
)
def test_limits_of_the_recorded_server(arguments: list[str], found: int) -> None:
    assert _option(arguments, "max-num-seqs", 256) == found
