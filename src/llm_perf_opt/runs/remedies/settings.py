"""The settings a remedy tries where they depend on the machine, the model or the baseline."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.config.hydra_bridge.values import override
from llm_perf_opt.config.schema import ImageMode
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.runs.remedies.base import Options, Situation
from llm_perf_opt.workloads.registry import load_adapter

_ATTENTION_GPU: tuple[str, ...] = ("sdpa", "flash_attention_3", "flash_attention_2", "eager")
_ATTENTION_PACKAGES = {"flash_attention_2": "flash-attn", "flash_attention_3": "flash-attn-3"}
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
    """Every implementation but the one that runs; transformers' default is sdpa wherever a model has it."""
    names = _ATTENTION_CPU if situation.on_cpu else _ATTENTION_GPU
    missing = {
        name for name, package in _ATTENTION_PACKAGES.items() if situation.machine.version(package) is None
    }
    current = situation.config.model.attn_implementation or "sdpa"
    return [[f"model.attn_implementation={name}"] for name in names if name not in {current, *missing}]


def prefill_experts(situation: Situation) -> Options:
    """Every implementation but the one that runs; transformers' own default is grouped."""
    model = situation.config.model
    current = model.prefill_experts_implementation or model.experts_implementation or "grouped_mm"
    return [[f"model.prefill_experts_implementation={name}"] for name in _EXPERTS if name != current]


def decode_experts(situation: Situation) -> Options:
    """The same for decode, where few positions meet the experts."""
    model = situation.config.model
    # As the adapter decodes: what is compiled or captured, and GPUs, take one batched product.
    batched = model.compile or model.cuda_graphs or not situation.on_cpu
    usual = "batched_mm" if batched else "grouped_mm"
    current = model.decode_experts_implementation or model.experts_implementation or usual
    return [[f"model.decode_experts_implementation={name}"] for name in _EXPERTS if name != current]


def threads(situation: Situation) -> Options:
    """Half of the processors, a quarter, an eighth, one; all of them where fewer are set."""
    current = situation.config.run.threads or situation.machine.cpus
    return [[f"run.threads={count}"] for count in _fewer(situation.machine.cpus) if count != current]


def decode_threads(situation: Situation) -> Options:
    """The same for decode alone: its products are small, and sharing one costs as much as a small one takes."""
    run, most = situation.config.run, situation.machine.cpus
    current = run.phase_threads.get("decode") or run.threads or most
    return [[f"run.phase_threads.decode={count}"] for count in _fewer(most) if count != current]


def _fewer(most: int) -> list[int]:
    """Return a small grid: small products like one thread, large ones as many as share a cache or a socket."""
    return list(dict.fromkeys(max(1, count) for count in (most, most // 2, most // 4, most // 8, 1)))


def batch_sizes(situation: Situation) -> Options:
    """Twice as many each time, as far as the samples go."""
    current, most = situation.config.infer.batch_size, situation.samples or 0
    sizes = [size for size in _BATCHES if current < size <= most]
    if current < most <= _BATCHES[-1] and most not in sizes:
        sizes.append(most)
    return [[f"infer.batch_size={size}"] for size in sizes]


def padding(situation: Situation) -> Options:
    """Multiples that loads and tiles of matrix products like."""
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
    """What is installed, loaded before everything else."""
    found = [situation.machine.first_file(pattern) for pattern in _ALLOCATORS]
    unique = dict.fromkeys(path for path in found if path is not None)
    return [[override("run.env.LD_PRELOAD", str(path))] for path in unique]
