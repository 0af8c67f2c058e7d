"""Shapes of a static count from configuration: the adapter's typical request, and the user's overrides."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from llm_perf_opt.analysis.static.counts import Conventions
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.stage import Problem, StageConfig
from llm_perf_opt.workloads.base import PhaseShapes, Sample

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig
    from llm_perf_opt.workloads.base import ModelAdapter

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
    """Return the number of positions of a page with this grid."""
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
    """Return the decode steps of an answer, limited by the model's context, as in the engine."""
    return wanted if limit is None else max(1, min(wanted, limit - prompt_tokens))


def check_context(shapes: PhaseShapes, steps: int, limit: int | None) -> None:
    """Reject shapes beyond the model's context."""
    longest = max(shapes.prompt_tokens + steps, shapes.context_tokens + 1)
    if limit is not None and longest > limit:
        raise ConfigError(
            f"{shapes.prompt_tokens} prompt positions, {steps} decode steps and {shapes.context_tokens} cached"
            f" positions need {longest}; the model's context is {limit}",
            hint=f"lower {_KEY}.prompt_tokens, decode_tokens or context_tokens, or infer.max_new_tokens",
            key=f"{_KEY}.context_tokens",
        )


# The shapes of a run's real samples, for a static count that holds for exactly this run.


Weighted = list[tuple[PhaseShapes, int]]


