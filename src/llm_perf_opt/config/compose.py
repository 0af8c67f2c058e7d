"""Turn a composed configuration into the checked :class:`AppConfig`."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from llm_perf_opt.config.checks import check_config
from llm_perf_opt.config.devices import resolve_device
from llm_perf_opt.config.hydra_bridge.compose import compose_raw, copied, with_given_value
from llm_perf_opt.config.hydra_bridge.errors import explain
from llm_perf_opt.config.keys import did_you_mean, leaf_keys
from llm_perf_opt.config.legacy import translate_config
from llm_perf_opt.config.schema import SECTIONS, AppConfig, WorkloadCommandConfig
from llm_perf_opt.config.store import schema_node
from llm_perf_opt.core.console.logs import ONCE
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.secrets import mask_tree
from llm_perf_opt.core.stage import stage_types, unusable_stages

LOGGER = logging.getLogger("llm_perf_opt.config")
_FREE_FORM = (
    "model.arch",
    "pipeline.torch_profiler.output.extra",
    "pipeline.direct_inference.output.extra",
    "pipeline.serve.env",
    "pipeline.workload.env",
    "run.env",
    "run.phase_threads",
)
"""Subtrees whose keys are the user's own; who uses them checks them."""
_PATH_KEYS = (
    "model.path",
    "model.config_name",
    "dataset.root",
    "dataset.subset_filelist",
    "dataset.prompts_file",
    "dataset.generated.cache_dir",
    "run.dataset_subset_filelist",
    "hardware.catalogue",
)
"""Keys that may hold a path relative to where the user is, not to the run directory."""


def compose_config(
    overrides: Sequence[str],
    *,
    config_dir: Path | None = None,
    config_name: str = "config",
    cwd: Path | None = None,
) -> AppConfig:
    """Compose, translate legacy keys, and check everything; nothing is written."""
    raw = compose_raw(overrides, config_dir=config_dir, config_name=config_name)
    return typed_config(raw, overrides, cwd=cwd)


def typed_config(
    raw: DictConfig, overrides: Sequence[str] = (), *, cwd: Path | None = None, here: bool = True
) -> AppConfig:
    """Turn a composed configuration into checked dataclasses.

    ``here``: whether it is for this machine; a device of another one is not looked for.
    """
    return typed(current_config(raw, overrides, cwd=cwd), here=here)


def typed(current: DictConfig, *, here: bool = True) -> AppConfig:
    """Turn a configuration of this release's keys (:func:`current_config`) into checked dataclasses."""
    try:
        config = _to_objects(current)
    except OmegaConfBaseException as error:
        raise explain(error) from error
    config.resolved_device = _device(config.run.device, here=here)
    if config.run.dataset_subset_filelist is not None:
        config.dataset.subset_filelist = config.run.dataset_subset_filelist
    check_config(config)
    return config


def _device(wanted: str, *, here: bool) -> str:
    try:
        return resolve_device(wanted)
    except ConfigError as error:
        if here or not error.data.get("unavailable"):
            raise
        return wanted


def config_hash(raw: DictConfig, overrides: Sequence[str] = (), *, cwd: Path | None = None) -> str:
    """Return a digest of what a run is asked to do; where it writes and with whom it shares a device is left out."""
    return digest(current_config(raw, overrides, cwd=cwd))


