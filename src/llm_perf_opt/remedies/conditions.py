"""Reasons why a remedy does not apply: device, model, versions, memory, or existing settings. ``None``: it applies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llm_perf_opt.config.hydra_bridge.values import override
from llm_perf_opt.config.schema import CacheDtype, CacheKind, CompileMode, Dtype, ImageMode
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.remedies.base import Options, Situation
from llm_perf_opt.workloads.devices import missing_compiler
from llm_perf_opt.workloads.rank_group import processors
from llm_perf_opt.workloads.registry import load_adapter

# The settings a remedy tries where they depend on the machine, the model or the baseline.


_ATTENTION_GPU: tuple[str, ...] = (
    "sdpa",
    "flash_attention_4",
    "flash_attention_3",
    "flash_attention_2",
    "flex_attention",
    "eager",
)
_ATTENTION_PACKAGES = {
    "flash_attention_2": "flash-attn",
    "flash_attention_3": "flash-attn-3",
    "flash_attention_4": "flash-attn-4",
}
_HUB_KERNELS = (
    "kernels-community/flash-attn3",
    "kernels-community/flash-attn2",
    "kernels-community/vllm-flash-attn3",
)
"""Attention kernels of the Hub; offered where the package ``kernels`` is installed and the kernel is downloaded already."""
_SDPA = ("flash", "cudnn", "efficient", "math")
_SDPA_CPU = ("flash", "math")
_DRAFT_TOKENS = (4, 8)
"""Draft tokens per pass: transformers uses ten for prompt lookup; fewer cost less where drafts are rejected."""
_ATTENTION_CPU: tuple[str, ...] = ("sdpa", "eager")
_EXPERTS = ("grouped_mm", "batched_mm", "eager")
_BATCHES = (2, 4, 8, 16, 32)
_MODES = ("large", "base", "small", "tiny")
"""From most pixels to fewest; gundam, which cuts tiles, has more than any."""
_PADDING = (8, 64)
"""The least that aligned loads of 2-byte elements need, and what suits tiles of matrix products."""
_ALLOCATORS = (
    "usr/lib/*/libjemalloc.so*",
    "usr/lib*/libjemalloc.so*",
    "usr/lib/*/libtcmalloc_minimal.so*",
    "usr/lib/*/libtcmalloc.so*",
    "usr/lib*/libtcmalloc*.so*",
)


def attention(situation: Situation) -> Options:
    """Every implementation but the one that runs; transformers' default is sdpa where supported."""
    names = _ATTENTION_CPU if situation.on_cpu else _ATTENTION_GPU
    missing = {
        name for name, package in _ATTENTION_PACKAGES.items() if situation.machine.version(package) is None
    }
    if missing_compiler(situation.config.resolved_device) is not None:
        missing.add("flex_attention")  # it is compiled where it runs
    current = situation.config.model.attn_implementation or "sdpa"
    found = [*names, *(() if situation.on_cpu else _downloaded_kernels(situation))]
    return [[f"model.attn_implementation={name}"] for name in found if name not in {current, *missing}]


def _downloaded_kernels(situation: Situation) -> list[str]:
    if situation.machine.version("kernels") is None:
        return []
    caches = (os.environ.get("HF_HUB_CACHE"), os.environ.get("HF_HOME") and f"{os.environ['HF_HOME']}/hub")
    folder = Path(next((each for each in caches if each), "~/.cache/huggingface/hub")).expanduser()
    return [
        name
        for name in _HUB_KERNELS
        if (folder / f"models--{name.replace('/', '--')}" / "snapshots").is_dir()
    ]


def sdpa_backends(situation: Situation) -> Options:
    """Every implementation that the device may have, but the one that is set."""
    chosen = situation.config.model.sdpa_backend
    names = _SDPA_CPU if situation.on_cpu else _SDPA
    return [[f"model.sdpa_backend={name}"] for name in names if chosen is None or name != chosen.value]


