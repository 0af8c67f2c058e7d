"""Speculative decoding, with planted costs and acceptance."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_perf_opt.analysis.serving.findings import find_serving
from llm_perf_opt.analysis.serving.section import Analysed, analyse_serving
from llm_perf_opt.analysis.serving.speculation import describe_speculation
from llm_perf_opt.captures.serving.engines import sample_table
from llm_perf_opt.captures.serving.reader import read_serving
from llm_perf_opt.captures.serving.records import Steps
from llm_perf_opt.reporting.serving_page import describe_speculation as describe
from llm_perf_opt.summary.serving import LatencyStat, LoadPoint, Serving, Speculation
from tests.unit.serving_records import write_lines

STEP_S, POSITION_S, DRAFTED = 0.010, 0.0005, 4
AT = 1.7e9


def lines(
    batches: list[int], *, drafted: int = DRAFTED, accepted: int = 1, noise: float = 0.0
) -> list[dict[str, Any]]:
    """Steps of vLLM's plug-in: every request verifies so many draft tokens, of which so many are accepted."""
    draw = random.Random(3)
    found = []
    for number, batch in enumerate(batches):
        positions = batch * (1 + drafted)
        seconds = (STEP_S + POSITION_S * positions) * (1 + noise * draw.gauss(0, 1))
        found.append(
            {
                "t": AT + number, "e": 0, "run": batch, "wait": 0, "kv": 0.1,
                "spec": {"num_drafts": batch, "num_draft_tokens": batch * drafted, "num_accepted_tokens": batch * accepted},
                "it": {"iteration_index": number, "num_ctx_requests": 0, "num_ctx_tokens": 0, "num_generation_requests": batch,
                       "num_generation_tokens": positions, "elapsed_ms": seconds * 1e3},
                "is": {"iteration_timestamp": AT + number},
            }
        )  # fmt: skip
    return found


def steps_of(folder: Path, held: list[dict[str, Any]]) -> Steps:
    (steps,) = read_serving([], optional=[write_lines(folder / "steps.jsonl", held)]).steps
    return steps


def described(folder: Path, batches: list[int], **more: Any) -> Speculation:
    found = describe_speculation(steps_of(folder, lines(batches, **more)), [])
    assert found is not None
    return found


def test_costs_and_break_even_are_those_planted(tmp_path: Path) -> None:
    found = described(tmp_path, [1, 2, 3, 4, 6, 8] * 10, noise=0.02)
    assert (found.source, found.accepted_length, found.draft_length) == ("steps", 2.0, 4.0)
    assert found.acceptance_ratio == pytest.approx(0.25)
    assert found.position_s == pytest.approx(POSITION_S, rel=0.1)
    assert found.step_s == pytest.approx(STEP_S, rel=0.1)
    assert found.position_low_s is not None and found.position_high_s is not None
    assert found.position_low_s < POSITION_S < found.position_high_s
    # (L − 1) a ÷ (c (1 + k − L))
    assert found.break_even_batch == pytest.approx(STEP_S / (3 * POSITION_S), rel=0.15)
    assert found.batch == 4 and found.speedup_ratio == pytest.approx(2 * 0.012 / 0.020, rel=0.05)
    assert "2.00 tokens per verification of 5.00 positions" in describe(found) and "break-even" in describe(
        found
    )


def test_nothing_accepted_never_pays_and_all_accepted_always_does(tmp_path: Path) -> None:
    none = described(tmp_path, [1, 2, 4, 8] * 10, accepted=0)
    assert none.break_even_batch == 0 and (none.speedup_ratio or 1) < 1
    every = described(tmp_path, [1, 2, 4, 8] * 10, accepted=DRAFTED)
    assert every.break_even_batch is None and (every.speedup_ratio or 0) > 1


