"""Compose ``conf/`` with a user's overrides into the checked :class:`AppConfig`."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from llm_perf_opt.config.checks import check_config
from llm_perf_opt.config.devices import resolve_device
from llm_perf_opt.config.keys import did_you_mean, leaf_keys
from llm_perf_opt.config.legacy import translate_config, translate_overrides
from llm_perf_opt.config.schema import AppConfig, WorkloadCommandConfig
from llm_perf_opt.config.store import (
    CONF_DIR,
    SECTIONS,
    register_schema,
    schema_node,
)
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.nearest import nearest_key
from llm_perf_opt.core.stage import stage_types

LOGGER = logging.getLogger("llm_perf_opt.config")

_FREE_FORM = ("model.arch", "pipeline.torch_profiler.output.extra", "pipeline.direct_inference.output.extra")
"""Subtrees whose keys belong to an adapter, which checks them itself."""

_NO_PRESET = re.compile(r"null|true|false|\{\}|[-+.\deE]*", re.IGNORECASE)
"""Values that cannot name a preset: nothing, a truth value, a number."""

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


def compose_raw(
    overrides: Sequence[str], *, config_dir: Path | None = None, config_name: str = "config"
) -> DictConfig:
    """Compose with Hydra; its errors become one readable message."""
    register_schema()
    _use_search_path(config_dir)
    GlobalHydra.instance().clear()
    try:
        _refuse_what_hydra_trips_over(overrides)
        with initialize_config_dir(str(CONF_DIR), version_base="1.3", job_name="llm_perf_opt"):
            return compose(config_name, overrides=translate_overrides(overrides), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error) from error
    finally:
        GlobalHydra.instance().clear()


def _refuse_what_hydra_trips_over(overrides: Sequence[str]) -> None:
    """Hydra takes ``=3`` for a group without a name and ``model=null`` for no preset: both end in a traceback."""
    for item in overrides:
        key, _, value = item.partition("=")
        if not key.strip("+~ "):
            raise ConfigError(f"'{item}' is not an override: it names no key", hint="give key=value")
        if _NO_PRESET.fullmatch(value.strip()) and (CONF_DIR / key.strip("+ ")).is_dir():
            presets = sorted(path.stem for path in (CONF_DIR / key.strip("+ ")).glob("*.yaml"))
            raise ConfigError(
                f"{item} names no preset", hint=f"the presets are: {', '.join(presets)}", key=key.strip("+ ")
            )


def typed_config(raw: DictConfig, overrides: Sequence[str] = (), *, cwd: Path | None = None) -> AppConfig:
    """Turn a composed configuration into checked dataclasses."""
    raw = raw.copy()
    OmegaConf.set_struct(raw, False)
    try:
        for message in translate_config(raw, overrides):
            LOGGER.info(message)
        _absolute_paths(raw, cwd or Path.cwd())
        _check_keys(raw)
        config = _to_objects(raw)
    except OmegaConfBaseException as error:
        raise explain(error) from error
    config.resolved_device = resolve_device(config.run.device)
    if config.run.dataset_subset_filelist is not None:
        config.dataset.subset_filelist = config.run.dataset_subset_filelist
    check_config(config)
    return config


def _to_objects(raw: DictConfig) -> AppConfig:
    sections: dict[str, Any] = {name: _object(cls, raw[name], name) for name, cls in SECTIONS.items()}
    if not isinstance(raw.pipeline, DictConfig):
        raise _replaced("pipeline", raw.pipeline)
    pipeline = {
        name: _object(kind.config_type, raw.pipeline[name], f"pipeline.{name}")
        for name, kind in stage_types().items()
    }
    workload = _object(WorkloadCommandConfig, raw.pipeline.workload, "pipeline.workload")
    return AppConfig(**sections, workload_command=workload, pipeline=pipeline)


def _object(cls: type, node: DictConfig, key: str) -> Any:
    # Converted in place rather than merged into a fresh node: a second merge would resolve values twice, and a
    # literal ``${`` in a prompt would be taken for an interpolation.
    found = OmegaConf.to_object(node) if OmegaConf.is_config(node) else node
    if not isinstance(found, cls):
        raise _replaced(key, found)
    return found


def _replaced(key: str, value: Any) -> ConfigError:
    shown = "null" if value is None else repr(value)
    return ConfigError(
        f"{key}={shown} replaces a whole section", hint=f"set the keys inside it: {key}.KEY=VALUE", key=key
    )


def _absolute_paths(raw: DictConfig, cwd: Path) -> None:
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


def _check_keys(raw: DictConfig) -> None:
    """Refuse every key the schema does not have, naming the nearest one."""
    tree = OmegaConf.to_container(raw, resolve=False)
    if not isinstance(tree, dict):
        raise ConfigError("the configuration is not a mapping")
    known = known_keys()
    tree.pop("hydra", None)
    for key in leaf_keys(tree):  # type: ignore[arg-type]
        if key in known or any(key.startswith(f"{free}.") for free in _FREE_FORM):
            continue
        raise ConfigError(f"unknown configuration key '{key}'", hint=did_you_mean(key, known), key=key)


def _use_search_path(config_dir: Path | None) -> None:
    """Add a user's ``--config-dir`` to the search path, the way Hydra's own command line does."""
    if config_dir is None:
        return
    if not config_dir.is_dir():
        raise ConfigError(
            f"--config-dir {config_dir} is not a directory",
            hint="give the directory that holds your config groups",
        )
    folder = str(config_dir.resolve())

    class _UserConfigs(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            search_path.append("user", f"file://{folder}")

    Plugins.instance().register(_UserConfigs)


_SENTENCES = (
    (re.compile(r"Value '(.*)' of type '.*' could not be converted to (\w+)"), r"'\1' is not a valid \2"),
    (re.compile(r"Value '(.*)' is not a valid bool \(type .*\)"), r"'\1' is not a valid Boolean"),
    (re.compile(r"Invalid value '(.*)', expected one of \[(.*)\]"), r"'\1' is not one of \2"),
    (
        re.compile(
            r"Value '(.*)' \(.*\) is not a supported primitive type|Cannot assign (\w+) to ListConfig"
        ),
        r"the value has the wrong type",
    ),
    (re.compile(r"field '(.*)' is not Optional"), r"null is not allowed here"),
)
_TYPE_NAMES = {"Integer": "integer", "Float": "number", "Boolean": "true/false value"}


def explain(error: Exception) -> ConfigError:
    """Say in one sentence what Hydra or OmegaConf said in several."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause).splitlines()[0] if str(cause) else str(error)
    key = _key_of(error, cause)
    for pattern, sentence in _SENTENCES:
        match = pattern.search(text)
        if match:
            text = match.expand(sentence)
            break
    for name, words in _TYPE_NAMES.items():
        text = text.replace(f"a valid {name}", f"a valid {words}")
    missing = re.search(r"Could not override '([^']+)'", str(error)) or re.search(
        r"Key '([^']+)' (?:is )?not in", text
    )
    if missing:
        wanted = missing.group(1)
        known = leaf_keys(OmegaConf.to_container(schema_node(), resolve=False))  # type: ignore[arg-type]
        return ConfigError(
            f"unknown configuration key '{wanted}'", hint=did_you_mean(wanted, known), key=wanted
        )
    if key:
        return ConfigError(f"{key}: {text}", hint=_current_type_hint(key), key=key)
    bare = re.fullmatch(r"Error parsing override '([^'=]*)'", text)
    if bare:
        return ConfigError(f"'{bare.group(1)}' is not an override", hint="give key=value")
    return _unknown_preset(str(error)) or ConfigError(_readable(str(error), text))


