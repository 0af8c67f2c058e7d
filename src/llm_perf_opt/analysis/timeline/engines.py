"""What the ranges and launches of an engine's capture say beside kernels and budgets."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_perf_opt.analysis.shares import GRAPH_DEVICE_S, OUTSIDE_PHASES
from llm_perf_opt.analysis.timeline.attribution import Attribution
from llm_perf_opt.analysis.timeline.engine_steps import engine_steps, step_metrics, step_section
from llm_perf_opt.analysis.timeline.graphs import graph_device_seconds, graph_notes, graph_use
from llm_perf_opt.model.summary import Section
from llm_perf_opt.model.timeline import Timeline


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Steps and graphs of one capture."""

    metrics: dict[str, float | None] = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_recording: bool = False
    """The capture shows graphs being recorded: nothing may be said of how busy a device is."""


def engine_facts(stage: str, timeline: Timeline, attribution: Attribution) -> EngineFacts:
    """Return the steps an engine names and the part of the work that lies behind graph launches."""
    steps, use = engine_steps(attribution), graph_use(timeline)
    behind = graph_device_seconds(timeline, attribution) if use.kernel_time_ratio else {}
    return EngineFacts(
        metrics={
            **step_metrics(steps),
            "graph_kernel_time_ratio": use.kernel_time_ratio,
            **{f"{phase or OUTSIDE_PHASES}{GRAPH_DEVICE_S}": seconds for phase, seconds in behind.items()},
        },
        sections=step_section(stage, steps),
        notes=graph_notes(use),
        is_recording=use.is_recording,
    )
