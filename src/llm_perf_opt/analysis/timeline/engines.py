"""Engine steps and CUDA graphs of a capture, from its ranges and launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from llm_perf_opt.analysis.shares import GRAPH_DEVICE_S, OUTSIDE_PHASES
from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution, totals
from llm_perf_opt.analysis.timeline.range_names import StepSize
from llm_perf_opt.captures.timeline import (
    HostCalls,
    Int64,
    OpKind,
    Timeline,
    behind_graph_launch,
    is_capture_begin,
    is_capture_end,
    is_kernel_launch,
)
from llm_perf_opt.core import units
from llm_perf_opt.core.arrays import distinct_values
from llm_perf_opt.core.phases import MIXED, PHASES
from llm_perf_opt.summary import Section, SectionTable

# Steps of an engine (vLLM, SGLang, TensorRT-LLM, …): how many of each phase, and their sizes.


@dataclass(frozen=True, slots=True)
class PhaseSteps:
    """The steps of one phase whose ranges contain their sizes. Means are over the steps that have them."""

    phase: str
    steps: int
    requests_per_step: float | None
    tokens_per_step: float | None
    tokens: int | None
    """Of all steps; ``None`` unless every one says."""
    prefill_tokens_per_step: float | None
    """Mixed steps: prompt positions."""
    decode_requests_per_step: float | None
    """Mixed steps: requests that get their next token."""


def engine_steps(attribution: Attribution) -> list[PhaseSteps]:
    """Return the phases whose ranges contain the step size, in their usual order; empty for other captures."""
    ranges = np.bincount(attribution.paths.of_range, minlength=len(attribution.meanings)).tolist()
    found: dict[str, list[tuple[StepSize, int]]] = {}
    for path, meaning in enumerate(attribution.meanings):
        if meaning.step is None or meaning.phase is None or inside_a_step(attribution, path):
            continue
        found.setdefault(meaning.phase, []).append((meaning.step, ranges[path]))
    order = [*PHASES, *(phase for phase in found if phase not in PHASES)]
    return [_phase_steps(phase, found[phase]) for phase in order if phase in found]


def inside_a_step(attribution: Attribution, path: int) -> bool:
    """Two tools may name the same step, one range inside the other: count it once."""
    around = attribution.paths.ancestors(path)[1:]
    return any(attribution.meanings[above].step is not None for above in around)


def _phase_steps(phase: str, sizes: list[tuple[StepSize, int]]) -> PhaseSteps:
    steps = sum(count for _, count in sizes)
    all_tokens = [(size.all_tokens, count) for size, count in sizes]
    known = [tokens * count for tokens, count in all_tokens if tokens is not None]

    def mean(value: Callable[[StepSize], int | None]) -> float | None:
        return _mean((value(size), count) for size, count in sizes)

    mixed = phase == MIXED
    return PhaseSteps(
        phase=phase,
        steps=steps,
        requests_per_step=mean(lambda size: size.all_requests),
        tokens_per_step=_mean(all_tokens),
        tokens=sum(known) if len(known) == len(sizes) else None,
        prefill_tokens_per_step=mean(lambda size: size.prefill_tokens) if mixed else None,
        decode_requests_per_step=mean(lambda size: size.decode_requests) if mixed else None,
    )


def _mean(values: Iterable[tuple[int | None, int]]) -> float | None:
    known = [(value, count) for value, count in values if value is not None]
    total = sum(count for _, count in known)
    return sum(value * count for value, count in known) / total if total else None


def step_metrics(steps: Iterable[PhaseSteps]) -> dict[str, float | None]:
    """Return the steps as named scalars: ``decode_steps``, ``decode_requests_per_step``, …"""
    metrics: dict[str, float | None] = {}
    for one in steps:
        metrics[f"{one.phase}_steps"] = float(one.steps)
        metrics[f"{one.phase}_requests_per_step"] = one.requests_per_step
        metrics[f"{one.phase}_tokens_per_step"] = one.tokens_per_step
        metrics[f"{one.phase}_step_tokens"] = float(one.tokens) if one.tokens is not None else None
        if one.phase == MIXED:
            metrics["mixed_prefill_tokens_per_step"] = one.prefill_tokens_per_step
            metrics["mixed_decode_requests_per_step"] = one.decode_requests_per_step
    return metrics


def step_section(stage: str, steps: list[PhaseSteps]) -> list[Section]:
    """Return the part of the report about steps; nothing if no range contains a step size."""
    if not steps:
        return []
    rows = [
        [
            one.phase,
            units.count(one.steps),
            units.number(one.requests_per_step),
            units.number(one.tokens_per_step),
            units.number(one.prefill_tokens_per_step),
            units.number(one.decode_requests_per_step),
        ]
        for one in steps
    ]
    columns = ["phase", "steps", "requests per step", "tokens per step", "prompt tokens", "decoding requests"]
    if not any(one.phase == MIXED for one in steps):
        columns, rows = columns[:4], [row[:4] for row in rows]
    text = "Read from the names the engine gives its steps; means over the steps of a phase."
    if any(one.phase == MIXED for one in steps):
        text += " Mixed steps contain prompts of some requests and next tokens of others; they belong to neither phase."
    return [Section(stage, "Steps of the engine", [text], [SectionTable(columns, rows)])]


# Work behind graph launches, and traces of graphs being recorded: what can and cannot be attributed.
#
# A graph holds kernels that other operators put there earlier. Its launch identifies only the phase; which
# operator or module a kernel belongs to is only known where the trace of the recording is given too.


_MOSTLY_RECORDED = 0.5
"""From this many launches that only recorded, per kernel that ran, a trace is of recording and not of running."""


@dataclass(frozen=True, slots=True)
class GraphUse:
    """How a capture uses graphs."""

    kernel_time_ratio: float | None
    """Kernel time behind graph launches ÷ all kernel time; ``None`` where no kernel's launch is known."""
    recordings: int
    """Graphs recorded in the capture."""
    recorded_launches: int
    """Kernel launches that put a kernel into a graph instead of running it."""
    executed_kernels: int

    @property
    def is_recording(self) -> bool:
        """Whether the capture shows graphs being recorded rather than a program running."""
        enough = self.recorded_launches >= _MOSTLY_RECORDED * self.executed_kernels
        return self.recordings > 0 and (enough if self.recorded_launches else not self.executed_kernels)


