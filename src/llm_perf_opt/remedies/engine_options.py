"""Options of inference servers as remedies: each answers findings of a server under load.

An override of such a remedy is a word of the server's command line (``--max-num-seqs=64``). Values follow from those of the
baseline and from its load; an option whose value is not known is not guessed. Those of engines that cannot be run on the
project's machines (SGLang, TensorRT-LLM) come from their sources.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.remedies.base import Options, Remedy, Situation, fixed
from llm_perf_opt.stages.serve.config import NAME, EngineName, ServeConfig
from llm_perf_opt.stages.serve.engines import option_name
from llm_perf_opt.stages.serve.load import load_levels
from llm_perf_opt.summary.serving import LoadPoint

_LEAST_TOKENS = 64
"""Of a step; fewer make every prompt take many steps."""
_WORSE = ("kv-cache-dtype", "quantization", "dtype", "kv_cache_dtype")
"""Options that may make answers worse."""


def engine_remedies(engine: EngineName) -> list[Remedy]:
    """Return the remedies of an engine; empty: none are known."""
    return list(_REMEDIES.get(engine, ()))


def server_remedy(text: str) -> Remedy:
    """Make a remedy of a user's own arguments of the server: ``--try '--max-num-seqs=64 --block-size=32'``."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            f"--try {text}: {str(error).lower()}", hint="close the quotation: --try '--option=value'"
        ) from error
    if not words or not all(word.startswith("-") for word in words):
        raise ConfigError(
            f"--try '{text}' is not a list of server options",
            hint="give each as one word: --try '--max-num-seqs=64 --no-enable-prefix-caching'",
        )
    worse = any(option_name(word).lstrip("-") in _WORSE for word in words)
    return Remedy(
        name=" ".join(words),
        title="your own",
        options=fixed(*words),
        effect="quality" if worse else "rounding",
        cost="yours to judge",
    )


# What the load and the baseline say.


def _load(situation: Situation) -> LoadPoint | None:
    """The load point that is improved: the last one."""
    return situation.serving.load[-1] if situation.serving is not None and situation.serving.load else None


def _in_flight(situation: Situation) -> int | None:
    serve = situation.config.pipeline.get(NAME)
    return load_levels(serve)[-1].concurrency if isinstance(serve, ServeConfig) else None


def _prompt_tokens(situation: Situation) -> float:
    """Mean tokens of a prompt: as measured, else as they will be sent."""
    load, serve = _load(situation), situation.config.pipeline.get(NAME)
    if load is not None and load.prompt_tokens:
        return load.prompt_tokens
    return float(serve.prompt_tokens) if isinstance(serve, ServeConfig) else 0.0


def _number(situation: Situation, option: str) -> int | None:
    text = situation.server_options.get(option, "")
    return int(text) if text.isdigit() else None


def _has(situation: Situation, *findings: str) -> bool:
    return any(one.id in findings for one in situation.findings)


def _batch_limit(situation: Situation, option: str) -> int | None:
    """The largest batch: as set, else as reached by a load that waits for it."""
    given = _number(situation, option)
    if given is not None or not _has(situation, "serving-batch-limit", "serving-preemption"):
        return given
    steps = situation.serving.steps if situation.serving is not None else None
    return steps.most_running if steps is not None else None


def _batch(option: str) -> Remedy:
    def options(situation: Situation) -> Options:
        limit = _batch_limit(situation, option)
        if limit is None:
            return []
        if _has(situation, "serving-preemption"):
            return [[f"{option}={max(1, limit // 2)}"]]
        wanted = _in_flight(situation)
        larger = 4 * limit if wanted is None else wanted
        return [[f"{option}={larger}"]] if larger > limit else []

    def why_not(situation: Situation) -> str | None:
        limit, wanted = _batch_limit(situation, option), _in_flight(situation)
        if limit is None:
            return f"the load does not reach the limit of the batch ({option} is not set)"
        if wanted is not None and wanted <= limit and not _has(situation, "serving-preemption"):
            return f"all {wanted} requests in flight fit into a batch of {limit}"
        return None

    return Remedy(
        name="batch-limit",
        title="as many requests in a batch as are in flight; half of them if requests are preempted",
        options=options,
        answers=("serving-batch-limit", "serving-queue", "serving-preemption"),
        effect="rounding",
        cost="KV cache and activations of more requests",
        why_not=why_not,
    )