@pytest.mark.parametrize(("batches", "said"), [([4] * 40, "about the same number"), ([1, 2, 4], "too few")])
def test_costs_that_the_steps_do_not_tell_are_not_given(
    tmp_path: Path, batches: list[int], said: str
) -> None:
    found = described(tmp_path, batches)
    assert found.accepted_length == 2 and found.position_s is None and found.break_even_batch is None
    assert any(said in note for note in found.notes)


def test_counters_stand_in_for_steps_and_other_engines_have_no_account(tmp_path: Path) -> None:
    def sample(at: float, drafts: float, drafted: float, accepted: float) -> tuple[float, dict[str, float]]:
        return at, {
            "vllm:spec_decode_num_drafts_total": drafts,
            "vllm:spec_decode_num_draft_tokens_total": drafted,
            "vllm:spec_decode_num_accepted_tokens_total": accepted,
        }

    found = describe_speculation(None, [sample_table([sample(1.0, 10, 40, 5), sample(2.0, 30, 120, 35)])])
    assert found is not None
    assert (found.source, found.drafts, found.accepted_length) == ("metrics", 20, 2.5)
    assert found.position_s is None and found.notes
    assert describe_speculation(None, [sample_table([(1.0, {"vllm:num_requests_running": 1.0})])]) is None
    plain = lines([1, 2, 4, 8] * 10, drafted=0)
    for one in plain:
        del one["spec"]
    assert describe_speculation(steps_of(tmp_path, plain), []) is None
    impossible = lines([2] * 4, drafted=1, accepted=3)
    assert describe_speculation(steps_of(tmp_path, impossible), []) is None


@pytest.mark.parametrize(("batches", "found"), [([16, 24, 32] * 20, True), ([1, 2, 3] * 20, False)])
def test_speculation_beyond_its_break_even_is_a_finding(
    tmp_path: Path, batches: list[int], found: bool
) -> None:
    point = LoadPoint(
        kind="closed", concurrency=max(batches), requests=9, completed=9, ttft_s=LatencyStat(mean=0.1), e2e_s=LatencyStat(mean=2.0)
    )  # fmt: skip
    held = Analysed(Serving(engine="vllm", load=[point], speculation=described(tmp_path, batches)))
    ids = [one.id for one in find_serving(held)]
    assert ("serving-speculation" in ids) is found


def test_gaps_are_also_given_per_token_where_chunks_hold_several(tmp_path: Path) -> None:
    def request(number: int, tokens: int) -> dict[str, Any]:
        times = [AT + 0.5 + 0.06 * place for place in range(5)]
        return {"id": f"r{number}", "load": 0, "scheduled_s": AT, "sent_s": AT, "first_token_s": times[0], "end_s": times[-1],
                "status": "ok", "prompt_tokens": 8, "output_tokens": tokens, "token_s": times}  # fmt: skip

    header = {
        "format": "llm-perf-opt.serve.requests",
        "version": 1,
        "engine": "vllm",
        "loads": [{"kind": "closed", "concurrency": 1}],
    }
    for tokens, expected in ((13, 0.02), (5, None)):
        held = [header, *(request(number, tokens) for number in range(3))]
        (point,) = analyse_serving(
            read_serving([write_lines(tmp_path / "requests.jsonl", held)])
        ).serving.load
        assert point.itl_s is not None and point.itl_s.p50 == pytest.approx(0.06)
        assert (point.token_itl_s.p50 if point.token_itl_s else None) == (
            expected and pytest.approx(expected)
        )


def test_steps_of_several_files_keep_their_drafts(tmp_path: Path) -> None:
    from llm_perf_opt.analysis.serving.matching import merge_steps

    one = steps_of(tmp_path, lines([1, 2]))
    two = steps_of(tmp_path, lines([3]))
    both = merge_steps([one, two])
    assert both is not None
    assert both.decode_requests[both.spec_step].tolist() == both.spec_counts[:, 0].tolist()
    assert np.sort(both.spec_counts[:, 0]).tolist() == [1, 2, 3]
