"""Values for Hydra's override grammar: any text, number or list survives the way back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z0-9_./:\-+%@?|]+")
_LOOKS_LIKE_ANOTHER_TYPE = re.compile(r"(?i)(null|true|false|nan|[+-]?inf|[+-]?[\d._]+(e[+-]?\d+)?)")


def quote(value: Any) -> str:
    """Write a value so that Hydra's command line reads exactly this value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{quote(str(key))}:{quote(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(quote(item) for item in value) + "]"
    return _quote_text(str(value))


def _quote_text(text: str) -> str:
    if _PLAIN.fullmatch(text) and not _LOOKS_LIKE_ANOTHER_TYPE.fullmatch(text):
        return text
    # Inside quotes the grammar unescapes only a quote and the backslashes right before one or before the end.
    escaped = re.sub(r"(\\*)(?:(')|$)", lambda m: m.group(1) * 2 + ("\\'" if m.group(2) else ""), text)
    return "'" + escaped.replace("${", "\\${") + "'"


def override(key: str, value: Any) -> str:
    """Write one ``key=value`` override."""
    return f"{key}={quote(value)}"
