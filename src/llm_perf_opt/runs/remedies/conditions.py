"""Why a remedy does not apply: device, model, versions, memory, or what is set already. ``None``: it does."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.config.schema import CacheDtype, CacheKind, Dtype
from llm_perf_opt.runs.remedies import settings
from llm_perf_opt.runs.remedies.base import Situation
from llm_perf_opt.workloads.registry import load_adapter

_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"


def not_on_cpu(situation: Situation) -> str | None:
    """For settings of the processor's own work."""
    return None if situation.on_cpu else "the device does the work, not the processor"


def no_threads(situation: Situation) -> str | None:
    """For choices among several processors."""
    if (reason := not_on_cpu(situation)) is not None:
        return reason
    return "this process may use one processor only" if situation.machine.cpus < 2 else None


def no_decode(situation: Situation) -> str | None:
    """For remedies of the decode step."""
    return (
        "one token is generated: there is no decode step"
        if situation.config.infer.max_new_tokens < 2
        else None
    )


def compiled_already(situation: Situation) -> str | None:
    """For compiling the decode step."""
    return "the decode step is compiled already" if situation.config.model.compile else no_decode(situation)


def cache_does_not_grow(situation: Situation) -> str | None:
    """For caches that do not grow by copying."""
    kind = situation.config.model.cache
    return None if kind is CacheKind.dynamic else f"model.cache={kind.value} does not grow by copying"


def static_already(situation: Situation) -> str | None:
    """For a cache of constant shape."""
    already = situation.config.model.cache is CacheKind.static
    return "the cache is static already" if already else no_decode(situation)


def no_cuda_graphs(situation: Situation) -> str | None:
    """For CUDA graphs."""
    if situation.on_cpu:
        return "there is no GPU here"
    return "captured already" if situation.config.model.cuda_graphs else no_decode(situation)


def sees_nothing(situation: Situation) -> str | None:
    """For remedies of the vision encoder."""
    return None if "vision" in _phases(situation) else "the model has no vision encoder"


def _phases(situation: Situation) -> Sequence[str]:
    if situation.phases is not None:
        return situation.phases
    return load_adapter(situation.config.model, situation.config.infer).phases


def no_smaller_mode(situation: Situation) -> str | None:
    """For modes of pages: the model must know some."""
    if (reason := sees_nothing(situation)) is not None:
        return reason
    if load_adapter(situation.config.model, situation.config.infer).tiling() is None:
        return "the model reads its pages in one way only"
    return None if settings.image_modes(situation) else "no mode of the model has fewer pixels"


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
    return no_decode(situation)


def eight_bit_cache_already(situation: Situation) -> str | None:
    """For a cache of eight bits."""
    already = situation.config.model.cache_dtype is CacheDtype.float8
    return "set already" if already else no_decode(situation)


def no_torchao(situation: Situation) -> str | None:
    """For weight-only quantisation."""
    if situation.machine.version("torchao") is None:
        return "torchao is not installed"
    return "quantised already" if situation.config.model.quantise_weights is not None else None


def no_larger_batch(situation: Situation) -> str | None:
    """For batches: throughput must be wanted, and samples there."""
    if situation.metric not in ("tokens_per_s", "energy"):
        return "a larger batch makes each answer later; ask for throughput: --metric tokens_per_s"
    if not settings.batch_sizes(situation):
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
    return no_threads(situation) or no_decode(situation)


def padded_already(situation: Situation) -> str | None:
    """For padding: shapes matter to a compiled step, or where a finding says so."""
    if situation.config.infer.pad_to_multiple is not None:
        return "set already"
    asked = any(finding.id in ("misaligned-gemm", "far-from-measured") for finding in situation.findings)
    if not asked and not situation.config.model.compile:
        return "only a compiled step, or products of odd sizes, gain by common lengths"
    return None


def copies_nothing(situation: Situation) -> str | None:
    """For page-locked inputs."""
    if situation.on_cpu:
        return "inputs are not copied to a device here"
    return "set already" if situation.config.infer.pinned_inputs else None


def no_allocator(situation: Situation) -> str | None:
    """For other allocators."""
    if (reason := not_on_cpu(situation)) is not None:
        return reason
    return None if settings.allocators(situation) else "neither jemalloc nor tcmalloc is installed"


def no_huge_pages(situation: Situation) -> str | None:
    """For transparent huge pages: the kernel must allow asking for them."""
    if (reason := not_on_cpu(situation)) is not None:
        return reason
    path = situation.machine.root / _HUGE_PAGES
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return "this kernel has no transparent huge pages"
    return None if "[madvise]" in text else f"the kernel does not leave them to programs ({text.strip()})"
