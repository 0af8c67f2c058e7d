"""Shapes of a static count from configuration: the adapter's typical request, and the user's overrides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from llm_perf_opt.core.errors import ConfigError

if TYPE_CHECKING:
    from llm_perf_opt.workloads.base import ModelAdapter, PhaseShapes

_KEY = "pipeline.static_analysis"


class ShapeOverrides(Protocol):
    """The stage's keys that change shapes; ``None`` leaves the adapter's value."""

    grid: list[int] | None
    text_tokens: int | None
    prompt_tokens: int | None
    context_tokens: int | None


def configured_shapes(adapter: ModelAdapter, stage: ShapeOverrides, steps: int) -> PhaseShapes:
    """Apply the stage's overrides to the adapter's typical shapes."""
    shapes = adapter.default_shapes()
    text = shapes.prompt_tokens - shapes.image_tokens if stage.text_tokens is None else stage.text_tokens
    vision, image = dict(shapes.vision), shapes.image_tokens
    if stage.grid is not None:
        image = _image_tokens(adapter, stage.grid)
        grids = [list(stage.grid) for _ in range(shapes.batch_size)]
        vision = {**vision, "grid": grids[0], "grids": grids}
    prompt = image + text if stage.prompt_tokens is None else stage.prompt_tokens
    if prompt < image + 1:
        raise ConfigError(
            f"{_KEY}.prompt_tokens={prompt} is less than the {image} positions of the image and one of text",
            hint="raise it, choose a smaller infer.mode, or give text_tokens instead",
            key=f"{_KEY}.prompt_tokens",
        )
    middle = prompt + (steps - 1) // 2
    context = middle if stage.context_tokens is None else stage.context_tokens
    return replace(shapes, prompt_tokens=prompt, image_tokens=image, context_tokens=context, vision=vision)


def _image_tokens(adapter: ModelAdapter, grid: Sequence[int]) -> int:
    """Ask the adapter how many positions a page with this grid takes."""
    tiling = adapter.tiling()
    if tiling is None:
        raise ConfigError(
            f"{adapter.name} has no tile grid", hint=f"leave {_KEY}.grid out", key=f"{_KEY}.grid"
        )
    if tiling.max_tiles == 0:
        raise ConfigError(
            f"infer.mode={tiling.mode} cuts no tiles, so {_KEY}.grid has no meaning",
            hint="use infer.mode=gundam, or leave the grid out",
            key=f"{_KEY}.grid",
        )
    columns, rows = grid
    if columns * rows > tiling.max_tiles:
        raise ConfigError(
            f"{_KEY}.grid={list(grid)} has {columns * rows} tiles, infer.max_tiles is {tiling.max_tiles}",
            hint=f"raise infer.max_tiles to {columns * rows}",
            key=f"{_KEY}.grid",
        )
    return adapter.image_tokens((columns, rows))


def steps_within(wanted: int, prompt_tokens: int, limit: int | None) -> int:
    """Return the decode steps of an answer, which ends where the model's context is full, as the engine ends it."""
    return wanted if limit is None else max(1, min(wanted, limit - prompt_tokens))


def check_context(shapes: PhaseShapes, steps: int, limit: int | None) -> None:
    """Refuse shapes the model was not made for."""
    longest = max(shapes.prompt_tokens + steps, shapes.context_tokens + 1)
    if limit is not None and longest > limit:
        raise ConfigError(
            f"{shapes.prompt_tokens} prompt positions, {steps} decode steps and {shapes.context_tokens} cached"
            f" positions need {longest}; the model's context is {limit}",
            hint=f"lower {_KEY}.prompt_tokens, decode_tokens or context_tokens, or infer.max_new_tokens",
            key=f"{_KEY}.context_tokens",
        )