def _key_of(error: Exception, cause: BaseException) -> str | None:
    override = re.search(r"Error merging override (\S+?)=", str(error))
    if override:
        return override.group(1).lstrip("+~")
    full_key = getattr(cause, "full_key", None)
    return str(full_key) if full_key else None


def _current_type_hint(key: str) -> str:
    """Show the default value, which tells the type better than its name."""
    schema, (parent, _, name) = schema_node(), key.rpartition(".")
    section = OmegaConf.select(schema, parent) if parent else schema
    if isinstance(section, DictConfig) and OmegaConf.is_missing(section, name):
        return f"see what {key} is now with: llm-perf-opt run --cfg job"
    default = OmegaConf.select(schema, key, throw_on_missing=False)
    if isinstance(default, DictConfig):
        return f"set the keys inside it: {key}.KEY=VALUE"
    shown = OmegaConf.to_container(default) if OmegaConf.is_config(default) else default
    return f"the default is {key}={'null' if shown is None else shown}"


def _unknown_preset(message: str) -> ConfigError | None:
    """Hydra's answer to a mistyped preset lists the choices: name the nearest, and show them all."""
    found = re.search(r"Could not find '([\w./-]+)/([^/']+)'", message)
    listed = re.search(r"Available options in '[^']*':\n((?:\s+\S+\n?)+)", message)
    if found is None or listed is None:
        return None
    group, wanted = found.groups()
    choices = [line.strip() for line in listed.group(1).splitlines() if line.startswith(("\t", " "))]
    near = nearest_key(wanted, choices)
    guess = f"did you mean {group}={near}? " if near else ""
    return ConfigError(
        f"there is no preset '{wanted}' of {group}",
        hint=f"{guess}the presets are: {', '.join(choices)}",
        key=group,
    )


def _readable(message: str, text: str) -> str:
    """Keep all of what Hydra says of files it did not find; of the rest one line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return "\n  ".join(lines[:30]) if "Could not find" in message else text
