from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from llm_perf_opt.captures.documents import load_static, save_document
from llm_perf_opt.config.schema import ModelConfig
from llm_perf_opt.summary import Static
from llm_perf_opt.summary.static import OperatorShapes
from llm_perf_opt.workloads.counting.static_run import StaticCounter
from llm_perf_opt.workloads.registry import load_adapter
from tests.unit.small_workloads import infer_config

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 512,
}  # fmt: skip
MOE = {
    **LLAMA, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 48, "mlp_only_layers": [0],
}  # fmt: skip


def document_of(arch: dict[str, Any], batch: int = 2, prompt: int = 24, context: int = 30) -> Any:
    adapter = load_adapter(
        ModelConfig(adapter="hf_causal_lm", arch=dict(arch)), infer_config("llama", batch_size=batch)
    )
    counter = StaticCounter(adapter, torch.bfloat16, use_closed_forms=False)
    shapes = replace(adapter.default_shapes(), batch_size=batch, prompt_tokens=prompt, context_tokens=context)
    return counter.document(shapes, decode_steps=2)


def shapes_of(static: Static) -> OperatorShapes:
    assert static.operators is not None
    return static.operators


def test_products_have_the_shapes_of_the_weights_and_all_their_flops() -> None:
    static = document_of(LLAMA).static
    shapes = shapes_of(static)
    decode = {one.name: one for one in shapes.products if one.phase == "decode"}
    gate = decode["model.layers.*.mlp.gate_proj"]
    assert (gate.calls, gate.rows, gate.outputs, gate.inputs) == (3, 2, 160, 64)
    assert shapes.hidden == 64 and shapes.other_flops == {"prefill": 0, "decode": 0}
    for phase in ("prefill", "decode"):
        products = sum(
            2 * p.calls * p.rows * p.outputs * p.inputs for p in shapes.products if p.phase == phase
        )
        attention = sum(
            4 * a.calls * a.batch * a.heads * a.head_dim * a.queries * a.keys
            for a in shapes.attention
            if a.phase == phase
        )
        assert products + attention == static.phases[phase].flops


def test_attention_has_the_heads_that_are_cached() -> None:
    shapes = shapes_of(document_of(LLAMA).static)
    prefill, decode = shapes.attention
    assert (prefill.calls, prefill.heads, prefill.kv_heads, prefill.head_dim, prefill.causal) == (
        3,
        4,
        2,
        16,
        True,
    )
    assert (decode.queries, decode.keys, decode.batch) == (1, 31, 2)


def test_the_head_follows_sequences_whatever_the_prompt() -> None:
    shapes = shapes_of(document_of(LLAMA).static)
    head = next(one for one in shapes.products if one.phase == "prefill" and one.outputs == 512)
    assert (head.rows, head.rows_follow) == (2, "sequences")


def test_experts_are_layers_of_their_own() -> None:
    shapes = shapes_of(document_of(MOE).static)
    decode = next(one for one in shapes.experts if one.phase == "decode")
    assert (decode.calls, decode.tokens, decode.hidden, decode.inter, decode.experts, decode.top_k) == (
        2,
        2,
        64,
        48,
        8,
        2,
    )
    assert not any("experts" in one.name for one in shapes.small)


def test_element_wise_work_run_apart_moves_more_than_fused() -> None:
    shapes = shapes_of(document_of(LLAMA).static)
    fused = sum(4 * one.elements * one.calls for one in shapes.small if one.phase == "prefill")
    assert shapes.apart_bytes["prefill"] > fused > 0
    assert shapes.apart_operators["prefill"] > sum(
        one.calls for one in shapes.small if one.phase == "prefill"
    )


def test_shapes_are_kept_in_the_document(tmp_path: Any) -> None:
    document = document_of(LLAMA)
    path = save_document(tmp_path / "static_compute.json", document)
    assert load_static(path).operators == document.static.operators


@pytest.mark.parametrize("prompt", [24, 48])
def test_scaled_shapes_are_those_counted_again(prompt: int) -> None:
    from llm_perf_opt.analysis.roofline.expected_calls import At, calls

    small, large = document_of(MOE, 1, 24, 30).static, document_of(MOE, 3, prompt, prompt + 6).static
    at = At(3, prompt, prompt + 6)
    for phase in ("prefill", "decode"):
        assert calls(shapes_of(small), phase, at) == calls(shapes_of(large), phase, at)
