"""Ranges and combinations that types cannot express. Every message names the key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.config.schema import AppConfig, CacheKind, CompileMode, ModelConfig, Weights
from llm_perf_opt.config.workload_env import named_variables
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.phases import REQUEST_PHASES

# Dimensions that no model can have, found by name before anything is built: transformers takes them all.


_POSITIVE = frozenset(
    {
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "image_size",
        "patch_size",
        "mlp_dim",
        "head_dim",
    }
)
_COUNTED = ("_size", "_dim", "_heads", "_layers", "_experts", "_per_tok", "_rank", "_channels")
"""Endings of further dimensions. Zero means "none of these" (``v_head_dim`` without latent attention)."""
_WINDOW = "window"
"""In the names of windows, below zero means "without end"."""


@dataclass(frozen=True, slots=True)
class WrongDimension:
    """One value that is no dimension."""

    key: str
    """Dotted, relative to what was looked at."""
    value: Any
    meaning: str
    """What it must be, in words."""


def wrong_dimensions(document: Mapping[str, Any], prefix: str = "") -> Iterator[WrongDimension]:
    """Yield what cannot be, at every level; ``None`` leaves a dimension to the model's own default."""
    for name, value in document.items():
        key = f"{prefix}{name}"
        sizes = value if isinstance(value, list) else [value]
        if isinstance(value, Mapping):
            yield from wrong_dimensions(value, f"{key}.")
        elif value is None:
            continue
        elif name in _POSITIVE and not all(_is_positive(size) for size in sizes):
            yield WrongDimension(key, value, "a positive whole number")
        elif _is_counted(str(name)) and any(_is_negative(size) for size in sizes):
            yield WrongDimension(key, value, "at least 0")


def _is_counted(name: str) -> bool:
    return name.endswith(_COUNTED) and _WINDOW not in name


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_negative(value: object) -> bool:
    return isinstance(value, int | float) and value < 0


@dataclass(frozen=True, slots=True)
class RangeRule:
    """A numeric key and what it may be; ``None`` values pass."""

    key: str
    allowed: Callable[[Any], bool]
    meaning: str


def _between(key: str, minimum: int, maximum: int) -> RangeRule:
    return RangeRule(
        key, lambda value: minimum <= value <= maximum, f"at least {minimum} and at most {maximum}"
    )


_MANY = 1_000_000
_MOST_TOKENS = 10_000_000
_MOST_SIDE = 1 << 15
_MOST_THREADS = 4096
_MOST_DRAFT_TOKENS = 64
_SIDE = f"a positive multiple of 64, at most {_MOST_SIDE}"
_LARGEST_SEED = 2**63 - 1
_MOST_TIMEOUT_S = 30 * 86_400.0
RANGES: tuple[RangeRule, ...] = (
    _between("run.repeats", 1, _MANY),
    RangeRule("run.target_interval_ratio", lambda v: 0 < v <= 1, "more than 0, and at most 1"),
    RangeRule(
        "run.max_measure_s",
        lambda v: 0 < v <= _MOST_TIMEOUT_S,
        f"more than 0 seconds, and at most {_MOST_TIMEOUT_S:g}",
    ),
    _between("run.top_n_kernels", 1, _MANY),
    _between("run.representative_max_new_tokens", 1, _MOST_TOKENS),
    _between("run.threads", 1, _MOST_THREADS),
    _between("run.interop_threads", 1, _MOST_THREADS),
    _between("run.ranks", 1, _MOST_THREADS),
    RangeRule(
        "run.ranks_timeout_s",
        lambda v: 0 < v <= _MOST_TIMEOUT_S,
        f"more than 0 seconds, and at most {_MOST_TIMEOUT_S:g}",
    ),
    _between("infer.max_new_tokens", 1, _MOST_TOKENS),
    _between("infer.no_repeat_ngram_size", 0, _MOST_TOKENS),
    _between("infer.batch_size", 1, _MANY),
    _between("infer.max_tiles", 2, _MANY),
    _between("infer.pad_to_multiple", 1, _MOST_TOKENS),
    _between("infer.warmup_rounds", 0, _MANY),
    _between("infer.prompt_lookup_tokens", 0, _MOST_DRAFT_TOKENS),
    _between("infer.draft_tokens", 0, _MOST_DRAFT_TOKENS),
    RangeRule("infer.base_size", lambda v: 0 < v <= _MOST_SIDE and v % 64 == 0, _SIDE),
    RangeRule("infer.image_size", lambda v: 0 < v <= _MOST_SIDE and v % 64 == 0, _SIDE),
    _between("dataset.sampling.num_epochs", 1, _MANY),
    _between("dataset.sampling.num_samples_per_epoch", 1, _MANY),
    _between("dataset.synthetic_tokens", 1, _MOST_TOKENS),
    _between("dataset.synthetic_count", 1, _MANY),
    _between("dataset.generated.pages", 1, _MANY),
    _between("dataset.generated.max_side", 128, _MOST_SIDE),
    _between("model.seed", 0, _LARGEST_SEED),
    _between("dataset.sampling.seed", -_LARGEST_SEED, _LARGEST_SEED),
    _between("dataset.generated.seed", -_LARGEST_SEED, _LARGEST_SEED),
    _between("workload_command.repeats", 0, _MANY),
    RangeRule(
        "workload_command.timeout_s",
        lambda v: 0 < v <= _MOST_TIMEOUT_S,
        f"more than 0 seconds, and at most {_MOST_TIMEOUT_S:g}",
    ),
)


