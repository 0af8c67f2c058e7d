"""Architecture dictionaries (``model.arch``) into transformers configurations; a misspelt dimension is an error."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from llm_perf_opt.core.errors import ConfigError

_COMMON_KEYS = frozenset(
    {"model_type", "dtype", "architectures", "first_k_dense_replace", "rope_theta", "rope_scaling"}
)
"""Accepted everywhere: what is no dimension, and older spellings that transformers still reads."""


def make_config(
    kind: Any, arch: Mapping[str, Any], document: Mapping[str, Any] | None = None, *, key: str = "model.arch"
) -> Any:
    """Build the transformers config ``kind`` from ``arch``; raise :class:`ConfigError` for what it does not know.

    ``document`` is a configuration file's content that ``arch`` changes; files may carry keys nobody reads any more.
    """
    from huggingface_hub.errors import StrictDataclassError

    plain = {str(name): value for name, value in arch.items()}
    check_keys(
        kind, {name: value for name, value in plain.items() if document is None or name not in document}, key
    )
    try:
        return kind.from_dict({**(document or {}), **plain})
    except (TypeError, ValueError, StrictDataclassError) as error:
        message = " ".join(str(error).split())
        raise ConfigError(
            f"{key} is not a valid {kind.__name__}: {message}",
            hint="see the presets under conf/model",
            key=key,
        ) from error


def check_keys(kind: Any, arch: Mapping[str, Any], key: str) -> None:
    """Refuse unknown keys, at every level, with the nearest known one."""
    nested: Mapping[str, Any] = getattr(kind, "sub_configs", None) or {}
    known = (
        {field.name for field in dataclasses.fields(kind)}
        | set(nested)
        | set(getattr(kind, "attribute_map", {}))
        | _COMMON_KEYS
    )
    for name, value in arch.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"unknown key {key}.{name}",
                hint=f"did you mean {key}.{near[0]}?" if near else f"{kind.__name__} has no such dimension",
                key=f"{key}.{name}",
            )
        child = nested.get(name)
        if isinstance(value, Mapping) and dataclasses.is_dataclass(child):
            check_keys(child, value, f"{key}.{name}")


def require(condition: bool, message: str, *, key: str, hint: str) -> None:
    """Raise :class:`ConfigError` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(message, hint=hint, key=key)