def sample_shapes(config: AppConfig, adapter: ModelAdapter, steps: int) -> tuple[Weighted, list[str]]:
    """Prepare every batch of the run on the CPU; return its distinct shapes with counts, and what was left out.

    The decode step is taken in the middle of ``steps``.
    """
    import torch

    from llm_perf_opt.workloads.registry import load_dataset
    from llm_perf_opt.workloads.setup import workload_config

    workload = workload_config(config)
    dataset = load_dataset(workload.dataset)
    seen: dict[str, tuple[PhaseShapes, int]] = {}
    for batch in _batches(dataset.samples(), workload.infer.batch_size):
        prepared = adapter.prepare(batch, "cpu", torch.float32)
        shapes = adapter.shapes(prepared, prepared.prompt_tokens + (steps - 1) // 2)
        known = seen.get(repr(shapes))
        seen[repr(shapes)] = (shapes, known[1] + 1 if known else 1)
    if not seen:
        raise InputError(
            "the data set has no sample to take shapes from",
            hint="check dataset.root and dataset.sampling, or set pipeline.static_analysis.use_synthetic_inputs=true",
        )
    return list(seen.values()), list(dataset.problems())


def _batches(samples: Iterator[Sample], size: int) -> Iterator[Sequence[Sample]]:
    while batch := list(itertools.islice(samples, size)):
        yield batch


def representative_shapes(shapes: Weighted, limit: int) -> tuple[Weighted, str | None]:
    """Keep at most ``limit`` shapes, evenly spread over prompt lengths; each represents its nearest neighbours."""
    if len(shapes) <= limit:
        return shapes, None
    ordered = sorted(shapes, key=lambda item: (item[0].prompt_tokens, item[0].batch_size))
    step = (len(ordered) - 1) / max(1, limit - 1)
    kept = sorted({round(index * step) for index in range(limit)})
    weights = dict.fromkeys(kept, 0)
    for index, (shape, times) in enumerate(ordered):
        near = min(
            kept, key=lambda k: (abs(ordered[k][0].prompt_tokens - shape.prompt_tokens), abs(k - index))
        )
        weights[near] += times
    note = f"{len(shapes)} distinct shapes of samples are represented by {len(kept)} (max_shapes)"
    return [(dataclasses.replace(ordered[k][0]), weights[k]) for k in kept], note


# ``pipeline.static_analysis.*``: what is counted, at which shapes, by which conventions.


NAME = "static_analysis"
_CONFIG_KEY = f"pipeline.{NAME}"


class CausalKind(StrEnum):
    """How causal attention is counted."""

    full = "full"
    """The whole query × key rectangle, as counters and most kernels' headline numbers do."""
    halved = "halved"
    """Only the pairs a causal mask (or sliding window) leaves."""


class HeadKind(StrEnum):
    """On which prompt positions prefill runs the output head."""

    last = "last"
    """One position per sequence, as ``generate()`` does."""
    all = "all"
    """Every position, as DeepSeek-OCR's published code does."""


class RotaryKind(StrEnum):
    """Whether the rotary angle table counts as a matrix product."""

    as_run = "as_run"
    per_layer = "per_layer"
    """In every layer, as model code up to transformers 4.47 computes it."""


class CacheType(StrEnum):
    """Types of fewer bits for keys and values."""

    float8 = "float8"
    int8 = "int8"
    int4 = "int4"


@dataclass
class StaticAnalysisConfig(StageConfig):
    """``pipeline.static_analysis.*``"""

    write_reports: bool = True
    """Make static_compute.md and plots from static_compute.json. false: only the numbers are kept."""
    use_analytic_fallback: bool = True
    """Use closed forms where the model cannot be counted, and check the count by them where it can.
    false: a phase that cannot be counted fails the stage, and nothing is cross-checked."""
    use_synthetic_inputs: bool = True
    """Count at configured shapes, without touching the data set. false: at the shapes of the run's samples;
    with several shapes the numbers are means over the batches."""
    causal: CausalKind = CausalKind.full
    head_positions: HeadKind = HeadKind.last
    rotary: RotaryKind = RotaryKind.as_run
    grid: list[int] | None = None
    """Tile grid [columns, rows] of a page (DeepSeek-OCR, modes with tiles); null: that of an A4 page."""
    text_tokens: int | None = None
    """Prompt positions besides the image; null: those of infer.prompt."""
    prompt_tokens: int | None = None
    """All prompt positions, image included; null: image and text positions together."""
    context_tokens: int | None = None
    """Cached positions at the counted decode step; null: the middle of the decode."""
    decode_tokens: int | None = None
    """Decode steps of a whole request; null: infer.max_new_tokens - 1 (prefill makes the first token)."""
    batch_size: int | None = None
    """Sequences per pass; null: infer.batch_size."""
    cache_dtype: CacheType | None = None
    """Data type of the key-value cache; null: ``model.cache_dtype``, else what the checkpoint sets (kv_cache_scheme), else
    the run's own."""
    max_shapes: int = 16
    """Most distinct sample shapes that are counted; more are represented by the nearest prompt length."""

    def conventions(self) -> Conventions:
        """Return the counting conventions."""
        return Conventions(self.causal.value, self.head_positions.value, self.rotary.value)


_POSITIVE = ("text_tokens", "prompt_tokens", "context_tokens", "decode_tokens", "batch_size", "max_shapes")
_SHAPE_KEYS = ("grid", "text_tokens", "prompt_tokens", "context_tokens", "batch_size")


def find_contradictions(stage: StaticAnalysisConfig) -> list[Problem]:
    """Return invalid values and combinations; needs no model."""
    problems = []
    for name in _POSITIVE:
        value = getattr(stage, name)
        if value is not None and value < 1:
            problems.append(
                _wrong(name, f"{_CONFIG_KEY}.{name}={value} is below 1", "give a positive number")
            )
    if stage.grid is not None and (len(stage.grid) != 2 or any(side < 1 for side in stage.grid)):
        problems.append(
            _wrong(
                "grid",
                f"{_CONFIG_KEY}.grid={stage.grid} is not [columns, rows]",
                f"for example {_CONFIG_KEY}.grid=[2,3]",
            )
        )
    if stage.text_tokens is not None and stage.prompt_tokens is not None:
        problems.append(
            _wrong(
                "text_tokens",
                "text_tokens and prompt_tokens are both given",
                "prompt_tokens includes the text",
            )
        )
    given = [name for name in _SHAPE_KEYS if getattr(stage, name) is not None]
    if given and not stage.use_synthetic_inputs:
        keys = ", ".join(f"{_CONFIG_KEY}.{name}" for name in given)
        fix = f"leave them out, or set {_CONFIG_KEY}.use_synthetic_inputs=true"
        problems.append(
            _wrong(given[0], f"{keys} contradict use_synthetic_inputs=false (shapes of samples)", fix)
        )
    return problems


def _wrong(name: str, message: str, fix: str) -> Problem:
    return Problem("error", message, fix, f"{_CONFIG_KEY}.{name}")
