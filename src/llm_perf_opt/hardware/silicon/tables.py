"""One table read for one kind of rows: columns and rows that are not needed are never loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from llm_perf_opt.hardware.silicon.grid import Grid
from llm_perf_opt.hardware.silicon.layouts import Layout
from llm_perf_opt.hardware.silicon.reading import READ_ERRORS, left_out
from llm_perf_opt.hardware.silicon.timing import Source

_LATENCY = "latency"
_KERNEL = "kernel_source"


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one table that are meant by one kind of question."""

    grid: Grid
    source: Source


@dataclass(frozen=True, slots=True)
class Read:
    """What came of reading a table."""

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
    except READ_ERRORS as error:
        return Read(None, left_out(place, error))
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
    problem_said = problem if dropped else None
    if not good.height:
        return Read(None, problem_said)
    points = good.select(axes).to_numpy().astype(np.int64, copy=False)
    seconds = good[_LATENCY].to_numpy() * 1e-3
    try:
        grid = Grid(points, seconds, good[_KERNEL].to_list())
    except (ValueError, OverflowError) as error:
        return Read(None, left_out(place, error))
    framework, version = path.parts[-3:-1]
    return Read(Table(grid, Source(framework, version, place)), problem_said)