def _batched_tokens(option: str) -> Remedy:
    def sizes(situation: Situation) -> tuple[list[int], str | None]:
        now = _number(situation, option)
        if now is None:
            return [], f"neither the arguments nor the log of the server say what {option} is"
        at_once = _prompt_tokens(situation) * (_in_flight(situation) or 1)
        found = []
        if _has(situation, "serving-prefill") and now // 4 >= _LEAST_TOKENS:
            found.append(now // 4)
        if at_once > now:
            found.append(4 * now)
        return found, None if found else f"prompts of the load fit into a step of {now} tokens"

    return Remedy(
        name="step-tokens",
        title="prompt tokens per step: fewer where prompts delay others, more where prompts wait for steps",
        options=lambda situation: [[f"{option}={size}"] for size in sizes(situation)[0]],
        answers=("serving-prefill", "serving-queue"),
        effect="rounding",
        cost="memory for activations",
        why_not=lambda situation: sizes(situation)[1],
    )


def _switch(
    name: str,
    option: str,
    title: str,
    answers: tuple[str, ...],
    *,
    default: str | None,
    cost: str = "none",
    why_off: Callable[[Situation], str | None] | None = None,
) -> Remedy:
    """Return a remedy that sets a switch to the other value; ``default``: its value where neither arguments nor log have it."""

    def now(situation: Situation) -> str | None:
        return situation.server_options.get(option, default)

    def why_not(situation: Situation) -> str | None:
        value = now(situation)
        if value not in ("true", "false"):
            return f"neither the arguments nor the log of the server say whether {option} is set"
        return why_off(situation) if value == "true" and why_off is not None else None

    return Remedy(
        name=name,
        title=title,
        options=lambda situation: [[f"--no-{option.lstrip('-')}" if now(situation) == "true" else option]],
        answers=answers,
        effect="rounding",
        cost=cost,
        why_not=why_not,
    )


def _ranks(name: str, option: str, title: str, answers: tuple[str, ...], *, effect_rounds: bool) -> Remedy:
    def why_not(situation: Situation) -> str | None:
        devices = _devices(situation)
        used = (_number(situation, "--tensor-parallel-size") or 1) * (
            _number(situation, "--data-parallel-size") or 1
        )
        if 2 * used > devices:
            what = "NUMA node" if situation.on_cpu else "GPU"
            return f"{2 * used} ranks need as many {what}s, this machine has {devices}"
        return None

    return Remedy(
        name=name,
        title=title,
        options=lambda situation: [[f"{option}={2 * (_number(situation, option) or 1)}"]],
        answers=answers,
        effect="rounding" if effect_rounds else "nothing",
        cost="twice the devices",
        why_not=why_not,
    )


def _devices(situation: Situation) -> int:
    """GPUs, or NUMA nodes of a CPU."""
    if situation.on_cpu:
        return max(1, len(list(Path(situation.machine.root).glob("sys/devices/system/node/node[0-9]*"))))
    import torch

    return int(torch.cuda.device_count())


def _kv_type(option: str, value: str) -> Remedy:
    return Remedy(
        name="kv-dtype",
        title="a KV cache of 8 bits: room for twice the requests",
        options=fixed(f"{option}={value}"),
        answers=("serving-kv-full", "serving-preemption"),
        effect="quality",
        cost="answers may be worse",
        why_not=lambda situation: (
            None
            if _has(situation, "serving-kv-full", "serving-preemption") or not situation.on_cpu
            else "the KV cache has room"
        ),
    )


def _on_gpu(situation: Situation) -> str | None:
    return "only on GPUs" if situation.on_cpu else None


def _graph_sizes(situation: Situation) -> Options:
    most = _number(situation, "--max-num-seqs") or _in_flight(situation)
    return [[f"--max-cudagraph-capture-size={most}"]] if most else []


def _prefix_misses(situation: Situation) -> str | None:
    load = _load(situation)
    hit = load.cached_ratio if load is not None else None
    if hit is None and load is not None:
        hit = load.server.get("prefix_hit_ratio")
    return f"{100 * hit:.0f} % of the prompt tokens come from the prefix cache" if hit else None


def _alternatives(name: str, option: str, title: str, values: Sequence[int]) -> Remedy:
    def options(situation: Situation) -> Options:
        now = _number(situation, option)
        return [[f"{option}={value}"] for value in values if value != now]

    return Remedy(name=name, title=title, options=options, effect="rounding", why_not=_on_gpu)


_VLLM = (
    _batch("--max-num-seqs"),
    _batched_tokens("--max-num-batched-tokens"),
    _switch(
        "chunked-prefill",
        "--enable-chunked-prefill",
        "compute long prompts in parts, or each in one step",
        ("serving-prefill",),
        default=None,
    ),
    _switch(
        "prefix-cache",
        "--enable-prefix-caching",
        "keep the KV cache of common prefixes, or save its bookkeeping",
        ("serving-prefix",),
        default=None,
        why_off=_prefix_misses,
    ),
    _switch(
        "async-scheduling",
        "--async-scheduling",
        "prepare the next step while the device works",
        ("serving-host",),
        default=None,
    ),
    Remedy(
        name="graphs",
        title="capture CUDA graphs",
        options=fixed("--no-enforce-eager"),
        answers=("serving-host",),
        effect="rounding",
        cost="a longer start and memory for graphs",
        why_not=lambda situation: (
            _on_gpu(situation)
            or (
                None
                if situation.server_options.get("--enforce-eager") == "true"
                else "graphs are captured already"
            )
        ),
    ),
    Remedy(
        name="graph-sizes",
        title="capture CUDA graphs up to the size of the batch",
        options=_graph_sizes,
        answers=("serving-host",),
        effect="rounding",
        cost="a longer start and memory for graphs",
        why_not=_on_gpu,
    ),
    _kv_type("--kv-cache-dtype", "fp8"),
    _ranks(
        "tensor-parallel",
        "--tensor-parallel-size",
        "each layer on twice the devices",
        ("serving-kv-full", "serving-preemption", "serving-prefill"),
        effect_rounds=True,
    ),
    _ranks(
        "data-parallel",
        "--data-parallel-size",
        "twice the replicas",
        ("serving-queue", "serving-batch-limit"),
        effect_rounds=False,
    ),
    Remedy(
        name="scheduling-policy",
        title="serve requests by priority",
        options=fixed("--scheduling-policy=priority"),
        why_not=lambda _: "requests of this load have no priority, so the order would not change",
    ),
    _alternatives("block-size", "--block-size", "tokens of a block of the KV cache", (16, 32)),
)
_TRANSFORMERS = (
    _batched_tokens("--cb-max-batch-tokens"),
    _switch(
        "compile",
        "--compile",
        "compile the model",
        ("serving-host",),
        default="false",
        cost="a longer start",
        why_off=lambda _: "compiled already",
    ),
)
_SGLANG = (
    _batch("--max-running-requests"),
    _batched_tokens("--chunked-prefill-size"),
    Remedy(
        name="mixed-chunk",
        title="prompts and decoding in one step",
        options=fixed("--enable-mixed-chunk"),
        answers=("serving-prefill",),
        effect="rounding",
    ),
    Remedy(
        name="continuous-decode",
        title="several decode steps between two looks at the queue",
        options=fixed("--num-continuous-decode-steps=4"),
        answers=("serving-host",),
        effect="rounding",
        cost="new requests wait longer",
    ),
    Remedy(
        name="schedule-policy",
        title="order of the queue: longest common prefix first",
        options=fixed("--schedule-policy=lpm"),
        answers=("serving-prefix",),
    ),
    _kv_type("--kv-cache-dtype", "fp8_e5m2"),
)
_TRTLLM = (_batch("--max_batch_size"), _batched_tokens("--max_num_tokens"))
_REMEDIES: Mapping[EngineName, tuple[Remedy, ...]] = {
    EngineName.vllm: _VLLM,
    EngineName.transformers: _TRANSFORMERS,
    EngineName.sglang: _SGLANG,
    EngineName.trtllm: _TRTLLM,
}