def _get_value(config: AppConfig, key: str) -> Any:
    node: Any = config
    for part in key.split("."):
        node = getattr(node, part)
    return node


def check_config(config: AppConfig) -> None:
    """Raise :class:`ConfigError` for the first value or combination that cannot be meant."""
    for rule in RANGES:
        value = _get_value(config, rule.key)
        if value is not None and not rule.allowed(value):
            key = rule.key.replace("workload_command", "pipeline.workload")
            raise ConfigError(
                f"{key}={value} is out of range", hint=f"use a value of {rule.meaning}", key=key
            )
    _check_time_limits(config)
    _check_variables(config)
    _check_phase_threads(config)
    _check_model(config)
    _check_workload(config)


def _check_variables(config: AppConfig) -> None:
    """Names of variables, and values that a process can be started with."""
    for name, value in config.run.env.items():
        if not name.isidentifier() or not name.isascii() or "\0" in value:
            raise ConfigError(
                f"run.env.{name}: no process can be started with it",
                hint="give a name of letters, digits and underscores, and plain text",
                key="run.env",
            )


def _check_phase_threads(config: AppConfig) -> None:
    """Phases that there are, and numbers of threads that can be."""
    for phase, count in config.run.phase_threads.items():
        key = f"run.phase_threads.{phase}"
        if phase not in REQUEST_PHASES:
            raise ConfigError(
                f"{key}: there is no such phase", hint=f"phases: {', '.join(REQUEST_PHASES)}", key=key
            )
        if not 1 <= count <= _MOST_THREADS:
            raise ConfigError(
                f"{key}={count} is out of range",
                hint=f"use a value of at least 1 and at most {_MOST_THREADS}",
                key=key,
            )


def _check_time_limits(config: AppConfig) -> None:
    """A limit of a stage, where it has one: not a number, or a century, is none."""
    for name, stage in config.pipeline.items():
        value = getattr(stage, "timeout_s", None)
        if isinstance(value, int | float) and not 0 < value <= _MOST_TIMEOUT_S:
            key = f"pipeline.{name}.timeout_s"
            raise ConfigError(
                f"{key}={value} is not positive, or too long",
                hint=f"use null for the default, or at most {_MOST_TIMEOUT_S:g}",
                key=key,
            )


