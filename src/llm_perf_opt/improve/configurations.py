"""The configurations of an experiment: composed, checked, and verified to be the same workload."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llm_perf_opt.compare.measure import TIMINGS_ONLY
from llm_perf_opt.config.hydra_bridge.values import format_value, leaves
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.remedies.base import IMAGE_KEYS, key_of
from llm_perf_opt.remedies.data import Effect

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig

_RUN_DIRECTORY_KEYS = ("artifacts.runs_dir", "hydra.run.dir")
_WORKLOAD_KEYS = (
    "infer.max_new_tokens",
    "infer.ignore_eos",
    "infer.no_repeat_ngram_size",
    "infer.prompt",
    "infer.chat_template",
    "model.adapter",
    "model.path",
    "model.revision",
    "model.config_name",
    "model.weights",
    "model.seed",
    "run.device",
    "run.mode",
    "run.ranks",
)
"""What makes the work: a remedy that changes one of these does other work, not the same faster."""
_WORKLOAD_SECTIONS = ("model.arch.", "dataset.")
_WEIGHT_KEYS = ("model.dtype", "model.quantise_weights", "model.channels_last")
"""What rewrites the weights, or their data type."""
_PROCESS_KEYS = ("run.env", "run.affinity", "run.memory_nodes", "run.interop_threads", "model.sdpa_backend")
"""Settings that belong to a process and are read when it starts. torch.compile keeps the attention it was traced with, for
every model of the same class in the process."""


def composed(overrides: Sequence[str]) -> AppConfig:
    """Compose a side: its overrides, with timing only."""
    from llm_perf_opt.runs.app import check_configuration

    return check_configuration(timed(overrides), config_dir=None, config_name="config").config


def checked(overrides: Sequence[str]) -> AppConfig:
    """Compose and check everything, stages included; raises :class:`ConfigError` before anything runs.

    A search needs its baseline before every experiment, so results are cached.
    """
    return _checked(tuple(timed(overrides)))


@functools.lru_cache(maxsize=256)
def _checked(overrides: tuple[str, ...]) -> AppConfig:
    from llm_perf_opt.runs.app import prepare

    return prepare(list(overrides), config_dir=None, config_name="config").config


def timed(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a run that only times; the user's settings are kept."""
    keys = {key_of(item) for item in overrides}
    return [*(item for item in TIMINGS_ONLY if key_of(item) not in keys), *overrides]


def refuse_run_directory(overrides: Sequence[str]) -> None:
    """Reject keys that the search sets itself."""
    clash = sorted({key_of(item) for item in overrides}.intersection(_RUN_DIRECTORY_KEYS))
    if clash:
        raise ConfigError(
            f"improve chooses {clash[0]} itself", hint="choose a directory with --out", key=clash[0]
        )


def merged(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Merge overrides; for equal keys the second one is used."""
    keys = {key_of(item) for item in second}
    return [*(item for item in first if key_of(item) not in keys), *second]


def flat(config: AppConfig) -> dict[str, Any]:
    """Return every value of the sections that describe model, request, data and run."""
    sections = {"model": config.model, "infer": config.infer, "dataset": config.dataset, "run": config.run}
    return {key: value for name, section in sections.items() for key, value in leaves(section, name)}


def other_work(a: AppConfig, b: AppConfig, effect: Effect) -> str | None:
    """Return the key that makes B's workload different from A's; ``None``: it is the same work."""
    first, second = flat(a), flat(b)
    for key in sorted(first.keys() | second.keys()):
        if first.get(key) == second.get(key):
            continue
        if key in _WORKLOAD_KEYS or key.startswith(_WORKLOAD_SECTIONS):
            return f"it changes the workload: {key}={second.get(key)} instead of {first.get(key)}"
        if key in IMAGE_KEYS and effect != "quality":
            return f"it changes the pages ({key}), and does not declare that it changes the quality"
    return None


def can_share_weights(a: AppConfig, b: AppConfig) -> bool:
    """Return whether both sides may read one set of weights: B neither changes them nor their data type."""
    first, second = flat(a), flat(b)
    return not any(first.get(key) != second.get(key) for key in _WEIGHT_KEYS)


def changed_keys(a: AppConfig, b: AppConfig) -> list[str]:
    """Return the keys of model, request, data and run that differ in B."""
    first, second = flat(a), flat(b)
    return [key for key in sorted(first.keys() | second.keys()) if first.get(key) != second.get(key)]


def is_set(known: Mapping[str, Any], item: str) -> bool:
    """Return whether ``key=value`` is already in the values of a configuration (:func:`flat`)."""
    key, _, text = item.partition("=")
    value = known.get(key.lstrip("+~"))
    # As written on a command line: quoted where it would be a number, its own equals signs escaped.
    return format_value(value) == text or str(value) == text.strip("'").replace("\\=", "=")


def needs_own_process(a: AppConfig, b: AppConfig) -> bool:
    """Return whether the sides differ in settings that a process reads at start-up."""
    first, second = flat(a), flat(b)
    keys = first.keys() | second.keys()
    return any(first.get(key) != second.get(key) for key in keys if key.startswith(_PROCESS_KEYS))