def graph_use(timeline: Timeline) -> GraphUse:
    """Determine the graph use of a capture from its launches and recordings."""
    ops, calls, names = timeline.ops, timeline.calls, timeline.names
    kernel = ops.kind == OpKind.KERNEL
    ratio = None
    durations = (ops.end_ns - ops.start_ns)[kernel]
    total = int(durations.sum())
    if total and (ops.launch[kernel] >= 0).any():
        behind = behind_graph_launch(names, calls, ops)[kernel]
        ratio = int(durations[behind].sum()) / total
    begins, ends = _rows(calls, names, is_capture_begin), _rows(calls, names, is_capture_end)
    recorded = 0
    if len(begins):
        launches = _rows(calls, names, is_kernel_launch)
        ran = np.zeros(len(calls), bool)
        ran[ops.launch[ops.launch >= 0]] = True
        launches = launches[~ran[launches]]
        recorded = _inside_recordings(calls, launches, begins, ends)
    return GraphUse(ratio, len(begins), recorded, int(kernel.sum()))


def _rows(calls: HostCalls, names: list[str], wanted: Callable[[str], bool]) -> Int64:
    chosen = [index for index in distinct_values(calls.name).tolist() if wanted(names[index])]
    rows: Int64 = np.flatnonzero(np.isin(calls.name, chosen)) if chosen else np.empty(0, np.int64)
    return rows


def _inside_recordings(calls: HostCalls, launches: Int64, begins: Int64, ends: Int64) -> int:
    """Count launches between a begin and the next end on the same thread; without an end, up to the last launch."""
    count = 0
    for thread in np.unique(calls.thread[begins]).tolist():
        opened = np.sort(calls.start_ns[begins[calls.thread[begins] == thread]])
        closed = np.sort(calls.start_ns[ends[calls.thread[ends] == thread]])
        at = calls.start_ns[launches[calls.thread[launches] == thread]]
        began, ended = np.searchsorted(opened, at, "right"), np.searchsorted(closed, at, "right")
        count += int((began > ended).sum())
    return count


def _graph_device_seconds(timeline: Timeline, attribution: Attribution) -> dict[str | None, float]:
    """Return phase → device time behind graph launches; phases without any are left out."""
    behind = behind_graph_launch(timeline.names, timeline.calls, timeline.ops)
    if not behind.any():
        return {}
    found = totals(timeline, attribution.op_phase.astype(np.int64), behind)
    return {
        attribution.phases[number] if number != NONE else None: total.total_ns / 1e9
        for number, total in found.items()
    }


def graph_notes(use: GraphUse) -> list[str]:
    """Return notes for readers on graphs in a capture."""
    notes = []
    if use.is_recording:
        notes.append(
            f"The trace shows graphs being recorded ({use.recordings} recordings, {use.recorded_launches} kernel "
            f"launches that only record, {use.executed_kernels} kernels that ran): it shows which operators a graph "
            "contains, not how busy a device is. Give the trace of the run as well."
        )
    if use.kernel_time_ratio:
        notes.append(
            f"{units.percent(use.kernel_time_ratio)} of kernel time is behind graph launches: it is attributed to the "
            "phase of the launch, but to no operator or module."
        )
    return notes


def unclaimed_behind_graphs(timeline: Timeline, attribution: Attribution) -> Attribution:
    """Detach kernels behind graph launches from the modules around the launch; phase and component are kept."""
    behind = behind_graph_launch(timeline.names, timeline.calls, timeline.ops)
    if not behind.any() or not any(attribution.path_module):
        return attribution
    outside = np.array([_outside_modules(attribution, path) for path in range(len(attribution.path_module))])
    op_path = attribution.op_path.copy()
    rows = np.flatnonzero(behind & (op_path != NONE))
    op_path[rows] = outside[op_path[rows]]
    return replace(attribution, op_path=op_path)


def _outside_modules(attribution: Attribution, path: int) -> int:
    """Return the nearest path around (or this one) that names no module; itself where only modules name its phase."""
    for above in attribution.paths.ancestors(path):
        same_phase = attribution.path_phase[above] == attribution.path_phase[path]
        same_component = attribution.path_component[above] == attribution.path_component[path]
        if not (same_phase and same_component):
            return path
        if attribution.path_module[above] is None:
            return above
    return NONE if attribution.path_phase[path] == NONE and attribution.path_component[path] is None else path


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Steps and graphs of one capture."""

    metrics: dict[str, float | None] = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_recording: bool = False
    """The capture shows graphs being recorded: nothing may be said of how busy a device is."""


def engine_facts(stage: str, timeline: Timeline, attribution: Attribution) -> EngineFacts:
    """Return the steps named by an engine and the share of work behind graph launches."""
    steps, use = engine_steps(attribution), graph_use(timeline)
    behind = _graph_device_seconds(timeline, attribution) if use.kernel_time_ratio else {}
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
