"""``pipeline.workload.env``: variables that a captured program gets in addition to the allow-listed ones.

A module of its own because the shipped scripts use it without the package's dependencies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from llm_perf_opt.core.errors import ConfigError

# ``pipeline.workload.env``: the variables a captured program gets in addition to the allow-listed ones.


KEY = "pipeline.workload.env"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def named_variables(value: object) -> dict[str, str]:
    """Return name → value of a list of names (or ``NAME=VALUE``), or of a mapping; names that are not set are left out."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {_checked(str(name)): _text(str(name), text) for name, text in value.items()}
    if not isinstance(value, list | tuple):
        raise _refused(f"{value} is neither a list nor a mapping")
    found: dict[str, str] = {}
    for item in map(str, value):
        name, sign, text = item.partition("=")
        if sign:
            found[_checked(name)] = text
        elif _checked(name) in os.environ:
            found[name] = os.environ[name]
    return found


def _checked(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise _refused(f"'{name}' is not the name of a variable")
    return name


def _text(name: str, value: object) -> str:
    if isinstance(value, Mapping | list | tuple) or value is None:
        raise _refused(f"{name} has no text as its value")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refused(reason: str) -> ConfigError:
    return ConfigError(
        f"{KEY}: {reason}",
        hint=f"give names to hand on, '{KEY}=[MY_SETTING]', or values, '{KEY}={{MY_SETTING: abc}}'",
        key=KEY,
    )
