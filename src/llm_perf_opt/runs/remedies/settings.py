"""The settings a remedy tries where they depend on the machine, the model or the baseline."""

from __future__ import annotations

from llm_perf_opt.config.hydra_bridge.values import override
from llm_perf_opt.runs.remedies.base import Options, Situation

_ATTENTION_GPU: tuple[str, ...] = ("sdpa", "flash_attention_2", "eager")
_ATTENTION_CPU: tuple[str, ...] = ("sdpa", "eager")
_EXPERTS = ("grouped_mm", "batched_mm", "eager")
_BATCHES = (2, 4, 8, 16, 32)
_MODES = ("large", "base", "small", "tiny")
"""From most pixels to fewest; gundam, which cuts tiles, has more than any."""
_PADDING = 64
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
    if situation.machine.version("flash-attn") is None:
        names = tuple(name for name in names if name != "flash_attention_2")
    current = situation.config.model.attn_implementation or "sdpa"
    return [[f"model.attn_implementation={name}"] for name in names if name != current]


def experts(situation: Situation) -> Options:
    """Every implementation but the one that is set; transformers' own default is grouped."""
    current = situation.config.model.experts_implementation or "grouped_mm"
    return [[f"model.experts_implementation={name}"] for name in _EXPERTS if name != current]


def decode_experts(situation: Situation) -> Options:
    """The same for decode alone."""
    model = situation.config.model
    current = model.decode_experts_implementation or model.experts_implementation or "grouped_mm"
    return [[f"model.decode_experts_implementation={name}"] for name in _EXPERTS if name != current]


def threads(situation: Situation) -> Options:
    """Half of the processors, a quarter, … one; all of them where fewer are set."""
    most = situation.machine.cpus
    current = situation.config.run.threads or most
    counts = [most]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    return [[f"run.threads={count}"] for count in counts if count != current]


def batch_sizes(situation: Situation) -> Options:
    """Twice as many each time, as far as the samples go."""
    current, most = situation.config.infer.batch_size, situation.samples or 0
    sizes = [size for size in _BATCHES if current < size <= most]
    if current < most <= _BATCHES[-1] and most not in sizes:
        sizes.append(most)
    return [[f"infer.batch_size={size}"] for size in sizes]


def padding(situation: Situation) -> Options:
    """One multiple that suits tiles of matrix products."""
    return [[f"infer.pad_to_multiple={_PADDING}"]]


def image_modes(situation: Situation) -> Options:
    """The modes with fewer pixels than the one that runs."""
    current = situation.config.infer.mode.value
    smaller = (
        _MODES[_MODES.index(current) + 1 :] if current in _MODES else _MODES if current == "gundam" else ()
    )
    return [[f"infer.mode={mode}"] for mode in smaller]


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
