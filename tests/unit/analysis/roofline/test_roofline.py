"""Floors, ridges and limits: the arithmetic every prediction stands on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.roofline.limits import (
    Ceiling,
    floor_time,
    intensity,
    limits_for,
    must_move_bytes,
    phase_floor,
)
from llm_perf_opt.core.units import canonical_dtype, dtype_bytes
from llm_perf_opt.summary import Hardware, Peak, StaticPhase
from tests.text_facts import mentions

positive = st.floats(1e-3, 1e18)
PEAK = Ceiling("bfloat16 peak", 209.5e12, "sheet")
BANDWIDTH = Ceiling("memory bandwidth", 1.792e12, "sheet")


def gpu() -> Hardware:
    return Hardware("GPU", "gpu", {"bfloat16": Peak(209.5e12, "sheet")}, 1.792e12, "catalogue")


@given(positive, positive, positive, positive)
def test_floor_is_never_below_either_limit(flops: float, moved: float, peak: float, bandwidth: float) -> None:
    floor = floor_time(flops, moved, Ceiling("p", peak, "s"), Ceiling("b", bandwidth, "s"))
    assert floor.seconds == max(flops / peak, moved / bandwidth)
    # The same statement by way of the roof: work over time equals the attainable speed.
    roof = min(peak, flops / moved * bandwidth)
    assert flops / floor.seconds == pytest.approx(roof, rel=1e-9)
    above = flops / moved > peak / bandwidth
    assert (floor.bound == "compute") == above or flops / moved == pytest.approx(peak / bandwidth)


@given(positive, positive, st.floats(1.0, 1e3))
def test_more_work_never_takes_less_time(flops: float, moved: float, factor: float) -> None:
    base = floor_time(flops, moved, PEAK, BANDWIDTH)
    assert floor_time(flops * factor, moved, PEAK, BANDWIDTH).seconds >= base.seconds
    assert floor_time(flops, moved * factor, PEAK, BANDWIDTH).seconds >= base.seconds


def test_decode_of_a_3b_moe_on_an_rtx_5090_is_memory_bound() -> None:
    # 574,095,360 active parameters in bfloat16 and 1,000 cached positions of 61,440 bytes.
    floor = floor_time(1.2e9, 574_095_360 * 2 + 61_440 * 1000, PEAK, BANDWIDTH)
    assert floor.bound == "memory"
    assert floor.seconds == pytest.approx(1.20963072e9 / 1.792e12)
    assert "÷ 1.79 TB/s = 675 µs" in floor.arithmetic


@pytest.mark.parametrize(
    ("name", "expected", "size"),
    [
        ("torch.bfloat16", "bfloat16", 2),
        ("bf16", "bfloat16", 2),
        ("FP16", "float16", 2),
        ("float", "float32", 4),
        ("fp8", "float8", 1),
        ("torch.float8_e4m3fn", "float8", 1),
        ("nvfp4", "float4", 0.5),
        ("float16_accumulate_float16", "float16_accumulate_float16", 2),
        ("complex64", "complex64", None),
    ],
)
def test_dtype_spellings(name: str, expected: str, size: float | None) -> None:
    assert canonical_dtype(name) == expected
    assert dtype_bytes(name) == size


def test_limits_of_a_known_type() -> None:
    limits = limits_for(gpu(), "bf16")
    assert limits.peak == Ceiling("bfloat16 peak", 209.5e12, "sheet")
    assert limits.missing == ()


def test_missing_peak_names_the_type_and_what_is_known() -> None:
    limits = limits_for(gpu(), "float8")
    assert limits.peak is None and limits.bandwidth is not None
    (reason,) = limits.missing
    assert mentions(reason, "float8", "GPU", "bfloat16")


def test_unknown_device_gives_its_reason_and_no_number() -> None:
    unknown = Hardware("Mystery 9000", "gpu", {}, None, "none", reason="unlisted")
    limits = limits_for(unknown, "bfloat16")
    assert limits.peak is None and limits.bandwidth is None
    assert (
        all(mentions(text, "unlisted", "Mystery 9000") for text in limits.missing)
        and len(limits.missing) == 2
    )


def test_activations_do_not_raise_the_floor_and_unknown_weights_make_none() -> None:
    phase = StaticPhase(1e9, 1e9, 1e15, 1e6, None)
    assert must_move_bytes(phase) == 1e9 + 1e6
    assert phase_floor(phase, limits_for(gpu(), "bfloat16")).seconds == pytest.approx(1.001e9 / 1.792e12)  # type: ignore[union-attr]
    assert must_move_bytes(StaticPhase(1e9, None, None, 1e6, None)) is None
    assert phase_floor(StaticPhase(1e9, None, None, 1e6, None), limits_for(gpu(), "bfloat16")) is None


def test_intensity_is_flops_per_byte() -> None:
    assert intensity(6e9, 2e9) == 3.0
    assert intensity(6e9, 0.5) == 1.2e10
    assert intensity(6e9, 0.0) is None


def test_work_exactly_at_the_ridge_is_called_memory_bound() -> None:
    floor = floor_time(4.0, 2.0, Ceiling("p", 4.0, "s"), Ceiling("b", 2.0, "s"))
    assert (floor.seconds, floor.compute_s, floor.memory_s, floor.bound) == (1.0, 1.0, 1.0, "memory")
    assert (floor.flops, floor.moved_bytes) == (4.0, 2.0)


def test_a_limit_of_zero_is_not_a_limit() -> None:
    nothing = Hardware("GPU", "gpu", {"bfloat16": Peak(0.0, "sheet")}, 0.0, "catalogue")
    limits = limits_for(nothing, "bfloat16")
    assert limits.peak is None and limits.bandwidth is None
    assert mentions(limits.missing[0], "bfloat16", "GPU") and mentions(limits.missing[1], "bandwidth", "GPU")
    slow = Hardware(
        "GPU", "gpu", {"bfloat16": Peak(0.5, "sheet")}, 0.25, "catalogue", bandwidth_source="probe"
    )
    limits = limits_for(slow, "bfloat16")
    assert limits.peak == Ceiling("bfloat16 peak", 0.5, "sheet")
    assert limits.bandwidth == Ceiling("memory bandwidth", 0.25, "probe")
    nameless = limits_for(Hardware(None, "unknown", {}, None, "none"), None)
    assert len(nameless.missing) == 2 and not any(mentions(reason, "None") for reason in nameless.missing)
    assert mentions(nameless.missing[0], "unknown", "peak")


def test_a_floor_needs_work_and_both_limits() -> None:
    known = limits_for(gpu(), "bfloat16")
    no_peak, no_bandwidth = replace(known, peak=None), replace(known, bandwidth=None)
    phase = StaticPhase(1e9, 1e9, None, None, None)
    assert must_move_bytes(phase) == 1e9
    assert phase_floor(phase, known) is not None
    assert phase_floor(phase, no_peak) is None
    assert phase_floor(phase, no_bandwidth) is None
    assert phase_floor(StaticPhase(None, 1e9, None, None, None), known) is None
