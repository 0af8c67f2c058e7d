"""Wall-clock without a profiler attached: over all samples, and of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.model.limits import Amount, Count, Ratio, Seconds

Stopped = Literal["asked", "narrow", "time", "most"]
"""Why a measurement was not repeated more often."""


@dataclass(slots=True)
class Stat:
    """A repeated measurement, in seconds unless the name says otherwise."""

    median: Ratio
    """50th percentile."""
    p5: Ratio
    """5th percentile."""
    p95: Ratio
    """95th percentile."""
    mean: Ratio
    """Arithmetic mean."""
    std: Ratio | None
    """Sample standard deviation; ``None`` for a single value."""
    n: Count
    """How many values."""


@dataclass(slots=True)
class Timings:
    """Wall-clock per sample, warmed up and device-synchronised, without a profiler attached."""

    preprocess_s: Stat | None = None
    """Reading and preparing inputs."""
    vision_s: Stat | None = None
    """All vision components of one sample."""
    prefill_s: Stat | None = None
    """Language-model forward over the prompt, up to the first token; of an encoder-decoder, the decoder's prompt."""
    ttft_s: Stat | None = None
    """Time to first token: vision or encode, and prefill."""
    decode_s: Stat | None = None
    """All tokens after the first."""
    tpot_s: Stat | None = None
    """Time per output token after the first."""
    tokens_per_s: Stat | None = None
    """New tokens per second of decode, over the batch (1/s)."""
    components: dict[str, Stat] = field(default_factory=dict)
    """``sam_s``, ``clip_s``, ``projector_s``, …: per sample."""
    source: str | None = None
    """File the numbers come from."""
    repeats: Count | None = None
    """How often every sample was measured."""
    stopped: Stopped | None = None
    """Why not more often: ``asked`` (``run.repeats``), ``narrow`` (the interval is), ``time`` (``run.max_measure_s`` was
    used up), ``most`` (as often as is sensible)."""
    interval_ratio: Ratio | None = None
    """Width of the 95 % interval of a pass's time ÷ that time (all phases of all samples)."""
    program_s: Stat | None = None
    """Your own program from its start to its end, without a tool; runs that failed are left out."""
    encode_s: Stat | None = None
    """The encoder of an encoder-decoder (text, speech), for one sample."""


@dataclass(slots=True)
class SampleTimes:
    """One sample (or batch): its size, and the medians of its repeats, in seconds."""

    id: str
    """As the data set names it."""
    n: Count
    """Repeats the medians are of."""
    prompt_tokens: Amount | None = None
    """Prompt positions, image tokens included."""
    image_tokens: Amount | None = None
    """Image positions."""
    new_tokens: Amount | None = None
    """Generated tokens."""
    preprocess_s: Seconds | None = None
    """Reading and preparing the input."""
    vision_s: Seconds | None = None
    """All vision components."""
    prefill_s: Seconds | None = None
    """Language-model forward over the prompt."""
    decode_s: Seconds | None = None
    """All tokens after the first."""
    ttft_s: Seconds | None = None
    """Time to first token: vision or encode, and prefill."""
    tpot_s: Seconds | None = None
    """Time per output token after the first."""
    encode_s: Seconds | None = None
    """The encoder of an encoder-decoder."""
