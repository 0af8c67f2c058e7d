"""One table read for one kind of rows: only the required columns and rows are loaded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import parse_yaml, read_document
from llm_perf_opt.hardware.catalogue import Catalogue
from llm_perf_opt.hardware.silicon.operators import Layout
from llm_perf_opt.hardware.silicon.timing import Source

# The systems that tables exist for, and which of them a device is.


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
    """Return a system, or why it cannot be used; an unreadable part is skipped."""
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
            except _READ_ERRORS as error:
                problems.append(_describe_skipped(path.relative_to(folder.parent).as_posix(), error))
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
        return parse_yaml(read_document(path)), None
    except (OSError, InputError, ValueError) as error:
        return None, f"{path.name} cannot be read: power is not known ({short(error)})"


def _mapping(value: Any, key: str) -> dict[str, Any]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _positive(values: dict[str, Any], key: str) -> float | None:
    value = values.get(key)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if usable and value is not None else None


def find_system(systems: list[System], device: str, catalogue: Catalogue) -> System | None:
    """Return the system of a device: by the driver's name, or by the catalogue entry both belong to."""
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


# Times on a grid of shapes, and interpolation between them: multilinear in the logarithms of sizes and times.
#
# A power law (time ∝ size) is reproduced exactly, and inside a cell the time is never outside those of its corners: where the
# measurements grow with a size, so does the answer.


MOST_CELLS = 4_000_000
"""A table that spans more cells than this is no table of a grid."""


@dataclass(frozen=True, slots=True)
class Found:
    """A time on the grid."""

    seconds: float
    how: Literal["measured", "interpolated"]
    kernel: str
    """Of the nearest measured shape."""
    distance_octaves: float = 0.0
    """To the nearest measured value, in factors of two, summed over the axes: how far the time was interpolated."""


class Grid:
    """Measured times by shape; cells without a measurement are holes."""

    def __init__(
        self, points: npt.NDArray[np.int64], seconds: npt.NDArray[np.float64], kernels: Sequence[str]
    ):
        """Take one row of ``points`` per time; of several times of one shape the shortest is kept."""
        self.axes = [np.unique(points[:, axis]) for axis in range(points.shape[1])]
        shape = tuple(len(axis) for axis in self.axes)
        if math.prod(shape) > MOST_CELLS:
            raise ValueError(f"{math.prod(shape):,} cells are too many for a grid")
        index = [np.searchsorted(axis, points[:, place]) for place, axis in enumerate(self.axes)]
        flat = np.ravel_multi_index(tuple(index), shape)
        order = np.argsort(-seconds, kind="stable")  # the shortest is written last
        log_seconds = np.full(math.prod(shape), np.nan)
        log_seconds[flat[order]] = np.log(seconds[order])
        names = sorted(set(kernels))
        codes = np.array([names.index(name) for name in kernels], dtype=np.int16)
        kernel = np.zeros(math.prod(shape), dtype=np.int16)
        kernel[flat[order]] = codes[order]
        self._log_seconds = log_seconds.reshape(shape)
        self._kernel = kernel.reshape(shape)
        self._kernel_names = names
        self.size = int(np.isfinite(log_seconds).sum())

    def at(self, point: Sequence[int], hidden_octaves: Mapping[int, float] | None = None) -> Found | None:
        """Return the time of a shape; ``None`` outside the grid or where a corner around it was not measured.

        ``hidden_octaves`` (axis → factors of two) answers as if no value so near to the point were measured on that axis.
        """
        hidden = hidden_octaves or {}
        brackets = []
        distance = 0.0
        for number, (axis, value) in enumerate(zip(self.axes, point, strict=True)):
            found = _bracket(axis, value, hidden.get(number))
            if found is None:
                return None
            brackets.append(found)
            distance += min(abs(math.log2(axis[index] / value)) for index, _ in found)
        total = 0.0
        nearest, most = None, -1.0
        for corner in itertools.product(*brackets):
            place = tuple(index for index, _ in corner)
            weight = math.prod((share for _, share in corner), start=1.0)
            log_time = float(self._log_seconds[place])
            if math.isnan(log_time):
                return None
            total += weight * log_time
            if weight > most:
                nearest, most = place, weight
        assert nearest is not None
        exact = all(len(bracket) == 1 for bracket in brackets)
        return Found(
            math.exp(total),
            "measured" if exact else "interpolated",
            self._kernel_names[int(self._kernel[nearest])],
            distance,
        )

    def nearest_inside(self, point: Sequence[int]) -> tuple[int, ...] | None:
        """Return the measured shape nearest to a shape outside the grid: the smallest sum of factors over the axes."""
        if not self.size:
            return None
        distance = np.zeros(self._log_seconds.shape)
        for place, (axis, value) in enumerate(zip(self.axes, point, strict=True)):
            away = np.abs(np.log(axis / max(value, 1)))
            distance = distance + away.reshape([-1 if i == place else 1 for i in range(len(self.axes))])
        distance[np.isnan(self._log_seconds)] = np.inf
        where = np.unravel_index(int(np.argmin(distance)), distance.shape)
        return tuple(int(axis[i]) for axis, i in zip(self.axes, where, strict=True))

    def points(self) -> npt.NDArray[np.int64]:
        """Return every measured shape, one per row."""
        where = np.argwhere(np.isfinite(self._log_seconds))
        return np.stack([axis[where[:, place]] for place, axis in enumerate(self.axes)], axis=1)

    def seconds(self) -> npt.NDArray[np.float64]:
        """Return the times of the measured points, in the order of ``points``."""
        known: npt.NDArray[np.float64] = self._log_seconds[np.isfinite(self._log_seconds)]
        return np.exp(known)

    def within(self, axis: int, low: float, high: float) -> Grid:
        """Return the grid with the values of one axis between two ends only, to measure extrapolation errors."""
        keep = np.flatnonzero((self.axes[axis] >= low) & (self.axes[axis] <= high))
        other = object.__new__(Grid)
        other.axes = [part[keep] if place == axis else part for place, part in enumerate(self.axes)]
        other._log_seconds = np.take(self._log_seconds, keep, axis=axis)
        other._kernel = np.take(self._kernel, keep, axis=axis)
        other._kernel_names = self._kernel_names
        other.size = int(np.isfinite(other._log_seconds).sum())
        return other


