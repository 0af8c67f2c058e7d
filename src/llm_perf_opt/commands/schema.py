"""``llm-perf-opt schema``: JSON Schemas of the files that programs read and of the configuration, from the dataclasses."""

from __future__ import annotations

import json
from collections.abc import Sequence
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


def schema(document: str) -> dict[str, Any]:
    """Return the JSON Schema of ``summary.json``, ``improve.json`` or the configuration."""
    if document == CONFIG:
        from llm_perf_opt.config.json_schema import config_schema  # imports the stages, which a build cannot

        return config_schema()
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
