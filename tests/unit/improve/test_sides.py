"""A side of an experiment, really loaded: what it scores, and how many threads it has."""

from __future__ import annotations

import pytest
import torch

from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.improve import worker
from llm_perf_opt.improve import worker as side
from llm_perf_opt.improve.measuring import Spec
from llm_perf_opt.remedies.data import SearchSettings
from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.engine.driver import build_engine
from tests.unit.improve.tiny import TINY
from tests.unit.small_workloads import workload


def test_what_prompts_were_filled_up_with_is_not_scored() -> None:
    """The same prompt, padded and not, has the same likelihood over the same number of tokens."""
    found = []
    for padding in (None, 64):
        engine = build_engine(workload("llama", pad_to_multiple=padding), LogProgress())
        warm = side.WarmSide("a", engine, [[Sample("x", synthetic_tokens=10)]], 1, 1, lambda: None)
        side._perplexities(warm)
        found.append(warm.answers.log_likelihoods["x"])
    assert found[0][1] == found[1][1] == 9
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-4)


def test_a_side_without_threads_of_its_own_has_those_of_the_process() -> None:
    """A sets one thread, and is loaded first: B has what the process had before, not A's."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        chosen = Spec(
            [*TINY, "run.threads=1"],
            TINY,
            "total",
            SearchSettings(most_blocks=8, seed=0, most_samples=1),
            0.05,
            20.0,
        )
        a = worker._load("a", chosen, None)
        b = worker._load("b", chosen, None, lender=a)
        assert (a.threads, b.threads) == (1, 3)
    finally:
        torch.set_num_threads(before)
