"""Find model and data set adapters: by entry point, or by ``package.module:Class``."""

from __future__ import annotations

import difflib
import importlib
from abc import ABCMeta
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, cast

from llm_perf_opt.core.errors import ConfigError, nearest_key
from llm_perf_opt.core.stage import PluginError, entry_points, load_entry_point
from llm_perf_opt.process.tools import missing_engine
from llm_perf_opt.workloads.base import Dataset, ModelAdapter

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import DatasetConfig, InferConfig, ModelConfig

MODEL_GROUP = "llm_perf_opt.models"
DATASET_GROUP = "llm_perf_opt.datasets"


def load_adapter(model: ModelConfig, infer: InferConfig) -> ModelAdapter:
    """Return the adapter ``model.adapter`` names, with the configuration checked."""
    return adapter_class(model.adapter)(model, infer)


def load_dataset(dataset: DatasetConfig) -> Dataset:
    """Return the data set ``dataset.adapter`` names."""
    return dataset_class(dataset.adapter)(dataset)


def adapter_class(name: str) -> type[ModelAdapter]:
    """Return the class ``model.adapter`` names."""
    return cast("type[ModelAdapter]", _find_class(name, MODEL_GROUP, "model.adapter", ModelAdapter))


def dataset_class(name: str) -> type[Dataset]:
    """Return the class ``dataset.adapter`` names."""
    return cast("type[Dataset]", _find_class(name, DATASET_GROUP, "dataset.adapter", Dataset))


def _find_class(name: str, group: str, key: str, base: ABCMeta) -> ABCMeta:
    """Resolve a name to a class that derives from ``base`` and is complete; the error names what is missing."""
    found = _import_dotted(name, key) if ":" in name else _load_entry_point(name, group, key)
    if not (isinstance(found, ABCMeta) and issubclass(found, base)):
        raise ConfigError(
            f"{key}={name} is not an adapter: it does not inherit from {base.__name__}",
            hint=f"write `class …({base.__name__})`, imported from {base.__module__}; see docs/extending.md",
            key=key,
        )
    if found.__abstractmethods__:
        raise ConfigError(
            f"{key}={name} is not an adapter: it lacks {', '.join(sorted(found.__abstractmethods__))}",
            hint="see docs/extending.md for what a class must have",
            key=key,
        )
    return found


def _load_entry_point(name: str, group: str, key: str) -> Any:
    known: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=group)}
    if name not in known:
        near = nearest_key(name, known)
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError(
            f"{key}={name} is not registered",
            hint=f"{hint}known: {', '.join(sorted(known))}; or write package.module:Class",
            key=key,
        )
    if (missing := missing_engine()) is not None:
        raise missing
    try:
        return load_entry_point(known[name])
    except PluginError as error:
        raise ConfigError(
            f"{key}={name} ({known[name].value}): {error}",
            hint="is the package that provides it complete?",
            key=key,
        ) from error


def _import_dotted(name: str, key: str) -> Any:
    module_name, _, path = name.partition(":")
    if (missing := missing_engine()) is not None:
        raise missing
    try:
        found: Any = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{key}={name}: cannot import {module_name!r}: {error}",
            hint="install the package, or put its directory on PYTHONPATH",
            key=key,
        ) from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            near = difflib.get_close_matches(part, dir(found), n=1)
            raise ConfigError(
                f"{key}={name}: {module_name} has no {part!r}",
                hint=f"did you mean {near[0]}?" if near else "write package.module:Class",
                key=key,
            ) from error
    return found
