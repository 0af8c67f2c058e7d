"""What was run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.model.limits import Amount, Count, SummedSeconds


@dataclass(slots=True)
class Compilations:
    """What ``torch.compile`` compiled; one in a measured pass makes that pass longer than the model is."""

    warmup: Count
    """Compilations before anything was measured: one per shape of the decode step."""
    warmup_s: SummedSeconds
    """How long they took."""
    measured: Count
    """Compilations inside measured passes: 0 in a run that was warmed up for all its shapes."""
    measured_s: SummedSeconds
    """How long those took: part of the timings."""
    phases: dict[str, Count] = field(default_factory=dict)
    """Of those in measured passes, how many fell into which phase."""


@dataclass(slots=True)
class Workload:
    """What was run."""

    model: str | None = None
    """Adapter or model name; for your own program, what it is called."""
    weights: Literal["real", "random", "meta"] | None = None
    """``random``: timings are real, text is meaningless."""
    architecture: str | None = None
    """Name of the architecture preset or of the model class."""
    device: str | None = None
    """``cuda:0``, ``cpu``."""
    dtype: str | None = None
    """Data type of weights and activations."""
    batch_size: Amount | None = None
    """Requests per forward pass that really ran; the mean where batches differ."""
    samples: Count | None = None
    """How many samples were measured."""
    prompt_tokens: Amount | None = None
    """Mean prompt positions per sample, image tokens included."""
    image_tokens: Amount | None = None
    """Mean image positions per sample."""
    new_tokens: Amount | None = None
    """Mean generated tokens per sample."""
    program: list[str] | None = None
    """Argument list of your own program (``pipeline.workload.command``); ``None``: the built-in workload."""
    cache: str | None = None
    """Key-value cache of the built-in workload (``model.cache``)."""
    compiled: bool | None = None
    """Whether its decode step was compiled (``model.compile``)."""
    cuda_graphs: bool | None = None
    """Whether its decode step was captured and replayed (``model.cuda_graphs``)."""
    compilations: Compilations | None = None
    """What was compiled, and when; ``None``: nothing is compiled, or nobody counted."""
    tokens_verified: bool | None = None
    """Whether the first tokens and their logits are those of the model's own ``generate()``; a note says what was compared, or
    why nothing was (``None``)."""
    encoder_tokens: Amount | None = None
    """Mean positions the encoder reads (encoder-decoders), padding included; the prompt is then the decoder's."""
    ranks: Count | None = None
    """Ranks the model was split over (``run.ranks``); ``None``: it was not."""
