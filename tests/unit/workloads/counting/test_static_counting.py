"""The counter against hand-derived formulas, torch's own counter, real tensors, and itself."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers.cache_utils import Cache

from llm_perf_opt.analysis.static.build import build_static, kv_bytes, kv_layers, own_flops, own_weight_bytes
from llm_perf_opt.analysis.static.closed_forms import Shapes, closed_form_of
from llm_perf_opt.analysis.static.counts import Conventions, expected_distinct_experts
from llm_perf_opt.workloads.counting.counter import count_phase, model_tree
from tests.unit.static_support import BATCH, CONTEXT, PROMPT, count_both, count_text, meta_model, small_config

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    **EXPERTS,
    "n_routed_experts": 8,
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
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 16},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "phi3": {},
    "gemma": {"head_dim": 32},
    "gemma2": {"head_dim": 32, "sliding_window": 16},
    "gemma3_text": {"head_dim": 32, "sliding_window": 16},
    "granite": {},
    "olmo2": {},
    "smollm3": {},
    "cohere": {},
    "glm4": {"head_dim": 16},
    "ernie4_5": {"head_dim": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "starcoder2": {},
    "gpt_neox": {"num_key_value_heads": 4},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": {**EXPERTS, "num_experts": 8, "shared_expert_intermediate_size": 48},
    "qwen3_moe": {**EXPERTS, "num_experts": 8, "head_dim": 16, "mlp_only_layers": [1]},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 16},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
}
CONVENTIONS = (
    Conventions(),
    Conventions(causal="halved", head_positions="all"),
    Conventions(rotary="per_layer"),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_its_closed_form_to_the_last_flop(family: str) -> None:
    config = small_config(family, **FAMILIES[family])
    model = meta_model(config)
    tree, counts = count_both(model)
    form = closed_form_of(config.to_dict())
    for conventions in CONVENTIONS if tree.rotary_frequencies else CONVENTIONS[:2]:
        for phase, count in counts.items():
            expected = form.flops(phase, Shapes(BATCH, PROMPT, CONTEXT), conventions)
            assert sum(own_flops(count, tree, conventions, phase).values()) == sum(expected.values()), phase
            assert not count.unknown
    per_token = sum(group.layers * group.bytes_per_token for group in form.decoder.kv_layers(2))
    assert sum(group.layers * group.bytes_per_token for group in kv_layers(counts["prefill"])) == per_token


def test_dense_grouped_query_by_hand() -> None:
    model = meta_model(small_config("llama"))
    tree, counts = count_both(model)
    layer_weights = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 96
    prefill = BATCH * 3 * (2 * PROMPT * layer_weights + 4 * PROMPT * PROMPT * 64)
    decode = BATCH * 3 * (2 * layer_weights + 4 * (CONTEXT + 1) * 64)
    head = 2 * BATCH * 64 * 128
    assert sum(own_flops(counts["prefill"], tree, Conventions(), "prefill").values()) == prefill + head
    assert sum(own_flops(counts["decode"], tree, Conventions(), "decode").values()) == decode + head
    assert kv_bytes(counts["prefill"]) == BATCH * PROMPT * 3 * 2 * 32 * 2
    assert kv_bytes(counts["decode"]) == BATCH * (CONTEXT + 1) * 3 * 2 * 32 * 2
    norms = (2 * 3 + 1) * 64
    weights = 2 * (3 * layer_weights + norms + 64 * 128 + BATCH * 64)
    assert sum(own_weight_bytes(counts["decode"], tree).values()) == weights


def test_mixture_of_experts_by_hand() -> None:
    config = small_config("qwen3_moe", **EXPERTS, num_experts=8, head_dim=16)
    tree, counts = count_both(meta_model(config))
    attention = 64 * 16 * (4 + 2 + 2 + 4)
    active = attention + 8 * 64 + 2 * 3 * 64 * 32
    decode = BATCH * 3 * (2 * active + 4 * (CONTEXT + 1) * 64) + 2 * BATCH * 64 * 128
    assert sum(own_flops(counts["decode"], tree, Conventions(), "decode").values()) == decode
    static = build_static(tree, counts, {}, Conventions())
    norms = 3 * (2 * 64 + 2 * 16) + 64
    assert static.params.active_per_token == 3 * active + norms + 64 * 128
    # Two tokens meet 8 × (1 - (6/8)²) = 3.5 of the 8 experts.
    read = 3 * (attention + 8 * 64 + 3.5 * 3 * 64 * 32) + norms + 64 * 128 + BATCH * 64
    assert sum(own_weight_bytes(counts["decode"], tree).values()) == pytest.approx(2 * read)


@pytest.mark.parametrize(("batch", "distinct"), [(1, 6.0), (8, 34.9), (32, 61.3), (100, 64.0)])
def test_expected_distinct_experts_of_deepseek_ocr(batch: int, distinct: float) -> None:
    assert expected_distinct_experts(64, 6, batch) == pytest.approx(distinct, abs=0.05)


def test_sliding_window_limits_decode_reads_and_work() -> None:
    model = meta_model(small_config("mistral", sliding_window=16))
    tree, counts = count_both(model)
    weights = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 96
    expected = BATCH * 3 * (2 * weights + 4 * 16 * 64) + 2 * BATCH * 64 * 128
    assert sum(own_flops(counts["decode"], tree, Conventions(), "decode").values()) == expected
    assert kv_bytes(counts["decode"]) == BATCH * 16 * 3 * 2 * 32 * 2
    assert {group.window for group in kv_layers(counts["prefill"])} == {16}


def test_tied_embeddings_are_counted_and_read_once() -> None:
    tied = meta_model(small_config("llama", tie_word_embeddings=True))
    untied = meta_model(small_config("llama"))
    (tree, counts), (other, other_counts) = count_both(tied), count_both(untied)
    assert other.total_params() - tree.total_params() == 64 * 128
    first, second = (own_weight_bytes(c["decode"], t) for c, t in ((counts, tree), (other_counts, other)))
    assert (
        sum(second.values()) - sum(first.values()) == BATCH * 64 * 2
    )  # the embedding rows come from the head
    assert first["lm_head"] == 64 * 128 * 2


def test_torch_counter_agrees_on_dense_models_and_misses_experts() -> None:
    for family, changes, share in (("qwen2", {}, 1.0), ("mixtral", FAMILIES["mixtral"], None)):
        model = meta_model(small_config(family, **changes))
        tree = model_tree(model)
        ids = torch.zeros(1, PROMPT, dtype=torch.long, device="meta")
        with torch.no_grad(), FlopCounterMode(display=False) as stock:
            model(input_ids=ids, position_ids=ids, logits_to_keep=1)
        ours = count_text(model, tree, tokens=PROMPT, cached=0, batch=1).raw_flops()
        ratio = stock.get_total_flops() / ours
        assert ratio == share if share else ratio < 0.7


def test_real_cpu_tensors_give_the_same_count_as_meta() -> None:
    """Attention has an operator of its own on CPU that torch's registry counts as nothing."""
    config = small_config("mixtral", **FAMILIES["mixtral"])
    torch.manual_seed(0)
    from transformers import AutoModelForCausalLM

    real = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    ids = torch.zeros(1, PROMPT, dtype=torch.long)
    tree = model_tree(real)
    count = count_phase(
        real, lambda: real(input_ids=ids, logits_to_keep=1), tree, positions=PROMPT, batch_size=1
    )
    meta = meta_model(config)
    expected = count_text(meta, model_tree(meta), tokens=PROMPT, cached=0, batch=1)
    assert count.raw_flops() == expected.raw_flops()
    assert sum(use.flops for use in count.attention) == 4 * PROMPT * PROMPT * 64 * 3


