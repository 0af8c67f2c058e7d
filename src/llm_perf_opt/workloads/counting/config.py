"""``pipeline.static_analysis.*``: what is counted, at which shapes, by which conventions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from llm_perf_opt.analysis.static.conventions import Conventions
from llm_perf_opt.core.stage import Problem, StageConfig

NAME = "static_analysis"
_KEY = f"pipeline.{NAME}"


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
    """Return values and combinations that cannot be meant; needs no model."""
    problems = []
    for name in _POSITIVE:
        value = getattr(stage, name)
        if value is not None and value < 1:
            problems.append(_wrong(name, f"{_KEY}.{name}={value} is below 1", "give a positive number"))
    if stage.grid is not None and (len(stage.grid) != 2 or any(side < 1 for side in stage.grid)):
        problems.append(
            _wrong(
                "grid", f"{_KEY}.grid={stage.grid} is not [columns, rows]", f"for example {_KEY}.grid=[2,3]"
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
        keys = ", ".join(f"{_KEY}.{name}" for name in given)
        fix = f"leave them out, or set {_KEY}.use_synthetic_inputs=true"
        problems.append(
            _wrong(given[0], f"{keys} contradict use_synthetic_inputs=false (shapes of samples)", fix)
        )
    return problems


def _wrong(name: str, message: str, fix: str) -> Problem:
    return Problem("error", message, fix, f"{_KEY}.{name}")
