"""What was found, as a preset that ``llm-perf-opt run --config-dir DIR --config-name best`` takes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from llm_perf_opt.config.hydra_bridge.compose import compose_raw
from llm_perf_opt.config.legacy import translate_overrides
from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.runs.remedies.base import key_of

FOLDER, NAME = "config", "best"
_HEAD = "# @package _global_\n# Found by `llm-perf-opt improve`: the baseline's settings and what was kept.\n"


def write_best(overrides: Sequence[str], out: Path) -> Path:
    """Write the preset; presets among the overrides become its defaults, values its values."""
    words = translate_overrides(list(overrides))
    raw = compose_raw(words)
    choices = OmegaConf.select(raw, "hydra.runtime.choices") or {}
    defaults: list[Any] = ["config"]
    values: dict[str, Any] = {}
    for word in words:
        key = key_of(word)
        if key in choices:
            defaults.append({f"override /{key}": choices[key]})
        elif not word.startswith("~"):
            found = OmegaConf.select(raw, key)
            _put(
                values, key.split("."), OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
            )
    document = {"defaults": [*defaults, "_self_"], **values}
    return atomic_write_text(
        out / FOLDER / f"{NAME}.yaml",
        _HEAD + yaml.safe_dump(_plain(document), sort_keys=False, allow_unicode=True),
    )


def remove_best(out: Path) -> None:
    """Take an earlier preset away: nothing is to be kept any more."""
    (out / FOLDER / f"{NAME}.yaml").unlink(missing_ok=True)


def command(out: Path) -> str:
    """Return the command line that runs it."""
    return shlex.join(["llm-perf-opt", "run", "--config-dir", str(out / FOLDER), "--config-name", NAME])


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = value


def _plain(value: Any) -> Any:
    """Return values YAML knows: an enumeration is its name."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.value if hasattr(value, "value") else value
