"""What may stand on the command line of ``run``, from the types alone: completion has no time to import Hydra."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib.metadata import entry_points
from types import UnionType
from typing import Any, get_args, get_type_hints

from llm_perf_opt.config.keys import CONF_DIR
from llm_perf_opt.config.schema import SECTIONS, WorkloadCommandConfig
from llm_perf_opt.core.stage import ENTRY_POINT_GROUP, PluginError, load_stage_type

_MOUNT = re.compile(r"^\s*- (?:override )?/?([\w/]+)(@[\w.]+)?:", re.MULTILINE)
_DEVICES = ("auto", "cpu", "cuda", "cuda:0", "mps", "xpu", "xpu:0")


def complete_override(word: str) -> list[str]:
    """Return what an override that begins with ``word`` can become: the next part of its key, or its value."""
    key, separator, value = word.partition("=")
    if separator:
        known = [*(_presets(key) or _values(key))]
        head, comma, last = value.rpartition(",")  # a sweep: model=a,b
        return sorted(f"{key}={head}{comma}{one}" for one in known if one.startswith(last))
    return sorted({_next_part(one, word) for one in (*_keys(word), *_groups()) if one.startswith(word)})


def _next_part(candidate: str, word: str) -> str:
    """Stop at the next dot, so that a key is found section by section; groups are few and shown whole."""
    if "/" in candidate or "@" in candidate:
        return candidate
    dot = candidate.find(".", len(word))
    return candidate if dot < 0 else candidate[: dot + 1]


def _keys(word: str) -> Iterator[str]:
    for key, annotation in _leaves(word):
        yield f"{key}." if _is_free_form(annotation) else f"{key}="


def _leaves(word: str) -> Iterator[tuple[str, Any]]:
    """Yield every key that ``word`` may be the beginning of, with its type; of ``pipeline`` one stage's only."""
    for name, kind in SECTIONS.items():
        yield from _fields(name, kind)
    section, _, rest = word.partition(".")
    if not "pipeline".startswith(section):
        return
    name, dot, _ = rest.partition(".")
    stages = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if dot and name in stages:
        with contextlib.suppress(PluginError):  # a broken one has no keys to offer
            yield from _fields(f"pipeline.{name}", load_stage_type(stages[name]).config_type)
    elif not dot:
        yield from ((f"pipeline.{stage}.enable", bool) for stage in stages)
    yield from _fields("pipeline.workload", WorkloadCommandConfig)


def _fields(prefix: str, kind: type) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(kind)
    for field in fields(kind):
        annotation = hints[field.name]
        if isinstance(annotation, type) and is_dataclass(annotation):
            yield from _fields(f"{prefix}.{field.name}", annotation)
        else:
            yield f"{prefix}.{field.name}", annotation


def _is_free_form(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is dict


def _values(key: str) -> list[str]:
    if key == "run.device":
        return list(_DEVICES)
    annotation = dict(_leaves(key)).get(key)
    parts = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    values: list[str] = []
    for part in parts:
        if part is bool:
            values += ["true", "false"]
        elif isinstance(part, type) and issubclass(part, Enum):
            values += [str(member.value) for member in part]
        elif part is type(None):
            values.append("null")
    return values


def _groups() -> Iterator[str]:
    """Yield the groups whose presets can be chosen, as they are mounted in ``config.yaml``."""
    text = (CONF_DIR / "config.yaml").read_text(encoding="utf-8")
    for group, mount in _MOUNT.findall(text):
        if (CONF_DIR / group).is_dir():
            yield f"{group}{mount}="


def _presets(key: str) -> list[str]:
    folder = CONF_DIR / key.partition("@")[0]
    return sorted(path.stem for path in folder.glob("*.yaml")) if folder.is_dir() else []
