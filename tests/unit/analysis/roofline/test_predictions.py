"""Predictions and utilisation, against the hand-checked RTX 5090 run and against algebra."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_perf_opt.analysis.roofline.predictions import missing_reasons, predict_phases
from llm_perf_opt.analysis.roofline.utilisation import phase_utilisation
from llm_perf_opt.model.summary import (
    Coverage,
    Hardware,
    Params,
    Peak,
    Stat,
    Static,
    StaticPhase,
    Timings,
)

RTX_5090 = Hardware(
    "NVIDIA GeForce RTX 5090", "gpu", {"bfloat16": Peak(209.5e12, "white paper")}, 1.792e12, "catalogue"
)


def stat(value: float) -> Stat:
    return Stat(value, value, value, value, None, 1)


def static(**phases: StaticPhase) -> Static:
    return Static(Params(0, 0, {}), 61_440.0, phases, [], Coverage(1.0, []), {})


def deepseek_ocr_decode(context: int) -> StaticPhase:
    """One step in closed form: 12 layers of width 1280, 6 + 2 of 64 experts, and the head."""
    h = 1280
    body = (
        2 * (12 * 4 * h * h + 3 * h * 6848 + 11 * 8 * 3 * h * 896 + 11 * 64 * h) + 4 * (context + 1) * h * 12
    )
    return StaticPhase(body + 2 * h * 129_280, 574_095_360 * 2, None, 61_440 * (context + 1), None, 1)


def deepseek_ocr_prefill(tokens: int) -> StaticPhase:
    h = 1280
    linear = 2 * tokens * (12 * 4 * h * h + 3 * h * 6848 + 11 * 8 * 3 * h * 896 + 11 * 64 * h)
    flops = linear + 4 * tokens * tokens * h * 12 + 2 * h * 129_280 * tokens
    return StaticPhase(flops, 2_769_255_680 * 2, None, 61_440 * tokens, None, tokens)


@pytest.fixture
def run(shared_data: Path) -> tuple[Static, Timings]:
    """The published run: 913 prompt positions, 2 x 3 tiles, 64 tokens, vision nested in the timed prefill."""
    counted = json.loads(
        (shared_data / "rtx5090-deepseek-ocr" / "deepseek-ocr-measured-flops.json").read_text()
    )
    point = next(p for p in counted["points"] if (p["height_crop_num"], p["width_crop_num"]) == (2, 3))
    vision = StaticPhase(point["vision_flops"], 401_369_600 * 2, None, 0.0, None)
    document = static(vision=vision, prefill=deepseek_ocr_prefill(913), decode=deepseek_ocr_decode(913 + 32))
    timings = Timings(
        vision_s=stat(0.039965), prefill_s=stat(0.098336), decode_s=stat(0.707379), tpot_s=stat(0.707379 / 64)
    )
    return document, timings


def test_rtx_5090_known_answers_with_vision_inside_prefill(run: tuple[Static, Timings]) -> None:
    document, timings = run
    used = phase_utilisation(
        document, timings, RTX_5090, "bfloat16", decode_steps=64, prefill_includes_vision=True
    )
    assert used["prefill"].mfu_ratio == pytest.approx(0.222, abs=5e-4)
    assert used["decode"].mfu_ratio == pytest.approx(0.000521, abs=5e-7)
    assert used["total"].mfu_ratio == pytest.approx(0.0275, abs=5e-5)
    # 5.8 % is the weights' part; the KV cache must be read too.
    assert "weights alone 5.80 %" in (used["decode"].arithmetic or "")
    assert used["decode"].mbu_ratio == pytest.approx(0.0609, abs=1e-4)
    assert "white paper" in (used["decode"].arithmetic or "") and "catalogue" in (
        used["decode"].arithmetic or ""
    )


def test_vision_apart_and_nested_describe_the_same_first_token(run: tuple[Static, Timings]) -> None:
    document, nested = run
    apart = Timings(
        vision_s=nested.vision_s,
        prefill_s=stat(0.098336 - 0.039965),
        ttft_s=nested.prefill_s,
        decode_s=nested.decode_s,
    )
    one = phase_utilisation(
        document, nested, RTX_5090, "bfloat16", decode_steps=64, prefill_includes_vision=True
    )
    two = phase_utilisation(document, apart, RTX_5090, "bfloat16", decode_steps=64)
    assert one["ttft"].mfu_ratio == two["ttft"].mfu_ratio == one["prefill"].mfu_ratio
    assert one["total"].mfu_ratio == two["total"].mfu_ratio
    assert two["prefill"].mfu_ratio != one["prefill"].mfu_ratio


def test_predictions_are_graded_by_what_was_measured(run: tuple[Static, Timings]) -> None:
    document, timings = run
    told = predict_phases(
        document, RTX_5090, "bfloat16", timings, decode_steps=64, prefill_includes_vision=True
    )
    step = document.phases["decode"]
    floor = ((step.weight_bytes or 0) + (step.kv_bytes or 0)) / 1.792e12
    assert told["tpot"].floor_s == pytest.approx(floor) and told["tpot"].bound == "memory"
    assert told["decode"].floor_s == pytest.approx(64 * floor)
    assert told["decode"].error_ratio == pytest.approx(0.707379 / (64 * floor))
    assert told["tpot"].error_ratio == pytest.approx(told["decode"].error_ratio)
    assert told["ttft"].floor_s == pytest.approx(told["prefill"].floor_s)
    assert told["vision"].bound == "compute" and told["vision"].error_ratio == pytest.approx(
        0.039965 / told["vision"].floor_s
    )
    assert "64 steps ×" in told["decode"].arithmetic and "measured 707 ms" in told["decode"].arithmetic


def test_before_the_run_there_is_a_floor_and_no_grade() -> None:
    told = predict_phases(
        static(prefill=deepseek_ocr_prefill(500), decode=deepseek_ocr_decode(500)), RTX_5090, "bf16"
    )
    assert set(told) == {"prefill", "decode", "ttft", "tpot"}
    assert all(row.error_ratio is None and row.floor_s > 0 for row in told.values())
    assert told["ttft"].floor_s == told["prefill"].floor_s
    assert told["decode"].floor_s == told["tpot"].floor_s


def test_first_token_adds_vision_and_prefill() -> None:
    vision = StaticPhase(1e12, 1e8, None, 0.0, None)
    told = predict_phases(static(vision=vision, prefill=deepseek_ocr_prefill(500)), RTX_5090, "bfloat16")
    assert told["ttft"].floor_s == pytest.approx(told["vision"].floor_s + told["prefill"].floor_s)


def test_unknown_vision_makes_no_first_token_floor() -> None:
    vision = StaticPhase(None, 1e8, None, 0.0, None)
    document = static(vision=vision, prefill=deepseek_ocr_prefill(500))
    told = predict_phases(document, RTX_5090, "bfloat16")
    assert set(told) == {"prefill"}
    assert missing_reasons(document, RTX_5090, "bfloat16") == ["the FLOPs of vision were not counted"]
    used = phase_utilisation(document, Timings(ttft_s=stat(1.0)), RTX_5090, "bfloat16")
    assert used["ttft"].mfu_ratio is None, "an uncounted part must not shrink the numerator in silence"


def test_unknown_device_predicts_nothing_and_says_why() -> None:
    unknown = Hardware("Mystery 9000", "gpu", {}, None, "none", reason="not in the catalogue")
    document = static(prefill=deepseek_ocr_prefill(500), decode=deepseek_ocr_decode(500))
    assert predict_phases(document, unknown, "bfloat16") == {}
    used = phase_utilisation(document, Timings(prefill_s=stat(0.1), tpot_s=stat(0.01)), unknown, "bfloat16")
    assert all(row.mfu_ratio is None and row.mbu_ratio is None for row in used.values())
    assert "not in the catalogue" in (used["prefill"].arithmetic or "")
    assert any("not in the catalogue" in reason for reason in missing_reasons(document, unknown, "bfloat16"))


def test_no_wall_clock_gives_no_ratio() -> None:
    used = phase_utilisation(
        static(prefill=deepseek_ocr_prefill(9)), Timings(prefill_s=stat(0.0)), RTX_5090, "bfloat16"
    )
    assert used["prefill"].mfu_ratio is None and "no wall-clock" in (used["prefill"].arithmetic or "")
