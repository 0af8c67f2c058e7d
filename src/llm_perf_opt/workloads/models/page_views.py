"""Conversion of page images to DeepSeek-OCR views: one padded global view, and tiles of large pages.

Geometry follows the published inference code (deepseek-ai/DeepSeek-OCR, ``modeling_deepseekocr.py``): the tile
grid is the one whose aspect ratio is nearest to the page's; the whole page is resized (distorting) to fill it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from llm_perf_opt.core.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from llm_perf_opt.config.schema import InferConfig

PATCH_STRIDE = 64
"""Pixels of one side that become one vision token: 16-pixel patches, then two stride-2 convolutions."""
_PAD_COLOR = (127, 127, 127)
_MIN_TILES = 2
Grid = tuple[int, int]
"""Columns, rows."""
Rounding = Literal["even", "floor"]
"""How a half pixel of padding is placed: PIL's ``round`` (v1) or towards the start (v2)."""


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """Sizes of one resolution mode."""

    mode: str
    base_size: int
    """Side of the global view in pixels."""
    tile_size: int
    """Side of a tile in pixels; unused without ``crop``."""
    crop: bool
    max_tiles: int
    stretch_global: bool = False
    """Resize to the square without keeping the aspect ratio (small native modes do)."""
    rounding: Rounding = "even"


_NATIVE_SIZES = {"tiny": 512, "small": 640, "base": 1024, "large": 1280}
_STRETCH_UP_TO = 640


def view_spec(infer: InferConfig) -> ViewSpec:
    """Return the view sizes of ``infer.mode``; raise :class:`ConfigError` for sizes that the encoder does not support."""
    mode = str(infer.mode.value)
    if mode == "gundam":
        spec = ViewSpec(mode, 1024, 640, True, infer.max_tiles)
    elif mode == "custom":
        # Without tiles the published code sizes the single view by image_size and ignores base_size.
        base = infer.base_size if infer.crop_mode else infer.image_size
        stretch = not infer.crop_mode and base <= _STRETCH_UP_TO
        spec = ViewSpec(mode, base, infer.image_size, infer.crop_mode, infer.max_tiles, stretch)
    else:
        size = _NATIVE_SIZES[mode]
        spec = ViewSpec(mode, size, size, False, infer.max_tiles, size <= _STRETCH_UP_TO)
    check_spec(spec)
    return spec


def check_spec(spec: ViewSpec) -> None:
    """Reject sizes that do not divide into vision tokens."""
    sizes = {"infer.base_size": spec.base_size, "infer.image_size": spec.tile_size}
    for key, size in sizes.items():
        if size < PATCH_STRIDE or size % PATCH_STRIDE:
            raise ConfigError(
                f"{key}={size} is not a positive multiple of {PATCH_STRIDE} pixels",
                hint=f"use {max(1, round(size / PATCH_STRIDE)) * PATCH_STRIDE}",
                key=key,
            )
    if spec.max_tiles < 1:
        raise ConfigError(
            f"infer.max_tiles={spec.max_tiles} is below 1",
            hint="1 means no tiles, 9 is the published limit",
            key="infer.max_tiles",
        )


@functools.cache
def candidate_grids(max_tiles: int) -> tuple[Grid, ...]:
    """Return every grid of 2 to ``max_tiles`` tiles, by product; equal products in the published code's order."""
    # Built as a set, as published: equal-product grids keep the set's order, which decides exact ties.
    grids = {
        (columns, rows)
        for tiles in range(_MIN_TILES, max_tiles + 1)
        for columns in range(1, tiles + 1)
        for rows in range(1, tiles + 1)
        if _MIN_TILES <= columns * rows <= max_tiles
    }
    return tuple(sorted(grids, key=lambda grid: grid[0] * grid[1]))


def choose_grid(width: int, height: int, spec: ViewSpec) -> Grid | None:
    """Return the tile grid of a page, or ``None`` when it gets no tiles."""
    if not spec.crop or spec.max_tiles < _MIN_TILES or max(width, height) <= spec.tile_size:
        return None
    aspect, area = width / height, width * height
    best, best_difference = (1, 1), float("inf")
    for columns, rows in candidate_grids(spec.max_tiles):
        difference = abs(aspect - columns / rows)
        # On a tie the larger grid wins only when the page has pixels to fill half of it.
        fills = area > 0.5 * spec.tile_size * spec.tile_size * columns * rows
        if difference < best_difference or (difference == best_difference and fills):
            best, best_difference = (columns, rows), difference
    return best


def image_token_count(spec: ViewSpec, grid: Grid | None) -> int:
    """Positions one DeepSeek-OCR v1 page takes: a newline per row of each view, and one separator."""
    side = spec.base_size // PATCH_STRIDE
    tokens = side * (side + 1) + 1
    if grid is not None:
        columns, rows = grid
        tile = spec.tile_size // PATCH_STRIDE
        tokens += (rows * tile) * (columns * tile + 1)
    return tokens


@dataclass(frozen=True, slots=True)
class Views:
    """A page as model input, ``uint8`` RGB, channels last."""

    global_view: NDArray[np.uint8]
    tiles: list[NDArray[np.uint8]]
    grid: Grid | None
    width: int
    height: int


def make_views(image: Image.Image, spec: ViewSpec) -> Views:
    """Split a page into its global view and tiles (row by row)."""
    import numpy as np
    from PIL import Image

    grid = choose_grid(image.width, image.height, spec)
    tiles: list[NDArray[np.uint8]] = []
    if grid is not None:
        columns, rows = grid
        side = spec.tile_size
        page = np.asarray(image.resize((side * columns, side * rows), Image.Resampling.BICUBIC))
        tiles = [
            page[row * side : (row + 1) * side, column * side : (column + 1) * side]
            for row in range(rows)
            for column in range(columns)
        ]
    side = spec.base_size
    square = (
        image.resize((side, side), Image.Resampling.BICUBIC)
        if spec.stretch_global
        else _pad(image, side, spec.rounding)
    )
    return Views(np.asarray(square), tiles, grid, image.width, image.height)


def _pad(image: Image.Image, side: int, rounding: Rounding) -> Image.Image:
    """Fit into a grey square, centred, aspect ratio kept; each side has at least one pixel."""
    from PIL import Image

    longest = max(image.width, image.height)
    width, height = (max(1, round(length / longest * side)) for length in (image.width, image.height))
    fitted = image.resize((width, height), Image.Resampling.BICUBIC)
    if (width, height) == (side, side):
        return fitted
    half: Callable[[int], int] = (
        (lambda gap: gap // 2) if rounding == "floor" else (lambda gap: round(gap * 0.5))
    )
    canvas = Image.new("RGB", (side, side), _PAD_COLOR)
    canvas.paste(fitted, (half(side - width), half(side - height)))
    return canvas


def to_pixels(views: list[NDArray[np.uint8]], device: str, dtype: Any) -> Any:
    """Stack views into ``[n, 3, side, side]`` in ``[-1, 1]``; bytes are copied to the device and converted there."""
    import numpy as np
    import torch

    stacked = torch.from_numpy(np.ascontiguousarray(np.stack(views))).to(device)
    return stacked.permute(0, 3, 1, 2).to(torch.float32).div_(255).sub_(0.5).div_(0.5).contiguous().to(dtype)
