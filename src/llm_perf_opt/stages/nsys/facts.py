"""Nsight Systems captures as facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.facts import Capture, CaptureOrigin, Facts

if TYPE_CHECKING:
    from llm_perf_opt.captures.timeline import CapturedRange, KernelTotals, Timeline


def nsys_facts(path: Path) -> Facts:
    """Read one SQLite export or kernel-summary table."""
    from llm_perf_opt.analysis.captures import captured_range, place_in_range, split_by_phase
    from llm_perf_opt.analysis.timeline.attribution import attribute
    from llm_perf_opt.analysis.timeline.engines import engine_facts
    from llm_perf_opt.analysis.timeline.summary import summarise_timeline, summarise_totals
    from llm_perf_opt.captures.nsys.reader import read_capture_configuration, read_nsys
    from llm_perf_opt.captures.timeline import Timeline

    found = read_nsys(path)
    if isinstance(found, Timeline):
        ranks = _ranks_in(found)
        if ranks:
            return _facts_of_ranks(path, found, ranks)
        for _, rank, size in found.facts.get("rank_processes", [])[:1]:
            found.facts.update(rank=rank, world_size=size)
        attribution = attribute(found)
        facts = summarise_timeline(found, attribution=attribution, source=str(path))
        captures = [Capture(path, found, facts, attribution, tool="nsys", covers_run=True, tables=True)]
        engine = engine_facts("nsys", found, attribution)
        of_engine = Facts(metrics=engine.metrics, sections=engine.sections, notes=engine.notes)
    else:
        of, of_engine = captured_range(path, read_capture_configuration(path)), Facts()
        parts: list[tuple[KernelTotals, CapturedRange | None]] = [*split_by_phase(found)]
        captures = []
        for table, part in parts or [(found, of)]:
            facts = summarise_totals(table, source=str(path))
            place_in_range(facts, part)
            captures.append(
                Capture(path, table, facts, tool="nsys", covers_run=True, tables=not captures, range=part)
            )
    return replace(of_engine, sources={"nsys": (path,)}, captures=captures, origins=_origins(captures))


def _origins(captures: Sequence[Capture]) -> list[CaptureOrigin]:
    """Origins of the captures. Tables of single ranges, which can be combined, are not distinguished."""
    from llm_perf_opt.analysis.ranks import capture_origin
    from llm_perf_opt.captures.timeline import Timeline

    found = []
    for one in captures:
        phases = frozenset(kernel.phase for kernel in one.facts.kernels if kernel.phase is not None)
        if isinstance(one.found, Timeline):
            found.append(replace(capture_origin(one.path, one.tool, one.found), phases=phases))
        elif one.range is None or one.range.phase is None:
            found.append(CaptureOrigin(one.path, one.tool))
    return found


def _ranks_in(found: Timeline) -> dict[int, Timeline]:
    """Return rank → its timeline, if nsys captured several ranks through their launcher.

    Our ranks are marked in the capture. Other processes are ranks if they communicate on their
    devices; those that do not are programs side by side, and stay together.
    """
    from llm_perf_opt.analysis.timeline.budget import communication_names
    from llm_perf_opt.captures.nsys.reader import by_process, marked_ranks, of_process

    marked = marked_ranks(found)
    if marked:
        return {rank: of_process(found, process) for rank, process in marked.items()}
    parts = list(by_process(found).values())
    if len(parts) < 2:
        return {}
    talking = [part for part in parts if communication_names(part)[part.ops.name].any()]
    return dict(enumerate(talking)) if len(talking) > 1 else {}


def _facts_of_ranks(path: Path, found: Timeline, parts: dict[int, Timeline]) -> Facts:
    """Read every rank separately; they are joined later, like captures of several files."""
    from llm_perf_opt.analysis.timeline.attribution import attribute
    from llm_perf_opt.analysis.timeline.engines import engine_facts
    from llm_perf_opt.analysis.timeline.summary import summarise_timeline

    captures, of_engine = [], Facts()
    reported = {rank: size for _, rank, size in found.facts.get("rank_processes") or []}
    first = min(parts)
    for rank, part in parts.items():
        part.facts.update(rank=rank, world_size=reported.get(rank, len(parts)))
        attribution = attribute(part)
        facts = summarise_timeline(part, attribution=attribution, source=str(path))
        captures.append(
            Capture(path, part, facts, attribution, tool="nsys", covers_run=True, tables=rank == first)
        )
        if rank == first:
            engine = engine_facts("nsys", part, attribution)
            of_engine = Facts(metrics=engine.metrics, sections=engine.sections, notes=engine.notes)
    how = (
        f"{len(parts)} processes that name their rank"
        if reported
        else f"{len(parts)} processes that talk to one another: they are taken for ranks, numbered in the order of their devices"
    )
    note = f"{path.name} holds {how}. Tables of single launches are those of rank {first}."
    return replace(
        of_engine,
        sources={"nsys": (path,)},
        captures=captures,
        origins=_origins(captures),
        notes=[*of_engine.notes, note],
    )
