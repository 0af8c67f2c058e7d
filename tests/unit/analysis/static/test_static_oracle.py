"""DeepSeek-OCR at full size: numbers measured on the published code, and closed forms, to the last FLOP."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.analysis.static.counts import Conventions
from llm_perf_opt.config.schema import ImageMode, InferConfig, ModelConfig
from llm_perf_opt.reporting.static_page import weights_by_component
from llm_perf_opt.summary.static import StaticDocument
from llm_perf_opt.workloads.base import PhaseShapes
from llm_perf_opt.workloads.counting.static_run import StaticCounter
from llm_perf_opt.workloads.models.deepseek_ocr import DeepseekOcrAdapter

H = 1280
HEAD = 2 * H * 129280
PUBLISHED = Conventions(causal="full", head_positions="all", rotary="per_layer")


def adapter_of(mode: ImageMode) -> DeepseekOcrAdapter:
    return DeepseekOcrAdapter(ModelConfig(name="DeepSeek-OCR"), InferConfig(mode=mode, max_tiles=40))


@functools.cache
def counter_of(mode: ImageMode) -> StaticCounter:
    """Return the counter of a mode; one serves any number of shapes."""
    return StaticCounter(adapter_of(mode), torch.bfloat16)


@pytest.fixture(scope="module")
def counter() -> StaticCounter:
    return StaticCounter(adapter_of(ImageMode.gundam), torch.bfloat16, conventions=PUBLISHED)


def shapes_of(adapter: Any, grid: tuple[int, int] | None, text: int, steps: int) -> PhaseShapes:
    image = adapter.image_tokens(grid)
    base = adapter.default_shapes()
    listed = list(grid) if grid else None
    vision = {**base.vision, "grid": listed, "grids": [listed]}
    prompt = image + text
    return PhaseShapes(1, prompt, image, prompt + (steps - 1) // 2, vision)


@pytest.mark.parametrize("point", range(4))
def test_measured_flops_of_the_published_code(shared_data: Path, counter: StaticCounter, point: int) -> None:
    file = shared_data / "rtx5090-deepseek-ocr" / "deepseek-ocr-measured-flops.json"
    expected = json.loads(file.read_text())["points"][point]
    grid = (expected["width_crop_num"], expected["height_crop_num"])
    text = expected["context_len"] - expected["image_tokens"]
    shapes = shapes_of(counter.adapter, grid, text, expected["decode_steps"])
    assert shapes.image_tokens == expected["image_tokens"]
    document = counter.document(shapes, decode_steps=expected["decode_steps"])
    assert document.totals.vision_flops == expected["vision_flops"]
    assert document.totals.prefill_including_vision_flops == expected["prefill_incl_vision_flops"]
    assert document.totals.decode_flops == expected["decode_flops_total"]
    assert document.totals.kv_prefill_bytes == expected["kv_prefill_gib"] * 2**30
    assert document.disagreements() == []


def sam(size: int) -> int:
    d, h = 768, size // 16
    t, hp = h * h, math.ceil(size / 16 / 14) * 14
    tp, nw = hp * hp, (hp // 14) ** 2
    flops = 12 * 2 * t * 8 * d * d + (4 * t + 8 * tp) * 8 * d * d
    flops += 4 * 4 * t * t * d + 8 * nw * 4 * 196**2 * d
    flops += 4 * 2 * t * 2 * h * d + 8 * nw * 2 * 196 * 28 * d
    flops += 2 * t * 768 * d + 2 * t * 256 * d + 2 * t * 256**2 * 9
    return flops + 2 * (h // 2) ** 2 * 256 * 512 * 9 + 2 * (h // 4) ** 2 * 512 * 1024 * 9


def clip(size: int) -> int:
    t = (size // 64) ** 2 + 1
    return 24 * 2 * t * 12 * 1024**2 + 24 * 4 * t * t * 1024


def projector(size: int) -> int:
    return 2 * (size // 64) ** 2 * 2048 * H


def language(queries: int, keys: int) -> int:
    weights = 12 * 4 * H * H + 3 * H * 6848 + 11 * 8 * 3 * H * 896 + 11 * 64 * H
    return 2 * queries * weights + 4 * queries * keys * H * 12


@pytest.mark.parametrize(
    ("mode", "grid", "views", "image_tokens"),
    [
        ("tiny", None, {512: 1}, 73),
        ("small", None, {640: 1}, 111),
        ("base", None, {1024: 1}, 273),
        ("large", None, {1280: 1}, 421),
        ("gundam", None, {1024: 1}, 273),
        ("gundam", (2, 3), {1024: 1, 640: 6}, 903),
        ("gundam", (4, 2), {1024: 1, 640: 8}, 1093),
        ("gundam", (1, 9), {1024: 1, 640: 9}, 1263),
    ],
)
def test_closed_forms_of_all_modes(
    mode: str, grid: tuple[int, int] | None, views: dict[int, int], image_tokens: int
) -> None:
    counter = counter_of(ImageMode(mode))
    shapes = shapes_of(counter.adapter, grid, 12, 1)
    assert shapes.image_tokens == image_tokens
    static = counter.document(shapes).static
    prompt = image_tokens + 12
    assert static.components["sam"]["vision"] == sum(sam(size) * n for size, n in views.items())
    assert static.components["clip"]["vision"] == sum(clip(size) * n for size, n in views.items())
    assert static.components["projector"]["vision"] == sum(projector(size) * n for size, n in views.items())
    assert static.components["language_model"] == {
        "prefill": language(prompt, prompt),
        "decode": language(1, prompt + 1),
    }
    assert static.components["lm_head"] == {"prefill": HEAD, "decode": HEAD}


@pytest.fixture(scope="module")
def document() -> StaticDocument:
    counter = counter_of(ImageMode.base)
    shapes = dataclasses.replace(counter.adapter.default_shapes(), context_tokens=1000)
    return counter.document(shapes)


def test_parameters_per_component(document: StaticDocument) -> None:
    params = document.static.params
    assert params.components == {
        "sam": 95_569_152,
        "clip": 303_177_728 - 602_112,  # transformers leaves the unused patch convolution out
        "projector": 2_622_720,
        "other": 2_560,
        "language_model": 2_769_255_680,
        "lm_head": 165_478_400,
    }
    assert params.total == 3_336_106_240 - 602_112
    norms = 25 * 1280
    assert params.active_per_token == 574_095_360 + norms


def test_bytes_of_a_decode_step(document: StaticDocument) -> None:
    static = document.static
    decode = static.phases["decode"]
    assert static.kv_bytes_per_token == 61_440
    assert decode.kv_bytes == 61_440 * 1001
    assert decode.weight_bytes == pytest.approx(1.148e9, rel=1e-3)
    assert decode.intensity == pytest.approx(0.99, abs=0.05)
    assert static.resident_bytes["weights"] == 2 * static.params.total
    assert next(row for row in document.resident if row.context_tokens == 8192).kv_bytes == 480 * 2**20
    assert max(row.context_tokens for row in document.resident) == 8192


@pytest.mark.parametrize(("batch", "gigabytes"), [(8, 3.33), (32, 5.33), (100, 5.54)])
def test_weights_read_grow_with_the_experts_a_batch_meets(batch: int, gigabytes: float) -> None:
    counter = counter_of(ImageMode.tiny)
    shapes = PhaseShapes(
        batch, 85, 73, 100, counter.adapter.default_shapes().vision | {"grids": [None] * batch}
    )
    count = counter.document(shapes).static
    assert count.phases["decode"].weight_bytes == pytest.approx(gigabytes * 1e9, rel=0.01)
    assert count.params.active_per_token == 574_095_360 + 25 * 1280


def test_every_phase_is_covered_and_the_tree_adds_up(document: StaticDocument) -> None:
    static = document.static
    assert static.coverage.unknown_ops == []
    assert static.coverage.counted_ratio is not None
    assert 0.99 < static.coverage.counted_ratio < 1
    rows = {row.name: row for row in static.modules}
    for phase, facts in static.phases.items():
        assert rows[""].flops[phase] == facts.flops
        assert sum(by_phase.get(phase, 0) for by_phase in static.components.values()) == facts.flops
        leaves = [
            row for name, row in rows.items() if not any(other.startswith(f"{name}.") for other in rows)
        ]
        inner = facts.flops - sum(row.flops.get(phase, 0) for row in leaves if row.name)
        # What is not in a leaf is attention and expert products, done by the modules above.
        assert 0 <= inner < facts.flops


def test_weights_by_component_add_up_to_what_a_phase_reads(document: StaticDocument) -> None:
    static = document.static
    for phase, facts in static.phases.items():
        parts = weights_by_component(static.modules, phase)
        assert sum(parts.values()) == pytest.approx(facts.weight_bytes)
    assert weights_by_component(static.modules, "vision")["sam"] == 2 * 95_569_152
    assert set(weights_by_component(static.modules, "decode")) == {"language_model", "lm_head"}
