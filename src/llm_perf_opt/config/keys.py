"""Where the presets are; known keys, and the nearest one to a mistyped key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import nearest_key

CONF_DIR = Path(__file__).resolve().parent.parent / "conf"


def leaf_keys(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted path of every key of a nested mapping, inner nodes included."""
    found: list[str] = []
    for key, value in tree.items():
        path = f"{prefix}{key}"
        found.append(path)
        if isinstance(value, Mapping):
            found.extend(leaf_keys(value, f"{path}."))
    return found


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """Phrase the nearest key as a hint."""
    near = nearest_key(key, known)
    return f"did you mean '{near}'?" if near else "see all keys with: llm-perf-opt run --cfg job"


# The switches of Hydra's command line; without importing Hydra, so that reading a command line is quick.


MULTIRUN = frozenset({"--multirun", "-m"})
CONFIG_DIR = frozenset({"--config-dir", "-cd"})
CONFIG_NAME = frozenset({"--config-name", "-cn"})
PRINT_CONFIG = frozenset({"--cfg", "-c", "--info", "-i"})
"""Switches after which Hydra prints the configuration, or how it was composed."""
PRINT_ONLY = PRINT_CONFIG | {"--help", "-h", "--hydra-help", "--version", "--shell-completion", "-sc"}
"""Switches after which Hydra prints something and nothing is run."""
WITH_VALUE = frozenset(
    {"--cfg", "-c", "--config-path", "-cp", "--package", "-p", "--experimental-rerun"}
    | CONFIG_DIR
    | CONFIG_NAME
)
"""Switches whose value may be the next argument. ``--info`` is not among them: its value is optional."""
REFUSED = frozenset({"--experimental-rerun"})
"""Switches that run what a file holds: this one unpickles it, and a pickle is a program."""
KNOWN = PRINT_ONLY | MULTIRUN | WITH_VALUE | {"--run", "-r", "--resolve"}
