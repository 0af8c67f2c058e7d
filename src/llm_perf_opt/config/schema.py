"""The configuration as types. Values come from ``conf/``; names, types, ranges and meaning are fixed here.

A stage's own keys (``pipeline.<stage>.*``) are declared by the stage, next to its code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from llm_perf_opt.core.stage import StageConfig


class RunMode(StrEnum):
    """How thorough a run is."""

    deep = "deep"
    """Everything as configured."""
    light = "light"
    """A quick look: one repeat of one sample, and the torch profiler without shapes, stacks and memory."""


class Weights(StrEnum):
    """Where the weights come from."""

    auto = "auto"
    """Real when ``model.path`` is given, else random."""
    real = "real"
    random = "random"


class Dtype(StrEnum):
    """Data type of weights and activations."""

    auto = "auto"
    """bfloat16 on a GPU that has it, float16 on older GPUs, float32 on CPU."""
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class CacheKind(StrEnum):
    """Key-value cache implementation."""

    dynamic = "dynamic"
    """Grows by copying: old and new keys and values are joined in a new tensor for every token."""
    preallocated = "preallocated"
    """Room for the whole answer; tokens are written in place, attention sees what is filled."""
    static = "static"
    """Room for the whole answer, all of which attention sees, behind a mask: shapes stay the same, as compiling needs."""


class CacheDtype(StrEnum):
    """Data type keys and values are kept in; attention computes in the model's own."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float8 = "float8"
    """Four bits of exponent, three of mantissa (e4m3)."""


class ImageMode(StrEnum):
    """DeepSeek-OCR resolution modes."""

    tiny = "tiny"
    small = "small"
    base = "base"
    large = "large"
    gundam = "gundam"
    custom = "custom"
    """Take ``infer.base_size``, ``infer.image_size`` and ``infer.crop_mode`` as they are."""


class CompileMode(StrEnum):
    """``mode`` of ``torch.compile``, with underscores."""

    default = "default"
    reduce_overhead = "reduce_overhead"
    max_autotune = "max_autotune"
    max_autotune_no_cudagraphs = "max_autotune_no_cudagraphs"


class MatmulPrecision(StrEnum):
    """``torch.set_float32_matmul_precision``: what products of float32 may round to."""

    highest = "highest"
    high = "high"
    medium = "medium"


class SdpaBackend(StrEnum):
    """Implementation of ``scaled_dot_product_attention``."""

    math = "math"
    flash = "flash"
    efficient = "efficient"
    cudnn = "cudnn"


class WeightFormat(StrEnum):
    """Weight-only quantisation, made when the model is loaded."""

    int8 = "int8"
    int4 = "int4"
    float8 = "float8"


class SiliconTables(StrEnum):
    """Measured operator tables of the extra ``silicon``."""

    auto = "auto"
    """Used where they are installed, vLLM's kernels first."""
    off = "off"
    """Not used: no expected times and no kernel targets."""
    vllm = "vllm"
    """This framework's kernels first; another answers where it has no table that reaches a shape."""
    sglang = "sglang"
    trtllm = "trtllm"


