#!/usr/bin/env python3
"""Write the reference pages that follow from code and data: docs/summary.md, docs/configuration-keys.md,
docs/hardware-devices.md.

`--check` writes nothing and fails when a page is out of date; a test runs it.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import typing
from enum import Enum
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from llm_perf_opt import summary as model
from llm_perf_opt.commands.schema import field_docs
from llm_perf_opt.config import schema
from llm_perf_opt.config.schema import SECTIONS
from llm_perf_opt.core.stage import stage_types
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.summary.file import OLDER_MEANINGS

GENERATED = "<!-- Written by scripts/generate-docs.py; edit the docstrings in the code instead. -->\n\n"


def type_name(annotation: object) -> str:
    """Show a type as a user writes its values."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " \\| ".join(f"`{item.name}`" for item in annotation)
    text = (
        annotation.__name__
        if isinstance(annotation, type) and not typing.get_args(annotation)
        else str(annotation)
    )
    for old, new in (
        ("typing.", ""),
        ("NoneType", "null"),
        (" | None", " or null"),
    ):
        text = text.replace(old, new)
    text = re.sub(r"\bllm_perf_opt\.summary\.[\w.]+\.(?=\w)", "", text)
    # A type with limits becomes Optional[float] where a plain one is float | None.
    text = re.sub(r"Optional\[([^][]+)\]", r"\1 or null", text)
    return f"`{text}`"


def cell(text: str) -> str:
    """Keep a docstring inside one table cell."""
    return text.replace("``", "`").replace("|", "\\|")


def versions() -> str:
    """Describe which summaries are read, and what older ones mean differently."""
    lines = [
        "## Schema versions\n\n",
        "`schema_version` is `major.minor`. A summary of the same major version is read: keys it lacks get their\n"
        "defaults, keys that are not known are ignored, and a note says what an older one means differently.\n"
        "One of another major version is refused.\n",
    ]
    for version, meanings in OLDER_MEANINGS.items():
        lines.append(f"\nBefore {version}:\n\n")
        lines.extend(f"- {meaning}.\n" for meaning in meanings)
    return "".join(lines)


def summary_page() -> str:
    """Describe every key of summary.json."""
    parts = [
        "# summary.json\n\n",
        GENERATED,
        (model.__doc__ or "").strip().replace("``", "`"),
        "\n\nThe JSON Schema is printed by `llm-perf-opt schema summary`. An installed wheel also has it as a file,\n"
        "`llm_perf_opt/summary/summary.schema.json`.\n\n",
        versions(),
    ]
    named = (getattr(model, name) for name in model.__all__)
    classes = [one for one in named if isinstance(one, type) and dataclasses.is_dataclass(one)]
    for cls in [model.Summary, *[c for c in classes if c is not model.Summary]]:
        hints, docs = typing.get_type_hints(cls), field_docs(cls)
        parts.append(
            f"\n## {cls.__name__}\n\n{(cls.__doc__ or '').strip().replace('``', '`')}\n\n| key | type | meaning |\n| --- | --- | --- |\n"
        )
        parts.extend(
            f"| `{f.name}` | {type_name(hints[f.name]).replace('|', chr(92) + '|')} | {cell(docs.get(f.name, ''))} |\n"
            for f in dataclasses.fields(cls)
        )
    return "".join(parts)


def default_of(item: dataclasses.Field[typing.Any]) -> str:
    """Show a field's default the way the command line takes it."""
    value = (
        item.default
        if item.default is not dataclasses.MISSING
        else item.default_factory()
        if item.default_factory is not dataclasses.MISSING
        else None
    )
    if value is None or value == "???":
        return "`null`" if value is None else "set in `config.yaml`"
    if isinstance(value, Enum):
        value = value.name
    return f"`{str(value).lower() if isinstance(value, bool) else value}`".replace("|", "\\|")


