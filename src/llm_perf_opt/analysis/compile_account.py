"""The account of ``torch.compile``: compilations, recompilations and graph breaks with cause, time and place.

The first compilation of a function is a one-off cost. A second one is usual too: torch then makes the size that changed dynamic.
A recompilation is in the steady state where its function had run compiled at least twice in the capture before, or, in a log,
which has no calls, from the third version on. A graph break costs at every call: code outside of graphs runs eagerly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.captures.compile_logs import CompileEvent, join_events
from llm_perf_opt.core import units
from llm_perf_opt.summary import Compilations, Finding, Section, SectionTable

STAGE = "torch_compile"
_SETTLED_VERSION = 2
_WARM_UP = "warmup"
_ROWS = 40


def account_facts(events: Sequence[CompileEvent]) -> Facts:
    """Return metrics, a section and findings of these events; nothing where there are none."""
    events = join_events(events)
    if not events:
        return Facts()
    compilations = [one for one in events if one.kind == "compilation"]
    again = [one for one in compilations if one.is_recompilation]
    breaks = [one for one in events if one.kind == "graph break"]
    limits = [one for one in events if one.kind == "limit reached"]
    steady = [one for one in again if is_steady(one)]
    timed = [one.seconds for one in compilations if one.seconds is not None]
    metrics: dict[str, float | None] = {
        "compile_compilations": float(len(compilations)),
        "compile_recompilations": float(len(again)),
        "compile_graph_breaks": float(len(breaks)),
        "compile_s": sum(timed) if timed else None,
        "compile_steady_recompilations": float(len(steady)),
    }
    findings = _recompilation(steady, limits) + _graph_breaks(breaks)
    return Facts(metrics=metrics, sections=[_section(events, again, breaks, timed)], findings=findings)


def is_steady(event: CompileEvent) -> bool:
    """Whether a recompilation happens after its function had settled."""
    if not event.is_recompilation:
        return False
    return event.steady if event.steady is not None else (event.version or 0) >= _SETTLED_VERSION


def _section(
    events: Sequence[CompileEvent],
    again: Sequence[CompileEvent],
    breaks: Sequence[CompileEvent],
    timed: Sequence[float],
) -> Section:
    rows = [
        [
            _kind(one),
            one.compile_id or "",
            one.place or "",
            one.cause or "",
            units.seconds(one.at_s) if one.at_s is not None else "",
            units.seconds(one.seconds) if one.seconds is not None else "",
        ]
        for one in events[:_ROWS]
    ]
    total = f" {units.seconds(sum(timed))} were spent compiling." if timed else ""
    paragraphs = [
        f"{sum(one.kind == 'compilation' for one in events)} compilations, of which {len(again)} recompilations; {len(breaks)} graph "
        f"breaks.{total}"
    ]
    if len(events) > _ROWS:
        paragraphs.append(f"The first {_ROWS} of {len(events)} are shown.")
    columns = ["what", "id", "place", "cause", "at", "took"]
    return Section(STAGE, "Compilations by torch.compile", paragraphs, [SectionTable(columns, rows)])


def _kind(event: CompileEvent) -> str:
    if event.kind == "compilation" and event.is_recompilation:
        return "recompilation" + (" (steady state)" if is_steady(event) else "")
    return event.kind


def _recompilation(steady: Sequence[CompileEvent], limits: Sequence[CompileEvent]) -> list[Finding]:
    if not steady and not limits:
        return []
    timed = [one.seconds for one in steady if one.seconds is not None]
    seconds = sum(timed) if timed else None
    evidence = [_describe(one) for one in sorted(steady, key=lambda one: -(one.seconds or 0.0))[:3]]
    if len(steady) > 3:
        evidence.append(f"{len(steady) - 3} more")
    evidence += [
        f"the limit of recompilations was reached for {one.place or 'a function'}"
        + (f" ({one.cause})" if one.cause else "")
        + ": from there on it runs without being compiled"
        for one in limits[:3]
    ]
    return [
        Finding(
            id="recompilation",
            title="Functions are compiled again in the steady state"
            if steady
            else "A function reached the limit of recompilations",
            phase=None,
            evidence=evidence,
            # Time is lost only if a device runs dry meanwhile, or per sample; budgets and timings show that part.
            gain_upper_s=None,
            time_s=seconds,
            arithmetic=f"{len(steady)} recompilations"
            + (f", {units.seconds(seconds)}" if seconds is not None else ", whose time was not recorded"),
            advice="Keep what the guards name constant: mark sizes that change as dynamic (torch._dynamo.mark_dynamic, dynamic=True), "
            "pass numbers that change as tensors, pad inputs to few sizes; warm up every shape before measuring.",
            confidence="high",
        )
    ]


def _graph_breaks(breaks: Sequence[CompileEvent]) -> list[Finding]:
    """Report breaks by place: each is hit at every call of its function."""
    if not breaks:
        return []
    places = Counter(one.place for one in breaks)
    causes: dict[str | None, str] = {one.place: one.cause for one in breaks if one.cause}
    named = [
        f"{place or 'unknown place'}: {causes.get(place) or 'cause not recorded'}"
        for place, _ in places.most_common(5)
    ]
    return [
        Finding(
            id="graph-breaks",
            title=f"The compiled code is broken into pieces at {len(places)} place{'s' if len(places) > 1 else ''}",
            phase=None,
            evidence=[*named, *([f"{len(places) - 5} more places"] if len(places) > 5 else [])],
            gain_upper_s=None,
            arithmetic="a break ends a graph at every call: the code in between runs eagerly, and nothing is fused across it; the log "
            "does not record how long that takes",
            advice="Rewrite the lines named so that they can be traced (no printing, no .item(), no data-dependent branch), or move "
            "them out of the compiled function; torch.compile(fullgraph=True) turns a break into an error.",
            confidence="medium",
        )
    ]


def _describe(event: CompileEvent) -> str:
    took = f" took {units.seconds(event.seconds)}" if event.seconds is not None else ""
    at = f" at {units.seconds(event.at_s)}" if event.at_s is not None else ""
    cause = f": {event.cause}" if event.cause else ""
    return f"{event.place or 'a function'}, version {event.version}{took}{at}{cause}"


def run_events(found: Compilations | None) -> list[CompileEvent]:
    """Return what one of our own runs compiled; a recompilation in a measured pass is one of the steady state."""
    events = []
    for one in found.functions if found is not None else ():
        measured = one.where != _WARM_UP
        events.append(
            CompileEvent(
                "compilation",
                one.compile_id,
                f"{one.place}, {one.where}",
                one.recompile_cause,
                seconds=one.seconds,
                steady=measured,
            )
        )
        events += [
            CompileEvent("graph break", one.compile_id, one.place, cause) for cause in one.break_causes[:1]
        ]
    return events


def join_sources(traced: Sequence[CompileEvent], logged: Sequence[CompileEvent]) -> list[CompileEvent]:
    """Join a trace with a log of the same run: the trace has the times of the capture, the log causes and places."""
    by_id: dict[str | None, CompileEvent] = {
        one.compile_id: one for one in logged if one.kind == "compilation" and one.compile_id
    }
    joined = [
        replace(one, place=(known.place or one.place), cause=known.cause)
        if (known := by_id.get(one.compile_id)) is not None
        else one
        for one in traced
    ]
    ids = {one.compile_id for one in traced}
    return [*joined, *(one for one in logged if one.compile_id not in ids or one.kind != "compilation")]
