"""``summary.json`` as types: the one machine-readable result of a run.

Values are SI with the unit in the name (``_s``, ``_bytes``, ``_flops``, ``_bytes_per_s``, ``_ratio``).
``None`` means "not known", and ``Summary.notes`` says why; zero means zero.
Every field is documented by the string below it, and ``docs/summary.md`` is generated from those.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from llm_perf_opt.model.cpu_work import CpuWork
from llm_perf_opt.model.limits import (
    Amount,
    Bytes,
    ChangedBytes,
    Count,
    Depth,
    Flops,
    Number,
    PerSecond,
    Rate,
    Ratio,
    Seconds,
    Share,
    SummedSeconds,
)
from llm_perf_opt.model.operators import OperatorShapes
from llm_perf_opt.model.parallel import Communication, DeviceUse, IdleGap, IdleOwner, RankUse
from llm_perf_opt.model.profiled import CounterConditions, ProfiledLaunches
from llm_perf_opt.model.target import KernelTarget
from llm_perf_opt.model.work import Minimum, Quantisation

SCHEMA_VERSION = "1.1"
"""What changed between versions: ``versions.py``."""

RunStatus = Literal["ok", "failed", "interrupted"]
StageStatus = Literal["ok", "skipped", "failed", "degraded"]
Bound = Literal[
    "compute", "memory", "communication", "launch", "sync", "copy", "host", "queue", "balanced", "unknown"
]
Confidence = Literal["high", "medium", "low"]
MemoryCounts = Literal["allocator", "process"]
Stopped = Literal["asked", "narrow", "time", "most"]
"""Why a measurement was not repeated more often."""


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
class Peak:
    """Peak arithmetic rate of one data type."""

    dense: Rate
    """FLOP/s without structured sparsity."""
    source: str
    """Where the number comes from: a data sheet, or ``measured on this machine``."""


@dataclass(slots=True)
class Hardware:
    """The device whose limits the utilisation is measured against."""

    name: str | None
    """As the driver reports it."""
    kind: Literal["gpu", "cpu", "unknown"]
    """What sort of device."""
    peak_flops_per_s: dict[str, Peak]
    """Data type → peak. A type that is not listed has no sourced peak."""
    bandwidth_bytes_per_s: Rate | None
    """Main-memory bandwidth."""
    source: str
    """``catalogue``, ``probe``, ``user`` or ``none``."""
    memory_bytes: Bytes | None = None
    """Size of device memory."""
    reason: str | None = None
    """Why limits are missing, when they are."""
    bandwidth_source: str | None = None
    """Where the bandwidth comes from: a data sheet, or ``measured on this machine``."""
    measured_peak_flops_per_s: dict[str, Peak] = field(default_factory=dict)
    """What a large matrix product reached on this machine, beside the data sheet's peaks."""
    measured_bandwidth_bytes_per_s: Rate | None = None
    """What a streaming copy reached on this machine."""
    measured_at: str | None = None
    """When that was measured, in this run or an earlier one (ISO 8601 with time zone); of several, the best."""
    measured_under_load: bool | None = None
    """Whether other programs used the processor in every measurement: then the rates may be too low."""
    measured_other_load_ratio: Ratio | None = None
    """Share of the processor's time that other programs took, in the quietest of the measurements."""
    measurements: Count | None = None
    """Measurements the rates are the best of."""
    measured_operator_s: SummedSeconds | None = None
    """What calling an operator on a single element costs on this machine: dispatch, and next to no work."""
    reached_flops_per_s: dict[str, Peak] = field(default_factory=dict)
    """Data type → the best rate a matrix product was ever measured at on such a device, whoever measured it."""
    reached_bandwidth_bytes_per_s: Rate | None = None
    """The best rate at which weights too large for any cache were read on such a device."""
    reached_bandwidth_source: str | None = None
    """Which measurement that is."""


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


@dataclass(slots=True)
class Params:
    """Parameter counts."""

    total: Count
    """All parameters, each counted once."""
    active_per_token: Count | None
    """Parameters one token meets in decode (routed experts not chosen are left out)."""
    components: dict[str, Count]
    """Component label → parameters."""
    as_run_per_token: Count | None = None
    """Parameters one token meets in decode as the code runs it; ``None``: no more than ``active_per_token``."""


