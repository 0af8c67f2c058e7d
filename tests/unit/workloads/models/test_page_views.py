"""Page images into views: token counts as published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from llm_perf_opt.config.schema import ImageMode, InferConfig
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.workloads.datasets.images import load_image
from llm_perf_opt.workloads.models.page_views import (
    candidate_grids,
    choose_grid,
    image_token_count,
    make_views,
    to_pixels,
    view_spec,
)

GUNDAM = view_spec(InferConfig())


@pytest.mark.parametrize(
    ("mode", "tokens"),
    [(ImageMode.tiny, 73), (ImageMode.small, 111), (ImageMode.base, 273), (ImageMode.large, 421)],
)
def test_image_tokens_of_native_modes(mode: ImageMode, tokens: int) -> None:
    spec = view_spec(InferConfig(mode=mode))
    assert choose_grid(3000, 4000, spec) is None
    assert image_token_count(spec, None) == tokens


@pytest.mark.parametrize(
    ("grid", "tokens"),
    [((1, 2), 493), ((2, 1), 483), ((2, 2), 693), ((2, 3), 903), ((3, 2), 893), ((2, 4), 1113), ((4, 2), 1093),
     ((3, 3), 1203), ((1, 9), 1263), ((9, 1), 1183), (None, 273)],
)  # fmt: skip
def test_image_tokens_of_gundam_grids(grid: tuple[int, int] | None, tokens: int) -> None:
    assert image_token_count(GUNDAM, grid) == tokens


@pytest.mark.parametrize(
    ("size", "grid"),
    [((1654, 2339), (2, 3)), ((1700, 2200), (2, 3)), ((992, 1419), (2, 3)), ((516, 729), (2, 3)),
     ((2667, 1500), (4, 2)), ((640, 640), None), ((640, 100), None), ((641, 100), (6, 1)), ((9000, 900), (9, 1))],
)  # fmt: skip
def test_grid_of_known_pages(size: tuple[int, int], grid: tuple[int, int] | None) -> None:
    assert choose_grid(*size, GUNDAM) == grid


def test_tile_limit_is_a_knob() -> None:
    """The vLLM port's limit of 6 gives another grid for a wide page."""
    assert choose_grid(2667, 1500, view_spec(InferConfig(max_tiles=6))) == (2, 1)
    assert choose_grid(2667, 1500, view_spec(InferConfig(max_tiles=1))) is None


def published_grid(width: int, height: int, max_num: int) -> tuple[int, int]:
    """The selection rule as the published code states it (dynamic_preprocess), written independently."""
    ratios = sorted(
        {
            (i, j)
            for n in range(2, max_num + 1)
            for i in range(1, n + 1)
            for j in range(1, n + 1)
            if 2 <= i * j <= max_num
        },
        key=lambda pair: pair[0] * pair[1],
    )
    best, smallest = (1, 1), float("inf")
    for i, j in ratios:
        gap = abs(width / height - i / j)
        if gap < smallest:
            best, smallest = (i, j), gap
        elif gap == smallest and width * height > 0.5 * 640 * 640 * i * j:
            best = (i, j)
    return best


@given(st.integers(1, 12000), st.integers(1, 12000), st.integers(2, 12))
def test_grid_follows_the_published_rule(width: int, height: int, limit: int) -> None:
    grid = choose_grid(width, height, view_spec(InferConfig(max_tiles=limit)))
    assert grid == (None if max(width, height) <= 640 else published_grid(width, height, limit))
    if grid is not None:
        assert 2 <= grid[0] * grid[1] <= limit
        assert grid in candidate_grids(limit)


