"""Merge data of several pages, sections or files on the same launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from llm_perf_opt.captures.ncu.launches import NcuLaunch, Quantity
from llm_perf_opt.captures.ncu.units import is_missing, parse_unit, significant_step

# Merging of data on the same launch.


def complete_from_metrics(launch: NcuLaunch) -> None:
    """Fill in launch shape and device from metrics, where the page has no columns for them."""
    metrics = launch.metrics
    if launch.grid is None:
        launch.grid = _shape(metrics, "launch__grid_dim_")
    if launch.block is None:
        launch.block = _shape(metrics, "launch__block_dim_")
    if launch.compute_capability is None:
        names = ("device__attribute_compute_capability_major", "device__attribute_compute_capability_minor")
        parts = [metrics[name].value for name in names if name in metrics]
        if len(parts) == 2 and None not in parts:
            launch.compute_capability = ".".join(str(int(part)) for part in parts if part is not None)
    if launch.device_name is None and "device__attribute_display_name" in metrics:
        name = metrics["device__attribute_display_name"].raw
        launch.device_name = None if is_missing(name) else name


def _shape(metrics: Mapping[str, Quantity], prefix: str) -> tuple[int, int, int] | None:
    found = [metrics[prefix + axis].value for axis in "xyz" if prefix + axis in metrics]
    values = [int(value) for value in found if value is not None]
    return (values[0], values[1], values[2]) if len(values) == 3 else None


def _launch_key(launch: NcuLaunch) -> tuple[str, ...]:
    """Return the identity of a launch: one process, one number, one kernel."""
    return (launch.process_id, launch.launch_id, launch.kernel)


def merge_launches(launches: Iterable[NcuLaunch]) -> list[NcuLaunch]:
    """Merge data of several pages or section files on the same launch; the first value is kept."""
    merged: dict[tuple[str, ...], NcuLaunch] = {}
    for launch in launches:
        known = merged.get(_launch_key(launch))
        if known is None:
            merged[_launch_key(launch)] = launch
        else:
            _merge_into(known, launch)
    for launch in merged.values():
        complete_from_metrics(launch)
    return list(merged.values())


def _merge_into(known: NcuLaunch, other: NcuLaunch) -> None:
    metrics = dict(known.metrics)
    for name, quantity in other.metrics.items():
        old = metrics.get(name)
        if old is None or (old.value is None and quantity.value is not None):
            metrics[name] = quantity
        elif _contradicts(old, quantity):
            known.notes.append(
                f"{name}: {old.raw} {old.raw_unit} in one file, {quantity.raw} {quantity.raw_unit} in another"
            )
        elif len(quantity.raw) > len(old.raw) and quantity.value is not None:
            metrics[name] = quantity  # the same value with more digits
    known.metrics = metrics
    known.rules.extend(rule for rule in other.rules if rule not in known.rules)
    known.sources += tuple(source for source in other.sources if source not in known.sources)
    known.notes.extend(note for note in other.notes if note not in known.notes)
    for name in (
        "grid",
        "block",
        "device",
        "compute_capability",
        "device_name",
        "context",
        "stream",
        "settings",
    ):
        if getattr(known, name) is None:
            setattr(known, name, getattr(other, name))


def _contradicts(first: Quantity, second: Quantity) -> bool:
    """Return whether two values of one metric differ by more than rounding."""
    if first.value is None or second.value is None:
        return False
    if first.unit != second.unit:
        return True
    rounding = sum(significant_step(each.raw) * parse_unit(each.raw_unit).factor for each in (first, second))
    largest = max(abs(first.value), abs(second.value))
    return abs(first.value - second.value) > 1.01 * rounding + 1e-6 * largest