@dataclass(slots=True)
class StaticPhase:
    """What one phase computes and moves as it is run, for one sample (batch included)."""

    flops: Flops | None
    """Multiply-add counted as two."""
    weight_bytes: Bytes | None
    """Weights that must be read once."""
    activation_bytes: Bytes | None
    """Inputs and outputs of every counted operator."""
    kv_bytes: Bytes | None
    """Key-value cache read and written."""
    intensity: Ratio | None
    """FLOP per byte of weights and KV cache and activations that leave the chip in the model's floor."""
    tokens: Amount | None = None
    """Positions this phase computes (prefill: prompt length; decode: 1 per step)."""
    operators: Count | None = None
    """Operators that start work on a device, as the model's code calls them one by one."""
    products: Count | None = None
    """Of them products, convolutions and attention: fusing the small ones leaves these."""
    minimum: Minimum | None = None
    """The least work with the same result; ``None``: what is run is the least. Floors and utilisation rest on it."""

    @property
    def least_flops(self) -> float | None:
        """FLOPs the phase cannot avoid."""
        return self.minimum.flops if self.minimum is not None else self.flops

    @property
    def least_weight_bytes(self) -> float | None:
        """Weights the phase cannot avoid reading."""
        return self.minimum.weight_bytes if self.minimum is not None else self.weight_bytes

    @property
    def least_kv_bytes(self) -> float | None:
        """Cache traffic the phase cannot avoid."""
        return self.minimum.kv_bytes if self.minimum is not None else self.kv_bytes


@dataclass(slots=True)
class StaticModule:
    """One row of the module tree."""

    name: str
    """Dotted path inside the model; empty for the whole."""
    type: str
    """Class name."""
    depth: Depth
    """Depth in the tree."""
    params: Count
    """Parameters below and in this module."""
    flops: dict[str, Flops]
    """Phase → FLOPs."""
    component: str | None = None
    """Component label it belongs to."""
    weight_bytes: dict[str, Bytes] = field(default_factory=dict)
    """Phase → weights read."""
    activation_bytes: dict[str, Bytes] = field(default_factory=dict)
    """Phase → inputs and outputs of counted operators."""
    counted_ratio: Share | None = None
    """Share of this module's arithmetic that was counted, as in ``coverage``."""
    uncounted_ops: list[str] = field(default_factory=list)
    """Operators without a formula met in this module itself, children left out."""


@dataclass(slots=True)
class Coverage:
    """How much of the arithmetic was counted."""

    counted_ratio: Share | None
    """Counted FLOPs ÷ (counted + one FLOP per element of arithmetic without a formula); ``None`` when an
    operator of unknown cost was met."""
    uncounted_ops: list[str]
    """Arithmetic operators that were met and have no formula, the largest first."""
    unknown_ops: list[str] = field(default_factory=list)
    """Those of them whose cost is not even known to be small."""


@dataclass(slots=True)
class AttentionPart:
    """FLOPs of attention itself, which grow with the context, apart from the linear layers'."""

    phase: str
    flops: Flops
    window: Count | None = None
    """Positions attended to at most; ``None``: all."""


@dataclass(slots=True)
class ExpertPart:
    """Routed experts that are chosen alike."""

    weight_bytes: Bytes
    """All experts of all such layers."""
    experts: Count
    """Experts of one layer."""
    top_k: Count
    """Experts one token is sent to."""


@dataclass(slots=True)
class KvPart:
    """Layers that cache alike."""

    layers: Count
    bytes_per_token: Bytes
    """Key and value of one layer, one position, one sequence."""
    window: Count | None = None
    """Positions kept at most; ``None``: all."""
    state_bytes: Bytes = 0.0
    """Of one layer and one sequence, whatever the context: recurrent and convolution states."""


