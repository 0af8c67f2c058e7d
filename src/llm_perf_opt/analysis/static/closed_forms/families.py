"""Which formula belongs to which architecture, and the FLOPs of each component and phase by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.analysis.static.closed_forms.decoder import DECODERS, Config, Decoder
from llm_perf_opt.analysis.static.closed_forms.vision import (
    clip_of,
    projector_flops,
    qwen2_encoder_of,
    sam_of,
)
from llm_perf_opt.analysis.static.conventions import Conventions
from llm_perf_opt.core.errors import InputError

ViewFlops = Callable[[int], dict[str, int]]
"""Side of a square view in pixels → FLOPs of each vision component."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes formulas need; the same facts as ``workloads.base.PhaseShapes``, free of adapters."""

    batch_size: int
    prompt_tokens: int
    context_tokens: int
    views: tuple[tuple[int, int], ...] = ()
    """(side in pixels, number of such views over the whole batch)."""


def views_of(vision: Mapping[str, Any], batch_size: int) -> tuple[tuple[int, int], ...]:
    """Read the views of a batch from an adapter's description of its images."""
    if "base_size" not in vision:
        return ()
    grids: Sequence[Any] = vision.get("grids") or [vision.get("grid")] * batch_size
    tiles = sum(int(grid[0]) * int(grid[1]) for grid in grids if grid)
    views = [(int(vision["base_size"]), batch_size)]
    if tiles:
        views.append((int(vision["tile_size"]), tiles))
    return tuple(views)


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """Formulas of one model."""

    family: str
    decoder: Decoder
    view_flops: ViewFlops | None = None
    """Vision components, for models that see."""

    def flops(self, phase: str, shapes: Shapes, conventions: Conventions) -> dict[str, int]:
        """Return FLOPs by component of one phase (``vision``, ``prefill`` or one ``decode`` step)."""
        batch = shapes.batch_size
        if phase == "vision":
            return self._vision(shapes)
        if phase == "prefill":
            rows = batch * (shapes.prompt_tokens if conventions.head_positions == "all" else 1)
            body = self.decoder.prefill_flops(shapes.prompt_tokens, batch, conventions)
            return {"language_model": body, "lm_head": self.decoder.head_flops(rows)}
        body = self.decoder.decode_flops(shapes.context_tokens, batch, conventions)
        return {"language_model": body, "lm_head": self.decoder.head_flops(batch)}

    def _vision(self, shapes: Shapes) -> dict[str, int]:
        total: dict[str, int] = {}
        if self.view_flops is not None:
            for size, number in shapes.views:
                for label, flops in self.view_flops(size).items():
                    total[label] = total.get(label, 0) + number * flops
        return total


def _deepseek_ocr_views(config: Config) -> ViewFlops:
    """SAM, then CLIP over its map, then a projector over both outputs side by side."""
    vision = config["vision_config"]
    sam, clip = sam_of(vision["sam_config"]), clip_of(vision["encoder_config"])
    text = int(config["text_config"]["hidden_size"])
    width = clip.hidden + sam.downsample[-1]

    def flops(size: int) -> dict[str, int]:
        positions = sam.output_side(size) ** 2
        return {
            "sam": sam.flops(size),
            "clip": clip.flops(positions + clip.extra_tokens),
            "projector": projector_flops(positions, width, text),
        }

    return flops


def _deepseek_ocr2_views(config: Config) -> ViewFlops:
    """SAM, then an encoder over its map and as many learned queries, then a projector over the queries."""
    vision = config["vision_config"]
    sam, encoder = sam_of(vision["sam_config"]), qwen2_encoder_of(vision["encoder_config"])
    text = int(config["text_config"]["hidden_size"])

    def flops(size: int) -> dict[str, int]:
        positions = sam.output_side(size) ** 2
        return {
            "sam": sam.flops(size),
            "vision_encoder": encoder.flops(2 * positions),
            "projector": projector_flops(positions, encoder.hidden, text),
        }

    return flops


_VIEWS: dict[str, Callable[[Config], ViewFlops]] = {
    "unlimited_ocr": _deepseek_ocr_views,
    "deepseek_ocr2": _deepseek_ocr2_views,
}


def closed_form_of(config: Config) -> ClosedForm:
    """Return the formulas for a transformers configuration (as a dictionary).

    Raises :class:`InputError` for an architecture without formulas, naming those that have them.
    """
    family = str(config.get("model_type"))
    if family in _VIEWS:
        text = {**config["text_config"], "tie_word_embeddings": config.get("tie_word_embeddings", False)}
        return ClosedForm(family, DECODERS[f"{family}_text"](text), _VIEWS[family](config))
    if family not in DECODERS:
        known = ", ".join(sorted(name for name in (*DECODERS, *_VIEWS) if not name.endswith("_ocr_text")))
        raise InputError(
            f"no closed form for the architecture '{family}'", hint=f"known: {known}", architecture=family
        )
    try:
        return ClosedForm(family, DECODERS[family](config))
    except (KeyError, TypeError) as error:
        raise InputError(
            f"the closed form of '{family}' lacks a dimension: {error}",
            hint="complete model.arch or config.json",
        ) from error
