"""Predictions and utilisation, against the hand-checked RTX 5090 run and against algebra."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_perf_opt.analysis.roofline.predictions import missing_reasons, predict_phases
from llm_perf_opt.analysis.roofline.utilisation import phase_utilisation
from llm_perf_opt.summary import Coverage, Hardware, Params, Peak, Stat, Static, StaticPhase, Timings
from tests.text_facts import mentions

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
    shown = predict_phases(
        document, RTX_5090, "bfloat16", timings, decode_steps=64, prefill_includes_vision=True
    )
    step = document.phases["decode"]
    floor = ((step.weight_bytes or 0) + (step.kv_bytes or 0)) / 1.792e12
    assert shown["tpot"].floor_s == pytest.approx(floor) and shown["tpot"].bound == "memory"
    assert shown["decode"].floor_s == pytest.approx(64 * floor)
    assert shown["decode"].error_ratio == pytest.approx(0.707379 / (64 * floor))
    assert shown["tpot"].error_ratio == pytest.approx(shown["decode"].error_ratio)
    assert shown["ttft"].floor_s == pytest.approx(shown["prefill"].floor_s)
    assert shown["vision"].bound == "compute" and shown["vision"].error_ratio == pytest.approx(
        0.039965 / shown["vision"].floor_s
    )
    assert "64 steps ×" in shown["decode"].arithmetic and "measured 707 ms" in shown["decode"].arithmetic


def test_before_the_run_there_is_a_floor_and_no_grade() -> None:
    shown = predict_phases(
        static(prefill=deepseek_ocr_prefill(500), decode=deepseek_ocr_decode(500)), RTX_5090, "bf16"
    )
    assert set(shown) == {"prefill", "decode", "ttft", "tpot"}
    assert all(row.error_ratio is None and row.floor_s > 0 for row in shown.values())
    assert shown["ttft"].floor_s == shown["prefill"].floor_s
    assert shown["decode"].floor_s == shown["tpot"].floor_s


def test_first_token_adds_vision_and_prefill() -> None:
    vision = StaticPhase(1e12, 1e8, None, 0.0, None)
    shown = predict_phases(static(vision=vision, prefill=deepseek_ocr_prefill(500)), RTX_5090, "bfloat16")
    assert shown["ttft"].floor_s == pytest.approx(shown["vision"].floor_s + shown["prefill"].floor_s)


def test_unknown_vision_makes_no_first_token_floor() -> None:
    vision = StaticPhase(None, 1e8, None, 0.0, None)
    document = static(vision=vision, prefill=deepseek_ocr_prefill(500))
    shown = predict_phases(document, RTX_5090, "bfloat16")
    assert set(shown) == {"prefill"}
    (reason,) = missing_reasons(document, RTX_5090, "bfloat16")
    assert mentions(reason, "FLOPs", "vision")
    used = phase_utilisation(document, Timings(ttft_s=stat(1.0)), RTX_5090, "bfloat16")
    assert used["ttft"].mfu_ratio is None, "an uncounted part must not shrink the numerator in silence"


def test_unknown_device_predicts_nothing_and_gives_the_reason() -> None:
    unknown = Hardware("Mystery 9000", "gpu", {}, None, "none", reason="unlisted")
    document = static(prefill=deepseek_ocr_prefill(500), decode=deepseek_ocr_decode(500))
    assert predict_phases(document, unknown, "bfloat16") == {}
    used = phase_utilisation(document, Timings(prefill_s=stat(0.1), tpot_s=stat(0.01)), unknown, "bfloat16")
    assert all(row.mfu_ratio is None and row.mbu_ratio is None for row in used.values())
    assert mentions(used["prefill"].arithmetic, "unlisted")
    assert any(mentions(reason, "unlisted") for reason in missing_reasons(document, unknown, "bfloat16"))


def test_no_wall_clock_gives_no_ratio() -> None:
    used = phase_utilisation(
        static(prefill=deepseek_ocr_prefill(9)), Timings(prefill_s=stat(0.0)), RTX_5090, "bfloat16"
    )
    assert used["prefill"].mfu_ratio is None and "no wall-clock" in (used["prefill"].arithmetic or "")


ROUND = Hardware("GPU", "gpu", {"bfloat16": Peak(100.0, "sheet")}, 10.0, "catalogue")
"""100 FLOP/s and 10 B/s: floors can be done in the head."""
VISION = StaticPhase(400.0, 10.0, None, None, None)  # 4 s of computing
PREFILL = StaticPhase(100.0, 20.0, None, 5.0, None)  # 2.5 s of moving
STEP = StaticPhase(10.0, 15.0, None, 5.0, None)  # 2 s of moving


def test_floors_of_a_run_in_round_numbers() -> None:
    document = static(vision=VISION, prefill=PREFILL, decode=STEP)
    timings = Timings(
        vision_s=stat(8.0), prefill_s=stat(5.0), ttft_s=stat(13.0), decode_s=stat(60.0), tpot_s=stat(5.0)
    )
    shown = predict_phases(document, ROUND, "bfloat16", timings, decode_steps=10)
    rows = {
        name: (row.floor_s, row.bound, row.error_ratio, row.flops, row.bytes) for name, row in shown.items()
    }
    assert rows == {
        "vision": (4.0, "compute", 2.0, 400.0, 10.0),
        "prefill": (2.5, "memory", 2.0, 100.0, 25.0),
        "decode": (20.0, "memory", 3.0, 100.0, 200.0),
        "ttft": (6.5, "compute", 2.0, 500.0, 35.0),
        "tpot": (2.0, "memory", 2.5, 10.0, 20.0),
    }
    assert mentions(shown["decode"].arithmetic, "10", "60.0 s", "3.00")
    assert mentions(shown["ttft"].arithmetic, "vision", "prefill", "13.0 s", "2.00")


def test_a_prefill_that_ran_the_vision_tower_is_graded_with_it() -> None:
    document = static(vision=VISION, prefill=PREFILL)
    nested = predict_phases(
        document, ROUND, "bfloat16", Timings(prefill_s=stat(13.0)), prefill_includes_vision=True
    )
    assert (nested["prefill"].floor_s, nested["prefill"].error_ratio) == (6.5, 2.0)
    assert (nested["ttft"].floor_s, nested["ttft"].error_ratio) == (6.5, 2.0)
    both = Timings(prefill_s=stat(13.0), ttft_s=stat(26.0))
    shown = predict_phases(document, ROUND, "bfloat16", both, prefill_includes_vision=True)
    assert shown["ttft"].error_ratio == 4.0  # measured itself
    apart = predict_phases(document, ROUND, "bfloat16", Timings(prefill_s=stat(5.0)))
    assert (apart["prefill"].floor_s, apart["prefill"].error_ratio) == (2.5, 2.0)
    assert apart["ttft"].error_ratio is None


def test_the_longer_part_names_the_limit_of_the_first_token() -> None:
    short = StaticPhase(100.0, 1.0, None, None, None)  # 1 s of computing
    shown = predict_phases(static(vision=short, prefill=PREFILL), ROUND, "bfloat16")
    assert (shown["ttft"].floor_s, shown["ttft"].bound) == (3.5, "memory")


@pytest.mark.parametrize("steps", [None, 0])
def test_decode_without_a_number_of_steps_is_one_step(steps: int | None) -> None:
    timings = Timings(decode_s=stat(60.0), tpot_s=stat(5.0))
    shown = predict_phases(static(decode=STEP), ROUND, "bfloat16", timings, decode_steps=steps)
    assert (shown["decode"].floor_s, shown["decode"].error_ratio) == (2.0, 2.5)


def test_no_work_at_all_has_a_floor_of_nothing_and_no_grade() -> None:
    shown = predict_phases(
        static(prefill=StaticPhase(0.0, 0.0, None, None, None)), ROUND, "bf16", Timings(prefill_s=stat(1.0))
    )
    assert (shown["prefill"].floor_s, shown["prefill"].error_ratio) == (0.0, None)


def test_missing_reasons_name_every_uncounted_part() -> None:
    document = static(prefill=StaticPhase(None, None, None, None, None), decode=STEP)
    work, weights = missing_reasons(document, ROUND, "bfloat16")
    assert mentions(work, "FLOPs", "prefill") and mentions(weights, "weights", "prefill")


def test_utilisation_of_a_run_in_round_numbers() -> None:
    document = static(vision=VISION, prefill=PREFILL, decode=STEP)
    timings = Timings(
        vision_s=stat(8.0), prefill_s=stat(5.0), ttft_s=stat(12.5), decode_s=stat(50.0), tpot_s=stat(4.0)
    )
    used = phase_utilisation(document, timings, ROUND, "bfloat16", decode_steps=10)
    assert {name: (row.mfu_ratio, row.mbu_ratio) for name, row in used.items()} == {
        "vision": (pytest.approx(0.5), pytest.approx(10 / 80)),
        "prefill": (pytest.approx(0.2), pytest.approx(25 / 50)),
        "ttft": (pytest.approx(500 / 1250), pytest.approx(35 / 125)),
        "decode": (pytest.approx(100 / 5000), pytest.approx(200 / 500)),
        "total": (pytest.approx(600 / 6250), pytest.approx(235 / 625)),
    }
    text, without_cache = used["decode"].arithmetic or "", used["vision"].arithmetic or ""
    assert mentions(text, "MFU", "2.00 %", "100 FLOP", "50.0 s", "100 FLOP/s", "bfloat16", "sheet")
    assert mentions(text, "MBU", "40.0 %", "150 B", "50 B", "10.0 B/s", "catalogue", "30.0 %")
    assert (text.count("%"), without_cache.count("%")) == (3, 2), (
        "what the weights alone take is said beside a cache"
    )
    by_token = phase_utilisation(document, timings, ROUND, "bfloat16")
    assert by_token["decode"].mbu_ratio == pytest.approx(20 / 40)
    assert "total" not in by_token
    nested = phase_utilisation(
        document, timings, ROUND, "bfloat16", decode_steps=10, prefill_includes_vision=True
    )
    assert nested["prefill"].mfu_ratio == nested["ttft"].mfu_ratio == pytest.approx(500 / 500)
    assert nested["total"].mfu_ratio == pytest.approx(600 / 5500)


def test_a_text_model_has_no_vision_in_its_first_token() -> None:
    timings = Timings(ttft_s=stat(5.0), decode_s=stat(50.0))
    used = phase_utilisation(
        static(prefill=PREFILL, decode=STEP), timings, ROUND, "bfloat16", decode_steps=10
    )
    assert used["ttft"].mfu_ratio == pytest.approx(100 / 500)
    assert used["total"].mfu_ratio == pytest.approx(200 / 5500)
    only_vision = phase_utilisation(static(vision=VISION), Timings(ttft_s=stat(5.0)), ROUND, "bfloat16")
    assert only_vision == {}


def test_weights_that_were_not_counted_leave_the_flops() -> None:
    unknown = StaticPhase(100.0, None, None, 5.0, None)
    timings = Timings(prefill_s=stat(5.0), ttft_s=stat(10.0), vision_s=stat(1.0))
    used = phase_utilisation(static(vision=VISION, prefill=unknown), timings, ROUND, "bfloat16")
    assert (used["prefill"].mfu_ratio, used["prefill"].mbu_ratio) == (pytest.approx(0.2), None)
    assert (used["ttft"].mfu_ratio, used["ttft"].mbu_ratio) == (pytest.approx(0.5), None)


def test_a_single_step_is_graded_by_the_decode_it_was() -> None:
    timings = Timings(decode_s=stat(6.0), tpot_s=stat(5.0))
    shown = predict_phases(static(decode=STEP), ROUND, "bfloat16", timings, decode_steps=1)
    assert (shown["decode"].error_ratio, shown["tpot"].error_ratio) == (3.0, 2.5)


def test_floors_below_a_second_are_graded_too() -> None:
    quick = StaticPhase(25.0, 1.0, None, None, None)
    shown = predict_phases(static(prefill=quick), ROUND, "bfloat16", Timings(prefill_s=stat(1.0)))
    assert (shown["prefill"].floor_s, shown["prefill"].error_ratio) == (0.25, 4.0)
