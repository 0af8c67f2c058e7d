"""Dataclasses to JSON and back, strictly, and their JSON Schema; driven by the annotations alone.

msgspec does the work in C. What it lacks is added here: a NaN or an infinity is refused both ways, and an error
names the place by its keys ("components.sam_s.median") where msgspec writes ``[...]`` for a key of a dict.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import reprlib
import types
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import atomic_write_json, read_document

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Turn nested dataclasses into dicts; a NaN or infinity is an error, because JSON has neither."""
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_scalar)
    try:
        _refuse_what_json_lacks(plain)
    except ValueError as error:
        raise ValueError(_explain(Any, plain, type(value).__name__)) from error
    return plain


def save_json(path: Path, value: Any) -> Path:
    """Write a dataclass as strict JSON, whole or not at all."""
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_scalar)
    try:
        return atomic_write_json(path, plain)
    except ValueError as error:
        raise ValueError(_explain(Any, plain, path.name)) from error


def from_plain(
    cls: type[T], data: Any, where: str = "", *, hint: str | None = None, path: Path | None = None
) -> T:
    """Build a dataclass from JSON data; unknown keys are kept out, wrong shapes are an :class:`InputError`."""
    where = where or getattr(cls, "__name__", "value")
    try:
        return typing.cast(T, _convert(cls, data))
    except ValueError:
        message = _explain(cls, data, where)
    except RecursionError:
        message = f"{where}: nested too deeply"
    raise InputError(message, hint=hint, **({} if path is None else {"path": str(path)}))


def decode_file(path: Path, cls: type[T], *, hint: str | None = None) -> T:
    """Read a JSON file into a dataclass (or ``dict[str, Any]``).

    A file that is not there, is no JSON or has another shape is an :class:`InputError` that names file and place.
    """
    text = _read(path, hint)
    try:
        return typing.cast(T, _decoder(typing.cast(Any, cls)).decode(text))
    except (ValueError, RecursionError):
        # Python's reader explains damage by line and column, and takes what atomic_write_json makes of an
        # undecodable file name (half a surrogate pair), which msgspec refuses.
        return from_plain(cls, _loads(text, path, hint), str(path), hint=hint, path=path)


def read_json(path: Path, *, hint: str | None = None) -> Any:
    """Read a JSON file whose shape the caller checks; the errors are those of :func:`decode_file`."""
    return decode_file(path, typing.cast("type[Any]", Any), hint=hint)