@dataclass(slots=True)
class Scaling:
    """What is needed to price the same model at other batch sizes, contexts and data types."""

    batch_size: Amount
    """Sequences per pass; the mean over a run's batches."""
    prompt_tokens: Amount
    context_tokens: Amount
    """Cached positions at the decode step that was counted."""
    element_bytes: Bytes
    """Mean size of a parameter as it is stored."""
    attention: list[AttentionPart] = field(default_factory=list)
    head_flops: dict[str, Flops] = field(default_factory=dict)
    """Phase → FLOPs of the output head."""
    experts: list[ExpertPart] = field(default_factory=list)
    kv: list[KvPart] = field(default_factory=list)
    embedding_bytes_per_token: Bytes = 0.0
    """Row of the embedding table one position looks up."""
    embedding_rows: Count | None = None
    """Rows of that table: more positions than this must repeat some."""
    causal_halved: bool = False
    """Attention of the prompt counts only the pairs a causal mask leaves."""
    head_all_positions: bool = False
    """Prefill runs the output head on every position."""
    cache_element_bytes: Bytes | None = None
    """Size of one cached element; ``None``: that of a parameter."""
    unquantised_bytes: dict[str, Bytes] = field(default_factory=dict)
    """Phase → weights it would read, ``all`` → weights there would be, were they not quantised; empty where they are not."""


@dataclass(slots=True)
class Static:
    """The static model at the shapes of this run."""

    params: Params
    kv_bytes_per_token: Bytes | None
    """Key and value of all layers for one position and one sequence."""
    phases: dict[str, StaticPhase]
    """``vision``, ``encode``, ``prefill``, ``decode`` (decode: one step at the mean context)."""
    modules: list[StaticModule]
    """The module tree, in order."""
    coverage: Coverage
    conventions: dict[str, str]
    """How things were counted: ``mac``, ``attention``, ``head_positions``, …"""
    components: dict[str, dict[str, Flops]] = field(default_factory=dict)
    """Component label → phase → FLOPs."""
    resident_bytes: dict[str, Bytes] = field(default_factory=dict)
    """What must be in memory: ``weights``, ``kv_cache``, ``activations``, and their ``total``."""
    source: str | None = None
    """File the numbers come from."""
    scaling: Scaling | None = None
    """How the numbers change with batch, context and data type; ``None`` when they were not counted."""
    quantisation: Quantisation | None = None
    """How a quantised checkpoint keeps its weights; ``None`` for one that is not."""
    operators: OperatorShapes | None = None
    """Products, attention, experts and element-wise work by shape; ``None`` where they were not counted."""


@dataclass(slots=True)
class Prediction:
    """Roofline floor of a phase, made before the run and graded after it."""

    floor_s: SummedSeconds
    """No machine with these limits can be faster."""
    bound: Literal["compute", "memory", "launch"]
    """Which limit sets the floor."""
    error_ratio: Ratio | None
    """Measured ÷ floor; ``None`` when nothing was measured."""
    arithmetic: str = ""
    """The floor, spelled out."""
    flops: Flops | None = None
    """The work it is the floor of."""
    bytes: Bytes | None = None
    """Weights and cache that work must move."""


@dataclass(slots=True)
class Utilisation:
    """How much of the hardware a phase used."""

    mfu_ratio: Ratio | None = None
    """Model FLOPs ÷ (wall-clock × dense peak)."""
    mbu_ratio: Ratio | None = None
    """Bytes the model must move ÷ (wall-clock × bandwidth)."""
    device_busy_ratio: Share | None = None
    """Union of device activity ÷ wall-clock."""
    arithmetic: str | None = None
    """The numbers that went in, with the denominator's source."""
    mfu_reached_ratio: Ratio | None = None
    """``mfu_ratio`` with the best measured rate of the device (``hardware.reached_flops_per_s``) in place of the peak."""
    mbu_reached_ratio: Ratio | None = None
    """``mbu_ratio`` with the best measured bandwidth (``hardware.reached_bandwidth_bytes_per_s``)."""


