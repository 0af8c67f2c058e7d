"""Tables for notebooks and a timeline for Perfetto, beside the reports of a capture."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.model.summary import Summary
from llm_perf_opt.runs.sources import Sources

PERFETTO_NAME = "timeline.perfetto.json.gz"
_MOST_EVENTS = 500_000
"""A browser does not open larger traces; the tables have everything."""


def write_capture_tables(summary: Summary, sources: Sources, out_dir: Path) -> list[Path]:
    """Write tables (Parquet and CSV) and the attributed timeline of nsys captures, and the pages of ncu captures."""
    from llm_perf_opt.ingest.nsys.reader import read_nsys
    from llm_perf_opt.model.timeline import Timeline
    from llm_perf_opt.reporting.timeline_files import write_perfetto, write_tables

    files: list[Path] = []
    for number, path in enumerate(sources.nsys):
        try:
            found = read_nsys(path)
        except InputError:
            continue  # said in the summary's notes already
        folder = out_dir / "nsys" if number == 0 else out_dir / "nsys" / path.stem
        files.extend(write_tables(found, folder))
        if isinstance(found, Timeline) and len(found.ops) + len(found.ranges) <= _MOST_EVENTS:
            files.append(write_perfetto(found, folder / PERFETTO_NAME))
    return [*files, *_write_ncu_pages(summary, sources, out_dir)]


def _write_ncu_pages(summary: Summary, sources: Sources, out_dir: Path) -> list[Path]:
    """Write a page per profiled kernel, tables, roofline and histogram."""
    if sources.ncu is None:
        return []
    from llm_perf_opt.analysis.kernels.families import family_of
    from llm_perf_opt.analysis.kernels.match import match_kernels
    from llm_perf_opt.analysis.kernels.names import short_name
    from llm_perf_opt.analysis.ncu.facts import analyse_ncu
    from llm_perf_opt.analysis.ncu.vendor_gains import rank
    from llm_perf_opt.ingest.ncu.reader import read_ncu
    from llm_perf_opt.reporting.ncu_pages import write_ncu_pages

    try:
        facts = analyse_ncu(
            read_ncu(sources.ncu),
            peak_flops_per_s={name: peak.dense for name, peak in summary.hardware.peak_flops_per_s.items()},
            peak_bytes_per_s=summary.hardware.bandwidth_bytes_per_s,
        )
    except InputError:
        return []  # said in the summary's notes already
    matches = match_kernels(facts, list(dict.fromkeys(kernel.name for kernel in summary.kernels)))
    return write_ncu_pages(
        facts,
        out_dir / "ncu",
        matches=matches,
        namer=lambda name: (short_name(name), family_of(name)),
        ranked=rank(summary, facts, matches),
    )
