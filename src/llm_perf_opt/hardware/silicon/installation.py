"""Location of the tables, found without importing their package."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.process.tools import is_hidden

PACKAGE = "aiconfigurator-core"
_MODULE = "aiconfigurator_core"
KNOWN_VERSIONS = ("0.12",)
"""Versions whose tables our reading was checked against."""
SWITCH = "LLM_PERF_OPT_SILICON"
"""Environment variable; ``off`` leaves the tables out although they are installed."""
_DAY = re.compile(r"(?<!\d)20\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])(?!\d)")
_MOST_META = 65_536
AUTO, OFF = "auto", "off"
"""Values of ``hardware.silicon`` in addition to the names of frameworks."""
_INSTALL_COMMAND = "pip install 'llm-perf-opt[silicon]'"
MISSING_TEXT = (
    "expected times and kernel targets need measured operator tables, which are not installed: "
    f"{_INSTALL_COMMAND} adds them"
)
OFF_TEXT = "measured operator tables are switched off (hardware.silicon=off, or the environment)"


@dataclass(frozen=True, slots=True)
class Installation:
    """Files of an installed package."""

    systems: Path
    """Folder of ``<system>.yaml`` and ``data/<system>/<operator>/<framework>/<version>/*.parquet``."""
    version: str
    package: str = PACKAGE
    """Who brought them."""

    @property
    def collected(self) -> str | None:
        """Newest day on which a table was collected (``2026-08-31``), as stated by the package; ``None``: unknown."""
        return _newest_day(self.systems)

    def describe(self) -> str:
        """Name package, version and date of the data."""
        return describe_tables(self.package, self.version, self.collected)

    @property
    def is_known(self) -> bool:
        """Whether this version's tables were checked."""
        return any(self.version == known or self.version.startswith(f"{known}.") for known in KNOWN_VERSIONS)


def describe_tables(package: str | None, version: str | None, collected: str | None) -> str:
    """Return ``aiconfigurator-core 0.12.0, collected up to 2026-08-31``."""
    until = f", collected up to {collected}" if collected else ", date of collection not stated"
    return f"{package or PACKAGE} {version or 'of unknown version'}{until}"


@functools.cache
def _newest_day(systems: Path) -> str | None:
    """Search the small files next to the tables; a day is the same in all their layouts."""
    newest = None
    for path in systems.glob("data/*/*/*/*/collection_meta.yaml"):
        with path.open(encoding="utf-8", errors="replace") as text:
            days = _DAY.findall(text.read(_MOST_META))
        newest = max([*days, *([newest] if newest else [])], default=None)
    return newest


def in_use() -> Installation | None:
    """Return where the tables of the extra are; ``None``: not installed, or switched off."""
    return None if os.environ.get(SWITCH, "").strip().lower() == "off" else installed()


def installed() -> Installation | None:
    """Return where the tables of the extra are; ``None``: not installed."""
    return None if is_hidden(_MODULE) else _find()


@functools.cache
def _find() -> Installation | None:
    """Look into the package that is known to hold the tables, then into any that has their layout: packages are renamed."""
    try:
        version = importlib.metadata.version(PACKAGE)
        spec = importlib.util.find_spec(_MODULE)
    except (importlib.metadata.PackageNotFoundError, ImportError, ValueError):
        return find_by_layout([Path(place) for place in sys.path if place])
    for place in spec.submodule_search_locations or () if spec is not None else ():
        systems = Path(place) / "systems"
        if _has_tables(systems):
            return Installation(systems, version)
    return None


def find_by_layout(places: Iterable[Path]) -> Installation | None:
    """Return the first package in these folders that holds ``systems/<system>.yaml`` and ``systems/data/<system>/``."""
    for place in places:
        if not place.is_dir():
            continue
        for folder in sorted(place.iterdir()):
            if folder.name.isidentifier() and not is_hidden(folder.name) and _has_tables(folder / "systems"):
                return Installation(folder / "systems", _version_of(folder.name), folder.name)
    return None


def _has_tables(systems: Path) -> bool:
    data = systems / "data"
    return data.is_dir() and any((data / one.stem).is_dir() for one in systems.glob("*.yaml"))


def _version_of(module: str) -> str:
    """Return the version of the distribution that brought a module; ``unknown`` if it is not recorded."""
    for name in importlib.metadata.packages_distributions().get(module, []):
        return importlib.metadata.version(name)
    return "unknown"


def describe_absence() -> str:
    """Explain why no tables are used: not installed, or switched off."""
    return MISSING_TEXT if installed() is None else OFF_TEXT