def prompt_lookup(situation: Situation) -> Options:
    """A few tokens at a time, or more."""
    return [[f"infer.prompt_lookup_tokens={count}"] for count in _DRAFT_TOKENS]


def draft_tokens(situation: Situation) -> Options:
    """The same for a draft model."""
    return [[f"infer.draft_tokens={count}"] for count in _DRAFT_TOKENS]


def bindings(situation: Situation) -> Options:
    """One processor of each core where cores have several; each NUMA node where there are several."""
    found: list[list[str]] = []
    cores = _one_per_core(situation)
    if situation.on_cpu and cores and len(cores) < situation.machine.cpus:
        found.append([override("run.affinity", _ranges(cores)), f"run.threads={len(cores)}"])
    nodes = _nodes(situation)
    if len(nodes) > 1:
        for number, cpus in nodes.items():
            bound = [override("run.affinity", cpus), override("run.memory_nodes", str(number))]
            found.append([*bound, f"run.threads={len(processors(cpus))}"] if situation.on_cpu else bound)
    return found


def _one_per_core(situation: Situation) -> list[int]:
    """Return the first processor of every core; empty where the kernel does not list them."""
    files = situation.machine.root.glob("sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list")
    return sorted({min(processors(file.read_text(encoding="ascii").strip())) for file in files})


def _nodes(situation: Situation) -> dict[int, str]:
    """Return the processors of every NUMA node that has some."""
    found: dict[int, str] = {}
    for file in sorted(situation.machine.root.glob("sys/devices/system/node/node[0-9]*/cpulist")):
        cpus = file.read_text(encoding="ascii").strip()
        if cpus:
            found[int(file.parent.name.removeprefix("node"))] = cpus
    return found


