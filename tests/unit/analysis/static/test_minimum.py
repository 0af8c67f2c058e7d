"""The least work beside the work as run: experts, latent attention, and models whose code does no more."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.analysis.findings import model
from llm_perf_opt.analysis.roofline.demand import demand, own_point
from llm_perf_opt.analysis.roofline.predictions import predict_phases
from llm_perf_opt.analysis.static.build import build_static
from llm_perf_opt.analysis.static.counts import Conventions
from llm_perf_opt.summary import Hardware, Peak, Stat, Static, Timings
from tests.text_facts import mentions
from tests.unit.report_summaries import bare_summary
from tests.unit.static_support import BATCH, CONTEXT, PROMPT, count_both, meta_model, small_config

LLAMA4 = {
    "num_local_experts": 8,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 96,
    "interleave_moe_layer_step": 1,
    "head_dim": 16,
    "attention_chunk_size": 128,
}
LATENT = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 4,
}


def built(kind: str, **changes: Any) -> Static:
    tree, counts = count_both(meta_model(small_config(kind, **changes)))
    return build_static(tree, counts, {}, Conventions())


def test_experts_that_all_run_count_as_the_router_chooses_them() -> None:
    static = built("llama4_text", **LLAMA4)
    decode, least = static.phases["decode"], static.phases["decode"].minimum
    assert least is not None
    assert decode.flops is not None and least.flops is not None
    one_layer = 8 * 3 * 64 * 96  # experts × matrices × hidden × intermediate
    assert decode.flops - least.flops == 3 * 2 * BATCH * one_layer * 7 // 8
    assert static.params.as_run_per_token is not None and static.params.active_per_token is not None
    assert static.params.as_run_per_token - static.params.active_per_token == 3 * one_layer * 7 // 8
    # Two sequences choose one of eight experts each: 15/8 of an expert is expected to be read.
    assert decode.weight_bytes is not None and least.weight_bytes is not None
    assert decode.weight_bytes - least.weight_bytes == pytest.approx(3 * 2 * one_layer * (1 - 15 / 64))
    assert least.kv_bytes == decode.kv_bytes
    assert mentions(least.reasons[0], "8", "3", "1"), "experts, layers, and how many a router chooses"


def test_latent_attention_counts_as_absorbed_in_decode_and_as_run_where_that_is_less() -> None:
    static = built("deepseek_v3", **LATENT)
    decode, least = static.phases["decode"], static.phases["decode"].minimum
    assert least is not None
    assert decode.flops is not None and least.flops is not None
    keys, heads, rank, nope, rotated, value = CONTEXT + 1, 4, 16, 16, 8, 12
    expanded = 2 * BATCH * keys * heads * (rank * (nope + value) + nope + rotated + value)
    absorbed = 2 * BATCH * heads * (rank * (nope + value) + keys * (2 * rank + rotated))
    assert decode.flops - least.flops == 3 * (expanded - absorbed)
    assert (least.weight_bytes, least.kv_bytes) == (decode.weight_bytes, decode.kv_bytes)
    # A prompt meets as many keys as queries: one expansion of a key serves all of them.
    prefill_expanded = PROMPT * heads * (rank * (nope + value) + PROMPT * (nope + rotated + value))
    prefill_absorbed = PROMPT * heads * (rank * (nope + value) + PROMPT * (2 * rank + rotated))
    assert prefill_expanded < prefill_absorbed
    assert static.phases["prefill"].minimum is None


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}),
        ("gpt_oss", {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 16}),
    ],
)
def test_code_that_does_no_more_has_no_second_number(kind: str, changes: dict[str, Any]) -> None:
    static = built(kind, **changes)
    assert all(phase.minimum is None for phase in static.phases.values())
    assert static.params.as_run_per_token is None


def test_floors_rest_on_the_least_here_and_elsewhere() -> None:
    static = built("llama4_text", **LLAMA4)
    least = static.phases["decode"].minimum
    assert least is not None
    cpu = Hardware("a CPU", "cpu", {"bfloat16": Peak(1e12, "a test")}, 1e11, "user")
    step = predict_phases(static, cpu, "bfloat16")["tpot"]
    assert step.flops == least.flops
    assert step.bytes == pytest.approx((least.weight_bytes or 0) + (least.kv_bytes or 0))
    point = own_point(static, "bfloat16")
    assert point is not None
    requested = demand(static, point)
    assert requested.step is not None
    assert requested.step[0] == pytest.approx(least.flops)
    assert requested.step[1] == pytest.approx(step.bytes)


def test_the_difference_is_a_finding_with_both_numbers() -> None:
    summary = bare_summary()
    summary.static = built("llama4_text", **LLAMA4)
    summary.timings = Timings(decode_s=Stat(1.0, 1.0, 1.0, 1.0, None, 1))
    found = {finding.phase: finding for finding in model.find_more_work(summary)}
    assert set(found) == {"prefill", "decode"}
    decode = found["decode"]
    assert decode.id == "more-work-than-needed"
    assert any("as run" in line and "needed" in line for line in decode.evidence)
    assert decode.gain_upper_s is not None and 0 < decode.gain_upper_s < 1
    assert found["prefill"].gain_upper_s is None
    summary.static = built("mixtral", num_local_experts=8, num_experts_per_tok=2)
    assert model.find_more_work(summary) == []
    summary.static = None
    assert model.find_more_work(summary) == []
