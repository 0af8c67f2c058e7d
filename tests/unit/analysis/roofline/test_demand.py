"""What another batch, context or data type asks of a device, in numbers that can be done in the head."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llm_perf_opt.analysis.roofline.demand import Demand, Point, demand, own_point
from llm_perf_opt.analysis.roofline.what_if import price, what_if
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
    WhatIf,
)
from tests.text_facts import mentions


def model(**scaling: Any) -> Static:
    """Two sequences of ten tokens with eight cached; weights of two bytes, a cache of four bytes a position."""
    facts: dict[str, Any] = {
        "batch_size": 2.0,
        "prompt_tokens": 10.0,
        "context_tokens": 8.0,
        "element_bytes": 2.0,
        "kv": [KvPart(2, 2.0)],
    }
    return Static(
        params=Params(100, 100, {}),
        kv_bytes_per_token=4.0,
        phases={
            "prefill": StaticPhase(1000.0, 200.0, None, 80.0, None, 20),
            "decode": StaticPhase(100.0, 200.0, None, 72.0, None, 2),
        },
        modules=[],
        coverage=Coverage(1.0, []),
        conventions={},
        scaling=Scaling(**{**facts, **scaling}),
    )


OWN = Point("bfloat16", 2, 8, 10)


def needed(
    static: Static, dtype: str = "bfloat16", batch: int = 2, cached: int = 8, prompt: int = 10
) -> Demand:
    return demand(static, Point(dtype, batch, cached, prompt))


def test_the_own_point_looks_up_what_was_counted() -> None:
    assert own_point(model(), "bf16") == OWN
    cache = 2 * 9 * 4
    assert demand(model(), OWN) == Demand(((1000.0, 280.0),), (100.0, 272.0), 200.0 + cache, cache)
    assert own_point(model(batch_size=0.2), "bf16") == Point("bfloat16", 1, 8, 10)
    assert own_point(model(), "complex64") is None  # no size is known
    assert own_point(model(), None) is None


def test_everything_linear_grows_with_the_sequences() -> None:
    found = needed(model(), batch=6)
    assert found.first_token == ((3000.0, 200.0 + 6 * 10 * 4),)
    assert found.step == (300.0, 200.0 + 6 * 9 * 4)
    assert found.resident_bytes == 200.0 + 6 * 9 * 4


def test_images_come_with_their_sequences_and_weights_once() -> None:
    static = model()
    static.phases["vision"] = StaticPhase(50.0, 30.0, None, None, None)
    found = needed(static, batch=6)
    assert found.first_token is not None
    assert found.first_token[0] == (150.0, 30.0)
    halved = needed(static, "float8", batch=6)
    assert halved.first_token is not None
    assert halved.first_token[0] == (150.0, 15.0)


def test_attention_grows_with_the_pairs_and_the_head_stays() -> None:
    static = model(
        attention=[AttentionPart("prefill", 100.0), AttentionPart("decode", 9.0)],
        head_flops={"prefill": 50.0},
    )
    found = needed(static, prompt=30, cached=17)
    assert found.first_token is not None and found.step is not None
    assert found.first_token[0][0] == 850.0 * 3 + 100.0 * 9 + 50.0
    assert found.step[0] == 91.0 + 9.0 * 18 / 9
    everywhere = model(head_flops={"prefill": 50.0}, head_all_positions=True)
    assert needed(everywhere, prompt=30).first_token[0][0] == 3000.0  # type: ignore[index]


def test_a_window_bounds_what_a_token_sees() -> None:
    windowed = model(
        attention=[AttentionPart("decode", 9.0, window=12), AttentionPart("prefill", 100.0, window=12)],
        kv=[KvPart(2, 2.0, window=12)],
    )
    found = needed(windowed, cached=100, prompt=10)
    assert found.step == (91.0 + 9.0 * 12 / 9, 200.0 + 2 * 12 * 4)
    assert found.resident_bytes == 200.0 + 2 * 11 * 4  # the newest position is not kept
    # The pairs of a prompt are counted in full unless the run's convention halves them.
    assert needed(windowed, prompt=20).first_token[0][0] == 900.0 * 2 + 100.0 * 4  # type: ignore[index]
    halved = model(attention=[AttentionPart("prefill", 100.0, window=12)], causal_halved=True)
    pairs = 12 * 20 - 12 * 12 / 2
    assert needed(halved, prompt=20).first_token[0][0] == pytest.approx(1800.0 + 100.0 * pairs / 50)  # type: ignore[index]
    assert needed(halved, prompt=12).first_token[0][0] == pytest.approx(1080.0 + 100.0 * 72 / 50)  # type: ignore[index]


def test_experts_and_embeddings_are_read_as_far_as_the_tokens_reach() -> None:
    static = model(experts=[ExpertPart(64.0, 2, 1)])
    # Two tokens reach 1.5 of two experts on average, four 1.875.
    assert needed(static, batch=4).step == (200.0, pytest.approx(200.0 + 64.0 * 0.375 / 2 + 4 * 9 * 4))
    looked_up = model(embedding_bytes_per_token=3.0, embedding_rows=25)
    assert needed(looked_up, batch=4).step == (200.0, 200.0 + 3.0 * 2 + 4 * 9 * 4)
    found = needed(looked_up, batch=4).first_token
    assert found == ((2000.0, 200.0 + 3.0 * 5 + 4 * 10 * 4),)  # forty positions, twenty-five rows
    endless = model(embedding_bytes_per_token=3.0)
    assert needed(endless, batch=4).first_token == ((2000.0, 200.0 + 3.0 * 20 + 4 * 10 * 4),)


@pytest.mark.parametrize(
    ("dtype", "weights", "cache"),
    [
        ("bfloat16", 1.0, 1.0),
        ("float8", 0.5, 0.5),
        ("float32", 2.0, 2.0),
        ("int8", 0.5, 1.0),
        ("int4", 0.25, 1.0),
    ],
)
def test_bytes_follow_the_type_and_weight_only_types_leave_the_cache(
    dtype: str, weights: float, cache: float
) -> None:
    found = needed(model(), dtype)
    assert found.step == (100.0, 200.0 * weights + 72.0 * cache)
    assert found.first_token == ((1000.0, 200.0 * weights + 80.0 * cache),)
    assert found.resident_bytes == 200.0 * weights + 72.0 * cache


@pytest.mark.parametrize(
    ("mean", "step"), [(2.09, 200.0), (2.2, 200.0 * 2 / 2.2), (1.92, 200.0), (1.8, 200.0 * 2 / 1.8)]
)
def test_a_few_larger_tensors_do_not_make_another_type(mean: float, step: float) -> None:
    found = needed(model(element_bytes=mean, kv=[KvPart(1, 0.0)])).step
    assert found is not None and found[1] == pytest.approx(step)


def test_what_was_not_counted_is_not_free() -> None:
    static = model()
    static.phases["prefill"].flops = None
    assert needed(static).first_token is None
    assert needed(static).step is not None
    static = model()
    static.phases["decode"].weight_bytes = None
    assert needed(static).step is None
    assert needed(static).first_token is not None
    del static.phases["prefill"]
    assert needed(static).first_token is None
    del static.phases["decode"]
    with pytest.raises(ValueError, match="no decode step"):
        needed(static)


def test_without_scaling_the_own_point_is_read_from_the_phases() -> None:
    static = model()
    static.scaling = None
    assert own_point(static, "bfloat16") == Point("bfloat16", 1, 17, 20)
    static.phases["decode"].kv_bytes = None
    assert own_point(static, "bfloat16") == Point("bfloat16", 1, 0, 20)
    static.phases["prefill"].tokens = None
    static.phases["decode"].kv_bytes = 36.0
    assert own_point(static, "bfloat16") == Point("bfloat16", 1, 8, 8)
    static.kv_bytes_per_token = None
    assert own_point(static, "bfloat16") == Point("bfloat16", 1, 0, 0)
    static.resident_bytes = {"weights": 200.0}
    assert demand(static, Point("bfloat16", 1, 0, 0)).resident_bytes == 200.0
    assert demand(static, Point("float8", 1, 0, 0)).resident_bytes == 100.0


def device(
    name: str = "D", peak: float | None = 100.0, bandwidth: float | None = 10.0, memory: float | None = None
) -> Any:
    peaks = {} if peak is None else {"bfloat16": Peak(peak, "sheet")}
    return SimpleNamespace(name=name, peaks=peaks, bandwidth_bytes_per_s=bandwidth, memory_bytes=memory)


def row(**limits: Any) -> WhatIf:
    static = model()
    static.phases["vision"] = StaticPhase(5000.0, 10.0, None, None, None)
    (found,) = price(static, [device(**limits)], [OWN])
    return found


def test_floors_of_a_device_and_their_description() -> None:
    found = row(memory=1000.0)
    assert found.ttft_floor_s == 50.0 + 28.0  # vision computes, prefill moves
    assert found.tpot_floor_s == pytest.approx(27.2)
    assert found.tokens_per_s == pytest.approx(2 / 27.2)
    assert (found.device, found.batch_size, found.context_tokens, found.fits) == ("D", 2, 8, True)
    assert found.floor_term == "memory"
    assert mentions(found.note, "weights", "272 B", "1000 B") and not mentions(found.note, "KV cache")
    slow = row(peak=1.0)
    assert (slow.tpot_floor_s, slow.floor_term) == (100.0, "compute")
    assert mentions(slow.note, "272 B") and not mentions(slow.note, "weights")
    even = row(peak=100.0 / 27.2)
    assert even.floor_term == "memory"
    no_peak, no_bandwidth = row(peak=None), row(bandwidth=None)
    assert mentions(no_peak.note, "bfloat16", "peak", "272 B")
    assert mentions(no_bandwidth.note, "bandwidth", "272 B") and not mentions(no_bandwidth.note, "bfloat16")
    for unknown in (no_peak, no_bandwidth):
        assert (unknown.tpot_floor_s, unknown.floor_term) == (None, None)


def test_variations_leave_out_the_own_point_and_name_each_once() -> None:
    catalogue = SimpleNamespace(devices=[device("A"), device("B")])
    rows = what_if(
        model(), catalogue, dtype="bfloat16", focus=["B"], batch_sizes=(2, 4), dtypes=("bf16", "float8"), context_factors=(1, 3)
    )  # fmt: skip
    assert [(r.device, r.dtype, r.batch_size, r.context_tokens) for r in rows] == [
        ("A", "bfloat16", 2, 8),
        ("B", "bfloat16", 2, 8),
        ("B", "bfloat16", 4, 8),
        ("B", "bfloat16", 2, 24),
        ("B", "bfloat16", 4, 24),
    ]
    assert rows[3].ttft_floor_s == pytest.approx(max(30.0, 44.0))