@dataclass(slots=True)
class BudgetPart:
    """One share of a phase's wall-clock."""

    name: str
    """``compute``, ``communication``, ``copy`` (the device works); ``sync``, ``launch``, ``host``, ``queue`` (it does not)."""
    seconds: SummedSeconds
    """Its length."""
    share_ratio: Share
    """Of the span."""
    owner: IdleOwner | None = None
    """Idle parts: what the thread that feeds the device was doing for most of it."""


@dataclass(slots=True)
class Budget:
    """A phase's wall-clock, split without overlap: the parts sum to the span. With several devices: their mean."""

    span_s: SummedSeconds
    parts: list[BudgetPart]
    source: str | None = None
    """File the numbers come from."""
    profiled_span_s: SummedSeconds | None = None
    """Where ``span_s`` is a wall-clock without a profiler: the same work under the profiler."""
    inflation_ratio: Ratio | None = None
    """``profiled_span_s`` ÷ ``span_s``: how much the profiler slowed it down."""


@dataclass(slots=True)
class Operator:
    """One operator of the torch profiler, summed over its calls."""

    name: str
    """``aten::mm``."""
    calls: Count
    """How often it ran."""
    self_cpu_s: SummedSeconds
    """Host time without its children."""
    total_cpu_s: SummedSeconds
    """Host time with its children, nested calls of itself counted once."""
    self_device_s: SummedSeconds | None
    """Device time of the kernels it launched itself; ``None`` without a device in the trace."""
    total_device_s: SummedSeconds | None
    """Device time of the kernels it and its children launched."""
    phase: str | None = None
    """Phase, when the table is split by phase."""
    share_ratio: Share | None = None
    """Self time ÷ self time of all operators of the phase, on the processor that ``share_of`` names."""
    share_of: Literal["device", "host"] | None = None
    """``device`` where any operator of the phase has device time, else ``host``."""
    run_share_ratio: Share | None = None
    """Share of the run: ``share_ratio`` × the phase's share of a sample's wall-clock; where phases were not timed,
    self time ÷ self time of all operators."""


@dataclass(slots=True)
class Kernel:
    """One kernel (by full name and phase), summed over its launches."""

    name: str
    """Full demangled name."""
    short_name: str
    """Readable name."""
    family: str
    """``gemm``, ``attention``, …; ``other`` when no rule matched."""
    phase: str | None
    """Phase of the launching call; ``None`` when the capture does not tell."""
    module: str | None
    """Innermost module range, when captured."""
    launches: Count | None
    """How often it ran; ``None`` when only profiled by sampling single launches."""
    total_s: SummedSeconds | None
    """Device time summed over launches."""
    share_ratio: Share | None
    """Of all kernel time."""
    bound: str | None = None
    """Our class from the counters: compute, l1, l2, dram, latency, underfilled, …"""
    vendor_verdict: str | None = None
    """NVIDIA's own rule verdict, in its words."""
    counters: dict[str, Ratio | None] = field(default_factory=dict)
    """``duration_s``, ``intensity_flops_per_byte``, ``achieved_flops_per_s``, ``compute_ratio``, ``dram_ratio``, …"""
    estimated_speedup_ratio: Share | None = None
    """NVIDIA's best estimate of the share of this kernel's time that could be saved."""
    agreement: str | None = None
    """Whether our class and NVIDIA's verdict agree."""
    profiled: ProfiledLaunches | None = None
    """The launches behind ``counters`` next to those of the run; ``None`` without counters."""
    target: KernelTarget | None = None
    """The best and median measured time of its shapes on its device; ``None`` where shape or device is in no table."""

    @property
    def counters_stand_for_run(self) -> bool:
        """Whether the counters may be used to judge the run; what is not known to be wrong may."""
        return self.profiled is None or self.profiled.representative is not False


@dataclass(slots=True)
class KernelFamily:
    """All kernels of one family, summed."""

    family: str
    kernels: Count
    """Different kernels, by full name."""
    launches: Count | None
    """How often they ran; ``None`` when no capture counts launches."""
    total_s: SummedSeconds | None
    """Device time; ``None`` when no capture has a time for them."""
    share_ratio: Share | None
    """Of all kernel time."""