@pytest.mark.parametrize("implementation", ["batched_mm", "grouped_mm"])
def test_experts_implementations_count_alike(implementation: str) -> None:
    model = meta_model(small_config("mixtral", **FAMILIES["mixtral"]), experts_implementation=implementation)
    tree, counts = count_both(model)
    reference_tree, reference = count_both(meta_model(small_config("mixtral", **FAMILIES["mixtral"])))
    for phase in counts:
        ours = own_flops(counts[phase], tree, Conventions(), phase)
        assert ours == own_flops(reference[phase], reference_tree, Conventions(), phase)
        assert own_weight_bytes(counts[phase], tree) == own_weight_bytes(reference[phase], reference_tree)


def test_eager_and_sdpa_attention_agree_under_every_convention() -> None:
    counted = [
        count_both(meta_model(small_config("llama"), attn_implementation=kind)) for kind in ("eager", "sdpa")
    ]
    for conventions in CONVENTIONS:
        for phase in ("prefill", "decode"):
            eager, sdpa = (sum(own_flops(c[phase], t, conventions, phase).values()) for t, c in counted)
            assert eager == sdpa


@torch.library.custom_op("static_test::mystery", mutates_args=())
def _mystery(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@_mystery.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class _WithMystery(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.static_test.mystery(self.inner(x)).relu()


def test_an_operator_without_formula_is_named_and_withholds_the_coverage() -> None:
    model = _WithMystery().to("meta")
    tree = model_tree(model)
    count = count_phase(
        model, lambda: model(torch.empty(4, 8, device="meta")), tree, positions=4, batch_size=1
    )
    static = build_static(tree, {"prefill": count}, {}, Conventions())
    assert static.phases["prefill"].flops == 2 * 4 * 8 * 8
    assert static.coverage.unknown_ops == ["static_test::mystery"]
    assert static.coverage.counted_ratio is None
    assert "aten::relu" in static.coverage.uncounted_ops
    inner = next(row for row in static.modules if row.name == "inner")
    assert inner.counted_ratio == 1.0


def test_coverage_is_counted_over_counted_plus_elements() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16, bias=False), torch.nn.ReLU()).to("meta")
    tree = model_tree(model)
    count = count_phase(
        model, lambda: model(torch.empty(4, 8, device="meta")), tree, positions=4, batch_size=1
    )
    static = build_static(tree, {"prefill": count}, {}, Conventions())
    assert static.coverage.counted_ratio == pytest.approx(1024 / (1024 + 64))


