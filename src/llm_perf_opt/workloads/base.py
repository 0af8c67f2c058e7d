"""What the engine needs of a model and of a dataset: two protocols and the values they exchange.

No torch at import time: the engine, the static analysis and the datasets share these types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import DatasetConfig, InferConfig, ModelConfig

Phase = Literal["vision", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """The one description of the workload: the engine runs it in-process, ``build_work_argv`` in a child."""

    model: ModelConfig
    infer: InferConfig
    dataset: DatasetConfig
    device: str
    """``cpu`` or ``cuda:N``."""
    repeats: int
    max_new_tokens: int
    threads: int | None = None
    nvtx_modules: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One request."""

    id: str
    prompt: str | None = None
    """Text of the prompt; ``None``: ``infer.prompt``."""
    path: Path | None = None
    """Image file, for models that see."""
    reference: str | None = None
    """Expected text, when the data set has one."""
    sha256: str | None = None
    """Of the image file or the prompt."""
    synthetic_tokens: int | None = None
    """Make a prompt of exactly this many tokens (text models)."""
    extra: Mapping[str, Any] = field(default_factory=dict)


class Dataset(Protocol):
    """Where samples come from."""

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the run, sampling applied, unreadable ones left out and reported."""
        ...

    def problems(self) -> Sequence[str]:
        """Say which entries were left out and why."""
        ...


@dataclass(slots=True)
class Batch:
    """Preprocessed requests on the device, and what a report wants to know about them."""

    sample_ids: list[str]
    inputs: dict[str, Any]
    """Whatever the adapter's own methods need (tensors, grids)."""
    prompt_tokens: int
    """Positions per sequence after padding, image tokens included."""
    image_tokens: int
    """Image positions per sequence (0 for text models)."""
    facts: dict[str, Any] = field(default_factory=dict)
    """For reports: image mode, tile grid, padding, sizes."""


@dataclass(frozen=True, slots=True)
class PhaseShapes:
    """The shapes a static count is made at."""

    batch_size: int
    prompt_tokens: int
    image_tokens: int
    context_tokens: int
    """Cached positions at the decode step that is counted."""
    vision: Mapping[str, Any] = field(default_factory=dict)
    """The adapter's own description of the images: ``{"mode": "gundam", "grid": [2, 3]}`` (columns, rows)."""


class ModelAdapter(Protocol):
    """One model family. ``build`` may be called with ``device='meta'``: no weights, shapes only."""

    name: str
    phases: tuple[Phase, ...]
    """``("vision", "prefill", "decode")`` or without vision."""

    def __init__(self, model: ModelConfig, infer: InferConfig) -> None:
        """Check the configuration; raise :class:`ConfigError` with the key for what cannot be."""

    def components(self) -> Mapping[str, str]:
        """Map component labels (``sam``, ``clip``, ``projector``, ``language_model``, ``lm_head``) to module paths."""
        ...

    def build(self, device: str, dtype: torch.dtype) -> torch.nn.Module:
        """Make the model: real weights, random weights, or (``device='meta'``) none."""
        ...

    def weights(self) -> Literal["real", "random"]:
        """Say which weights ``build`` makes."""
        ...

    def prepare(self, samples: Sequence[Sample], device: str, dtype: torch.dtype) -> Batch:
        """Read and preprocess requests."""
        ...

    def vision(self, model: torch.nn.Module, batch: Batch) -> Any:
        """Run the vision tower; the result goes to ``prefill``. Text models return ``None``."""
        ...

    def prefill(self, model: torch.nn.Module, batch: Batch, vision: Any, cache: Any) -> torch.Tensor:
        """Run the prompt; fill ``cache``; return logits of the last position, ``[batch, vocab]``."""
        ...

    def decode_step(
        self, model: torch.nn.Module, batch: Batch, tokens: torch.Tensor, step: int, cache: Any
    ) -> torch.Tensor:
        """Run one more token per sequence (``tokens``: ``[batch, 1]``); return logits ``[batch, vocab]``."""
        ...

    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a sequence."""
        ...

    def text(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Decode generated tokens."""
        ...

    def shapes(self, batch: Batch, context_tokens: int) -> PhaseShapes:
        """Describe a real batch for the static count."""
        ...

    def default_shapes(self) -> PhaseShapes:
        """Shapes of a typical request at the configured mode, without touching the data set."""
        ...

    def static_calls(
        self, model: torch.nn.Module, shapes: PhaseShapes
    ) -> Mapping[Phase, Callable[[], object]]:
        """Return one call per phase that runs it on the meta device at these shapes, for counting."""
        ...