@dataclass
class ModelConfig:
    """``model.*``: which model, at which size, with which weights."""

    adapter: str = "deepseek_ocr"
    """Entry point of the group ``llm_perf_opt.models``, ``package.module:Class``, or ``auto``: what fits ``config.json``."""
    name: str = "model"
    """Name in reports."""
    arch: dict[str, Any] = field(default_factory=dict)
    """Dimensions, in the words of the adapter (transformers config keys)."""
    path: str | None = None
    """Checkpoint directory, or a hub name when the machine may download."""
    config_name: str | None = None
    """A config file (``config.json``) or a built-in preset name to build random weights from."""
    revision: str | None = None
    """Pinned hub revision."""
    weights: Weights = Weights.auto
    dtype: Dtype = Dtype.auto
    attn_implementation: str | None = None
    """``sdpa``, ``eager``, ``flash_attention_2``, ``flex_attention``; null: the model's default."""
    sdpa_backend: SdpaBackend | None = None
    """The implementation that ``sdpa`` uses, in all phases; null: torch chooses for each call."""
    experts_implementation: str | None = None
    """``grouped_mm``, ``batched_mm``, ``eager``; null: the model's default."""
    decode_experts_implementation: str | None = None
    """The same for decode alone, where few positions meet the experts; null: as ``model.experts_implementation``."""
    prefill_experts_implementation: str | None = None
    """The same for prefill alone; null: as ``model.experts_implementation``."""
    compile_vision: bool = False
    """Compile the vision encoder with ``torch.compile``, once for each shape of a page."""
    compile_prefill: bool = False
    """Compile the decoder with ``torch.compile`` for the prefill too. From the second prompt length on the length is a variable
    of the compiled code."""
    channels_last: bool = False
    """Keep the weights of convolutions with their channels last."""
    quantise_weights: WeightFormat | None = None
    """Store the weights of linear layers in fewer bits (needs torchao); null: as they are."""
    compile: bool = False
    """Compile the decode step with ``torch.compile`` in the warm-up, once for each shape; caches come in a few lengths, so
    that prompts share them. Needs ``model.cache=static``;
    a mixture of experts then decodes with batched products, unless ``model.experts_implementation`` says otherwise."""
    compile_mode: CompileMode = CompileMode.default
    """How ``model.compile`` compiles: ``reduce_overhead`` replays CUDA graphs that torch makes itself, ``max_autotune`` also
    measures several kernels for each product, ``max_autotune_no_cudagraphs`` only that. The longer the mode, the longer compiling."""
    compile_freezing: bool = False
    """Compile the decode step with its weights as constants, laid out for this processor: a second copy of the weights."""
    cuda_graphs: bool = False
    """Capture the decode step as a CUDA graph in the warm-up and replay it for every token: one launch instead of hundreds.
    With or without ``model.compile``. Needs a CUDA or ROCm device and ``model.cache=static``."""
    matmul_precision: MatmulPrecision | None = None
    """Rounding of float32 products: ``high`` uses TF32 on GPUs that have it, ``medium`` bfloat16; null: torch's own (``highest``)."""
    cudnn_benchmark: bool = False
    """Let cuDNN measure its convolutions and take the fastest, once for each shape."""
    cache: CacheKind = CacheKind.dynamic
    """``dynamic`` grows by copying for every token; ``preallocated`` has room for the whole answer and is written in place;
    ``static`` also keeps all shapes the same behind a mask, as compiling needs."""
    cache_dtype: CacheDtype | None = None
    """Keep keys and values in fewer bits: less memory, and one conversion of what attention reads in every step; null: in
    ``model.dtype``."""
    draft_path: str | None = None
    """Checkpoint of a draft model (smaller, the same vocabulary) for speculative decoding (``infer.draft_tokens``)."""
    trust_remote_code: bool = False
    """Run code that comes with a checkpoint. Needs a local path or a pinned revision."""
    seed: int = 0
    """Seed of random weights."""


@dataclass
class InferConfig:
    """``infer.*``: what is asked of the model."""

    max_new_tokens: int = 32
    """Generated tokens per sample (>= 1)."""
    ignore_eos: bool | None = None
    """Go on after end-of-sequence. null: only with random weights, whose stopping means nothing."""
    no_repeat_ngram_size: int = 0
    """Ban repeated n-grams of this length; 0: off."""
    prompt: str = "<image>\n<|grounding|>Convert the document to markdown."
    """Asked of every image; ``<image>`` marks the place of the image. A chat template of a vision-language model puts it itself."""
    batch_size: int = 1
    chat_template: bool = True
    """Use the tokenizer's chat template when it has one (text models)."""
    mode: ImageMode = ImageMode.gundam
    base_size: int = 1024
    """Side of the global view in pixels; set by ``mode`` unless it is ``custom``."""
    image_size: int = 640
    """Side of a tile in pixels; set by ``mode`` unless it is ``custom``."""
    crop_mode: bool = True
    """Cut large pages into tiles; set by ``mode`` unless it is ``custom``."""
    inference_mode: bool = False
    """Run under ``torch.inference_mode`` instead of ``no_grad``: less bookkeeping per operator."""
    pinned_inputs: bool = False
    """Prepare inputs in page-locked memory and copy them to the device from there."""
    pad_to_multiple: int | None = None
    """Fill prompts up to a multiple of this many positions, so that requests of about the same length have the same shape."""
    prompt_lookup_tokens: int = 0
    """Speculative decoding by prompt lookup: propose so many tokens that followed the same n-gram earlier in prompt or output, and
    check them in one forward pass (greedy outputs stay the same up to rounding); 0: off. Needs ``infer.batch_size=1`` and a cache
    that is not static."""
    draft_tokens: int = 0
    """The same with tokens that the draft model (``model.draft_path``) generates; 0: off."""
    bucket_by_length: bool = False
    """Make batches of requests of similar length, so that fewer positions are padding; answers keep their names."""
    max_tiles: int = 9
    """Most tiles a page is cut into (9 in the published code, 6 in its vLLM port)."""
    warmup_rounds: int = 1
    """Full runs of the first batch before anything is measured; with ``model.compile`` or ``model.cuda_graphs``, of one batch of
    every shape, at least two."""
    verify_tokens: bool = True
    """After measuring, check the first tokens of the first batch, and their logits, against the model's own generate(): two
    prefills and a few steps. The result is in the summary (workload.tokens_verified), with a note."""