def test_inference_mode_is_counted_too() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)).to("meta")
    tree = model_tree(model)

    def call() -> object:
        with torch.inference_mode():
            return model(torch.empty(2, 3, 8, device="meta"))

    count = count_phase(model, call, tree, positions=3, batch_size=2)
    assert count.own_flops == {"0": 2 * 6 * 8 * 16, "1": 2 * 6 * 16 * 4}


def test_a_failing_call_leaves_torch_and_transformers_untouched() -> None:
    before = Cache.update
    model = torch.nn.Linear(4, 4).to("meta")

    def call() -> object:
        model(torch.empty(2, 4, device="meta"))
        raise RuntimeError("value asked of a meta tensor")

    with pytest.raises(RuntimeError, match="meta tensor"):
        count_phase(model, call, model_tree(model), positions=1, batch_size=1)
    assert Cache.update is before
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks


_SIDES = st.integers(1, 4)
_POINTWISE = ("add", "sub", "mul", "div")


def test_grouped_products_in_every_layout() -> None:
    from llm_perf_opt.workloads.counting.formulas import EXTRA_FORMULAS

    count = EXTRA_FORMULAS["aten::_grouped_mm"]

    def of(*shapes: tuple[int, ...]) -> int:
        return count([torch.empty(shape, device="meta") for shape in shapes], None)

    assert of((10, 4), (3, 4, 5)) == 2 * 10 * 4 * 5
    assert of((4, 10), (10, 5)) == 2 * 4 * 10 * 5
    assert of((3, 10, 4), (3, 4, 5)) == 2 * 3 * 10 * 4 * 5
    assert of((3, 10, 4), (4, 6)) == 2 * 10 * 4 * 6
    assert math.prod((2, 10, 4, 5)) == of((10, 4), (3, 4, 5))
