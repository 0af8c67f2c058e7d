"""How a capture was taken, from the files beside it: ``cmd.txt`` of the run, or its ``config.yaml``."""

from __future__ import annotations

import shlex
from pathlib import Path, PurePath
from typing import Any

from llm_perf_opt.model.captured import CaptureConfiguration

_LEVELS = 2
"""``<run>/nsys/summary.csv``: the configuration is beside the table or one folder up."""
_MOST_BYTES = 1 << 20
_ONE_RANGE = ("", "stop", "stop-shutdown", "repeat", "repeat-shutdown")
"""Ends of a capture after which it holds its range once (``repeat`` writes a file for each)."""


def read_capture_configuration(path: Path) -> CaptureConfiguration | None:
    """Return what is known of a capture's range; ``None`` when no file beside it tells, or none fits this one."""
    folder = path if path.is_dir() else path.parent
    for place in (folder, *folder.parents)[:_LEVELS]:
        command, settings = place / "cmd.txt", place / "config.yaml"
        found = _of_commands(_text(command), path, command.name) or _of_settings(
            _text(settings), path, settings.name
        )
        if found is not None:
            return found
    return None


def _text(path: Path) -> str:
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _of_commands(text: str, path: Path, source: str) -> CaptureConfiguration | None:
    """Read the ``nsys profile`` commands of a shell file; of several, the one whose label the table is named after."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # an open quote: not a command line
            continue
        start = next((place for place, word in enumerate(words) if PurePath(word).name == "nsys"), None)
        if start is None or words[start + 1 : start + 2] != ["profile"]:
            continue
        options = _options(words[start + 2 :])
        gated = options.get("--capture-range", options.get("-c", "none")) == "nvtx"
        label = options.get("--nvtx-capture", options.get("-p")) if gated else None
        found.append((label, options.get("--capture-range-end", "")))
    return _chosen(found, path, source)


def _options(words: list[str]) -> dict[str, str]:
    """Return options with their values, up to the program."""
    found: dict[str, str] = {}
    place = 0
    while place < len(words) and words[place].startswith("-"):
        option, equals, value = words[place].partition("=")
        if not equals and place + 1 < len(words) and not words[place + 1].startswith("-"):
            place += 1
            value = words[place]
        found[option] = value
        place += 1
    return found


def _of_settings(text: str, path: Path, source: str) -> CaptureConfiguration | None:
    import yaml

    try:
        document: Any = yaml.safe_load(text) if text else None
    except yaml.YAMLError:
        return None
    for key in ("pipeline", "nsys"):
        document = document.get(key) if isinstance(document, dict) else None
    if not isinstance(document, dict) or "capture_range" not in document:
        return None
    end = str(document.get("capture_range_end") or "")
    if document["capture_range"] != "nvtx" or document.get("gating_nvtx") is False:
        return CaptureConfiguration(None, None, source)
    labels = document.get("nvtx_capture")
    listed = labels if isinstance(labels, list) else [labels]
    return _chosen([(str(label), end) for label in listed if label], path, source)


def _chosen(found: list[tuple[str | None, str]], path: Path, source: str) -> CaptureConfiguration | None:
    if len(found) > 1:
        named = [each for each in found if each[0] and _is_named_after(path, each[0])]
        # nsys/summary.csv is the first label's table.
        found = named or (found[:1] if path.name == "summary.csv" else [])
    if len(found) != 1:
        return None
    label, end = found[0]
    if label is None:
        return CaptureConfiguration(None, None, source)
    if end.partition(":")[0] not in _ONE_RANGE:
        return None  # from the first such range to the end of the program: neither the range nor the whole
    return CaptureConfiguration(label.rpartition("@")[0] or label, 1, source)


def _is_named_after(path: Path, label: str) -> bool:
    return (label.rpartition("@")[0] or label) in path.name.split(".")
