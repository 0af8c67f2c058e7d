from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from llm_perf_opt.analysis.roofline.expected_calls import (
    At,
    Call,
    Work,
    calls,
    fused_name,
    reason_not_sharded,
    split_of,
    unfused_elementwise_work,
)
from llm_perf_opt.analysis.roofline.expected_times import (
    COMPUTE_SHARE,
    KERNEL_S,
    MEMORY_SHARE,
    Expectation,
    Part,
    PassTime,
    Tables,
    Target,
    expect,
    pass_time,
    roofline_s,
    uncached_bytes,
)
from llm_perf_opt.hardware.silicon import (
    AllReduce,
    Attention,
    Gemm,
    LatentBlock,
    MoeLayer,
    Operator,
    Source,
    Timing,
)
from llm_perf_opt.summary import Peak
from llm_perf_opt.summary.static import AttentionShape, ExpertShape, OperatorShapes, ProductShape, SmallShape
from tests.text_facts import mentions

LIMITS = Target("a device", {"bfloat16": Peak(dense=1e14, source="")}, 1e12)


class Fixed:
    """Times by the type of an operator, of no known system."""

    def system(self, device: str) -> None:
        return None

    def __init__(self, seconds: Mapping[type, float]) -> None:
        self.seconds = seconds

    def time(self, operator: Operator, device: str, *, framework: str | None = None) -> Timing | None:
        found = self.seconds.get(type(operator))
        source = Source("vllm", "1.0", "table", "kernel")
        return None if found is None else Timing(found, "measured", source)


def decoder(layers: int = 2) -> OperatorShapes:
    """Two layers, hidden 64, 8 heads of 8, 2 cached heads, counted at batch 1, 100 positions."""
    products = []
    for phase, rows in (("prefill", 100.0), ("decode", 1.0)):
        for name, outputs, inputs in (
            ("self_attn.q_proj", 64, 64),
            ("self_attn.k_proj", 16, 64),
            ("self_attn.v_proj", 16, 64),
            ("self_attn.o_proj", 64, 64),
            ("mlp.gate_proj", 256, 64),
            ("mlp.up_proj", 256, 64),
            ("mlp.down_proj", 64, 256),
        ):
            products.append(ProductShape(phase, f"model.layers.*.{name}", layers, rows, outputs, inputs))
        products.append(ProductShape(phase, "lm_head", 1, 1.0, 1000, 64, "sequences"))
    attention = [
        AttentionShape("prefill", "model.layers.*.self_attn", layers, 100, 100, 8, 2, 8),
        AttentionShape("decode", "model.layers.*.self_attn", layers, 1, 101, 8, 2, 8),
    ]
    small = [
        SmallShape(p, "model.layers.*.input_layernorm", layers, n * 64)
        for p, n in (("prefill", 100), ("decode", 1))
    ]
    shapes = OperatorShapes(1, 100, 100, 64, products, attention, [], small)
    shapes.apart_bytes, shapes.apart_operators = (
        {"prefill": 1e6, "decode": 1e4},
        {"prefill": 30, "decode": 30},
    )
    return shapes


def operators(found: list[Call]) -> dict[str, Operator | Work]:
    return {call.name.rpartition(".")[2]: call.operator for call in found}


def test_products_of_one_input_are_one_and_rows_follow_batch_and_prompt() -> None:
    found = operators(calls(decoder(), "prefill", At(3, 200, 200)))
    assert found["qkv"] == Gemm(600, 96, 64)
    assert found["gate_up"] == Gemm(600, 512, 64)
    assert found["lm_head"] == Gemm(3, 1000, 64)


def test_a_decode_step_has_a_row_per_sequence_and_attends_to_the_whole_context() -> None:
    found = operators(calls(decoder(), "decode", At(3, 200, 500)))
    assert found["down_proj"] == Gemm(3, 64, 256)
    assert found["self_attn"] == Attention("generation", 3, 501, 8, 2, 8)


def test_ranks_share_heads_outputs_and_inputs_and_exchange_sums() -> None:
    found = calls(decoder(), "decode", At(3, 200, 500, tensor_parallel=4))
    named = operators(found)
    assert named["qkv"] == Gemm(3, 16 + 8 + 8, 64), "two heads of its own, and a copy of one cached head"
    assert named["o_proj"] == Gemm(3, 64, 16)
    assert named["down_proj"] == Gemm(3, 64, 64)
    assert named["lm_head"] == Gemm(3, 250, 64)
    assert named["self_attn"] == Attention("generation", 3, 501, 2, 1, 8)
    exchange = next(call for call in found if isinstance(call.operator, AllReduce))
    assert exchange == Call("all-reduce", AllReduce(3 * 64, 4), 4)


