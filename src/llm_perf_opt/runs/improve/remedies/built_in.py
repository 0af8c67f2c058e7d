"""The remedies that ship, in one visible list."""

from __future__ import annotations

from llm_perf_opt.config.schema import CacheKind, Dtype
from llm_perf_opt.runs.improve.remedies.base import Options, Remedy, Situation, fixed

_ATTENTION_GPU: tuple[str, ...] = ("sdpa", "flash_attention_2", "eager")
_ATTENTION_CPU: tuple[str, ...] = ("sdpa", "eager")
_EXPERTS = ("grouped_mm", "batched_mm", "eager")


def _attention(situation: Situation) -> Options:
    names = _ATTENTION_CPU if situation.on_cpu else _ATTENTION_GPU
    if not situation.on_cpu and situation.machine.version("flash-attn") is None:
        names = tuple(name for name in names if name != "flash_attention_2")
    # transformers' own default is sdpa wherever the model has it.
    current = situation.config.model.attn_implementation or "sdpa"
    return [[f"model.attn_implementation={name}"] for name in names if name != current]


def _experts(situation: Situation) -> Options:
    current = situation.config.model.experts_implementation
    return [[f"model.experts_implementation={name}"] for name in _EXPERTS if name != current]


def _no_experts(situation: Situation) -> str | None:
    return None if situation.mixture else "the model has no routed experts"


def _compiled_already(situation: Situation) -> str | None:
    return "the decode step is compiled already" if situation.config.model.compile else _no_decode(situation)


def _no_decode(situation: Situation) -> str | None:
    return (
        "one token is generated: there is no decode step"
        if situation.config.infer.max_new_tokens < 2
        else None
    )


def _cache_grows(situation: Situation) -> str | None:
    kind = situation.config.model.cache
    return None if kind is CacheKind.dynamic else f"model.cache={kind.value} does not grow by copying"


def _static_already(situation: Situation) -> str | None:
    return (
        "the cache is static already"
        if situation.config.model.cache is CacheKind.static
        else _no_decode(situation)
    )


def _half_precision(situation: Situation) -> str | None:
    kind = situation.config.model.dtype
    if kind in (Dtype.bfloat16, Dtype.float16):
        return f"model.dtype={kind.value} already"
    if kind is Dtype.auto and not situation.on_cpu:
        return "model.dtype=auto is a half precision on this device already"
    return None


def _threads(situation: Situation) -> Options:
    most = situation.machine.cpus
    current = situation.config.run.threads or most
    tried, count = [], most
    while count >= 1:
        tried.append(count)
        count //= 2
    return [[f"run.threads={count}"] for count in tried if count != current]


def _no_threads(situation: Situation) -> str | None:
    if not situation.on_cpu:
        return "the device does the work, not the processor's threads"
    return "this process may use one processor only" if situation.machine.cpus < 2 else None


def _batches(situation: Situation) -> Options:
    current = situation.config.infer.batch_size
    most = situation.samples or current
    sizes = [size for size in (2, 4, 8, 16, 32) if current < size <= most]
    if most > current and most not in sizes and most < 32:
        sizes.append(most)
    return [[f"infer.batch_size={size}"] for size in sizes]


def _no_batches(situation: Situation) -> str | None:
    if situation.metric not in ("tokens_per_s", "energy"):
        return "a larger batch makes each answer later; ask for throughput: --metric tokens_per_s"
    if not _batches(situation):
        return "there are no more samples to fill a larger batch (more: dataset.sampling, dataset.synthetic_count)"
    return None


BUILT_IN: list[Remedy] = [
    Remedy(
        name="attention",
        title="another attention implementation",
        options=_attention,
        answers=("eager-attention", "old-flash-attention", "module-gap", "unfused-elementwise"),
        effect="rounding",
    ),
    Remedy(
        name="preallocated-cache",
        title="a cache with room for the whole answer, written in place",
        options=fixed("model.cache=preallocated"),
        answers=("growing-cache", "kv-cache-growth", "copy-kernels"),
        cost="memory for prompt and infer.max_new_tokens from the start",
        why_not=_cache_grows,
    ),
    Remedy(
        name="compile-decode",
        title="the decode step compiled",
        options=fixed("model.compile=true", "model.cache=static"),
        answers=(
            "dispatch:decode",
            "launch-bound",
            "launch",
            "host",
            "module-gap:decode",
            "unfused-elementwise",
        ),
        effect="rounding",
        cost="a minute or more of compiling at the first answer of each shape",
        why_not=_compiled_already,
    ),
    Remedy(
        name="static-cache",
        title="a cache of constant shape, by itself",
        options=fixed("model.cache=static"),
        answers=("growing-cache", "kv-cache-growth"),
        effect="rounding",
        cost="memory for prompt and infer.max_new_tokens from the start",
        why_not=_static_already,
    ),
    Remedy(
        name="experts",
        title="another implementation of the experts",
        options=_experts,
        answers=("module-gap", "dispatch", "launch-bound"),
        effect="rounding",
        why_not=_no_experts,
    ),
    Remedy(
        name="threads",
        title="another number of processor threads",
        options=_threads,
        answers=("noisy-timings", "dispatch", "module-gap:decode"),
        effect="rounding",
        why_not=_no_threads,
        grows="steps",
    ),
    Remedy(
        name="half-precision",
        title="weights and activations in bfloat16",
        options=fixed("model.dtype=bfloat16"),
        answers=("full-precision", "full-precision-kernels", "module-gap"),
        effect="rounding",
        why_not=_half_precision,
    ),
    Remedy(
        name="batch-size",
        title="more answers at once",
        options=_batches,
        answers=("dispatch", "launch-bound", "underfilled-grids"),
        effect="rounding",
        cost="each answer takes longer; memory grows with the batch",
        why_not=_no_batches,
        grows="steps",
    ),
]
"""In the order they are tried when no finding says otherwise."""
