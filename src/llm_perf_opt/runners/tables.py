"""Tables for notebooks and a timeline for Perfetto, beside the reports of a capture."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.errors import InputError
from llm_perf_opt.runners.sources import Sources

PERFETTO_NAME = "timeline.perfetto.json.gz"


def write_capture_tables(sources: Sources, out_dir: Path) -> list[Path]:
    """Write kernel and range tables (Parquet and CSV) and the attributed timeline of every nsys capture."""
    from llm_perf_opt.ingest.nsys import read_nsys
    from llm_perf_opt.ingest.timeline import Timeline
    from llm_perf_opt.reporting.timeline_files import write_perfetto, write_tables

    files: list[Path] = []
    for number, path in enumerate(sources.nsys):
        try:
            found = read_nsys(path)
        except InputError:
            continue  # said in the summary's notes already
        folder = out_dir / "nsys" if number == 0 else out_dir / "nsys" / path.stem
        files.extend(write_tables(found, folder))
        if isinstance(found, Timeline):
            files.append(write_perfetto(found, folder / PERFETTO_NAME))
    return files