@dataclass(slots=True)
class LedgerRow:
    """One module in one phase, joined from all sources."""

    module: str
    """Dotted path or component label."""
    phase: str
    depth: Depth = 0
    """Depth in the tree."""
    params: Count | None = None
    flops: Flops | None = None
    """Static FLOPs of the phase at this run's shapes; in decode of one step, as all numbers of the row."""
    bytes: Bytes | None = None
    """Weights it must read."""
    floor_s: SummedSeconds | None = None
    """Roofline floor."""
    measured_s: SummedSeconds | None = None
    """Best available measurement."""
    measured_source: str | None = None
    """``hooks``: wall-clock of un-profiled passes; ``timeline``: device time of a capture; ``profiler``: the phase's
    wall-clock split by the profiler's shares (work on a CPU)."""
    device_s: SummedSeconds | None = None
    """Device time attributed to it."""
    launches: Count | None = None
    """Kernel launches attributed to it."""
    mfu_ratio: Ratio | None = None
    mbu_ratio: Ratio | None = None
    others_s: dict[str, SummedSeconds] = field(default_factory=dict)
    """The same time by other sources."""
    disagreement: str | None = None
    """Set when sources differ by more than the tolerance."""


@dataclass(slots=True)
class CoverageSummary:
    """How much of the run the report explains; none can exceed 1."""

    time_attributed_ratio: Share | None = None
    """Device time that belongs to a phase."""
    kernel_time_classified_ratio: Share | None = None
    """Kernel time whose family is known."""
    flops_counted_ratio: Share | None = None
    """From the static model."""


@dataclass(slots=True)
class Verdict:
    """What limits a phase, and why we say so."""

    bound: Bound
    arithmetic: str
    """The comparison that decided it, with numbers."""
    evidence: list[str]
    """Facts and their source files."""
    lever: str | None = None
    """What would move it."""


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
    gain_share_ratio: Share | None = None
    """``gain_upper_s`` as a share of what ``gain_of`` names."""
    gain_of: str | None = None
    """``a sample's wall-clock``, or the captured time where nothing was timed without a profiler."""
    improve_command: str | None = None
    """Command that tries the remedies of this finding on the same configuration; null: none is known, or the run cannot be
    repeated."""
    track_record: str | None = None
    """How often the remedies of this finding helped in earlier searches on this machine; null: none was made."""


@dataclass(slots=True)
class VendorRule:
    """One of NVIDIA's rules about a kernel, turned into time."""

    kernel: str
    """Readable kernel name."""
    phase: str | None
    rule: str
    """Name of the rule in Nsight Compute."""
    text: str
    """NVIDIA's words."""
    estimated_ratio: Share | None
    """Share of the kernel's time NVIDIA estimates could be saved."""
    share_ratio: Share | None
    """The kernel's share of the phase's wall-clock."""
    gain_upper_s: SummedSeconds | None
    """Estimate × share × (the phase's part of the time to first token, time per output token, else per sample)."""
    arithmetic: str


@dataclass(slots=True)
class WhatIf:
    """The same model elsewhere: floors no machine can beat, and times to expect."""

    device: str
    dtype: str
    batch_size: Count
    context_tokens: Count
    ttft_floor_s: SummedSeconds | None
    tpot_floor_s: SummedSeconds | None
    tokens_per_s: PerSecond | None
    """Upper bound over the batch (1/s)."""
    fits: bool | None
    """Whether weights and KV cache fit the device's memory."""
    note: str | None = None
    """What bounds a step there, and what it needs."""
    memory_bytes: Bytes | None = None
    """Size of the device's memory."""
    floor_term: Literal["compute", "memory", "launch"] | None = None
    """Which term sets the floor of a step (without one, that of the first token)."""
    launch_graph_s: SummedSeconds | None = None
    """Term of launching in the floor of a step: products and attention as nodes of a graph."""
    launch_eager_s: SummedSeconds | None = None
    """The same with every operator launched one by one, at a measured or typical cost: beside the floor, not in it."""
    prompt_tokens: Count | None = None
    """Positions of the prompt up to the first token."""
    tensor_parallel: Count = 1
    """Devices that share every layer among them."""
    ttft_expected_s: SummedSeconds | None = None
    """Time to the first token as measured operators add up to it, launched as graphs."""
    tpot_expected_s: SummedSeconds | None = None
    """The same of a decode step."""
    ttft_expected_eager_s: SummedSeconds | None = None
    """The same launched one by one: the longer of the device's work and the launches."""
    tpot_expected_eager_s: SummedSeconds | None = None
    """The same of a decode step."""
    measured_share_ratio: Share | None = None
    """Share of the expected time of a step (without one, of the first token) that rests on measured shapes and those between
    them; the rest is extrapolated or a roofline at a stated share of the limits."""
    tokens_per_s_expected: PerSecond | None = None
    """Over the batch, at the expected time of a step (1/s)."""
    tokens_per_s_per_w: PerSecond | None = None
    """The same ÷ the power limit of the devices."""
    expected_source: str | None = None
    """Frameworks and versions whose kernels were measured."""


