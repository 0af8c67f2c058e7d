"""Timeline tables for notebooks and the trace for Perfetto, written into a directory of the run."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llm_perf_opt.core.files import atomic_path

if TYPE_CHECKING:
    from llm_perf_opt.analysis.timeline.attribution import Attribution
    from llm_perf_opt.analysis.timeline.export import Columns
    from llm_perf_opt.model.timeline import KernelTotals, Timeline

TableFormat = Literal["parquet", "csv"]
_TEXT_COLUMNS = ("phase", "module", "range_path", "name", "short_name", "family", "kind")


def write_tables(
    found: Timeline | KernelTotals,
    out_dir: Path,
    *,
    attribution: Attribution | None = None,
    formats: tuple[TableFormat, ...] = ("parquet", "csv"),
) -> list[Path]:
    """Write ``timeline_kernels`` and ``timeline_ranges`` (totals: only the former); return the files."""
    from llm_perf_opt.analysis.timeline.attribution import attribute
    from llm_perf_opt.analysis.timeline.export import kernel_columns, range_columns
    from llm_perf_opt.model.timeline import Timeline

    if isinstance(found, Timeline):
        attribution = attribution if attribution is not None else attribute(found)
        tables = {
            "timeline_kernels": kernel_columns(found, attribution),
            "timeline_ranges": range_columns(found, attribution),
        }
    else:
        tables = {"timeline_kernels": _columns_of_totals(found)}
    return [
        _write_table(columns, Path(out_dir) / f"{name}.{kind}", kind)
        for name, columns in tables.items()
        for kind in formats
        if any(columns.values())
    ]


def _columns_of_totals(found: KernelTotals) -> Columns:
    from llm_perf_opt.analysis.kernels.families import family_of
    from llm_perf_opt.analysis.kernels.names import short_name

    rows = found.kernels
    return {
        "family": [family_of(row.name) for row in rows],
        "short_name": [short_name(row.name) for row in rows],
        "name": [row.name for row in rows],
        "launches": [row.count for row in rows],
        "total_ns": [row.total_ns for row in rows],
        "mean_ns": [row.total_ns / row.count if row.count else None for row in rows],
        "median_ns": [row.median_ns for row in rows],
        "min_ns": [row.min_ns for row in rows],
        "max_ns": [row.max_ns for row in rows],
        "std_ns": [row.std_ns for row in rows],
    }


def _write_table(columns: Columns, path: Path, kind: TableFormat) -> Path:
    import polars  # large: only where a table is written

    # A column without a single value would otherwise have no type.
    text = {name: polars.String for name in _TEXT_COLUMNS if name in columns}
    frame = polars.DataFrame(columns, schema_overrides=text, strict=False)
    with atomic_path(path) as temporary:
        if kind == "parquet":
            frame.write_parquet(temporary)
        else:
            harmless = polars.col(polars.String).str.replace(r"^([=+\-@\t\r])", "'$1")
            frame.with_columns(harmless).write_csv(temporary)
    return path


def write_perfetto(timeline: Timeline, path: Path, *, attribution: Attribution | None = None) -> Path:
    """Write the attributed timeline as a trace for https://ui.perfetto.dev; compressed when it ends in ``.gz``."""
    from llm_perf_opt.analysis.timeline.export import perfetto_events

    with atomic_path(Path(path)) as temporary, temporary.open("wb") as raw:
        if path.suffix == ".gz":
            # A fixed time stamp: the same timeline gives the same file.
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
                stream = io.TextIOWrapper(packed, "utf-8", newline="\n")
                stream.writelines(perfetto_events(timeline, attribution))
                stream.flush()
                stream.detach()
        else:
            text = io.TextIOWrapper(raw, "utf-8", newline="\n")
            text.writelines(perfetto_events(timeline, attribution))
            text.flush()
            text.detach()
    return Path(path)
