"""Where the tables are: found without importing the package that brings them."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "aiconfigurator-core"
_MODULE = "aiconfigurator_core"
KNOWN_VERSIONS = ("0.12",)
"""Versions whose tables our reading was checked against."""
SWITCH = "LLM_PERF_OPT_SILICON"
"""Environment variable; ``off`` leaves the tables out although they are installed."""
AUTO, OFF = "auto", "off"
"""Values of ``hardware.silicon`` beside the names of frameworks."""
INSTALL_WORDS = "pip install 'llm-perf-opt[silicon]'"
MISSING_WORDS = (
    "expected times and kernel targets need measured operator tables, which are not installed: "
    f"{INSTALL_WORDS} adds them"
)

OFF_WORDS = "measured operator tables are switched off (hardware.silicon=off, or the environment)"


@dataclass(frozen=True, slots=True)
class Installation:
    """Files of an installed package."""

    systems: Path
    """Folder of ``<system>.yaml`` and ``data/<system>/<operator>/<framework>/<version>/*.parquet``."""
    version: str

    @property
    def is_known(self) -> bool:
        """Whether this version's tables were checked."""
        return any(self.version == known or self.version.startswith(f"{known}.") for known in KNOWN_VERSIONS)


def in_use() -> Installation | None:
    """Return where the tables of the extra are; ``None``: not installed, or switched off."""
    return None if os.environ.get(SWITCH, "").strip().lower() == "off" else installed()


@functools.cache
def installed() -> Installation | None:
    """Return where the tables of the extra are; ``None``: not installed."""
    try:
        version = importlib.metadata.version(PACKAGE)
        spec = importlib.util.find_spec(_MODULE)
    except (importlib.metadata.PackageNotFoundError, ImportError, ValueError):
        return None
    for place in spec.submodule_search_locations or () if spec is not None else ():
        systems = Path(place) / "systems"
        if (systems / "data").is_dir():
            return Installation(systems, version)
    return None


def absent_words() -> str:
    """Say why there are no tables where none are used: not installed, or switched off."""
    return MISSING_WORDS if installed() is None else OFF_WORDS
