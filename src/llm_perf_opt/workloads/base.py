"""Interfaces of models and datasets for the engine: two abstract base classes and the values they exchange.

No torch at import time: the engine, the static analysis and the datasets share these types.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.summary import Stopped
from llm_perf_opt.summary.statistics import interval_ratio

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import DatasetConfig, InferConfig, ModelConfig


# Number of measured repeats: fixed, or until the interval of the pass time is narrow enough.
#
# Two runs can only be distinguished when each has enough blocks (a rank test of three against three cannot reach
# the usual level) and narrow intervals. So by default passes are repeated until the interval is narrow, within
# a time limit.


LEAST_REPEATS = 4
"""Fewer cannot show a difference between two runs, however large (two-sided rank test at 5 %)."""
MOST_REPEATS = 30
"""More of a very short pass only makes files larger: by then it is the machine's drift that limits a comparison."""


@dataclass(frozen=True, slots=True)
class UntilNarrow:
    """The stopping rule after the minimum number of repeats."""

    target_interval_ratio: float
    """Width of the 95 % interval of a pass's time ÷ that time."""
    max_measure_s: float
    """No repeat is begun that would probably end after this time."""
    most: int = MOST_REPEATS


@dataclass(frozen=True, slots=True)
class Measuring:
    """How often the samples were measured, and why repeating stopped."""

    repeats: int
    stopped: Stopped
    interval_ratio: float | None
    """Width of the 95 % interval of a pass's time ÷ that time; ``None`` with too few repeats."""
    seconds: float
    """All repeats together, with what lies between them."""


def stop_reason(
    levels: Sequence[float], passed_s: float, *, least: int, until: UntilNarrow | None
) -> Stopped | None:
    """Return why to stop after these repeats (``levels``: see :func:`pass_level`); ``None``: measure once more."""
    count = len(levels)
    if count < least:
        return None
    if until is None:
        return "asked"
    width = interval_ratio(levels)
    if width is not None and width <= until.target_interval_ratio:
        return "narrow"
    if count >= until.most:
        return "most"
    return "time" if passed_s * (count + 1) / count > until.max_measure_s else None


def pass_level(totals_s: Sequence[float]) -> float:
    """Return one number for a repeat over all samples: the mean of their times' logarithms, as ``compare`` uses it."""
    known = [total for total in totals_s if total > 0]
    return math.fsum(math.log(total) for total in known) / len(known) if known else 0.0


