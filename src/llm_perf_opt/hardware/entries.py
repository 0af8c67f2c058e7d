"""Entries of a catalogue file, the shipped one and a user's, turned into devices; every mistake is named.

An entry gives its figures in one of two ways. ``printed``: what each document prints, and the first document that
prints a figure is used. Or directly, with one ``source`` for all of them, which is enough for a lab's own file.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.core.dtypes import canonical_dtype, dtype_bytes
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.hardware.device import Device, Origin
from llm_perf_opt.model.summary import Peak

_COMMON_KEYS = frozenset(("name", "kind", "match", "note"))
_MEMORY_KEYS = ("memory_gib", "bandwidth_gb_per_s", "link_gb_per_s")
_DIRECT_KEYS = frozenset((*_MEMORY_KEYS, "source", "peaks"))
_FORMS = {"value": "", "sparse": "with 2:4 sparsity", "package": "for the package of two"}
_KEYS = _COMMON_KEYS | _DIRECT_KEYS | {"printed"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of an entry, in the unit of its key, and where it is printed."""

    value: float
    source: str


def parse_device(entry: Any, origin: Origin, where: str, titles: Mapping[str, str]) -> Device:
    """Read one entry; :class:`ConfigError` names the device and the key."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise bad(where, "every device needs a 'name'")
    name = entry["name"]
    here = f"{where}: device '{name}'"
    unknown = sorted(map(str, set(entry) - _KEYS))
    if unknown:
        raise bad(here, f"unknown key '{unknown[0]}' (known: {', '.join(sorted(_KEYS))})")
    kind = entry.get("kind", "gpu")
    if kind not in ("gpu", "cpu"):
        raise bad(here, f"kind must be gpu or cpu, not {reprlib.repr(kind)}")
    if not isinstance(entry.get("note", ""), str | None):
        raise bad(here, "'note' must be text")
    figures = (
        _parse_printed_figures(entry, here, titles)
        if "printed" in entry
        else _parse_direct_figures(entry, here, titles)
    )
    memory, bandwidth, link = (figures.pop(key, None) for key in _MEMORY_KEYS)
    return Device(
        name=name,
        kind="gpu" if kind == "gpu" else "cpu",
        patterns=patterns(entry.get("match", [re.escape(name)]), here),
        peaks={key: Peak(dense=found.value * 1e12, source=found.source) for key, found in figures.items()},
        bandwidth_bytes_per_s=bandwidth.value * 1e9 if bandwidth else None,
        bandwidth_source=bandwidth.source if bandwidth else None,
        memory_bytes=memory.value * 2.0**30 if memory else None,
        memory_source=memory.source if memory else None,
        link_bytes_per_s=link.value * 1e9 if link else None,
        link_source=link.source if link else None,
        origin=origin,
        note=entry.get("note"),
    )


def _parse_printed_figures(
    entry: Mapping[str, Any], here: str, titles: Mapping[str, str]
) -> dict[str, Figure]:
    """The figures of ``printed``: of each, the one of the first document that has it."""
    both = sorted(_DIRECT_KEYS & set(entry))
    if both:
        raise bad(here, f"'printed' and '{both[0]}' exclude one another")
    found: dict[str, Figure] = {}
    for document, figures in mapping(entry["printed"], here, "printed").items():
        title = titles.get(str(document), str(document))
        seen: set[str] = set()
        for key, given in mapping(figures, here, f"printed.{document}").items():
            name = key if key in _MEMORY_KEYS else _dtype(key, here, f"printed.{document}")
            if name in seen:
                raise bad(here, f"printed.{document} gives {name} twice")
            seen.add(name)
            figure = read_figure(given, here, f"printed.{document}.{key}", title, titles)
            if figure is not None:
                found.setdefault(name, figure)
    if not found:
        raise bad(here, "'printed' holds no figure")
    return found


def _parse_direct_figures(
    entry: Mapping[str, Any], here: str, titles: Mapping[str, str]
) -> dict[str, Figure]:
    source = _title(entry.get("source"), titles)
    if not source:
        raise bad(here, "needs a 'source': the document its numbers come from")
    given: dict[str, Any] = {key: entry.get(key) for key in _MEMORY_KEYS}
    for key, value in mapping(entry.get("peaks") or {}, here, "peaks").items():
        name = _dtype(key, here, "peaks")
        if name in given:
            raise bad(here, f"peaks gives {name} twice")
        given[name] = value
    read = {key: read_figure(value, here, key, source, titles) for key, value in given.items()}
    return {key: figure for key, figure in read.items() if figure is not None}


def read_figure(given: Any, here: str, key: str, source: str, titles: Mapping[str, str]) -> Figure | None:
    """Read ``number``, ``{value, source}``, ``{sparse}`` (twice the dense peak) or ``{package}`` (two devices)."""
    if not isinstance(given, dict):
        number = _parse_number(given, here, key)
        return None if number is None else Figure(number, source)
    forms = [form for form in given if form != "source"]
    if len(forms) != 1 or forms[0] not in _FORMS:
        raise bad(here, f"{key} must be a number, {{value: …}}, {{sparse: …}} or {{package: …}}")
    form, source = forms[0], _title(given.get("source"), titles) or source
    number = _parse_number(given[form], here, key)
    if form == "sparse" and key.rpartition(".")[2] in _MEMORY_KEYS:
        raise bad(here, f"{key}: only rates of arithmetic can be sparse")
    if number is None or form == "value":
        return None if number is None else Figure(number, source)
    return Figure(number / 2, f"{source}: half of the printed {number:g} {_FORMS[form]}")


def _dtype(key: Any, here: str, where: str) -> str:
    dtype = canonical_dtype(str(key))
    if dtype_bytes(dtype) is None:
        raise bad(here, f"{where}: unknown data type '{key}'")
    return dtype


def _parse_number(value: Any, here: str, key: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise bad(here, f"{key} must be a positive number, not {reprlib.repr(value)}")
    return float(value)


def patterns(value: Any, here: str) -> tuple[re.Pattern[str], ...]:
    """Compile what must match a driver's name in full."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
        raise bad(here, "'match' must be a list of regular expressions")
    try:
        return tuple(re.compile(item, re.IGNORECASE) for item in given)
    except (re.error, OverflowError, RecursionError) as error:
        raise bad(here, f"'match' has a bad regular expression: {error}") from error


def document_titles(value: Any, here: str) -> dict[str, str]:
    """Return key → title of ``documents``; a document is its title, or a mapping that has one."""
    titles: dict[str, str] = {}
    for key, document in mapping(value, here, "documents").items():
        title = document.get("title") if isinstance(document, dict) else document
        if not isinstance(title, str):
            raise bad(here, f"documents.{key} must be a title, or a mapping with a 'title'")
        titles[str(key)] = title
    return titles


def mapping(value: Any, here: str, key: str) -> dict[str, Any]:
    """Return a mapping as it is; anything else is a mistake."""
    if not isinstance(value, dict):
        raise bad(here, f"'{key}' must be a mapping")
    return value


def _title(key: Any, titles: Mapping[str, str]) -> str | None:
    return titles.get(str(key), str(key)) if key and isinstance(key, str | int) else None


def bad(where: str, message: str) -> ConfigError:
    """Return the error of a catalogue file."""
    return ConfigError(
        f"hardware.catalogue: {where}: {message}",
        hint="see docs/hardware.md for the format",
        key="hardware.catalogue",
    )
