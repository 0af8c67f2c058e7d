"""Two models with one set of weights: the same numbers, no second copy, and none where they do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.improve.configurations import can_share_weights, composed
from llm_perf_opt.workloads.devices import cpu_problem
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.models.weights import weights_from
from llm_perf_opt.workloads.setup import workload_config

TINY = ["model=llama_tiny", "infer.max_new_tokens=4"]


def engine(*overrides: str, lender: Engine | None = None) -> Engine:
    with weights_from(lender.model if lender is not None else None):
        return Engine(workload_config(config(*overrides), repeats=1))


def config(*overrides: str) -> AppConfig:
    return composed([*TINY, *overrides])


def tensors(of: Engine) -> dict[str, int]:
    return {name: parameter.data_ptr() for name, parameter in of.model.named_parameters()}


def logits(of: Engine) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = of.model(torch.tensor([[1, 2, 3, 4]])).logits
    return found


@pytest.mark.parametrize("model", ["llama_tiny", "qwen_moe_tiny"])
def test_a_second_model_reads_the_first_ones_weights(model: str) -> None:
    first = engine(f"model={model}")
    second = engine(f"model={model}", "model.attn_implementation=eager", lender=first)
    assert second.model is not first.model
    assert tensors(second) == tensors(first)
    torch.testing.assert_close(logits(second), logits(first))
    assert second.model.config._attn_implementation == "eager"
    assert first.model.config._attn_implementation != "eager", "the lender keeps its own settings"


def test_a_checkpoint_is_not_read_a_second_time(tmp_path: Path) -> None:
    kept = engine()
    kept.model.save_pretrained(tmp_path)
    again = ("model=hf", f"model.path={tmp_path}")
    first = engine(*again)
    second = engine(*again, lender=first)
    assert tensors(second) == tensors(first)
    torch.testing.assert_close(logits(second), logits(kept))


def test_another_data_type_has_its_own_weights() -> None:
    # Some processors trap bfloat16, which the product finds out before it uses it.
    dtype = "bfloat16" if cpu_problem("bfloat16") is None else "float16"
    first = engine()
    second = engine(f"model.dtype={dtype}", lender=first)
    assert not set(tensors(second).values()) & set(tensors(first).values())
    assert torch.isfinite(logits(second)).all()


def test_what_rewrites_weights_does_not_share_them() -> None:
    plain = config()
    assert can_share_weights(plain, config("model.cache=static", "model.compile=true", "run.threads=1"))
    for changed in ("model.dtype=bfloat16", "model.quantise_weights=int8"):
        assert not can_share_weights(plain, config(changed))