@pytest.mark.parametrize(("ranks", "outputs"), [(1, 96), (2, 48), (4, 32), (8, 24)])
def test_a_rank_has_whole_heads_of_keys_and_values_also_in_one_weight(ranks: int, outputs: int) -> None:
    apart, fused = decoder(), decoder()
    fused.products = [one for one in fused.products if not one.name.endswith(("k_proj", "v_proj"))]
    for one in fused.products:
        if one.name.endswith("q_proj"):
            one.name, one.outputs = one.name.replace("q_proj", "qkv_proj"), 96
    at = At(1, 100, 100, tensor_parallel=ranks)
    found = operators(calls(apart, "decode", at))["qkv"], operators(calls(fused, "decode", at))["qkv_proj"]
    assert found == (Gemm(1, outputs, 64), Gemm(1, outputs, 64))


def test_one_rank_exchanges_nothing() -> None:
    assert not any(
        isinstance(call.operator, AllReduce) for call in calls(decoder(), "decode", At(1, 100, 100))
    )


def test_few_bits_are_for_weights_and_the_head_stays_wide() -> None:
    found = operators(calls(decoder(), "decode", At(1, 100, 100, "float8", "float8")))
    qkv, head, attention = found["qkv"], found["lm_head"], found["self_attn"]
    assert isinstance(qkv, Gemm) and qkv.dtype == "float8"
    assert isinstance(head, Gemm) and head.dtype == "bfloat16"
    assert isinstance(attention, Attention) and (attention.dtype, attention.cache_dtype) == (
        "bfloat16",
        "float8",
    )


def test_a_window_no_longer_than_the_context_is_none() -> None:
    shapes = decoder()
    for one in shapes.attention:
        one.window = 300
    short, long = (operators(calls(shapes, "decode", At(1, 100, n)))["self_attn"] for n in (200, 1000))
    assert isinstance(short, Attention) and isinstance(long, Attention)
    assert (short.window, long.window) == (0, 300)


@pytest.mark.parametrize(
    ("name", "split", "fused"),
    [
        ("model.layers.*.self_attn.q_proj", "outputs", "model.layers.*.self_attn.qkv"),
        ("model.layers.*.self_attn.o_proj", "inputs", "model.layers.*.self_attn.o_proj"),
        ("model.layers.*.mlp.gate", "none", "model.layers.*.mlp.gate"),
        ("model.layers.*.mlp.gate_proj", "outputs", "model.layers.*.mlp.gate_up"),
        ("lm_head", "outputs", "lm_head"),
    ],
)
def test_roles_by_name(name: str, split: str, fused: str) -> None:
    assert (split_of(name), fused_name(name)) == (split, fused)


def test_what_no_table_has_is_a_roofline_at_a_share_of_the_limits() -> None:
    wide, long = Work(1e9, 1e8), Work(1e12, 1e6)
    assert roofline_s(wide, LIMITS) == pytest.approx(1e8 / (1e12 * MEMORY_SHARE) + KERNEL_S)
    assert roofline_s(long, LIMITS) == pytest.approx(1e12 / (1e14 * COMPUTE_SHARE) + KERNEL_S)
    assert roofline_s(AllReduce(1000, 2), LIMITS) is None
    assert roofline_s(Gemm(1, 64, 64, "float8"), LIMITS) is None


def test_a_pass_adds_up_and_names_what_rests_on_tables() -> None:
    found = [Call("a", Gemm(1, 64, 64), 3), Call("b", Work(0.0, 1e6), 2)]
    timed = pass_time(found, LIMITS, Fixed({Gemm: 1e-3}), None)
    small = 2 * (1e6 / (1e12 * MEMORY_SHARE) + KERNEL_S)
    assert timed is not None
    assert timed.seconds == pytest.approx(3e-3 + small) and timed.measured_s == pytest.approx(3e-3)
    assert timed.by_how["roofline"] == pytest.approx(small)
    assert timed.parts[0].source == "vllm 1.0, kernel"


def test_without_limits_and_tables_a_pass_has_no_time() -> None:
    blind = Target("a device", {}, None)
    assert pass_time([Call("a", Gemm(1, 64, 64), 1)], blind, None, None) is None


@pytest.mark.parametrize(("shared", "seconds"), [(1e-3, 5e-3), (7e-3, 7e-3)])
def test_shared_experts_of_a_step_overlap_the_routed_ones(shared: float, seconds: float) -> None:
    found = [Call("experts", MoeLayer(1, 64, 64, 2, 8), 1), Call("shared", Gemm(1, 64, 64), 1, True)]
    timed = pass_time(found, LIMITS, Fixed({MoeLayer: 5e-3, Gemm: shared}), None)
    assert timed is not None and timed.seconds == pytest.approx(seconds)


def test_experts_are_looked_up_whole_and_follow_the_tokens() -> None:
    shapes = decoder()
    shapes.experts = [ExpertShape("decode", "model.layers.*.mlp.experts", 2, 1, 64, 32, 8, 2)]
    found = operators(calls(shapes, "decode", At(5, 100, 100, tensor_parallel=2)))
    assert found["experts"] == MoeLayer(5, 64, 32, 2, 8, 2)