@dataclass(slots=True)
class SiliconUse:
    """The measured operator tables that expected times rest on."""

    version: str | None
    """Of the package that holds them; ``None``: it is not installed."""
    framework: str | None = None
    """Whose kernels are taken first."""
    problems: list[str] = field(default_factory=list)
    """Tables and rows that were left out, and why."""


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


@dataclass(slots=True)
class MemoryUse:
    """Memory of one phase, and what the static model says it needs."""

    peak_bytes: ChangedBytes
    """The most in use at one time; of what, says ``counts``."""
    begin_bytes: ChangedBytes | None = None
    """In use when the phase began."""
    end_bytes: ChangedBytes | None = None
    """In use when the phase ended."""
    reserved_bytes: Bytes | None = None
    """The most that was held for it: an accelerator's allocator keeps more than is in use; on a CPU all memory of the
    process, Python and its libraries included."""
    predicted_bytes: Bytes | None = None
    """What the static model says: the sum of ``predicted``; ``None`` where ``peak_bytes`` counts something else."""
    predicted: dict[str, Bytes] = field(default_factory=dict)
    """``weights``, ``kv_cache`` and, where the phase's are known, ``activations`` (those of the largest operator)."""
    counts: MemoryCounts | None = None
    """``allocator``: all that the device's allocator holds; ``process``: what the process gained since before the model was
    built; ``None``: from the profiler, on a CPU what was allocated since the pass began."""


@dataclass(slots=True)
class EnergyUse:
    """Energy of the measured passes, in joules: prompt, answer and what lies between them."""

    per_token: Ratio | None = None
    """÷ generated tokens, all sequences of a batch."""
    per_sample: Ratio | None = None
    """÷ samples."""
    total: Ratio | None = None
    """From the begin of the first measured pass to the end of the last one."""
    source: str | None = None
    """``counter``: the meter's own; ``power``: power summed over time."""


@dataclass(slots=True)
class TelemetrySeries:
    """One quantity over time, thinned to a few hundred points."""

    name: str
    """``clock_hz``, ``power_w``, ``temperature_c``, ``memory_bytes``."""
    points: list[tuple[Ratio, Ratio | None]] = field(default_factory=list)
    """(Seconds since the first measured pass began, value); ``None``: not told at that moment."""


@dataclass(slots=True)
class Telemetry:
    """What the device told of itself during the measured passes; ``None``: it did not, and ``notes`` say why."""

    clock_hz: Stat | None = None
    """Clock of the compute units, over the samples."""
    power_w: Stat | None = None
    """Power of the device (a CPU: all its packages, whoever uses them), over the samples."""
    temperature_c: Stat | None = None
    """Temperature of the chip in °C, over the samples."""
    energy_j: EnergyUse = field(default_factory=EnergyUse)
    throttled: list[str] = field(default_factory=list)
    """Reasons for which the clock, or the processor time, was held down in at least one sample, the most frequent first."""
    throttled_ratio: dict[str, Share] | None = None
    """Reason → share of the samples; ``None``: the device does not tell reasons."""
    memory_bytes: Stat | None = None
    """Memory in use: of the whole device, on a CPU of the process."""
    clock_max_hz: Rate | None = None
    """The highest clock the device allows."""
    power_limit_w: Rate | None = None
    """The limit in force."""
    device: str | None = None
    """As the reader names it."""
    reader: str | None = None
    """``nvidia-ml``, ``amdsmi`` or ``linux`` (RAPL, cpufreq, thermal zones, /proc)."""
    samples: Count = 0
    """Samples inside the measured passes."""
    interval_s: SummedSeconds | None = None
    """Time between two samples, in the end."""
    span_s: SummedSeconds | None = None
    """From the begin of the first measured pass to the end of the last one."""
    cost_ratio: Ratio | None = None
    """Processor time of the sampling ÷ the time it went on."""
    series: list[TelemetrySeries] = field(default_factory=list)


