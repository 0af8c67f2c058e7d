"""What-if rows: equal to counting again, equal to the prediction at the run's own point, and honest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.roofline.demand import Point, demand, own_point
from llm_perf_opt.analysis.roofline.predictions import predict_phases
from llm_perf_opt.analysis.roofline.what_if import price, what_if
from llm_perf_opt.core.units import size
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.summary import (
    AttentionPart,
    Coverage,
    ExpertPart,
    KvPart,
    Params,
    Peak,
    Scaling,
    Static,
    StaticPhase,
)
from tests.text_facts import mentions

SLIDING = {
    "model_type": "mistral",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 48,
    "max_position_embeddings": 1024,
}


@pytest.fixture(scope="module")
def count() -> Callable[..., Static]:
    """Count a small model on the meta device at given shapes."""
    import torch

    from llm_perf_opt.analysis.static.counts import Conventions
    from llm_perf_opt.config.schema import ModelConfig
    from llm_perf_opt.workloads.counting.static_run import StaticCounter
    from llm_perf_opt.workloads.registry import load_adapter
    from tests.unit.small_workloads import infer_config, model_config

    def counted(kind: str, batch: int, prompt: int, context: int, **conventions: Any) -> Static:
        model = (
            ModelConfig(adapter="hf_causal_lm", arch=dict(SLIDING))
            if kind == "sliding"
            else model_config(kind)
        )
        infer = infer_config(kind if kind != "sliding" else "llama", batch_size=batch)
        adapter = load_adapter(model, infer)
        counter = StaticCounter(
            adapter, torch.bfloat16, conventions=Conventions(**conventions), use_closed_forms=False
        )
        shapes = replace(adapter.default_shapes(), prompt_tokens=prompt, context_tokens=context)
        return counter.document(shapes, decode_steps=4).static

    return counted


def test_several_devices_talk_and_the_links_have_a_floor(count: Callable[..., Static]) -> None:
    static = count("llama", 1, 60, 70)
    own = own_point(static, "bfloat16")
    split = next(one for one in static.splits if one.ranks == 2)
    assert own is not None and split.reason is None
    alone, shared = demand(static, own), demand(static, replace(own, tensor_parallel=2))
    assert alone.step is not None and shared.step is not None
    assert (alone.step_link_bytes, alone.prefill_link_bytes) == (None, None)
    assert shared.step_link_bytes == sum(one.link_bytes for one in split.exchanges if one.phase == "decode")
    assert shared.step[0] == alone.step[0] / 2
    # Norms are on every rank, so that a rank reads more than half.
    assert alone.step[1] / 2 < shared.step[1] < alone.step[1] / 2 * 1.1
    assert shared.resident_bytes == pytest.approx(
        (split.shares[0].weight_bytes or 0.0) + (alone.resident_bytes - static.resident_bytes["weights"]) / 2
    )
    # Twice the sequences say twice as much; longer prompts too, but for the head's outputs.
    both = demand(static, replace(own, tensor_parallel=2, batch_size=2))
    assert both.step_link_bytes == 2 * shared.step_link_bytes
    # A link so slow that nothing else matters sets the floor; a link that is not known sets none.
    device = replace(load_catalogue().named("NVIDIA H100 SXM5 80GB"), link_bytes_per_s=1e3)
    point = replace(own, tensor_parallel=2)
    (slow,) = price(static, [device], [point])
    assert slow.floor_term == "communication"
    assert slow.tpot_floor_s == slow.communication_s == shared.step_link_bytes / 1e3
    (unknown,) = price(static, [replace(device, link_bytes_per_s=None)], [point])
    assert unknown.communication_s is None and unknown.floor_term != "communication"
    assert mentions(unknown.note, size(shared.step_link_bytes)) and mentions(slow.note, "1.00 kB/s")
    assert not mentions(unknown.note, "B/s"), "what is not known is not in the floor"
    (quick,) = price(static, [load_catalogue().named("NVIDIA H100 SXM5 80GB")], [point])
    assert quick.communication_s == shared.step_link_bytes / 450e9


def test_devices_are_listed_two_four_and_eight_at_a_time(count: Callable[..., Static]) -> None:
    rows = what_if(count("llama", 1, 60, 70), load_catalogue(), dtype="bfloat16")
    several = {row.tensor_parallel for row in rows if row.device == "NVIDIA H100 SXM5 80GB"}
    assert several == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("kind", "conventions"),
    [
        ("v1", {}),
        ("llama", {}),
        ("llama", {"causal": "halved"}),
        ("llama", {"head_positions": "all"}),
        ("qwen_moe", {}),
        ("sliding", {}),
        ("sliding", {"causal": "halved"}),
    ],
)
def test_scaled_equals_counted_again(
    count: Callable[..., Static], kind: str, conventions: dict[str, str]
) -> None:
    small, large = count(kind, 1, 60, 70, **conventions), count(kind, 3, 200, 230, **conventions)
    needed = demand(small, Point("bfloat16", 3, 230, 200))
    assert needed.first_token is not None and needed.step is not None
    names = [name for name in ("vision", "prefill") if name in large.phases]
    for name, (flops, moved) in zip(names, needed.first_token, strict=True):
        phase = large.phases[name]
        assert flops == pytest.approx(phase.flops, rel=1e-9), name
        assert moved == pytest.approx((phase.weight_bytes or 0) + (phase.kv_bytes or 0), rel=1e-9), name
    step = large.phases["decode"]
    assert needed.step[0] == pytest.approx(step.flops, rel=1e-9)
    assert needed.step[1] == pytest.approx((step.weight_bytes or 0) + (step.kv_bytes or 0), rel=1e-9)


def decoder(batch: int = 1) -> Static:
    """A made-up MoE decoder with round numbers, at 1,000 positions."""
    return Static(
        params=Params(5_000_000_000, 1_000_000_000, {}),
        kv_bytes_per_token=100_000.0,
        phases={
            "prefill": StaticPhase(2.1e12, 1e10, None, 1e8, None, 1000),
            "decode": StaticPhase(2.1e9 * batch, 2e9, None, 1.001e8 * batch, None, 1),
        },
        modules=[],
        coverage=Coverage(1.0, []),
        conventions={},
        scaling=Scaling(
            batch_size=batch,
            prompt_tokens=1000,
            context_tokens=1000,
            element_bytes=2.0,
            attention=[AttentionPart("prefill", 1e11), AttentionPart("decode", 1e8)],
            head_flops={"prefill": 1e8, "decode": 1e8},
            experts=[ExpertPart(8e9, 8, 1)],
            kv=[KvPart(10, 10_000.0)],
        ),
    )


def test_own_point_equals_the_prediction_on_every_device() -> None:
    static = decoder()
    catalogue = load_catalogue()
    rows = {row.device: row for row in what_if(static, catalogue, dtype="bf16", focus=())}
    assert len(rows) == len(catalogue.devices)
    for device in catalogue.devices:
        shown = predict_phases(static, device.to_hardware(), "bfloat16")
        row = rows[device.name]
        if "bfloat16" in device.peaks:
            assert row.ttft_floor_s == pytest.approx(shown["ttft"].floor_s)
            assert row.tpot_floor_s == pytest.approx(shown["tpot"].floor_s)
            assert row.tokens_per_s == pytest.approx(1 / shown["tpot"].floor_s)
        else:
            assert shown == {} and row.tpot_floor_s is None and mentions(row.note, "bfloat16", "peak")


def test_fits_counts_weights_and_cache() -> None:
    point = Point("bfloat16", 4, 999, 999)
    needed = demand(decoder(), point)
    assert needed.resident_bytes == 1e10 + 4 * 1000 * 100_000
    limits = {"name": "X", "peaks": {"bfloat16": Peak(1e14, "s")}, "bandwidth_bytes_per_s": 1e12}
    exact, short, unknown = (
        price(decoder(), [SimpleNamespace(**limits, memory_bytes=size)], [point])[0]
        for size in (needed.resident_bytes, needed.resident_bytes - 1, None)
    )
    assert (exact.fits, short.fits, unknown.fits) == (True, False, None)


def test_an_uncounted_pass_makes_no_first_token_floor() -> None:
    static = decoder()
    static.phases["vision"] = StaticPhase(1e12, None, None, 0.0, None)
    (row,) = price(static, [load_catalogue().named("NVIDIA L4")], [Point("bfloat16", 1, 1000, 1000)])
    assert row.ttft_floor_s is None and row.tpot_floor_s is not None
    counted = decoder()
    counted.phases["vision"] = StaticPhase(1e12, 1.0, None, 0.0, None)
    (whole,) = price(counted, [load_catalogue().named("NVIDIA L4")], [Point("bfloat16", 1, 1000, 1000)])
    assert whole.ttft_floor_s is not None and whole.tpot_floor_s == row.tpot_floor_s
    assert len(row.note or "") > len(whole.note or ""), "what is missing is said"


def step_bytes(dtype: str, batch: int = 1) -> float:
    step = demand(decoder(), Point(dtype, batch, 1000, 1000)).step
    assert step is not None
    return step[1]


def test_half_the_bytes_halve_a_memory_bound_step() -> None:
    assert step_bytes("float8") == pytest.approx(step_bytes("bfloat16") / 2)
    # Weights shrink to a quarter; keys and values stay in 16 bits.
    assert step_bytes("float4") == pytest.approx(2e9 / 4 + 1.001e8)


def test_experts_are_read_as_far_as_the_batch_chooses_them() -> None:
    distinct = 8 * (1 - (1 - 1 / 8) ** 8)
    grown = step_bytes("bfloat16", 8) - 8 * 1.001e8 - (step_bytes("bfloat16") - 1.001e8)
    assert grown == pytest.approx(8e9 * (distinct - 1) / 8)


@given(st.integers(1, 512), st.integers(1, 512), st.integers(1, 100_000))
def test_throughput_never_falls_with_the_batch_at_one_context(a: int, b: int, context: int) -> None:
    low, high = sorted((a, b))
    device = load_catalogue().named("NVIDIA A100 SXM4 80GB")
    few, many = price(decoder(), [device], [Point("bfloat16", n, context, context) for n in (low, high)])
    assert (many.tokens_per_s or 0) >= (few.tokens_per_s or 0) * (1 - 1e-9)
    assert (many.tpot_floor_s or 0) >= (few.tpot_floor_s or 0) * (1 - 1e-9)


def test_variations_only_where_a_peak_is_known() -> None:
    rows = what_if(
        decoder(), load_catalogue(), dtype="bfloat16", focus=["NVIDIA A100 SXM4 80GB", "NVIDIA B200"]
    )
    varied = rows[len(load_catalogue().devices) :]
    assert {row.dtype for row in varied if row.device == "NVIDIA A100 SXM4 80GB"} == {"bfloat16"}
    assert {row.dtype for row in varied if row.device == "NVIDIA B200"} == {"bfloat16", "float8", "float4"}
    assert {row.batch_size for row in varied} == {1, 8, 32} and {row.context_tokens for row in varied} == {
        1000,
        4000,
    }


def test_static_model_without_scaling_prices_its_own_point_only() -> None:
    static = decoder()
    static.scaling = None
    static.resident_bytes = {"weights": 1e10}
    base = own_point(static, "bfloat16")
    assert base == Point("bfloat16", 1, 1000, 1000)
    rows = what_if(static, load_catalogue(), dtype="bfloat16")
    assert len(rows) == len(load_catalogue().devices)
    h100 = next(row for row in rows if row.device == "NVIDIA H100 SXM5 80GB")
    shown = predict_phases(static, load_catalogue().named("NVIDIA H100 SXM5 80GB").to_hardware(), "bfloat16")
    assert h100.tpot_floor_s == pytest.approx(shown["tpot"].floor_s)


def test_no_decode_or_no_type_gives_no_rows() -> None:
    static = decoder()
    assert what_if(static, load_catalogue(), dtype=None) == []
    del static.phases["decode"]
    assert what_if(static, load_catalogue(), dtype="bfloat16") == []


def test_several_shapes_keep_their_mean_point(count: Callable[..., Static]) -> None:
    from llm_perf_opt.analysis.static.mean import _mean_static

    short, long = count("llama", 1, 40, 50), count("llama", 1, 80, 90)
    mean = _mean_static([(short, 1), (long, 3)])
    assert own_point(mean, "bfloat16") == Point("bfloat16", 1, 80, 70)
    own = own_point(mean, "bfloat16")
    assert own is not None
    needed = demand(mean, own)
    assert needed.step is not None and needed.step[0] == pytest.approx(mean.phases["decode"].flops)
    rows = what_if(mean, load_catalogue(), dtype="bfloat16")
    assert len(rows) > len(load_catalogue().devices), "variations need the scaling facts"


def test_context_of_a_windowed_model_is_the_context(count: Callable[..., Static]) -> None:
    own = own_point(count("sliding", 1, 60, 70), "bfloat16")
    assert own is not None and own.context_tokens == 70


def test_a_rank_reads_what_counting_at_the_larger_batch_gives(count: Callable[..., Static]) -> None:
    """Whole layers are read once by every rank; only the experts, which are cut, grow with the batch."""
    one, many = count("qwen_moe", 1, 60, 70), count("qwen_moe", 16, 60, 70)
    own = own_point(one, "bfloat16")
    assert own is not None
    estimated = demand(one, replace(own, batch_size=16, tensor_parallel=2))
    counted = demand(many, replace(own, batch_size=16, tensor_parallel=2))
    assert estimated.step is not None and counted.step is not None
    assert estimated.step[1] == pytest.approx(counted.step[1], rel=0.02)
    # The share of one sequence would be too large: there whole layers are more of what is read.
    alone, shared = demand(one, own), demand(one, replace(own, tensor_parallel=2))
    whole = demand(one, replace(own, batch_size=16))
    assert alone.step is not None and shared.step is not None and whole.step is not None
    assert estimated.step[1] / whole.step[1] < shared.step[1] / alone.step[1]