def image(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(1).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def test_global_view_is_padded_as_pil_pads() -> None:
    picture = image(701, 333)
    expected = ImageOps.pad(picture, (1024, 1024), color=(127, 127, 127))
    assert np.array_equal(make_views(picture, GUNDAM).global_view, np.asarray(expected))


def test_small_modes_stretch_and_large_modes_pad() -> None:
    picture = image(701, 333)
    tiny = make_views(picture, view_spec(InferConfig(mode=ImageMode.tiny)))
    assert np.array_equal(tiny.global_view, np.asarray(picture.resize((512, 512))))
    base = make_views(picture, view_spec(InferConfig(mode=ImageMode.base)))
    assert tuple(base.global_view[0, 0]) == (127, 127, 127)


def test_tiles_are_cut_row_by_row() -> None:
    picture = image(900, 1300)
    views = make_views(picture, GUNDAM)
    assert views.grid == (2, 3)
    whole = np.asarray(picture.resize((1280, 1920), Image.Resampling.BICUBIC))
    assert np.array_equal(views.tiles[1], whole[:640, 640:])
    assert np.array_equal(views.tiles[2], whole[640:1280, :640])


def test_pixels_are_normalised_to_one() -> None:
    import torch

    black_and_white = np.array([[[0, 0, 0], [255, 255, 255]], [[255, 0, 0], [0, 0, 255]]], dtype=np.uint8)
    pixels = to_pixels([black_and_white], "cpu", torch.float32)
    assert pixels.shape == (1, 3, 2, 2)
    assert pixels.min() == -1.0
    assert pixels.max() == 1.0
    assert pixels[0, :, 1, 0].tolist() == [1.0, -1.0, -1.0]


@pytest.mark.parametrize(("key", "value"), [("base_size", 1000), ("image_size", 0), ("base_size", -64)])
def test_sizes_must_divide_into_tokens(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"infer.{key}={value}"):
        view_spec(InferConfig(mode=ImageMode.custom, **{key: value}))


def test_ocr2_views_equal_transformers_own(tmp_path: Path) -> None:
    """DeepSeek-OCR-2's views against the library's PIL processor, tiles and padding included."""
    import torch
    from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import (
        DeepseekOcr2ImageProcessorPil,
    )

    from llm_perf_opt.config.schema import ModelConfig
    from llm_perf_opt.workloads.base import Sample
    from llm_perf_opt.workloads.registry import load_adapter
    from tests.unit.small_workloads import ARCH_V2, page

    arch = {**ARCH_V2, "text_config": {**ARCH_V2["text_config"], "max_position_embeddings": 8192}}
    adapter = load_adapter(ModelConfig(adapter="deepseek_ocr2", arch=arch), InferConfig(max_tiles=6))
    for size in [(1001, 1400), (901, 500), (700, 333)]:
        path = page(tmp_path / f"{size[0]}.png", size)
        batch = adapter.prepare([Sample("x", path=path)], "cpu", torch.float32)
        theirs = DeepseekOcr2ImageProcessorPil()(Image.open(path), return_tensors="pt")
        assert torch.allclose(batch.inputs["pixel_values"], theirs["pixel_values"], atol=1e-6)
        tiles = batch.inputs["pixel_values_local"]
        assert (tiles is None) == ("pixel_values_local" not in theirs)
        if tiles is not None:
            assert torch.allclose(tiles, theirs["pixel_values_local"], atol=1e-6)
        count = int(theirs["num_local_patches"][0])
        assert batch.image_tokens == 256 + 144 * count + 1


def test_hundred_megapixels(tmp_path: Path) -> None:
    """A whole newspaper page is work, not an attack; no warning either."""
    path = tmp_path / "huge.png"
    Image.new("L", (10_000, 10_000), 255).save(path)
    views = make_views(load_image(path), GUNDAM)
    assert views.width == 10_000
    assert views.global_view.shape == (1024, 1024, 3)


@pytest.mark.parametrize("size", [(3000, 1), (1, 3000)])
def test_very_thin_pages_work(size: tuple[int, int]) -> None:
    views = make_views(Image.new("RGB", size), GUNDAM)
    assert views.global_view.shape == (1024, 1024, 3)
