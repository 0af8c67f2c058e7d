"""Write every report of a summary."""

from __future__ import annotations

import gzip
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llm_perf_opt.core import layout
from llm_perf_opt.core.files import atomic_path, atomic_write_text
from llm_perf_opt.reporting.report import kernels_markdown, operators_markdown, report_texts
from llm_perf_opt.reporting.stakeholder import stakeholder_markdown
from llm_perf_opt.summary import Summary

if TYPE_CHECKING:
    from llm_perf_opt.analysis.facts import Capture, Facts
    from llm_perf_opt.analysis.timeline.attribution import Attribution
    from llm_perf_opt.analysis.timeline.export import Columns
    from llm_perf_opt.captures.ncu.launches import NcuCapture
    from llm_perf_opt.captures.timeline import KernelTotals, Timeline
    from llm_perf_opt.summary.static import StaticDocument


def write_documents(summary: Summary, out_dir: Path) -> list[Path]:
    """Render all documents into ``out_dir``; return their paths, starting with the one to open."""
    html, markdown = report_texts(summary)
    texts = {
        layout.REPORT_HTML: html,
        layout.REPORT_MD: markdown,
        layout.STAKEHOLDER_MD: stakeholder_markdown(summary),
        layout.KERNELS_MD: kernels_markdown(summary),
        **({layout.OPERATORS_MD: operators_markdown(summary)} if summary.operators else {}),
    }
    return [atomic_write_text(out_dir / name, text) for name, text in texts.items()]


# Pages and tables next to the report, from the facts they show: static analysis, timelines, kernel counters.


LOGGER = logging.getLogger("llm_perf_opt.captures")
MOST_EVENTS = 200_000
"""Device operations and ranges of a trace for Perfetto, unless it is asked for: browsers are slow on larger ones, and writing it
would take most of the time of the command. The tables have everything."""


def write_pages(
    summary: Summary, facts: Sequence[Facts], out_dir: Path, *, perfetto: bool = False
) -> list[Path]:
    """Write the pages of each stage's facts into the stage's folder; ``perfetto``: the trace whatever its size."""
    most = sys.maxsize if perfetto else MOST_EVENTS
    files: list[Path] = []
    for each in facts:
        folder = out_dir / each.stage
        if each.static_document is not None and each.static_document.has_page:
            files += _static_page(each.static_document, summary, folder)
        for number, capture in enumerate(capture for capture in each.captures if capture.tables):
            files += _timeline_tables(capture, folder if number == 0 else folder / capture.path.stem, most)
        files += _trace_of_ranks(each.captures, folder, most)
        if each.counters is not None:
            files += _counter_pages(each.counters, summary, folder)
    return files


def _trace_of_ranks(captures: Sequence[Capture], folder: Path, most: int) -> list[Path]:
    """Write one trace with all ranks of a stage, replacing that of the first; no effect for a single rank."""
    from llm_perf_opt.analysis.ranks import rank_of, ranks_in_names
    from llm_perf_opt.analysis.timeline.export import RankTimeline, perfetto_ranks
    from llm_perf_opt.captures.timeline import Timeline

    by_name = ranks_in_names([one.path for one in captures])
    found: dict[int, RankTimeline] = {}
    for one in captures:
        rank = rank_of(one, by_name[one.path])
        if rank is not None and isinstance(one.found, Timeline) and len(one.found.calls):
            found.setdefault(rank, RankTimeline(rank, one.found, one.attribution))
    size = sum(len(one.timeline.ops) + len(one.timeline.ranges) for one in found.values())
    if len(found) < 2 or size > most:
        return []
    pieces = perfetto_ranks([found[rank] for rank in sorted(found)])
    return [_write_trace(folder / layout.PERFETTO, pieces)]


def _static_page(document: StaticDocument, summary: Summary, folder: Path) -> list[Path]:
    from llm_perf_opt.reporting.static_page import render_static_report, static_charts

    charts = static_charts(document, summary.hardware)
    files = [atomic_write_text(folder / name, svg) for name, svg in charts.items()]
    page = render_static_report(document, charts=list(charts))
    return [*files, atomic_write_text(folder / layout.STATIC_MD, page)]


def _timeline_tables(capture: Capture, folder: Path, most: int) -> list[Path]:
    from llm_perf_opt.captures.timeline import Timeline

    found = capture.found
    files = write_tables(found, folder, attribution=capture.attribution)
    if isinstance(found, Timeline):
        events, path = len(found.ops) + len(found.ranges), folder / layout.PERFETTO
        if events <= most:
            files.append(write_perfetto(found, path, attribution=capture.attribution))
        else:
            path.unlink(missing_ok=True)  # that of another capture
            LOGGER.info(
                "%s is left out: %s operations and ranges, more than %s (ingest --perfetto writes it)",
                path.name,
                f"{events:,}",
                f"{most:,}",
            )
    return files


def _counter_pages(capture: NcuCapture, summary: Summary, folder: Path) -> list[Path]:
    """Write a page per profiled kernel, tables, roofline and histogram."""
    from llm_perf_opt.analysis.ncu.summary import analyse_counters, names_of
    from llm_perf_opt.analysis.ncu.vendor_rules import rank
    from llm_perf_opt.reporting.ncu_pages import write_ncu_pages

    counters = analyse_counters(capture, summary.kernels, summary.hardware)
    return write_ncu_pages(
        counters.facts,
        folder,
        matches=counters.matches,
        namer=names_of,
        ranked=rank(summary, counters.facts, counters.matches),
    )


# Timeline tables for notebooks and the trace for Perfetto, written into a directory of the run.


_TRACE_LEVEL = 3
_TableFormat = Literal["parquet", "csv"]
_TEXT_COLUMNS = ("phase", "module", "range_path", "name", "short_name", "family", "kind")


def write_tables(
    found: Timeline | KernelTotals,
    out_dir: Path,
    *,
    attribution: Attribution | None = None,
    formats: tuple[_TableFormat, ...] = ("parquet", "csv"),
) -> list[Path]:
    """Write ``timeline_kernels`` and ``timeline_ranges`` (totals: only the former); return the files."""
    from llm_perf_opt.analysis.timeline.attribution import attribute
    from llm_perf_opt.analysis.timeline.export import kernel_columns, range_columns
    from llm_perf_opt.captures.timeline import Timeline

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


def _write_table(columns: Columns, path: Path, kind: _TableFormat) -> Path:
    import polars  # large import: only if a table is written

    # A column without values would otherwise have no type.
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

    return _write_trace(Path(path), perfetto_events(timeline, attribution))


def _write_trace(path: Path, pieces: Iterable[str]) -> Path:
    with atomic_path(path) as temporary, temporary.open("wb") as raw:
        if path.suffix == ".gz":
            # A fixed time stamp: the same timeline gives the same file. Higher levels take most of the time of writing.
            with gzip.GzipFile("", "wb", compresslevel=_TRACE_LEVEL, fileobj=raw, mtime=0) as packed:
                packed.writelines(piece.encode() for piece in pieces)
        else:
            raw.writelines(piece.encode() for piece in pieces)
    return path