@dataclass
class SamplingConfig:
    """``dataset.sampling.*``: which samples, in which order."""

    num_epochs: int = 1
    """How often the data set is gone through."""
    num_samples_per_epoch: int | None = None
    """Samples of each epoch; null: all."""
    randomize: bool = False
    """Shuffle each epoch (seed + epoch)."""
    seed: int = 0


@dataclass
class GeneratedConfig:
    """``dataset.generated.*``: pages made when no ``dataset.root`` is given."""

    pages: int = 3
    seed: int = 0
    max_side: int = 1754
    """Longest page side in pixels."""
    cache_dir: str | None = None
    """null: the user's cache directory."""


@dataclass
class GeneratedAudioConfig:
    """``dataset.generated_audio.*``: sounds made when no ``dataset.root`` is given (speech models)."""

    clips: int = 2
    """How many clips."""
    seconds: float = 10.0
    """Length of each."""
    seed: int = 0


@dataclass
class DatasetConfig:
    """``dataset.*``: where samples come from."""

    adapter: str = "omnidocbench"
    """Entry point of the group ``llm_perf_opt.datasets``, ``package.module:Class``, or ``auto``: what the model reads."""
    root: str | None = None
    """Data set directory; null: generated pages (images), synthetic prompts (text) or generated clips (audio)."""
    subset_filelist: str | None = None
    """Text file of image names, one per line: absolute, relative to the root, or bare names."""
    fallback_patterns: list[str] = field(
        default_factory=lambda: ["images/*.png", "images/*.jpg", "images/*.jpeg", "*.png", "*.jpg"]
    )
    """Globs below the root, tried in order when there is no file list; the first that matches is used."""
    prompts: list[str] | None = None
    """Inline prompts (text models)."""
    prompts_file: str | None = None
    """One prompt per line, or JSON lines with a ``prompt`` key (text models)."""
    synthetic_tokens: int | None = None
    """Length of made-up prompts, in tokens (text models)."""
    synthetic_count: int = 2
    """How many made-up prompts."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    generated: GeneratedConfig = field(default_factory=GeneratedConfig)
    generated_audio: GeneratedAudioConfig = field(default_factory=GeneratedAudioConfig)


@dataclass
class RunConfig:
    """``run.*``: how the run goes."""

    mode: RunMode = RunMode.deep
    device: str = "auto"
    """``auto`` (the accelerator torch offers, else the CPU), ``cpu``, ``cuda`` or ``cuda:N`` (ROCm too), ``xpu`` or ``xpu:N``,
    ``mps``, or a device of an installed torch backend."""
    repeats: int | None = None
    """Measured passes over the samples, exactly so many. null: four, and more until one of the next two is met."""
    target_interval_ratio: float = 0.05
    """With ``repeats: null``, enough: the 95 % interval of a pass's time is this narrow (its width ÷ the time)."""
    max_measure_s: float = 10.0
    """With ``repeats: null``, no repeat is begun that would end after this many seconds of measuring."""
    dataset_subset_filelist: str | None = None
    """Same as ``dataset.subset_filelist``, and wins over it."""
    top_n_kernels: int = 30
    """How many kernels Nsight Compute looks at."""
    representative_max_new_tokens: int | None = None
    """Decode length under profilers and captures; null: ``infer.max_new_tokens``."""
    threads: int | None = None
    """CPU threads of torch; null: torch's default."""
    phase_threads: dict[str, int] = field(default_factory=dict)
    """CPU threads of torch in single phases (``run.phase_threads.decode=1``); the others have ``run.threads``."""
    interop_threads: int | None = None
    """Threads of torch that run independent operators side by side; null: torch's default."""
    affinity: str | None = None
    """Processors this run may use, as Linux lists them: ``0-3,8``; null: as started."""
    memory_nodes: str | None = None
    """NUMA nodes whose memory this run may use, as Linux lists them: ``0``, ``0-1``; null: as started."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables that libraries read when a process starts (``OMP_WAIT_POLICY``, ``MALLOC_ARENA_MAX``,
    ``LD_PRELOAD``): the run starts itself again with them."""
    nvtx_modules: bool = False
    """Also emit one range per module (costs time; for attribution of captures)."""
    ranks: int = 1
    """Processes one model is split over (tensor parallel); more than one: the run starts them with ``torchrun``. A run that
    ``torchrun`` started has as many as that says."""
    ranks_timeout_s: float = 300.0
    """Longest a rank waits for another before it gives up, and rank 0 for the end of the others."""
    exclusive: bool = True
    """Wait until no other run of this tool measures on the same device (GPU, or set of CPUs), and hold it meanwhile."""
    sinks: list[str] = field(default_factory=list)
    """Where the finished run is also sent: entry points of the group ``llm_perf_opt.sinks`` (``mlflow``)."""


