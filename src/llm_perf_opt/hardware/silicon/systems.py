"""The systems that tables exist for, and which of them a device is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.sizes import read_document
from llm_perf_opt.hardware.catalogue import Catalogue
from llm_perf_opt.hardware.silicon.reading import READ_ERRORS, left_out, short


@dataclass(frozen=True, slots=True)
class System:
    """One measured system."""

    key: str
    """Name of its folder: ``h100_sxm``."""
    driver_names: tuple[str, ...]
    """What the driver calls the device, as the tables have it."""
    power_w: float | None = None
    """Board power, where the package gives it."""
    devices_per_node: int | None = None


def read_system(systems: Path, key: str) -> tuple[System | None, list[str]]:
    """Return a system, or why it cannot be used; what could not be read costs only itself."""
    names, problems = _driver_names(systems / "data" / key)
    if not names:
        if problems:
            problems.append(f"{key} is left out: no table that can be read names its device")
        return (
            None,
            problems,
        )  # without a problem: a folder of links only, or of a device that was never timed
    described, problem = _description(systems / f"{key}.yaml")
    gpu, node = _mapping(described, "gpu"), _mapping(described, "node")
    per_node = _positive(node, "num_gpus_per_node")
    system = System(key, names, _positive(gpu, "power"), round(per_node) if per_node else None)
    return system, [*problems, *([problem] if problem is not None else [])]


def _driver_names(folder: Path) -> tuple[tuple[str, ...], list[str]]:
    """Return the names in the first table that can be read and has them; all tables of a folder are of one device."""
    problems = []
    for family in ("gemm", "attention", "moe"):
        for path in sorted((folder / family).glob("*/*/*.parquet")):
            try:
                names = _names_in(path)
            except READ_ERRORS as error:
                problems.append(left_out(path.relative_to(folder.parent).as_posix(), error))
                continue
            if names:
                return names, problems
    return (), problems


def _names_in(path: Path) -> tuple[str, ...]:
    if pl.read_parquet_schema(path).get("device") != pl.String:
        return ()
    found = pl.scan_parquet(path).select(pl.col("device").unique()).collect()["device"]
    return tuple(sorted(name for name in found if name))


def _description(path: Path) -> tuple[Any, str | None]:
    try:
        return yaml.safe_load(read_document(path).decode("utf-8")), None
    except (OSError, InputError, yaml.YAMLError, ValueError) as error:
        return None, f"{path.name} cannot be read: power is not known ({short(error)})"


def _mapping(value: Any, key: str) -> dict[str, Any]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _positive(values: dict[str, Any], key: str) -> float | None:
    value = values.get(key)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if usable and value is not None else None


def find_system(systems: list[System], device: str, catalogue: Catalogue) -> System | None:
    """Return the system a device is: by the driver's name, or by the catalogue entry both belong to."""
    plain = " ".join(device.split()).casefold()
    for system in systems:
        if any(name.casefold() == plain for name in system.driver_names):
            return system
    entry = next((one for one in catalogue.devices if one.name.casefold() == plain), None)
    entry = entry or catalogue.look_up(device)[0]
    if entry is None:
        return None
    for system in systems:
        if any(entry.matches(name) for name in system.driver_names):
            return system
    return None
