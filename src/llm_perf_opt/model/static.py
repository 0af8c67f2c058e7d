"""``static_compute.json`` as types: the static model of the summary, and what only this document holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from llm_perf_opt.model.summary import Static

DOCUMENT_VERSION = "1.0"
Method = Literal["counted", "closed form"]


@dataclass(frozen=True, slots=True)
class KvLayers:
    """Layers that share a cache size."""

    layers: int
    bytes_per_token: float
    """Key and value of one layer, one position, one sequence."""
    window: int | None
    """Positions kept at most; ``None``: all."""


@dataclass(slots=True)
class ShapesUsed:
    """The shapes the numbers hold for."""

    batch_size: int
    prompt_tokens: int
    image_tokens: int
    context_tokens: int
    """Cached positions at the decode step."""
    decode_tokens: int
    """Decode steps of a whole request."""
    vision: dict[str, Any] = field(default_factory=dict)
    """The adapter's description of the images: mode, view sizes, tile grids (columns, rows)."""
    weight: int = 1
    """How many batches of the run have these shapes."""
    source: str = "configured"
    """``configured``, or ``samples`` for the shapes of real inputs."""


@dataclass(slots=True)
class Totals:
    """FLOPs of a whole request (all sequences of the batch)."""

    vision_flops: float | None
    prefill_flops: float | None
    """Language model over the prompt, vision left out."""
    prefill_including_vision_flops: float | None
    decode_steps: int
    decode_flops: float | None
    """Sum over all steps, the context growing by one each."""
    request_flops: float | None
    kv_prefill_bytes: float | None
    """Cache after the prompt."""


@dataclass(slots=True)
class CrossCheck:
    """One number by both ways; they must be equal."""

    phase: str
    component: str
    counted_flops: float
    closed_form_flops: float
    agrees: bool


@dataclass(slots=True)
class ResidentRow:
    """What must be in memory at a context length and a batch size."""

    context_tokens: int
    batch_size: int
    weights_bytes: float
    kv_bytes: float
    activation_bytes: float
    """Estimate: inputs and outputs of the largest single operator at this document's shapes, scaled by batch."""
    total_bytes: float


@dataclass(slots=True)
class StaticDocument:
    """Everything static analysis found."""

    static: Static
    model: dict[str, str | None]
    """``name``, ``architecture``, ``dtype``."""
    shapes: list[ShapesUsed]
    """One entry, or every distinct shape of the real samples; the numbers are then means over batches."""
    totals: Totals
    methods: dict[str, Method]
    """Phase → how it was found."""
    cross_checks: list[CrossCheck] = field(default_factory=list)
    kv_layers: list[KvLayers] = field(default_factory=list)
    resident: list[ResidentRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    has_page: bool = True
    """Whether a page and plots are made from it (``write_reports``)."""
    document_version: str = DOCUMENT_VERSION

    def disagreements(self) -> list[CrossCheck]:
        """Cross-checks that failed."""
        return [check for check in self.cross_checks if not check.agrees]