def _bracket(
    axis: npt.NDArray[np.int64], value: int, hidden_octaves: float | None = None
) -> list[tuple[int, float]] | None:
    """Return the places around a value with their shares: one when it was measured itself, ``None`` outside."""
    if hidden_octaves is None:
        right = int(np.searchsorted(axis, value))
        if right < len(axis) and axis[right] == value:
            return [(right, 1.0)]
        left = right - 1
    else:
        left = int(np.searchsorted(axis, value * 2.0**-hidden_octaves)) - 1
        right = int(np.searchsorted(axis, value * 2.0**hidden_octaves, side="right"))
    if left < 0 or right == len(axis):
        return None
    low, high = math.log(axis[left]), math.log(axis[right])
    share = (math.log(value) - low) / (high - low)
    return [(left, 1.0 - share), (right, share)]


# Possible errors of a table's file, and their messages.


_READ_ERRORS = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""Damaged files: the reader gives up on some of them by a panic, which is no :class:`Exception`."""


def short(error: BaseException) -> str:
    """Return the first line of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _describe_skipped(place: str, error: BaseException) -> str:
    """Describe which table is not used, and why."""
    return f"{place} is left out: {short(error)}"


_LATENCY = "latency"
_KERNEL = "kernel_source"


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one table for one kind of query."""

    grid: Grid
    source: Source


@dataclass(frozen=True, slots=True)
class Read:
    """Result of reading a table."""

    table: Table | None
    problem: str | None = None
    """What is wrong with the file; a table without such rows is no problem."""


def read_table(data: Path, path: Path, layout: Layout, exact: Mapping[str, tuple[Any, ...]]) -> Read:
    """Read the rows of ``path`` whose columns have the values of ``exact``."""
    place = path.relative_to(data).as_posix()
    try:
        schema = pl.read_parquet_schema(path)
        missing = sorted(_needed(layout, exact) - set(schema))
        if missing:
            return Read(None, f"{place} is left out: no column {', '.join(missing)}")
        rows = _select(path, layout, exact, has_kernel=_KERNEL in schema, columns=set(schema))
    except _READ_ERRORS as error:
        return Read(None, _describe_skipped(place, error))
    return _to_grid(rows, place, path, layout)


def _needed(layout: Layout, exact: Mapping[str, tuple[Any, ...]]) -> set[str]:
    named = {name for axis in layout.axes for name in axis}
    return (named | set(exact) | {_LATENCY}) - set(layout.defaults)


def _select(
    path: Path,
    layout: Layout,
    exact: Mapping[str, tuple[Any, ...]],
    *,
    has_kernel: bool,
    columns: set[str],
) -> pl.DataFrame:
    frame = pl.scan_parquet(path)
    absent = [name for name in layout.defaults if name not in columns]
    frame = frame.with_columns(pl.lit(layout.defaults[name]).alias(name) for name in absent)
    wanted = [pl.col(name).is_in(list(values)) for name, values in exact.items()]
    several = [name for name, values in exact.items() if len(values) > 1]
    kernel = pl.col(_KERNEL) if has_kernel else pl.lit("")
    rows = (
        frame.filter(wanted)
        .select(
            *(
                pl.sum_horizontal(pl.col(axis).cast(pl.Int64, strict=False), ignore_nulls=False).alias(
                    f"axis_{place}"
                )
                for place, axis in enumerate(layout.axes)
            ),
            *(pl.col(name).alias(f"choice_{name}") for name in several),
            pl.col(_LATENCY).cast(pl.Float64, strict=False).alias(_LATENCY),
            kernel.fill_null("").alias(_KERNEL),
        )
        .collect()
    )
    for name in several:
        present = set(rows[f"choice_{name}"].unique())
        first = [value for value in exact[name] if value in present][:1]
        rows = rows.filter(pl.col(f"choice_{name}").is_in(first))
    return rows


def _to_grid(rows: pl.DataFrame, place: str, path: Path, layout: Layout) -> Read:
    axes = [f"axis_{number}" for number in range(len(layout.axes))]
    usable = pl.col(_LATENCY).is_finite() & (pl.col(_LATENCY) > 0)
    for name in axes:
        usable = usable & (pl.col(name) > 0)
    good = rows.filter(usable.fill_null(False))
    dropped = rows.height - good.height
    problem = f"{place}: {dropped} of {rows.height} rows without a usable time or shape are left out"
    problem_found = problem if dropped else None
    if not good.height:
        return Read(None, problem_found)
    points = good.select(axes).to_numpy().astype(np.int64, copy=False)
    seconds = good[_LATENCY].to_numpy() * 1e-3
    try:
        grid = Grid(points, seconds, good[_KERNEL].to_list())
    except (ValueError, OverflowError) as error:
        return Read(None, _describe_skipped(place, error))
    framework, version = path.parts[-3:-1]
    return Read(Table(grid, Source(framework, version, place)), problem_found)
