"""Pages and tables beside the report, from the facts they show: static analysis, timelines, kernel counters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.core.run_directory import layout

if TYPE_CHECKING:
    from llm_perf_opt.analysis.facts import Capture, Facts
    from llm_perf_opt.model.counters import NcuCapture
    from llm_perf_opt.model.static.document import StaticDocument
    from llm_perf_opt.model.summary import Summary

_MOST_EVENTS = 500_000
"""A browser does not open larger traces; the tables have everything."""


def write_pages(summary: Summary, facts: Sequence[Facts], out_dir: Path) -> list[Path]:
    """Write what the facts of each stage have pages for, into the stage's folder."""
    files: list[Path] = []
    for each in facts:
        folder = out_dir / each.stage
        if each.static_document is not None and each.static_document.has_page:
            files += _static_page(each.static_document, summary, folder)
        for number, capture in enumerate(capture for capture in each.captures if capture.tables):
            files += _timeline_tables(capture, folder if number == 0 else folder / capture.path.stem)
        if each.counters is not None:
            files += _counter_pages(each.counters, summary, folder)
    return files


def _static_page(document: StaticDocument, summary: Summary, folder: Path) -> list[Path]:
    from llm_perf_opt.reporting.static_page import render_static_report, static_charts

    charts = static_charts(document, summary.hardware)
    files = [atomic_write_text(folder / name, svg) for name, svg in charts.items()]
    page = render_static_report(document, charts=list(charts))
    return [*files, atomic_write_text(folder / layout.STATIC_MD, page)]


def _timeline_tables(capture: Capture, folder: Path) -> list[Path]:
    from llm_perf_opt.model.timeline import Timeline
    from llm_perf_opt.reporting.timeline_files import write_perfetto, write_tables

    found = capture.found
    files = write_tables(found, folder, attribution=capture.attribution)
    if isinstance(found, Timeline) and len(found.ops) + len(found.ranges) <= _MOST_EVENTS:
        files.append(write_perfetto(found, folder / layout.PERFETTO, attribution=capture.attribution))
    return files


def _counter_pages(capture: NcuCapture, summary: Summary, folder: Path) -> list[Path]:
    """Write a page per profiled kernel, tables, roofline and histogram."""
    from llm_perf_opt.analysis.ncu.counters import analyse_counters, names_of
    from llm_perf_opt.analysis.ncu.vendor_gains import rank
    from llm_perf_opt.reporting.ncu_pages import write_ncu_pages

    counters = analyse_counters(capture, summary.kernels, summary.hardware)
    return write_ncu_pages(
        counters.facts,
        folder,
        matches=counters.matches,
        namer=names_of,
        ranked=rank(summary, counters.facts, counters.matches),
    )
