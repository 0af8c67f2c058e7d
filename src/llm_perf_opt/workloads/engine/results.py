"""Measurements of the engine as plain values, and the ``timings.json`` document made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.summary import Compilations, Workload
from llm_perf_opt.workloads.base import Measuring, PhaseShapes, Sample

SCHEMA = 1


@dataclass(slots=True)
class PassTimings:
    """One pass of one batch, in seconds. ``None``: the phase did not run."""

    preprocess_s: float | None
    vision_s: float | None
    prefill_s: float | None
    """Up to and including the choice of the first token."""
    decode_s: float | None
    """All tokens after the first."""
    token_s: list[float] = field(default_factory=list)
    """Each token after the first."""
    components: dict[str, float] = field(default_factory=dict)
    """``sam_s``, ``clip_s``, ``projector_s``: inside vision; ``language_model_prefill_s``, … : inside prefill."""
    encode_s: float | None = None
    """The encoder of an encoder-decoder."""

    def total_s(self) -> float:
        """Return all phases together; preprocessing is excluded."""
        phases = (self.vision_s, self.encode_s, self.prefill_s, self.decode_s)
        return sum(value for value in phases if value is not None)

    def first_token_s(self) -> float | None:
        """Return the time to the first token: all phases up to and including prefill."""
        if self.prefill_s is None:
            return None
        return (self.vision_s or 0.0) + (self.encode_s or 0.0) + self.prefill_s

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dataclasses.asdict(self)


@dataclass(slots=True)
class PassResult:
    """One pass of one batch."""

    timings: PassTimings
    token_ids: list[list[int]]
    """Generated tokens per sequence, up to and including end-of-sequence."""
    new_tokens: int
    """Tokens generated for the longest sequence."""
    decode_passes: int = 0
    """Forward passes of decode: ``new_tokens - 1``, fewer where draft tokens were accepted."""


@dataclass(slots=True)
class SampleResult:
    """Result of one request (first repeat)."""

    sample: Sample
    token_ids: list[int]
    text: str
    """Special tokens included."""
    prompt_tokens: int
    """Of this request, without padding."""
    image_tokens: int
    batch_size: int
    timings: PassTimings
    """Of the batch it ran in."""
    facts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "id": self.sample.id,
            "path": None if self.sample.path is None else str(self.sample.path),
            "text": self.text,
            "token_ids": self.token_ids,
            "prompt_tokens": self.prompt_tokens,
            "image_tokens": self.image_tokens,
            "new_tokens": len(self.token_ids),
            "batch_size": self.batch_size,
            "timings": self.timings.to_dict(),
            "facts": self.facts,
        }


@dataclass(slots=True)
class BatchResult:
    """All repeats of one batch."""

    ids: list[str]
    prompt_tokens: int
    image_tokens: int
    new_tokens: int
    facts: dict[str, Any]
    shapes: PhaseShapes
    repeats: list[PassTimings] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return one entry of ``timings.json``; a batch is one measurement, whatever its size."""
        shapes = {
            **dataclasses.asdict(dataclasses.replace(self.shapes, vision={})),
            "vision": dict(self.shapes.vision),
        }
        return {
            "id": "+".join(self.ids),
            "ids": list(self.ids),
            "prompt_tokens": self.prompt_tokens,
            "image_tokens": self.image_tokens,
            "new_tokens": self.new_tokens,
            "batch_size": len(self.ids),
            "facts": dict(self.facts),
            "shapes": shapes,
            "repeats": [timings.to_dict() for timings in self.repeats],
        }


@dataclass(slots=True)
class EngineInfo:
    """Model and device."""

    model: str
    weights: Literal["real", "random"]
    architecture: str
    device: str
    dtype: str
    parameters: int
    load_s: float
    """Building the model and loading its weights."""
    threads: int | None = None
    """CPU threads of torch (``None`` on a GPU)."""
    cache: str | None = None
    """``model.cache``."""
    compiled: bool | None = None
    """``model.compile``."""
    cuda_graphs: bool | None = None
    """``model.cuda_graphs``."""


@dataclass(slots=True)
class WorkloadResult:
    """All results of one run of the workload."""

    info: EngineInfo
    samples: list[SampleResult]
    batches: list[BatchResult]
    batch_size: int
    """As configured; the last batch may be smaller."""
    problems: list[str] = field(default_factory=list)
    """Samples that were left out, and why."""
    notes: list[str] = field(default_factory=list)
    """What a reader must know: random weights, answers cut short."""
    warmup_s: float = 0.0
    tokens_verified: bool | None = None
    """Whether the first tokens are those of ``generate()``; ``None``: not checked, a note says why."""
    compilations: Compilations | None = None
    """What ``torch.compile`` compiled up to the last measured pass; ``None``: it had nothing to do."""
    measuring: Measuring | None = None
    """How often was measured and why not more often; ``None`` when somebody else decided that."""

    def workload(self) -> Workload:
        """Return the summary's description of what was run."""
        return Workload(
            model=self.info.model,
            weights=self.info.weights,
            architecture=self.info.architecture,
            device=self.info.device,
            dtype=self.info.dtype,
            batch_size=self.mean_batch_size(),
            samples=len(self.samples),
            prompt_tokens=_mean([sample.prompt_tokens for sample in self.samples]),
            image_tokens=_mean([sample.image_tokens for sample in self.samples]),
            encoder_tokens=_mean(
                [batch.shapes.encoder_tokens for batch in self.batches if batch.shapes.encoder_tokens]
            ),
            new_tokens=_mean([len(sample.token_ids) for sample in self.samples]),
            cache=self.info.cache,
            compiled=self.info.compiled,
            cuda_graphs=self.info.cuda_graphs,
            compilations=self.compilations,
            tokens_verified=self.tokens_verified,
        )

    def mean_batch_size(self) -> float | None:
        """Return the batch size that ran: the last batch may be incomplete."""
        mean = _mean([len(batch.ids) for batch in self.batches])
        return int(mean) if mean is not None and mean.is_integer() else mean

    def to_dict(self) -> dict[str, Any]:
        """Return the ``timings.json`` document."""
        return _workload_timings_document(self)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _workload_timings_document(result: WorkloadResult) -> dict[str, Any]:
    """Return ``timings.json``: schema, what ran, and every repeat of every batch. Missing phases are null."""
    return {
        "schema": SCHEMA,
        "source": "engine",
        "workload": dataclasses.asdict(result.workload()),
        "configured_batch_size": result.batch_size,
        "engine": {**dataclasses.asdict(result.info), "warmup_s": result.warmup_s},
        "problems": list(result.problems),
        "notes": list(result.notes),
        "measuring": None if result.measuring is None else dataclasses.asdict(result.measuring),
        "samples": [batch.to_dict() for batch in result.batches],
    }


def write_timings(path: Path, result: WorkloadResult) -> Path:
    """Write ``timings.json``."""
    document: Mapping[str, Any] = _workload_timings_document(result)
    return atomic_write_json(path, document)