def _ranges(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def prefill_experts(situation: Situation) -> Options:
    """Every implementation but the one that runs; transformers' own default is grouped."""
    model = situation.config.model
    current = model.prefill_experts_implementation or model.experts_implementation or "grouped_mm"
    return [[f"model.prefill_experts_implementation={name}"] for name in _EXPERTS if name != current]


def decode_experts(situation: Situation) -> Options:
    """The same for decode, where few positions are routed to the experts."""
    model = situation.config.model
    # As in the adapter's decode: compiled or captured steps, and GPUs, use one batched product.
    batched = model.compile or model.cuda_graphs or not situation.on_cpu
    usual = "batched_mm" if batched else "grouped_mm"
    current = model.decode_experts_implementation or model.experts_implementation or usual
    return [[f"model.decode_experts_implementation={name}"] for name in _EXPERTS if name != current]


def threads(situation: Situation) -> Options:
    """Half of the processors, a quarter, an eighth, one; all of them where fewer are set."""
    current = situation.config.run.threads or situation.machine.cpus
    return [[f"run.threads={count}"] for count in _fewer(situation.machine.cpus) if count != current]


def decode_threads(situation: Situation) -> Options:
    """The same for decode alone: its products are small, and splitting one costs as much as computing a small one."""
    run, most = situation.config.run, situation.machine.cpus
    current = run.phase_threads.get("decode") or run.threads or most
    return [[f"run.phase_threads.decode={count}"] for count in _fewer(most) if count != current]


def _fewer(most: int) -> list[int]:
    """Return a small grid: small products are fastest with one thread, large ones with those of a shared cache or socket."""
    return list(dict.fromkeys(max(1, count) for count in (most, most // 2, most // 4, most // 8, 1)))


def batch_sizes(situation: Situation) -> Options:
    """Twice as many each time, as far as the samples go."""
    current, most = situation.config.infer.batch_size, situation.samples or 0
    sizes = [size for size in _BATCHES if current < size <= most]
    if current < most <= _BATCHES[-1] and most not in sizes:
        sizes.append(most)
    return [[f"infer.batch_size={size}"] for size in sizes]


def padding(situation: Situation) -> Options:
    """Multiples that suit loads and tiles of matrix products."""
    return [[f"infer.pad_to_multiple={multiple}"] for multiple in _PADDING]


def image_modes(situation: Situation) -> Options:
    """The modes of the model with fewer pixels than the one that runs."""
    current = situation.config.infer.mode.value
    smaller = (
        _MODES[_MODES.index(current) + 1 :] if current in _MODES else _MODES if current == "gundam" else ()
    )
    return [[f"infer.mode={mode}"] for mode in smaller if _is_mode(situation, mode)]


def _is_mode(situation: Situation, mode: str) -> bool:
    config = situation.config
    try:
        load_adapter(config.model, replace(config.infer, mode=ImageMode(mode)))
    except ConfigError:
        return False
    return True


def tiles(situation: Situation) -> Options:
    """Fewer tiles, down to the least."""
    most = situation.config.infer.max_tiles
    return [[f"infer.max_tiles={count}"] for count in (6, 4, 2) if count < most]


def affinity(situation: Situation) -> Options:
    """One thread per processor, bound, on all that this process may use."""
    return [["run.env.OMP_PROC_BIND='true'", "run.env.OMP_PLACES=cores"]]


def allocators(situation: Situation) -> Options:
    """The installed allocators, preloaded."""
    found = [situation.machine.first_file(pattern) for pattern in _ALLOCATORS]
    unique = dict.fromkeys(path for path in found if path is not None)
    return [[override("run.env.LD_PRELOAD", str(path))] for path in unique]


_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"


def not_on_cpu(situation: Situation) -> str | None:
    """For settings of the processor's own work."""
    return None if situation.on_cpu else "the device does the work, not the processor"


def no_threads(situation: Situation) -> str | None:
    """For choices among several processors."""
    if (reason := not_on_cpu(situation)) is not None:
        return reason
    return "this process may use one processor only" if situation.machine.cpus < 2 else None


def _no_decode(situation: Situation) -> str | None:
    """For remedies of the decode step."""
    return (
        "one token is generated: there is no decode step"
        if situation.config.infer.max_new_tokens < 2
        else None
    )


def _no_compiler(situation: Situation) -> str | None:
    """For everything that torch.compile does."""
    missing = missing_compiler(situation.config.resolved_device)
    return None if missing is None else f"torch.compile needs a compiler, and {missing} is not installed"


def compiled_already(situation: Situation) -> str | None:
    """For compiling the decode step."""
    if situation.config.model.compile:
        return "the decode step is compiled already"
    return _no_decode(situation) or _no_compiler(situation)


def cannot_compile_vision(situation: Situation) -> str | None:
    """For compiling the vision encoder."""
    return sees_nothing(situation) or _no_compiler(situation)


def cache_does_not_grow(situation: Situation) -> str | None:
    """For caches that do not grow by copying."""
    kind = situation.config.model.cache
    return None if kind is CacheKind.dynamic else f"model.cache={kind.value} does not grow by copying"


def static_already(situation: Situation) -> str | None:
    """For a cache of constant shape."""
    already = situation.config.model.cache is CacheKind.static
    return "the cache is static already" if already else _no_decode(situation)


def no_cuda_graphs(situation: Situation) -> str | None:
    """For CUDA graphs."""
    if situation.on_cpu:
        return "there is no GPU here"
    return "captured already" if situation.config.model.cuda_graphs else _no_decode(situation)


def cannot_compile_graphs(situation: Situation) -> str | None:
    """For compiling and capturing at once."""
    model = situation.config.model
    if model.compile and model.cuda_graphs:
        return "the decode step is compiled and captured already"
    if situation.on_cpu:
        return "there is no GPU here"
    return _no_decode(situation) or _no_compiler(situation)


def compile_modes(situation: Situation) -> Options:
    """On a GPU torch's own graphs, and measured kernels with ours; on a CPU measured kernels alone."""
    compiled = ["model.compile=true", "model.cache=static"]
    if situation.on_cpu:
        return [[*compiled, "model.compile_mode=max_autotune_no_cudagraphs"]]
    return [
        [*compiled, "model.compile_mode=reduce_overhead"],
        [*compiled, "model.compile_mode=max_autotune_no_cudagraphs", "model.cuda_graphs=true"],
    ]


def no_compile_modes(situation: Situation) -> str | None:
    """For modes of torch.compile."""
    if situation.config.model.compile_mode is not CompileMode.default:
        return f"model.compile_mode={situation.config.model.compile_mode.value} already"
    if situation.config.model.cuda_graphs:
        return "the decode step is captured already, and a mode may make graphs of its own"
    return _no_decode(situation) or _no_compiler(situation)


def cannot_freeze(situation: Situation) -> str | None:
    """For weights as constants: inductor lays them out for the processor; on GPUs their layout is unchanged."""
    if situation.config.model.compile_freezing:
        return "set already"
    if (reason := not_on_cpu(situation)) is not None:
        return reason
    weights, memory = situation.weight_bytes, situation.machine.memory_bytes
    if weights is not None and memory is not None and 2 * weights > memory:
        return "a second copy of the weights does not fit in memory"
    return _no_decode(situation) or _no_compiler(situation)


def no_tf32(situation: Situation) -> str | None:
    """For TF32: only products of float32 on an NVIDIA GPU are rounded to it."""
    if (reason := not_on_cuda(situation)) is not None:
        return reason
    if situation.config.model.matmul_precision is not None:
        return "set already"
    return None if situation.config.model.dtype is Dtype.float32 else "no product of this run is in float32"


def no_cudnn(situation: Situation) -> str | None:
    """For cuDNN's own measurements."""
    if situation.config.model.cudnn_benchmark:
        return "set already"
    return not_on_cuda(situation) or sees_nothing(situation)


def weight_formats(situation: Situation) -> Options:
    """Eight bits everywhere; four bits and float8 where torchao has kernels for them."""
    names = ["int8"] if situation.on_cpu else ["int8", "float8", "int4"]
    return [[f"model.quantise_weights={name}"] for name in names]


def sees_nothing(situation: Situation) -> str | None:
    """For remedies of the vision encoder."""
    return None if "vision" in _phases(situation) else "the model has no vision encoder"


def _phases(situation: Situation) -> Sequence[str]:
    if situation.phases is not None:
        return situation.phases
    return load_adapter(situation.config.model, situation.config.infer).phases


def no_smaller_mode(situation: Situation) -> str | None:
    """For modes of pages: the model must have several."""
    if (reason := sees_nothing(situation)) is not None:
        return reason
    if load_adapter(situation.config.model, situation.config.infer).tiling() is None:
        return "the model reads its pages in one way only"
    return None if image_modes(situation) else "no mode of the model has fewer pixels"


def cuts_no_tiles(situation: Situation) -> str | None:
    """For fewer tiles."""
    if (reason := sees_nothing(situation)) is not None:
        return reason
    tiling = load_adapter(situation.config.model, situation.config.infer).tiling()
    return None if tiling is not None and tiling.max_tiles > 0 else "pages are not cut into tiles"


def no_experts(situation: Situation) -> str | None:
    """For mixtures of experts."""
    return "the model has no routed experts" if situation.mixture is False else None


def half_precision_already(situation: Situation) -> str | None:
    """For bfloat16."""
    kind = situation.config.model.dtype
    if kind in (Dtype.bfloat16, Dtype.float16):
        return f"model.dtype={kind.value} already"
    if kind is Dtype.auto and not situation.on_cpu:
        return "model.dtype=auto is a half precision on this device already"
    return None


def narrow_cache_already(situation: Situation) -> str | None:
    """For a cache in half precision."""
    if situation.config.model.cache_dtype is not None:
        return f"model.cache_dtype={situation.config.model.cache_dtype.value} already"
    if half_precision_already(situation) is not None:
        return "keys and values are in half precision already"
    return _no_decode(situation)


def eight_bit_cache_already(situation: Situation) -> str | None:
    """For a cache of eight bits."""
    already = situation.config.model.cache_dtype is CacheDtype.float8
    return "set already" if already else _no_decode(situation)


def no_torchao(situation: Situation) -> str | None:
    """For weight-only quantisation."""
    if situation.machine.version("torchao") is None:
        return "torchao is not installed"
    return "quantised already" if situation.config.model.quantise_weights is not None else None


def no_larger_batch(situation: Situation) -> str | None:
    """For batches: the metric must be throughput, with enough samples."""
    if situation.metric not in ("tokens_per_s", "energy"):
        return "a larger batch makes each answer later; choose throughput: --metric tokens_per_s"
    if not batch_sizes(situation):
        return "no more samples to fill a larger batch (more: --samples, dataset.sampling, dataset.synthetic_count)"
    return None


def inference_mode_already(situation: Situation) -> str | None:
    """For inference mode."""
    return "set already" if situation.config.infer.inference_mode else None


def no_lengths_to_sort(situation: Situation) -> str | None:
    """For batches of similar length."""
    infer = situation.config.infer
    if infer.bucket_by_length:
        return "set already"
    if infer.batch_size < 2:
        return "one request at a time: nothing is padded"
    if situation.samples is not None and situation.samples <= infer.batch_size:
        return "all samples are in one batch"
    return None


def not_on_cuda(situation: Situation) -> str | None:
    """For settings of torch's allocator on GPUs."""
    return None if situation.config.resolved_device.startswith("cuda") else "there is no GPU here"


def no_decode_threads(situation: Situation) -> str | None:
    """For threads of decode apart from the other phases."""
    return no_threads(situation) or _no_decode(situation)


def padded_already(situation: Situation) -> str | None:
    """For padding: shapes matter to a compiled step, or if a finding reports it."""
    if situation.config.infer.pad_to_multiple is not None:
        return "set already"
    suggested = any(finding.id in ("misaligned-gemm", "far-from-measured") for finding in situation.findings)
    if not suggested and not situation.config.model.compile:
        return "only a compiled step, or products of odd sizes, gain by common lengths"
    return None


def copies_nothing(situation: Situation) -> str | None:
    """For page-locked inputs: the copy is part of preparing an input, which no time per answer contains."""
    if situation.on_cpu:
        return "inputs are not copied to a device here"
    if situation.metric != "energy":
        return f"--metric {situation.metric} does not contain the copy of the inputs"
    return "set already" if situation.config.infer.pinned_inputs else None


def no_allocator(situation: Situation) -> str | None:
    """For other allocators."""
    if (reason := not_on_cpu(situation)) is not None:
        return reason
    return None if allocators(situation) else "neither jemalloc nor tcmalloc is installed"


def no_huge_pages(situation: Situation) -> str | None:
    """For transparent huge pages: the kernel must allow madvise."""
    if (reason := not_on_cpu(situation)) is not None:
        return reason
    path = situation.machine.root / _HUGE_PAGES
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return "this kernel has no transparent huge pages"
    return None if "[madvise]" in text else f"the kernel does not leave them to programs ({text.strip()})"


# Reasons and advice of remedies that an experiment of this search cannot make, or not on this device.


def cannot_compile_prefill(situation: Situation) -> str | None:
    """For compiling the prefill."""
    if situation.config.model.compile_prefill:
        return "the prefill is compiled already"
    if "encode" in _phases(situation):
        return "the prompt is read by an encoder"
    return _no_compiler(situation)


def no_sdpa_choice(situation: Situation) -> str | None:
    """For implementations of sdpa: another attention does not use them."""
    chosen = situation.config.model.attn_implementation
    return None if chosen in (None, "sdpa") else f"model.attn_implementation={chosen} does not use it"


def no_speculation(situation: Situation) -> str | None:
    """For prompt lookup: one sequence, a cache that can be cut back, nothing of fixed shape."""
    infer, model = situation.config.infer, situation.config.model
    if infer.prompt_lookup_tokens or infer.draft_tokens:
        return "speculative decoding is already used"
    if infer.batch_size > 1:
        return (
            "sequences of a batch would advance by different numbers of tokens; it needs infer.batch_size=1"
        )
    if model.cache is CacheKind.static:
        return "passes check different numbers of tokens, which a static cache does not allow"
    if "encode" in _phases(situation):
        return "not for encoder-decoders"
    return _no_decode(situation)


def no_draft_model(situation: Situation) -> str | None:
    """For a draft model: the user must name one."""
    if situation.config.model.draft_path is None:
        return "no smaller model is named; give model.draft_path=CHECKPOINT, a model with the same vocabulary"
    if tuple(_phases(situation)) != ("prefill", "decode"):
        return "a draft model reads text only"
    return no_speculation(situation)


def no_bindings(situation: Situation) -> str | None:
    """For binding this process."""
    if situation.config.run.affinity is not None or situation.config.run.memory_nodes is not None:
        return "set already"
    return (
        None if bindings(situation) else "one NUMA node, and no core with several processors of this process"
    )


def no_other_gpus(situation: Situation) -> str | None:
    """For splitting over GPUs."""
    if (reason := not_on_cuda(situation)) is not None:
        return reason
    count = situation.machine.gpus
    if count is None or count < 2:
        return "there is one GPU here" if count == 1 else "the number of GPUs here is not known"
    if situation.config.run.ranks > 1:
        return f"run.ranks={situation.config.run.ranks} already"
    return load_adapter(situation.config.model, situation.config.infer).why_not_split(2)


def split_advice(situation: Situation) -> str:
    """Return how to measure a split model: ranks are processes of their own."""
    return (
        "an experiment has one process per side. Run both and compare: llm-perf-opt run …; llm-perf-opt run … run.ranks=2; "
        "llm-perf-opt compare A B; expected times: llm-perf-opt what-if RUN --tensor-parallel 2"
    )


def no_engine(situation: Situation) -> str | None:
    """For serving engines: they serve text and vision models from a checkpoint."""
    if situation.config.model.path is None:
        return "an engine needs a checkpoint (model.path)"
    return None


def engine_advice(situation: Situation) -> str:
    """Return the command that tries settings of an engine."""
    return "measure an engine under load and its settings: llm-perf-opt improve --engine vllm --help"


def nothing_to_overlap(situation: Situation) -> str | None:
    """For vision next to other requests: prefill of the same request needs its result."""
    if (reason := sees_nothing(situation)) is not None:
        return reason
    if situation.metric != "tokens_per_s":
        return f"the prefill of a request needs its images: --metric {situation.metric} cannot gain"
    return not_on_cuda(situation)


def overlap_advice(situation: Situation) -> str:
    """Return who overlaps them: this loop runs phases one after the other, so that each can be measured."""
    return "serving engines overlap requests: llm-perf-opt improve --engine vllm --help; at best the longer of both parts remains"


def power_advice(situation: Situation) -> str:
    """Return how the limit is read and set; the search changes no setting of the machine."""
    return "see the limits with nvidia-smi -q -d POWER, set one as root: nvidia-smi -i GPU -pl WATTS"


def huge_pages_allowed(situation: Situation) -> str | None:
    """For the kernel's setting: only where programs cannot ask for huge pages."""
    if (reason := not_on_cpu(situation)) is not None:
        return reason
    try:
        text = (situation.machine.root / _HUGE_PAGES).read_text(encoding="ascii")
    except OSError:
        return "this kernel has no transparent huge pages"
    return None if "[never]" in text else f"programs can have them already ({text.strip()})"


def huge_pages_advice(situation: Situation) -> str:
    """Return the setting; the search changes no setting of the machine."""
    return f"as root: echo madvise > /{_HUGE_PAGES}; then improve --only huge-pages"
