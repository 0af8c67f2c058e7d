"""Read the sides of a comparison: summaries, and the raw timings next to them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.captures.timings import check_engine_document, load_timings
from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import require_regular
from llm_perf_opt.core.layout import own_files
from llm_perf_opt.core.stage import stage_types
from llm_perf_opt.summary import Summary
from llm_perf_opt.summary.codec import read_json
from llm_perf_opt.summary.file import load_summary


def load_side(path: Path, name: str) -> Side:
    """Read a run, an ingested capture, a ``summary.json``, or a folder with several runs of one configuration."""
    path = path.expanduser().absolute()
    if not path.exists():
        raise InputError(
            f"{path} does not exist", hint="give the directory of a finished run", path=str(path)
        )
    require_regular(path)
    runs = [path] if path.is_file() or _is_run(path) else sorted(p for p in path.iterdir() if _is_run(p))
    if not runs:
        raise InputError(
            f"{path} contains no run",
            hint=f"give a directory with {layout.SUMMARY}, made by `llm-perf-opt run` or `ingest`",
            path=str(path),
        )
    side = Side(name, [str(run) for run in runs], [_summary(run) for run in runs])
    _refuse_unfinished(side)
    side.documents = [_raw_timings(run, summary) for run, summary in zip(runs, side.summaries, strict=True)]
    return side


def _refuse_unfinished(side: Side) -> None:
    """Reject a load that did not finish."""
    for run, summary in zip(side.paths, side.summaries, strict=True):
        points = summary.serving.load if summary.serving is not None else []
        bad = next((one for one in points if not one.is_complete), None)
        if bad is not None:
            raise InputError(
                f"{run}: the {bad.tool or 'serving'} result is incomplete and is not compared",
                hint="measure again: a load that did not finish is not the load that was requested",
                path=run,
            )


def _is_run(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in (layout.SUMMARY, layout.MANIFEST))


def _summary(path: Path) -> Summary:
    """Read the summary; a run that ended before it was written is summarised from its files."""
    if path.is_dir() and not (path / layout.SUMMARY).is_file():
        from llm_perf_opt.runs.assemble import assemble_run

        return assemble_run(path).summary
    return load_summary(path)


def _raw_timings(path: Path, summary: Summary) -> Mapping[str, Any] | None:
    """Return the engine's timings document of a run; ``None`` when there is none or it is the short form."""
    folder = path if path.is_dir() else path.parent
    named = summary.sources.get("timings")
    # Without a name in the summary any stage's file is accepted, but only one that this run wrote.
    candidates = [
        path
        for stage in stage_types()
        for path in own_files(folder, stage, [folder / stage / layout.TIMINGS])
    ]
    # Of several, the first is the source of the summary's wall-clock; with several ranks, that of the first.
    reported = [folder / one for one in (named, *named.split(", "))] if named else []
    found = next((path for path in (*reported, *candidates) if path.is_file()), None)
    if found is None:
        return None
    document = read_json(found)
    if isinstance(document, dict) and isinstance(document.get("runs"), list):
        load_timings(found)  # raises with the reason
        return document
    if not isinstance(document, dict) or not isinstance(document.get("samples"), list):
        return None
    check_engine_document(document, str(found))
    return document