@dataclass(slots=True)
class Summary:
    """The root of ``summary.json``."""

    run: RunInfo
    environment: dict[str, Any]
    hardware: Hardware
    workload: Workload
    schema_version: str = SCHEMA_VERSION
    notes: list[str] = field(default_factory=list)
    """What the reader must know first, and why anything is missing."""
    coverage: CoverageSummary = field(default_factory=CoverageSummary)
    stages: dict[str, StageInfo] = field(default_factory=dict)
    timings: Timings = field(default_factory=Timings)
    wall_clock: Budget | None = None
    """One sample's wall-clock by phase (medians); ``None`` when nothing was timed."""
    samples: list[SampleTimes] = field(default_factory=list)
    """Every sample by itself, in the order measured; empty where only totals are known."""
    static: Static | None = None
    predictions: dict[str, Prediction] = field(default_factory=dict)
    utilisation: dict[str, Utilisation] = field(default_factory=dict)
    budget: dict[str, Budget] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    kernel_families: list[KernelFamily] = field(default_factory=list)
    """The same kernels summed by family, the longest first."""
    ledger: list[LedgerRow] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    counters: CounterConditions | None = None
    """How the hardware counters were measured; ``None`` without any."""
    vendor_rules: list[VendorRule] = field(default_factory=list)
    """NVIDIA's rules, the largest possible gain first; gains of one kernel do not add up."""
    what_if: list[WhatIf] = field(default_factory=list)
    silicon: SiliconUse | None = None
    """Measured operator tables behind the expected times of ``what_if``; ``None`` where nothing was priced."""
    repeat_spread: dict[str, Stat] = field(default_factory=dict)
    """Phase → time of each repeat ÷ median of the same sample's repeats (no unit): how noisy the machine was."""
    sources: dict[str, str] = field(default_factory=dict)
    """Source kind (``nsys``, ``ncu``, ``trace``, ``static``, ``timings``) → file."""
    timeline: dict[str, Any] = field(default_factory=dict)
    """One decode step, ready to draw: ``{phase, span_s, lanes: [{name, events: [{name, start_s, end_s, family}]}]}``."""
    metrics: dict[str, Number | None] = field(default_factory=dict)
    """Further named scalars (``launches_per_token``, ``graph_kernel_time_ratio``, …), unit in the name; those of engines'
    traces: ``docs/engines.md``."""
    sections: list[Section] = field(default_factory=list)
    """What stages say in their own words, plug-ins included, in pipeline order."""
    devices: list[DeviceUse] = field(default_factory=list)
    """Every device of the captures by itself."""
    ranks: list[RankUse] = field(default_factory=list)
    """Every rank by itself, where ranks are known."""
    communication: Communication | None = None
    """Collectives between devices; ``None`` when no capture holds one."""
    idle_gaps: list[IdleGap] = field(default_factory=list)
    """The longest stretches in which a device ran nothing, the longest first."""
    cpu_work: dict[str, CpuWork] = field(default_factory=dict)
    """Phase → what the processor does in it, where the work runs on the processor itself."""
    memory: dict[str, MemoryUse] = field(default_factory=dict)
    """Phase → memory in use, where it was watched; ``all`` is the whole pass."""
    telemetry: Telemetry | None = None
    """Clock, power, temperature and energy beside the measured passes; ``None`` without the telemetry stage."""
