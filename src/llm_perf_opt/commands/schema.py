"""``llm-perf-opt schema``: JSON Schemas of the files that programs read and of the configuration, from the dataclasses."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import textwrap
import types
import typing
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from llm_perf_opt.core.console.command_line import verb_parser
from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.remedies.data import Improvement
from llm_perf_opt.summary import Summary
from llm_perf_opt.summary.codec import json_schema

DOCUMENTS: dict[str, tuple[type, str]] = {
    "summary": (Summary, "summary/summary.schema.json"),
    "improve": (Improvement, "remedies/improve.schema.json"),
}
"""Document → its type, and where a built wheel has the schema, in the package."""
CONFIG = "config"
_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
_INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}"}
"""``${run.device}``: any value may be one."""


def schema(document: str) -> dict[str, Any]:
    """Return the JSON Schema of ``summary.json``, ``improve.json`` or the configuration."""
    if document == CONFIG:
        return _config_schema()
    return json_schema(DOCUMENTS[document][0])


def write_schemas(package: Path) -> list[Path]:
    """Write all schemas into a package directory; the build of a wheel does (``setup.py``)."""
    return [
        atomic_write_text(package / place, _as_text(schema(document)))
        for document, (_, place) in DOCUMENTS.items()
    ]


def main(arguments: Sequence[str]) -> int:
    """Print one schema."""
    parser = verb_parser(
        "schema", "Print the JSON Schema of a file that programs read, or of the configuration."
    )
    parser.add_argument(
        "document",
        choices=[*DOCUMENTS, CONFIG],
        help="summary.json, improve.json or the configuration (YAML)",
    )
    print(_as_text(schema(parser.parse_args(arguments).document)), end="")
    return 0


def _as_text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"


# The configuration, for editors that complete and check YAML, with the docstrings as descriptions.


def _config_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12) of a whole configuration; ``$defs`` has those of single sections, for presets."""
    # Loads the stages, whose packages the build of a wheel does not have.
    from llm_perf_opt.config.schema import SECTIONS, WorkloadCommandConfig
    from llm_perf_opt.core.stage import stage_types

    stages = {name: _object(kind.config_type, f"{kind.title}.") for name, kind in stage_types().items()}
    sections = {name: _object(kind) for name, kind in SECTIONS.items()}
    sections["pipeline"] = {
        "type": "object",
        "description": "Stages of a run and their settings.",
        "properties": {"workload": _object(WorkloadCommandConfig), **stages},
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "llm-perf-opt configuration",
        "type": "object",
        "properties": {
            "defaults": {"type": "array", "description": "Presets that this file is composed of (Hydra)."},
            "hydra": {"type": "object", "description": "Hydra's own settings."},
            **{name: {"$ref": f"#/$defs/{name}"} for name in sections},
        },
        "additionalProperties": False,
        "$defs": sections,
    }


def field_docs(cls: type) -> dict[str, str]:
    """Return the string below each field of a dataclass, its bases included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for node, after in itertools.pairwise(body):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                found[node.target.id] = " ".join(after.value.value.split())
    return found


def _object(cls: type, description: str | None = None) -> dict[str, Any]:
    hints, docs = typing.get_type_hints(cls), field_docs(cls)
    properties = {}
    for item in dataclasses.fields(cls):
        schema = _value(hints[item.name])
        if item.name in docs:
            schema["description"] = docs[item.name].replace("``", "`")
        properties[item.name] = schema
    text = description or (inspect.getdoc(cls) or "").partition("\n")[0]
    return {"type": "object", "description": text, "properties": properties, "additionalProperties": False}


def _value(annotation: Any) -> dict[str, Any]:
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _object(annotation)
    if annotation is Any:
        return {}
    return {"anyOf": [*_alternatives(annotation), _INTERPOLATION]}


def _alternatives(annotation: Any) -> list[dict[str, Any]]:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return [schema for part in parts for schema in _alternatives(part)]
    if origin is typing.Literal:
        return [{"enum": list(parts)}]
    if origin is list or annotation is list:
        return [{"type": "array", "items": _value(parts[0]) if parts else {}}]
    if origin is dict or annotation is dict:
        return [{"type": "object", "additionalProperties": _value(parts[1]) if parts else {}}]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [{"enum": list(dict.fromkeys(name for one in annotation for name in (one.name, one.value)))}]
    return [{"type": _SCALARS[annotation]}] if annotation in _SCALARS else [{}]