def _read(path: Path, hint: str | None) -> bytes:
    try:
        return read_document(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", hint=hint, path=str(path)) from error


def _loads(text: bytes, path: Path, hint: str | None) -> Any:
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
    except ValueError as error:
        reason = str(error)
    except RecursionError:
        reason = "nested too deeply"
    raise InputError(f"{path} is not valid JSON: {reason}", hint=hint, path=str(path))


def _refuse_constant(constant: str) -> float:
    """Python's reader takes NaN and Infinity for numbers; JSON has neither, and no measurement is either."""
    raise ValueError(f"{constant} is not a number in JSON")


@functools.cache
def _decoder(cls: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(cls)


def _scalar(value: Any) -> Any:
    """Take subclasses of the scalars (numpy's float64 is one) for what they are; msgspec wants the exact types."""
    for kind in (float, int):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, str):
        return str.__str__(value)
    raise NotImplementedError


def _refuse_what_json_lacks(data: Any) -> None:
    """Raise ValueError for a NaN, an infinity or an object; the text is thrown away, the walk in C is the point."""
    try:
        json.dumps(data, allow_nan=False)
    except TypeError as error:
        raise ValueError(str(error)) from error


def _convert(annotation: Any, data: Any) -> Any:
    _refuse_what_json_lacks(data)
    return msgspec.convert(data, annotation)


def _explain(annotation: Any, data: Any, where: str) -> str:
    try:
        return _fault(annotation, data, where)
    except RecursionError:
        return f"{where}: nested too deeply"


def _fits(annotation: Any, data: Any) -> bool:
    try:
        _convert(annotation, data)
    except ValueError:
        return False
    return True


def _fault(annotation: Any, data: Any, where: str) -> str:
    """Say what does not fit in data that is known not to: go down to the first part that msgspec refuses."""
    annotation, limits = _without_limits(_without_none(annotation))
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    parts: list[tuple[Any, Any, str]]
    if dataclasses.is_dataclass(annotation):
        if not isinstance(data, dict):
            return f"{where}: expected an object, found {type(data).__name__}"
        fields = dataclasses.fields(annotation)
        missing = next((f.name for f in fields if _required(f) and f.name not in data), None)
        if missing is not None:
            return f"{where}: the key '{missing}' is missing"
        hints = _hints(typing.cast(type, annotation))
        parts = [(hints[f.name], data[f.name], f"{where}.{f.name}") for f in fields if f.name in data]
    elif isinstance(data, dict) and (origin or annotation) in (dict, Any):
        parts = [((*arguments, Any, Any)[1], item, f"{where}.{key}") for key, item in data.items()]
    elif isinstance(data, list) and (origin or annotation) in (list, Any):
        parts = [((*arguments, Any)[0], item, f"{where}[{index}]") for index, item in enumerate(data)]
    else:
        return _limit_fault(limits, annotation, data, where) or _leaf_fault(annotation, data, where)
    wrong = next((part for part in parts if not _fits(part[0], part[1])), None)
    return f"{where}: a key is not plain text" if wrong is None else _fault(*wrong)


def _leaf_fault(annotation: Any, data: Any, where: str) -> str:
    origin, kind = typing.get_origin(annotation), type(data).__name__
    if origin is Literal and isinstance(data, str):
        return f"{where}: {reprlib.repr(data)} is not one of {_choices(annotation)}"
    if origin is Literal:
        return f"{where}: expected one of {_choices(annotation)}, found {kind}"
    number = isinstance(data, int | float) and not isinstance(data, bool)
    if number and (annotation in (float, Any) or annotation is type(data)):
        # Whatever is refused of a number here is its size; so long an int cannot even be shown.
        shown = str(data) if isinstance(data, float) else "one too large"
        return f"{where}: expected a finite number, found {shown}"
    wanted = {float: "a number", list: "a list", dict: "an object", Any: "JSON"}
    return f"{where}: expected {wanted.get(origin or annotation) or annotation.__name__}, found {kind}"


def _without_limits(annotation: Any) -> tuple[Any, msgspec.Meta | None]:
    if typing.get_origin(annotation) is not typing.Annotated:
        return annotation, None
    kind, *more = typing.get_args(annotation)
    return kind, next((item for item in more if isinstance(item, msgspec.Meta)), None)


def _limit_fault(limits: msgspec.Meta | None, annotation: Any, data: Any, where: str) -> str | None:
    """Name the limits where the type fits and the size does not; ``None`` for any other fault."""
    number = isinstance(data, int | float) and not isinstance(data, bool)
    whole = annotation is not int or (number and float(data).is_integer() if _is_finite(data) else False)
    if limits is None or not number or not whole or not _is_finite(data):
        return None
    least = f"at least {limits.ge:g}" if limits.ge is not None else f"more than {limits.gt:g}"
    return f"{where}: expected {least} and at most {limits.le:g}, found {data:g}"


def _is_finite(data: Any) -> bool:
    try:
        return math.isfinite(data)
    except (OverflowError, TypeError):
        return False


def _choices(annotation: Any) -> str:
    return ", ".join(map(repr, typing.get_args(annotation)))


def _without_none(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next(a for a in typing.get_args(annotation) if a is not type(None))
    return annotation


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def json_schema(cls: type) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a dataclass as it is written: every key there, and no other."""
    (root,), definitions = msgspec.json.schema_components((cls,), ref_template="#/$defs/{name}")
    for definition in definitions.values():
        definition.pop("title")
        # A reader may leave out keys with a default and add keys; a writer does neither.
        definition["required"] = list(definition["properties"])
        definition["additionalProperties"] = False
        for item in definition["properties"].values():
            item.pop("default", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": definitions}