def digest(current: DictConfig) -> str:
    """Return the digest of a configuration of this release's keys (:func:`current_config`), which is used up by it."""
    for name in ("hydra", "artifacts", "sweep"):
        current.pop(name, None)
    plain: Any = OmegaConf.to_container(current, resolve=True, enum_to_str=True)
    plain.get("run", {}).pop("exclusive", None)
    text = json.dumps(plain, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def current_config(raw: DictConfig, overrides: Sequence[str] = (), *, cwd: Path | None = None) -> DictConfig:
    """Return a copy with the keys of this release only, and with absolute paths; unknown keys are refused."""
    current = copied(raw)
    OmegaConf.set_struct(current, False)
    try:
        for message in translate_config(current, overrides):
            LOGGER.info(message, extra=ONCE)
        _make_paths_absolute(current, cwd or Path.cwd())
        _check_keys(current, overrides)
    except OmegaConfBaseException as error:
        raise explain(error) from error
    return current


def resolved_yaml(raw: DictConfig, overrides: Sequence[str] = (), *, cwd: Path | None = None) -> str:
    """Return a composed configuration as YAML: keys of this release, interpolations replaced, secrets masked."""
    current = current_config(raw, overrides, cwd=cwd)
    plain = OmegaConf.to_container(current, resolve=True)
    masked = mask_tree(plain)
    return OmegaConf.to_yaml(current, resolve=True) if masked == plain else OmegaConf.to_yaml(masked)


def _to_objects(raw: DictConfig) -> AppConfig:
    sections: dict[str, Any] = {name: _to_object(cls, raw[name], name) for name, cls in SECTIONS.items()}
    if not isinstance(raw.pipeline, DictConfig):
        raise _replaced_section("pipeline", raw.pipeline)
    pipeline = {
        name: _to_object(kind.config_type, raw.pipeline[name], f"pipeline.{name}")
        for name, kind in stage_types().items()
    }
    workload = _to_object(WorkloadCommandConfig, raw.pipeline.workload, "pipeline.workload")
    return AppConfig(**sections, workload_command=workload, pipeline=pipeline)


def _to_object(cls: type, node: DictConfig, key: str) -> Any:
    # Converted in place rather than merged into a fresh node: a second merge would resolve values twice, and a
    # literal ``${`` in a prompt would be taken for an interpolation.
    found = OmegaConf.to_object(node) if OmegaConf.is_config(node) else node
    if not isinstance(found, cls):
        raise _replaced_section(key, found)
    return found


def _replaced_section(key: str, value: Any) -> ConfigError:
    shown = "null" if value is None else repr(value)
    return ConfigError(
        f"{key}={shown} replaces a whole section", hint=f"set the keys inside it: {key}.KEY=VALUE", key=key
    )


def _make_paths_absolute(raw: DictConfig, cwd: Path) -> None:
    for key in _PATH_KEYS:
        value = OmegaConf.select(raw, key, throw_on_missing=False)
        if not isinstance(value, str):
            continue
        try:
            path = Path(value).expanduser()
        except RuntimeError as error:
            raise ConfigError(f"{key}={value}: {error}", hint="give the path without '~'", key=key) from error
        # ``model.path`` and ``model.config_name`` may be a hub or preset name: only what exists is a path.
        if key.startswith("model.") and not (cwd / path).exists():
            continue
        OmegaConf.update(raw, key, str(cwd / path))


@functools.cache
def known_keys() -> frozenset[str]:
    """Return every key of the schema, inner nodes included."""
    return frozenset(leaf_keys(OmegaConf.to_container(schema_node(), resolve=False)))  # type: ignore[arg-type]


@functools.cache
def _stage_mappings() -> tuple[str, ...]:
    """Return the keys of stages that hold a mapping with names of the user's choice."""
    return tuple(
        f"pipeline.{name}.{field.name}"
        for name, stage in stage_types().items()
        for field in dataclasses.fields(stage.config_type)
        if field.default_factory is dict
    )


def _check_keys(raw: DictConfig, overrides: Sequence[str] = ()) -> None:
    """Refuse every key the schema does not have, naming the nearest one."""
    tree = OmegaConf.to_container(raw, resolve=False)
    if not isinstance(tree, dict):
        raise ConfigError("the configuration is not a mapping")
    known = known_keys()
    tree.pop("hydra", None)
    for key in leaf_keys(tree):  # type: ignore[arg-type]
        if key in known or any(key.startswith(f"{free}.") for free in (*_FREE_FORM, *_stage_mappings())):
            continue
        broken = unusable_stages().get(key.split(".")[1]) if key.startswith("pipeline.") else None
        if broken is not None:
            raise ConfigError(broken, hint=f"update its package, or leave {key} out", key=key)
        unknown = ConfigError(f"unknown configuration key '{key}'", hint=did_you_mean(key, known), key=key)
        raise with_given_value(unknown, overrides)