@dataclass
class ArtifactsConfig:
    """``artifacts.*``"""

    runs_dir: str = "???"
    """Directory of this run; made absolute."""


@dataclass
class HardwareConfig:
    """``hardware.*``: what utilisation is measured against."""

    device: str | None = None
    """Name in the catalogue, when the detected one is not wanted."""
    catalogue: str | None = None
    """YAML file with further devices."""
    probe: bool = True
    """Measure this machine's own ceilings (seconds, cached)."""
    silicon: SiliconTables = SiliconTables.auto
    """Measured operator tables behind expected times and kernel targets (extra ``silicon``): ``auto``, ``off``, or the framework
    whose kernels are taken first."""


@dataclass
class SweepConfig:
    """``sweep.*``: what the jobs of a ``--multirun`` tell whoever chooses them."""

    objective: list[str] = field(default_factory=list)
    """Metrics a job returns to the sweeper (``hydra/sweeper=optuna``): ``tpot``, ``tokens_per_s``, ``peak_bytes``, …"""


@dataclass
class WorkloadCommandConfig:
    """``pipeline.workload.*``: the program that nsys and ncu watch."""

    command: list[str] | None = None
    """Argument list of your own program; null: the built-in workload. With one, stages that run the built-in
    workload are skipped, and the report is about your program alone."""
    name: str | None = None
    """What reports call your program; null: the name of its file."""
    repeats: int = 3
    """How often your program is run and timed without a tool before the captures; 0: not at all."""
    timeout_s: float = 1800.0
    """Time limit of one capture, and of one run of your program without a tool."""
    env: Any = None
    """Variables for the captured program in addition to the allow-listed ones: names to hand on, or names and values.
    Captures store them."""


SECTIONS: dict[str, type] = {
    "run": RunConfig,
    "artifacts": ArtifactsConfig,
    "model": ModelConfig,
    "infer": InferConfig,
    "dataset": DatasetConfig,
    "hardware": HardwareConfig,
    "sweep": SweepConfig,
}
"""Sections of the configuration other than ``pipeline``."""


@dataclass
class AppConfig:
    """The whole configuration, checked."""

    run: RunConfig
    artifacts: ArtifactsConfig
    model: ModelConfig
    infer: InferConfig
    dataset: DatasetConfig
    hardware: HardwareConfig
    workload_command: WorkloadCommandConfig
    pipeline: dict[str, StageConfig]
    """Stage name → its own dataclass."""
    sweep: SweepConfig = field(default_factory=SweepConfig)
    resolved_device: str = "cpu"
    """``run.device`` after ``auto`` is settled: ``cpu``, ``cuda:N``, ``xpu:N``, ``mps``, …"""