def test_launched_one_by_one_the_longer_of_work_and_launches_is_seen() -> None:
    tables = Tables(Fixed({Gemm: 1e-3, Attention: 1e-3}))
    found = expect(decoder(), ["prefill"], At(1, 100, 100), LIMITS, tables)
    assert found is not None and found.tpot_s is not None and found.ttft_s is not None
    assert found.tpot_eager_s(1.0) == 1.0
    eager = found.tpot_eager_s(0.0)
    assert eager is not None and eager > found.tpot_s, "element-wise work by itself is more than fused"
    assert found.tpot_eager_s(None) is None and found.ttft_eager_s([None]) is None
    assert found.ttft_eager_s([5.0]) == 5.0
    assert found.source() == "vllm 1.0"
    assert found.measured_share is not None and 0.9 < found.measured_share < 1


def test_work_apart_grows_with_the_positions_and_is_not_known_where_it_was_not_counted() -> None:
    shapes = decoder()
    found = unfused_elementwise_work(shapes, "prefill", At(2, 300, 300))
    assert found is not None and found[0].moved_bytes == pytest.approx(6e6) and found[1] == 30
    assert unfused_elementwise_work(shapes, "vision", At(1, 100, 100)) is None


def test_weights_that_a_table_found_in_a_cache_come_from_memory_in_a_model() -> None:
    cold, warm = Gemm(1, 1000, 1000), Attention("generation", 4, 1000, 8, 2, 64)
    found = [Call("a", cold, 2), Call("b", warm, 1)]
    timed = pass_time(found, LIMITS, Fixed({Gemm: 1e-9, Attention: 1e-9}), None)
    assert timed is not None
    assert timed.seconds == pytest.approx((2 * 2e6 + 2 * 4 * 1000 * 2 * 64 * 2) / 1e12)
    assert timed.measured_s == 0 and {part.source for part in timed.parts} == {"roofline"}


def test_experts_and_latent_blocks_read_their_weights_too() -> None:
    assert uncached_bytes(MoeLayer(4, 64, 32, 2, 8, 2)) == 2 * 3 * 64 * 32 * 2 / 2, (
        "at least one token's experts"
    )
    block = LatentBlock("generation", 2, 100, 8, 512, 64, 32, 16, 8, 8)
    assert uncached_bytes(block) == block.weights * 2 + 2 * 100 * (32 + 16) * 2
    assert uncached_bytes(AllReduce(1000, 2)) == 0


def test_links_of_a_machine_do_not_apply_to_devices_beyond_it() -> None:
    linked = replace(LIMITS, link_bytes_per_s=1e11)
    assert roofline_s(AllReduce(1000, 8), linked) is not None
    assert roofline_s(AllReduce(1000, 16), linked) is None
    assert roofline_s(AllReduce(1000, 8), replace(linked, devices_per_machine=4)) is None
    assert roofline_s(AllReduce(1000, 16), replace(linked, devices_per_machine=72)) is not None


@pytest.mark.parametrize(("ranks", "is_expected"), [(2, True), (3, False), (4, True), (8, True), (16, False)])
def test_heads_that_devices_cannot_share_leave_no_expected_time(ranks: int, is_expected: bool) -> None:
    tables = Tables(Fixed({Gemm: 1e-3, Attention: 1e-3, AllReduce: 1e-5}))
    found = expect(decoder(), ["prefill"], At(1, 100, 100, tensor_parallel=ranks), LIMITS, tables)
    assert (found is not None) is is_expected, "two cached heads are copied, eight heads are not"


def test_cached_heads_of_which_ranks_would_have_different_numbers_of_copies_are_not_shared() -> None:
    shapes = decoder()
    for one in shapes.attention:
        one.heads, one.kv_heads = 12, 3
    assert mentions(reason_not_sharded(shapes, 4), "3", "4"), "the cached heads and the devices"
    assert reason_not_sharded(shapes, 3) is None and reason_not_sharded(shapes, 6) is None


def test_sums_have_the_width_of_what_is_summed_and_32_bits_are_twice_16() -> None:
    shapes = decoder()
    shapes.products.append(ProductShape("vision", "tower.layers.*.mlp.fc2", 3, 50, 24, 96, "sequences"))
    at = At(2, 100, 100, tensor_parallel=2)
    (vision,) = [call for call in calls(shapes, "vision", at) if isinstance(call.operator, AllReduce)]
    assert vision == Call("all-reduce", AllReduce(2 * 50 * 24, 2), 3)
    wide = calls(shapes, "decode", replace(at, dtype="float32"))
    assert AllReduce(2 * 2 * 64, 2) in [call.operator for call in wide]


def test_a_row_says_when_it_mixes_the_kernels_of_engines() -> None:
    def timed(*sources: str) -> PassTime:
        return PassTime(parts=[Part("x", 1.0, "measured", source, 1) for source in sources])

    assert Expectation((), timed("vllm 0.24.0, linear", "nccl 2.27")).mixed_frameworks() is None
    mixed = Expectation((timed("vllm 0.24.0", "vllm 0.24.0"),), timed("vllm 0.24.0", "trtllm 1.0.0"))
    assert mixed.mixed_frameworks() == "vllm (75.0 %) and trtllm (25.0 %)"
