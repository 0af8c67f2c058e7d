"""Names of the devices of a trace, from whichever key of it tells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_LIST = "deviceProperties"
_NAMES_OF_AN_ENTRY = ("name", "deviceName", "device_name", "gpu_name", "gpuName", "productName")
_NAMING_KEY = re.compile(r"(\w+_)?(gpu|device|accelerator)_?(name|model)s?", re.IGNORECASE)
_DEEPEST = 6
"""Levels of the metadata that are looked through."""


def device_names(metadata: Mapping[str, Any], used: Iterable[int]) -> dict[int, str]:
    """Return the name of every device that ran something and whose name is certain.

    By its id first. Recorders number devices differently (ROCm counts processors as well), so a device that is
    not listed has the name of all listed ones where that is one and the same, else the one name that any other
    key of the trace gives.
    """
    wanted = sorted(device for device in used if device >= 0)
    listed = _listed(metadata)
    names = set(listed.values()) or set(_named_elsewhere(metadata, 0))
    common = next(iter(names)) if len(names) == 1 else None
    found = {device: listed.get(device, common) for device in wanted}
    return {device: name for device, name in found.items() if name is not None}


def _listed(metadata: Mapping[str, Any]) -> dict[int, str]:
    entries = metadata.get(_LIST)
    found = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("id"), int):
            name = next((text for key in _NAMES_OF_AN_ENTRY if (text := _text(entry.get(key)))), None)
            if name is not None:
                found[entry["id"]] = name
    return found


def _named_elsewhere(node: Mapping[str, Any], depth: int) -> Iterator[str]:
    for key, value in node.items():
        if _NAMING_KEY.fullmatch(key):
            texts = (_text(one) for one in (value if isinstance(value, list) else [value]))
            yield from (text for text in texts if text is not None)
        elif isinstance(value, dict) and depth < _DEEPEST and key != _LIST:
            yield from _named_elsewhere(value, depth + 1)


def _text(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) else None
