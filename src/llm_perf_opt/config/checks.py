"""Ranges and combinations that types cannot express. Every message names the key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.config.schema import AppConfig, Weights
from llm_perf_opt.config.workload_env import named_variables
from llm_perf_opt.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RangeRule:
    """A numeric key and what it may be; ``None`` values pass."""

    key: str
    allowed: Callable[[Any], bool]
    meaning: str


def _at_least(key: str, minimum: int) -> RangeRule:
    return RangeRule(key, lambda value: value >= minimum, f"at least {minimum}")


RANGES: tuple[RangeRule, ...] = (
    _at_least("run.repeats", 1),
    RangeRule("run.target_interval_ratio", lambda v: v > 0, "more than 0"),
    RangeRule("run.max_measure_s", lambda v: v > 0, "more than 0 seconds"),
    _at_least("run.top_n_kernels", 1),
    _at_least("run.representative_max_new_tokens", 1),
    _at_least("run.threads", 1),
    _at_least("infer.max_new_tokens", 1),
    _at_least("infer.no_repeat_ngram_size", 0),
    _at_least("infer.batch_size", 1),
    _at_least("infer.max_tiles", 2),
    _at_least("infer.warmup_rounds", 0),
    RangeRule("infer.base_size", lambda v: v > 0 and v % 64 == 0, "a positive multiple of 64"),
    RangeRule("infer.image_size", lambda v: v > 0 and v % 64 == 0, "a positive multiple of 64"),
    _at_least("dataset.sampling.num_epochs", 1),
    _at_least("dataset.sampling.num_samples_per_epoch", 1),
    _at_least("dataset.synthetic_tokens", 1),
    _at_least("dataset.synthetic_count", 1),
    _at_least("dataset.generated.pages", 1),
    _at_least("dataset.generated.max_side", 128),
    _at_least("workload_command.repeats", 0),
    RangeRule("workload_command.timeout_s", lambda v: v > 0, "more than 0 seconds"),
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
    _check_model(config)
    _check_workload(config)


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


def _check_workload(config: AppConfig) -> None:
    command = config.workload_command.command
    if command is not None and not [part for part in command if part]:
        raise ConfigError(
            "pipeline.workload.command is empty",
            hint="give the program and its arguments as a list: 'pipeline.workload.command=[python,bench.py]'",
            key="pipeline.workload.command",
        )
    named_variables(config.workload_command.env)