def _check_model(config: AppConfig) -> None:
    model = config.model
    if model.weights is Weights.real and model.path is None:
        raise ConfigError(
            "model.weights=real needs a checkpoint",
            hint="set model.path=/path/to/checkpoint, or model.weights=random to profile without one",
            key="model.weights",
        )
    if model.trust_remote_code and model.path is None:
        raise ConfigError(
            "model.trust_remote_code=true without model.path has no code to trust",
            hint="set model.path, or leave model.trust_remote_code=false",
            key="model.trust_remote_code",
        )
    if model.cuda_graphs and not config.resolved_device.startswith("cuda"):
        raise ConfigError(
            f"model.cuda_graphs=true: {config.resolved_device} cannot capture and replay its work",
            hint="use model.cuda_graphs=false, or run.device=cuda on a machine with such a GPU",
            key="model.cuda_graphs",
        )
    check_static_cache(model)
    _check_compiling(model)
    _check_speculation(config)
    for wrong in wrong_dimensions(model.arch, "model.arch."):
        raise ConfigError(
            f"{wrong.key}={wrong.value} is not a model dimension",
            hint=f"it must be {wrong.meaning}; null leaves it to the model's own default",
            key=wrong.key,
        )


def _check_compiling(model: ModelConfig) -> None:
    """Refuse details of compiling where nothing is compiled, and graphs twice."""
    for given, key in (
        (model.compile_mode is not CompileMode.default, "model.compile_mode"),
        (model.compile_freezing, "model.compile_freezing"),
    ):
        if given and not model.compile:
            raise ConfigError(
                f"{key} without model.compile=true has no effect", hint="set model.compile=true", key=key
            )
    makes_graphs = model.compile_mode in (CompileMode.reduce_overhead, CompileMode.max_autotune)
    if makes_graphs and model.cuda_graphs:
        raise ConfigError(
            f"model.compile_mode={model.compile_mode.value} makes CUDA graphs itself, and model.cuda_graphs=true captures them again",
            hint="leave model.cuda_graphs out, or use model.compile_mode=max_autotune_no_cudagraphs",
            key="model.compile_mode",
        )


def _check_speculation(config: AppConfig) -> None:
    """Refuse speculative decoding where a cache cannot be cut back, or sequences would advance by different numbers of tokens."""
    model, infer = config.model, config.infer
    keys = [key for key in ("prompt_lookup_tokens", "draft_tokens") if getattr(infer, key)]
    if not keys:
        return
    key = f"infer.{keys[0]}"
    if len(keys) > 1:
        raise ConfigError(
            "infer.prompt_lookup_tokens and infer.draft_tokens both draft the next tokens",
            hint="set one to 0",
            key=key,
        )
    if infer.batch_size > 1:
        raise ConfigError(
            f"{key}: sequences of a batch would advance by different numbers of tokens",
            hint="use infer.batch_size=1",
            key=key,
        )
    if model.cache is CacheKind.static:
        raise ConfigError(
            f"{key}: passes check different numbers of tokens, which a static cache (compiled or captured steps) does not allow",
            hint="use model.cache=dynamic or model.cache=preallocated without model.compile and model.cuda_graphs",
            key=key,
        )
    if infer.draft_tokens and model.draft_path is None:
        raise ConfigError(
            "infer.draft_tokens needs a draft model",
            hint="set model.draft_path=CHECKPOINT",
            key="model.draft_path",
        )


def check_static_cache(model: ModelConfig) -> None:
    """Refuse a growing cache where shapes must stay the same."""
    for wanted, key, reason in (
        (model.compile, "model.compile", "a growing cache would be compiled again for every token"),
        (
            model.cuda_graphs,
            "model.cuda_graphs",
            "a captured graph writes to the addresses it was captured with",
        ),
    ):
        if wanted and model.cache is not CacheKind.static:
            raise ConfigError(f"{key}=true needs model.cache=static", hint=f"set it: {reason}", key=key)


def _check_workload(config: AppConfig) -> None:
    command = config.workload_command.command
    if command is not None and not [part for part in command if part]:
        raise ConfigError(
            "pipeline.workload.command is empty",
            hint="give the program and its arguments as a list: 'pipeline.workload.command=[python,bench.py]'",
            key="pipeline.workload.command",
        )
    named_variables(config.workload_command.env)
