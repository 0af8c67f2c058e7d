"""Write values so that Hydra's override grammar gives back exactly the same values.

Paths and prompts hold spaces, commas, quotes, ``=``, ``$``, braces and line breaks; a program's argument list
carries them untouched, but the override parser behind it would not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from llm_perf_opt.core.errors import ConfigError

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS_WITH_MEANING = {"null", "true", "false", "nan", "inf"}
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*|\d+")


def override(key: str, value: Any) -> str:
    """Return ``key=value``."""
    return f"{key}={format_value(value)}"


def format_value(value: Any) -> str:
    """Return a value in Hydra's grammar: strings are quoted where they could be taken for something else."""
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS_WITH_MEANING
        return value if plain else quote(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(format_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return (
            f"{{{','.join(f'{_checked_key(str(key))}:{format_value(item)}' for key, item in value.items())}}}"
        )
    raise ConfigError(f"a {type(value).__name__} cannot be handed to the captured program as configuration")


def quote(text: str) -> str:
    """Quote a string; escaped are ``'``, ``${`` (an interpolation), and backslashes that would escape."""
    text = re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", text)
    text = re.sub(r"(\\*)'", lambda found: found[1] * 2 + r"\'", text)
    text = re.sub(r"(\\+)\Z", lambda found: found[1] * 2, text)
    return f"'{text}'"


def leaves(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and value of every leaf of dataclasses and mappings; lists are leaves."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, f"{prefix}.{_checked_key(str(key))}")
    else:
        yield prefix, value


def _checked_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ConfigError(
            f"'{key}' cannot be a configuration key", hint="use letters, digits and underscores"
        )
    return key
