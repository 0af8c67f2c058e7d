"""``static_compute.json`` as types: the static model of the summary, and what only this document holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from llm_perf_opt.model.limits import Bytes, Count, Flops
from llm_perf_opt.model.static.static_model import Static

DOCUMENT_VERSION = "1.0"
Method = Literal["counted", "closed form"]


@dataclass(frozen=True, slots=True)
class KvLayers:
    """Layers that share a cache size."""

    layers: Count
    bytes_per_token: Bytes
    """Key and value of one layer, one position, one sequence."""
    window: Count | None
    """Positions kept at most; ``None``: all."""
    state_bytes: Bytes = 0.0
    """Of one layer and one sequence, whatever the context: recurrent and convolution states."""


@dataclass(slots=True)
class ShapesUsed:
    """The shapes the numbers hold for."""

    batch_size: Count
    prompt_tokens: Count
    image_tokens: Count
    context_tokens: Count
    """Cached positions at the decode step."""
    decode_tokens: Count
    """Decode steps of a whole request."""
    vision: dict[str, Any] = field(default_factory=dict)
    """The adapter's description of the images: mode, view sizes, tile grids (columns, rows)."""
    weight: Count = 1
    """How many batches of the run have these shapes."""
    source: str = "configured"
    """``configured``, or ``samples`` for the shapes of real inputs."""
    encoder_tokens: Count = 0
    """Positions the encoder of an encoder-decoder reads."""


@dataclass(slots=True)
class Totals:
    """FLOPs of a whole request (all sequences of the batch)."""

    vision_flops: Flops | None
    prefill_flops: Flops | None
    """Language model over the prompt, vision left out."""
    prefill_including_vision_flops: Flops | None
    """Up to the first token: vision or encoder, and prefill."""
    decode_steps: Count
    decode_flops: Flops | None
    """Sum over all steps, the context growing by one each."""
    request_flops: Flops | None
    kv_prefill_bytes: Bytes | None
    """Cache after the prompt; that of an encoder-decoder holds the encoder's keys and values too."""
    encode_flops: Flops | None = None
    """The encoder of an encoder-decoder."""


@dataclass(slots=True)
class CrossCheck:
    """One number by both ways; they must be equal."""

    phase: str
    component: str
    counted_flops: Flops
    closed_form_flops: Flops
    agrees: bool


@dataclass(slots=True)
class ResidentRow:
    """What must be in memory at a context length and a batch size."""

    context_tokens: Count
    batch_size: Count
    weights_bytes: Bytes
    kv_bytes: Bytes
    activation_bytes: Bytes
    """Estimate: inputs and outputs of the largest single operator at this document's shapes, scaled by batch."""
    total_bytes: Bytes


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