def key_rows(cls: type, prefix: str) -> list[str]:
    """Return the table rows of a section, nested dataclasses flattened."""
    hints, docs, rows = typing.get_type_hints(cls), field_docs(cls), []
    for item in dataclasses.fields(cls):
        annotation = hints[item.name]
        if dataclasses.is_dataclass(annotation):
            rows.extend(key_rows(typing.cast(type, annotation), f"{prefix}.{item.name}"))
        else:
            shown = type_name(annotation)
            rows.append(
                f"| `{prefix}.{item.name}` | {shown} | {default_of(item)} | {cell(docs.get(item.name, ''))} |\n"
            )
    return rows


def configuration_page() -> str:
    """List every key with type, default and meaning."""
    head = "| key | type | default | meaning |\n| --- | --- | --- | --- |\n"
    parts = [
        "# Every configuration key\n\n",
        GENERATED,
        "Defaults are those of the schema; the presets in `conf/` set some of them (`llm-perf-opt run --cfg job` shows the result).\n",
    ]
    for name, cls in SECTIONS.items():
        parts.extend([f"\n## {name}\n\n{head}", *key_rows(cls, name)])
    parts.extend(
        [f"\n## pipeline.workload\n\n{head}", *key_rows(schema.WorkloadCommandConfig, "pipeline.workload")]
    )
    for name, kind in stage_types().items():
        parts.extend(
            [
                f"\n## pipeline.{name}\n\n{kind.title}.\n\n{head}",
                *key_rows(kind.config_type, f"pipeline.{name}"),
            ]
        )
    return "".join(parts)


RATES = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "float4", "int8")


def figure(value: object) -> str:
    """Show a figure as its document prints it."""
    form, number = next(iter(value.items())) if isinstance(value, dict) else ("", value)
    return f"{number:g}" + {"": "", "sparse": " sparse", "package": " per package"}[form]


def devices_page() -> str:
    """List every device of the catalogue, what is used, and what each document prints."""
    path = ROOT / "src" / "llm_perf_opt" / "hardware" / "catalogue.yaml"
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    head = ["memory GiB", "GB/s", *RATES]
    parts = [
        "# Devices of the hardware catalogue\n\n",
        GENERATED.replace("the docstrings in the code", "src/llm_perf_opt/hardware/catalogue.yaml"),
        "What is used: dense TFLOP/s of matrix products (TOP/s for int8), per device that a driver shows. "
        "How to read them, and how to add a device: [hardware limits](hardware.md).\n\n",
        f"| device | {' | '.join(head)} |\n|---|{'---:|' * len(head)}\n",
    ]
    for device in load_catalogue().devices:
        gib, gb = (device.memory_bytes or 0) / 2**30, (device.bandwidth_bytes_per_s or 0) / 1e9
        rates = [f"{device.peaks[name].dense / 1e12:g}" if name in device.peaks else "" for name in RATES]
        parts.append(f"| {device.name} | {gib:g} | {gb:g} | {' | '.join(rates)} |\n")
    parts.append(
        "\n## What the documents print\n\nThe first document that prints a figure is the one in use.\n"
    )
    for entry in raw["devices"]:
        note = f"{entry['note'][0].upper()}{entry['note'][1:]}.\n\n" if entry.get("note") else ""
        parts.append(f"\n### {entry['name']}\n\n{note}")
        for key, row in entry["printed"].items():
            shown = ", ".join(f"{name} {figure(value)}" for name, value in row.items())
            parts.append(f"- [{raw['documents'][key]['title']}](#{key}): {shown}\n")
    parts.append("\n## Documents\n\n| document | kind | address |\n|---|---|---|\n")
    for key, document in raw["documents"].items():
        parts.append(
            f'| <a id="{key}"></a>{cell(document["title"])} | {document["kind"]} | {document["address"]} |\n'
        )
    return "".join(parts)


def main() -> int:
    """Write the pages, or check them."""
    pages = {
        ROOT / "docs" / "summary.md": summary_page(),
        ROOT / "docs" / "configuration-keys.md": configuration_page(),
        ROOT / "docs" / "hardware-devices.md": devices_page(),
    }
    stale = [
        path for path, text in pages.items() if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"out of date: {path.relative_to(ROOT)} (run scripts/generate-docs.py)")
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
