"""All remedies: those that ship, and those of installed packages."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.runs.remedies.base import Remedy
from llm_perf_opt.runs.remedies.built_in import BUILT_IN

GROUP = "llm_perf_opt.remedies"


def all_remedies() -> list[Remedy]:
    """Return the built-in remedies and those of installed packages; two of one name are refused."""
    found = list(BUILT_IN)
    for point in entry_points(group=GROUP):
        try:
            loaded = point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"the remedy '{point.name}' cannot be loaded from {point.value}: {error}",
                hint="is the package that provides it complete?",
            ) from error
        found.extend(_listed(loaded, point.name))
    names = [remedy.name for remedy in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two remedies are named '{twice}'", hint="rename one of them in its package")
    return found


def _listed(loaded: Any, name: str) -> list[Remedy]:
    found = loaded if isinstance(loaded, Remedy | list | tuple) else loaded()
    remedies = [found] if isinstance(found, Remedy) else list(found) if isinstance(found, Iterable) else []
    if not remedies or not all(isinstance(each, Remedy) for each in remedies):
        raise ConfigError(
            f"the entry point '{name}' of {GROUP} gives no remedy",
            hint="it must be a Remedy, a list of them, or a function that returns either; see docs/improve.md",
        )
    return remedies
