"""Dataclasses to JSON and back, strictly, and their JSON Schema; driven by the annotations alone."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any, Literal, TypeVar

from llm_perf_opt.core.errors import InputError

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Turn nested dataclasses into dicts; a NaN or infinity is an error, because JSON has neither."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"not a finite number: {value}")
    return value


def from_plain(cls: type[T], data: Any, where: str = "") -> T:
    """Build a dataclass from JSON data; unknown keys are kept out, wrong shapes are an :class:`InputError`."""
    return typing.cast(T, _build(cls, data, where or cls.__name__))


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _build(annotation: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if annotation is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        return _build_union(arguments, data, where)
    if origin is Literal:
        if data not in arguments:
            raise InputError(f"{where}: {data!r} is not one of {', '.join(map(repr, arguments))}")
        return data
    if origin is list:
        _expect(isinstance(data, list), where, "a list", data)
        return [_build(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(data)]
    if origin is dict:
        _expect(isinstance(data, dict), where, "an object", data)
        return {key: _build(arguments[1], item, f"{where}.{key}") for key, item in data.items()}
    if dataclasses.is_dataclass(annotation):
        return _build_dataclass(typing.cast(type, annotation), data, where)
    if annotation is float:
        _expect(isinstance(data, int | float) and not isinstance(data, bool), where, "a number", data)
        return float(data)
    _expect(
        isinstance(data, annotation) and (annotation is bool or not isinstance(data, bool)),
        where,
        annotation.__name__,
        data,
    )
    return data


def _build_union(arguments: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in arguments:
        return None
    choices = [a for a in arguments if a is not type(None)]
    return _build(choices[0], data, where)


def _build_dataclass(cls: type, data: Any, where: str) -> Any:
    _expect(isinstance(data, dict), where, "an object", data)
    values = {}
    for item in dataclasses.fields(cls):
        if item.name in data:
            values[item.name] = _build(_hints(cls)[item.name], data[item.name], f"{where}.{item.name}")
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise InputError(f"{where}: the key '{item.name}' is missing")
    return cls(**values)


def _expect(condition: bool, where: str, wanted: str, data: Any) -> None:
    if not condition:
        raise InputError(f"{where}: expected {wanted}, found {type(data).__name__}")


_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def json_schema(cls: type) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a dataclass."""
    definitions: dict[str, Any] = {}
    root = _schema(cls, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": definitions}


def _schema(annotation: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if annotation is Any:
        return {}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(a, definitions) for a in arguments]}
    if annotation is type(None):
        return {"type": "null"}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if dataclasses.is_dataclass(annotation):
        return _dataclass_schema(typing.cast(type, annotation), definitions)
    return {"type": _SCALARS[annotation]}


def _dataclass_schema(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    if cls.__name__ not in definitions:
        definitions[cls.__name__] = {}  # breaks cycles while the fields are walked
        definitions[cls.__name__] = {
            "type": "object",
            "description": (cls.__doc__ or "").strip(),
            "properties": {
                f.name: _schema(_hints(cls)[f.name], definitions) for f in dataclasses.fields(cls)
            },
            "required": [f.name for f in dataclasses.fields(cls)],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{cls.__name__}"}
