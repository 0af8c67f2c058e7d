"""Padding ids as configurations have them: none, one of the vocabulary, one beyond it."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.config.schema import DatasetConfig, InferConfig, ModelConfig
from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.workloads.base import Sample, WorkloadConfig
from llm_perf_opt.workloads.engine.driver import run_workload
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.measure import EngineRun, check_tokens
from tests.families.tiny import tiny_arch

VOCABULARY = 512


def padded_run(arch: dict[str, Any]) -> tuple[Engine, EngineRun]:
    """Run a batch of two lengths, and check it against generate()."""
    model = ModelConfig(adapter="hf_causal_lm", arch=arch)
    chosen = WorkloadConfig(
        model, InferConfig(max_new_tokens=5, warmup_rounds=0, batch_size=2), DatasetConfig(), "cpu", 1, 5
    )
    engine = Engine(chosen)
    requests = [Sample("long", synthetic_tokens=9), Sample("short", synthetic_tokens=5)]
    run = EngineRun(engine, run_workload(chosen, requests, engine=engine))
    check_tokens(run, chosen, LogProgress())
    return engine, run


@pytest.mark.parametrize(
    ("ids", "padding"),
    [
        ({"pad_token_id": 2}, 2),
        ({"pad_token_id": VOCABULARY - 1}, VOCABULARY - 1),
        ({}, 1),
        ({"pad_token_id": None}, 1),
        ({"pad_token_id": -1}, 1),
        ({"pad_token_id": VOCABULARY}, 1),
        ({"pad_token_id": None, "eos_token_id": None}, 0),
        ({"pad_token_id": None, "eos_token_id": 50256, "bos_token_id": 50256}, 0),
    ],
    ids=["one", "the last", "no default", "none", "negative", "beyond", "no end either", "end beyond"],
)
def test_gpt2_is_right_whatever_its_padding_id(ids: dict[str, int | None], padding: int) -> None:
    """A tokenizer's padding token that the model has no embedding for is the usual case of gpt2 with one."""
    arch = tiny_arch("gpt2")
    arch.pop("pad_token_id", None)
    engine, run = padded_run({**arch, **ids})
    assert engine.adapter.padding_token_id() == padding  # type: ignore[attr-defined]
    assert run.result.tokens_verified is True, run.result.notes


@pytest.mark.parametrize(
    ("family", "ids", "padding"),
    [
        ("codegen", {}, 1),
        ("starcoder2", {"pad_token_id": None, "eos_token_id": 50256, "bos_token_id": 50256}, 0),
    ],
)
def test_families_without_a_padding_id_or_with_the_end_of_a_larger_vocabulary(
    family: str, ids: dict[str, int | None], padding: int
) -> None:
    engine, run = padded_run({**tiny_arch(family), **ids})
    assert engine.adapter.padding_token_id() == padding  # type: ignore[attr-defined]
    assert run.result.tokens_verified is True, run.result.notes