Phase = Literal["vision", "encode", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """The description of the workload: the engine runs it in-process, ``build_work_argv`` in a child."""

    model: ModelConfig
    infer: InferConfig
    dataset: DatasetConfig
    device: str
    """torch's name of it: ``cpu``, ``cuda:N``, ``xpu:N``, ``mps``, …"""
    repeats: int
    """Passes over the samples: exactly so many, or with ``until`` at least."""
    max_new_tokens: int
    threads: int | None = None
    phase_threads: Mapping[str, int] = field(default_factory=dict)
    """Threads of single phases, where they differ."""
    nvtx_modules: bool = False
    until: UntilNarrow | None = None
    """When to stop repeating; ``None``: after ``repeats``."""


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


class Dataset(ABC):
    """A source of samples. Subclasses implement ``samples``; the rest has defaults."""

    opens_quickly: ClassVar[bool] = False
    """Whether making one only looks for files, so that a missing one can be reported before any work starts."""

    def __init__(self, config: DatasetConfig) -> None:
        """Keep ``dataset.*``; a subclass checks it and raises ``ConfigError`` or ``InputError`` with a hint."""
        self.config = config

    @abstractmethod
    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the run, sampling applied, unreadable ones left out and reported."""

    def problems(self) -> Sequence[str]:
        """Return which entries were left out and why; empty by default."""
        return []


@dataclass(slots=True)
class Batch:
    """Preprocessed requests on the device, and facts about them for reports."""

    sample_ids: list[str]
    inputs: dict[str, Any]
    """Whatever the adapter's own methods need (tensors, grids)."""
    prompt_tokens: int
    """Positions per sequence after padding, image tokens included."""
    image_tokens: int
    """Image positions per sequence (0 for text models)."""
    facts: dict[str, Any] = field(default_factory=dict)
    """For reports: image mode, tile grid, padding, sizes."""
    encoder_tokens: int = 0
    """Positions per sequence that the encoder reads, padding included (0: no encoder-decoder)."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The first greedy tokens of a model's own generation, used to check the engine."""

    token_ids: list[list[int]]
    """One list per sequence."""
    logits: list[torch.Tensor] | None = None
    """Of each step, before anything is banned, ``[batch, vocab]``; ``None``: not reported."""


@dataclass(frozen=True, slots=True)
class PhaseShapes:
    """The shapes of a static count."""

    batch_size: int
    prompt_tokens: int
    image_tokens: int
    context_tokens: int
    """Cached positions at the decode step that is counted."""
    vision: Mapping[str, Any] = field(default_factory=dict)
    """The adapter's own description of the images: ``{"mode": "gundam", "grid": [2, 3]}`` (columns, rows)."""
    encoder_tokens: int = 0
    """Positions the encoder reads; the prompt is then what the decoder begins with."""


@dataclass(frozen=True, slots=True)
class StaticCall:
    """A phase to count that starts from a state: a decode step needs the cache of a prefill."""

    prepare: Callable[[], Any]
    """Makes the state; runs before the count and is no part of it."""
    run: Callable[[Any], object]
    """Runs the phase on that state; what is counted."""
    state_bytes: Callable[[Any], Mapping[str, float]] = field(default=lambda _state: {})
    """Says what the state holds besides cached keys and values, by place."""

    def __call__(self) -> object:
        """Prepare and run."""
        return self.run(self.prepare())


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a model splits pages into tiles."""

    mode: str
    """``infer.mode``."""
    max_tiles: int
    """Most tiles of a page; 0: this mode cuts none."""


class ModelAdapter(ABC):
    """One model family. ``build`` may be called with ``device='meta'``: no weights, shapes only.

    Abstract members must be implemented; the others have defaults that suit a text model without a cache.
    """

    # Abstract properties, so that the error for an incomplete class names what is missing; a class attribute is sufficient.
    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the adapter in messages."""

    @property
    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """``("vision", "prefill", "decode")``, with ``encode`` in place of vision (encoder-decoders), or without either."""

    def __init__(self, model: ModelConfig, infer: InferConfig) -> None:
        """Keep the configuration; a subclass checks it and raises ``ConfigError`` with the key of an invalid value."""
        self.config = model
        self.infer = infer

    @abstractmethod
    def components(self) -> Mapping[str, str]:
        """Map component labels (``sam``, ``clip``, ``projector``, ``language_model``, ``lm_head``) to module paths."""

    @abstractmethod
    def build(self, device: str, dtype: torch.dtype) -> torch.nn.Module:
        """Make the model: real weights, random weights, or (``device='meta'``) none."""

    @abstractmethod
    def weights(self) -> Literal["real", "random"]:
        """Describe which weights ``build`` makes."""

    @abstractmethod
    def prepare(self, samples: Sequence[Sample], device: str, dtype: torch.dtype) -> Batch:
        """Read and preprocess requests; an ``InputError`` leaves a sample out, named and counted."""

    @abstractmethod
    def prefill(self, model: torch.nn.Module, batch: Batch, vision: Any, cache: Any) -> torch.Tensor:
        """Run the prompt; fill ``cache``; return logits of the last position, ``[batch, vocab]``."""

    @abstractmethod
    def decode_step(
        self, model: torch.nn.Module, batch: Batch, tokens: torch.Tensor, step: int, cache: Any
    ) -> torch.Tensor:
        """Run one more token per sequence (``tokens``: ``[batch, 1]``); return logits ``[batch, vocab]``."""

    @abstractmethod
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a sequence."""

    @abstractmethod
    def text(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Decode generated tokens."""

    @abstractmethod
    def shapes(self, batch: Batch, context_tokens: int) -> PhaseShapes:
        """Describe a real batch for the static count."""

    @abstractmethod
    def default_shapes(self) -> PhaseShapes:
        """Shapes of a typical request at the configured mode, without touching the data set."""

    @abstractmethod
    def static_calls(
        self, model: torch.nn.Module, shapes: PhaseShapes
    ) -> Mapping[Phase, Callable[[], object]]:
        """Return one call per phase that runs it on the meta device at these shapes, for counting.

        A plain callable is counted as a whole; a :class:`StaticCall` prepares its state uncounted.
        """

    # --- optional members ------------------------------------------------------------------------------------

    @property
    def architecture(self) -> str | None:
        """Name in reports; ``None``: the model's class name."""
        return None

    @property
    def context_tokens(self) -> int | None:
        """Maximum number of positions of the model; answers end there. ``None``: no limit."""
        return None

    def make_cache(self, model: torch.nn.Module, batch: Batch, max_new_tokens: int) -> Any:
        """Make the ``cache`` handed to ``prefill`` and ``decode_step``; ``None`` for a model that needs none."""
        return None

    def vision(self, model: torch.nn.Module, batch: Batch) -> Any:
        """Run the vision tower; the result goes to ``prefill``. Text models have none."""
        return None

    def encode(self, model: torch.nn.Module, batch: Batch) -> Any:
        """Run the encoder of an encoder-decoder; the result goes to ``prefill`` as ``vision``."""
        return None

    def decode_mode(self, model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        """Return a context the whole decode loop runs in."""
        return contextlib.nullcontext()

    def decode_shape(self, batch: Batch, max_new_tokens: int) -> tuple[int, ...]:
        """Return a key that is equal for batches that can share a compiled or captured step."""
        return (len(batch.sample_ids), batch.prompt_tokens + max_new_tokens)

    def compile_decode(self, model: torch.nn.Module) -> None:
        """Compile the decode step (``model.compile=true``), before the warm-up; raises unless overridden."""
        raise ConfigError(
            f"adapter {self.name} cannot be compiled", hint="use model.compile=false", key="model.compile"
        )

    def graph_decode(self, model: torch.nn.Module, device: str) -> None:
        """Capture the decode step as a CUDA graph (``model.cuda_graphs=true``) in the warm-up; raises unless overridden."""
        raise ConfigError(
            f"adapter {self.name} cannot be captured as CUDA graphs",
            hint="use model.cuda_graphs=false",
            key="model.cuda_graphs",
        )

    def compile_prefill(self, model: torch.nn.Module) -> None:
        """Compile the prefill (``model.compile_prefill=true``), before the warm-up; raises unless overridden."""
        raise ConfigError(
            f"the prefill of adapter {self.name} cannot be compiled",
            hint="use model.compile_prefill=false",
            key="model.compile_prefill",
        )

    def decode_several(
        self, model: torch.nn.Module, batch: Batch, tokens: torch.Tensor, step: int, cache: Any
    ) -> torch.Tensor:
        """Run several tokens of one sequence (``[1, count]``) in one pass; return logits ``[1, count, vocab]``."""
        raise ConfigError(
            f"adapter {self.name} does not support speculative decoding",
            hint="use infer.prompt_lookup_tokens=0 infer.draft_tokens=0",
            key="infer.prompt_lookup_tokens",
        )

    def crop_cache(self, cache: Any, count: int) -> None:
        """Remove the last ``count`` positions; needed together with :meth:`decode_several`."""
        raise NotImplementedError

    def reference_tokens(
        self,
        model: torch.nn.Module,
        batch: Batch,
        count: int,
        *,
        stop_ids: Sequence[int],
        no_repeat_ngram_size: int,
    ) -> list[list[int]] | None:
        """Return the first ``count`` greedy tokens by the model's own generation, to check the engine.

        ``None``: the model has no generation of its own.
        """
        return None

    def reference(
        self,
        model: torch.nn.Module,
        batch: Batch,
        count: int,
        *,
        stop_ids: Sequence[int],
        no_repeat_ngram_size: int,
    ) -> Reference | None:
        """Return the first ``count`` greedy tokens with their logits; without logits unless a subclass has them."""
        tokens = self.reference_tokens(
            model, batch, count, stop_ids=stop_ids, no_repeat_ngram_size=no_repeat_ngram_size
        )
        return None if tokens is None else Reference(tokens)

    def notes(self) -> Sequence[str]:
        """Return notes for the summary on changes beyond the configuration; empty by default."""
        return []

    def why_not_split(self, ranks: int) -> str | None:
        """Return why the model cannot be split over so many ranks; ``None``: ``build`` makes this rank's part in a group of them."""
        return f"adapter {self.name} does not split its model over ranks"

    def tiling(self) -> Tiling | None:
        """Return how pages are split into tiles; ``None``: the model has no tiles."""
        return None

    def image_tokens(self, grid: tuple[int, int] | None) -> int:
        """Return how many positions a page with this tile grid (columns, rows) takes."""
        return 0

    def config_document(self) -> Mapping[str, Any] | None:
        """Return the dimensions under transformers' configuration keys, to check counts by closed forms.

        ``None``: those of the built model's ``config``, when it has one.
        """
        return None

    def quantization_config(self) -> Mapping[str, Any] | None:
        """Return how the checkpoint's weights are quantised, as in ``config.json``; ``None``: they are not."""
        return None
