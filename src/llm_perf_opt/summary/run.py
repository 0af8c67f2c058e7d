"""Which run this is, what became of its stages, and what they say in their own words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.core.limits import Amount, Count, Ratio, Seconds, Share, SummedSeconds

RunStatus = Literal["ok", "failed", "interrupted"]
StageStatus = Literal["ok", "skipped", "failed", "degraded"]


@dataclass(slots=True)
class RunInfo:
    """Which run this is."""

    id: str
    """Name of the run directory."""
    status: RunStatus
    """``failed`` when any stage failed."""
    started: str
    """ISO 8601 with time zone."""
    seconds: SummedSeconds | None
    """Wall-clock duration of the whole run."""
    command: list[str]
    """The command line, as a list of arguments."""


@dataclass(slots=True)
class StageInfo:
    """What became of one stage."""

    status: StageStatus
    """``skipped`` and ``degraded`` come with a reason; ``failed`` too."""
    reason: str | None = None
    """Why it is not ``ok``, and how to fix it."""
    seconds: SummedSeconds | None = None
    """How long it took."""
    artifacts: list[str] = field(default_factory=list)
    """Files it left, relative to the run directory."""


@dataclass(slots=True)
class SectionTable:
    """A table of a section; every cell is text, units in the column's name or in the cell."""

    columns: list[str]
    rows: list[list[str]]
    title: str = ""


@dataclass(slots=True)
class Section:
    """A part of the report that a stage brings along. Plain text: renderers escape it."""

    stage: str
    """Who says it."""
    title: str
    paragraphs: list[str] = field(default_factory=list)
    tables: list[SectionTable] = field(default_factory=list)


# What was run.


@dataclass(slots=True)
class CompiledFunction:
    """One compilation by ``torch.compile``."""

    place: str
    """Function, file and line."""
    compile_id: str | None
    """``frame/version``: versions above 0 are recompilations."""
    seconds: SummedSeconds | None
    where: str
    """``warmup``, or the phase of the measured pass it fell into."""
    recompile_cause: str | None = None
    """Guard that failed."""
    break_causes: list[str] = field(default_factory=list)
    """Why its graph was broken, once for each break."""


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
    functions: list[CompiledFunction] = field(default_factory=list)
    """Each of them, with cause and place; of very many the last ones."""


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


# Wall-clock without a profiler attached: over all samples, and of each.


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
    typical: Ratio | None = None
    """What reports, comparisons and trends show: each sample's median over its repeats, then the mean over the samples. For
    ``tpot_s`` of the decode time ÷ steps of a pass. ``None``: no samples are known, and the median is shown."""

    @property
    def shown(self) -> float:
        """The one value that every page shows for this quantity."""
        return self.median if self.typical is None else self.typical


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


# Problems with evidence, and at most what solving them would gain.


Confidence = Literal["high", "medium", "low"]


@dataclass(slots=True)
class Finding:
    """A problem with evidence, and at most what solving it would gain."""

    id: str
    title: str
    phase: str | None
    evidence: list[str]
    gain_upper_s: SummedSeconds | None
    """Upper bound, per sample."""
    arithmetic: str
    advice: str
    confidence: Confidence
    time_s: SummedSeconds | None = None
    """Time the finding is about, where no gain is given: findings are ordered by gain, else by this."""
    gain_share_ratio: Share | None = None
    """``gain_upper_s`` as a share of what ``gain_of`` names."""
    gain_of: str | None = None
    """``a sample's wall-clock``, or the captured time where nothing was timed without a profiler."""
    improve_command: str | None = None
    """Command that tries the remedies of this finding on the same configuration; null: ``no_experiment`` says why."""
    no_experiment: str | None = None
    """Why there is no such command: no setting answers the finding, none applies here, or the run cannot be repeated."""
    track_record: str | None = None
    """How often the remedies of this finding helped in earlier searches on this machine; null: none was made."""
