"""Torch profiler traces as facts: kernels, operators, the profiled pass, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.analysis.facts import NO_DEVICE_EVENTS, Capture, Facts, ProfiledPass, merge_facts
from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.stages.nsys.facts import nsys_facts
from llm_perf_opt.summary import Kernel, MemoryUse

if TYPE_CHECKING:
    from llm_perf_opt.analysis.timeline.attribution import Attribution
    from llm_perf_opt.captures.documents import TorchProfile
    from llm_perf_opt.captures.kineto.reader import KinetoCapture

_DISTURBANCE = 1
"""The profiler slows the host down more than Nsight Systems does."""


def trace_facts(path: Path) -> Facts:
    """Read a trace, or the ``profile.json`` if the trace was not kept."""
    from llm_perf_opt.captures.documents import read_profile

    profile_path = path.with_name(layout.PROFILE)
    profile = read_profile(profile_path) if profile_path.is_file() else None
    facts = Facts(sources={"trace": (path,)})
    if profile is not None:
        facts.profiled = ProfiledPass(
            profile.sample_ids, profile.new_tokens, profile.active_passes, profile.profiled_s
        )
        if profile.trace is None:
            facts.operators = profile.operators
            return facts
    _read_trace(facts, path, profile)
    return facts


def _read_trace(facts: Facts, path: Path, profile: TorchProfile | None) -> None:
    from llm_perf_opt.analysis.operators.table import operator_records
    from llm_perf_opt.analysis.ranks import capture_origin
    from llm_perf_opt.analysis.timeline.attribution import attribute
    from llm_perf_opt.analysis.timeline.compilations import trace_compilations
    from llm_perf_opt.analysis.timeline.engines import engine_facts
    from llm_perf_opt.analysis.timeline.summary import summarise_timeline
    from llm_perf_opt.analysis.timeline.tables import module_host_shares, phase_host_seconds
    from llm_perf_opt.captures.kineto.reader import read_kineto

    capture = read_kineto(path)
    timeline = capture.timeline
    if steps := capture.facts.get("profiler_steps"):
        facts.metrics["profiler_steps"] = float(steps)
    if isinstance(size := capture.facts.get("world_size"), int):
        facts.metrics["world_size"] = float(size)
    if frames := len(timeline.frames):
        facts.metrics["profiled_python_frames"] = float(frames)
    attribution = attribute(timeline)
    facts.operators = operator_records(
        capture.operators,
        timeline,
        attribution,
        rank_by=profile.rank_by if profile is not None else "auto",
        limit=profile.max_operators if profile is not None else None,
    )
    if not len(timeline.ops) and not facts.operators:
        raise InputError(
            f"{path} contains no operator and no kernel",
            hint="give a trace that torch.profiler exported after work was done",
            path=str(path),
        )
    facts.compile_traced = trace_compilations(timeline)
    engine = engine_facts("torch_profiler", timeline, attribution)
    facts.metrics |= engine.metrics
    facts.sections += engine.sections
    facts.notes += engine.notes
    if engine.is_recording:
        facts.recordings.append(path)
        return  # kernels of a warm-up do not show how busy a device is
    facts.origins.append(capture_origin(path, "torch profiler", timeline))
    add_shapes = _count_work(facts, path, capture, attribution)
    if len(timeline.ops):
        found = summarise_timeline(timeline, attribution=attribution, source=str(path))
        add_shapes(found.kernels)
        facts.captures.append(
            Capture(path, timeline, found, attribution, tool="torch profiler", disturbance=_DISTURBANCE)
        )
        if facts.shaped_calls:
            from llm_perf_opt.analysis.targets import TracedKernel

            facts.traced_kernels = [TracedKernel(k.name, k.phase, k.total_s or 0.0) for k in found.kernels]
    else:
        facts.metrics["device_events"] = 0.0
        if profile is None:  # our own runs record their device
            facts.notes.append(_no_device_note(path, len(timeline.calls)))
    if not len(timeline.ops) and not len(timeline.calls):
        # Calls of a GPU's runtime without a kernel: the trace has no device activity, so its time is unknown.
        facts.module_shares = module_host_shares(timeline, attribution)
        facts.host_seconds = phase_host_seconds(timeline, attribution)
        _add_host_collectives(facts, path, capture)


def _no_device_note(path: Path, calls: int) -> str:
    """Return a note that a trace has no device activity; runtime calls show that a device was used."""
    if calls:
        return (
            f"{NO_DEVICE_EVENTS}: {path.name} has {calls:,} calls of a GPU's runtime and no kernel, so the device's activity was not "
            "recorded. There are no results for kernels, idle time or communication. Profile with ProfilerActivity.CUDA."
        )
    return f"{NO_DEVICE_EVENTS}: {path.name} has operators of the host only. Nothing ran on a GPU, or its activity was not recorded."


def _add_host_collectives(facts: Facts, path: Path, capture: KinetoCapture) -> None:
    """Find the collectives of a rank on a CPU; with payloads if the trace has shapes."""
    from llm_perf_opt.analysis.ranks import host_collectives
    from llm_perf_opt.captures.kineto.calls import has_shapes, host_payloads

    shaped = has_shapes(capture.facts)
    payloads = host_payloads(path, capture.facts["threads"]) if shaped else []
    found = host_collectives(capture.timeline, path.name, payloads)
    facts.host_collectives += [found] if found is not None else []


def _count_work(
    facts: Facts, path: Path, capture: KinetoCapture, attribution: Attribution
) -> Callable[[Sequence[Kernel]], None]:
    """Count the work of a trace that recorded shapes; the file is read a second time, for these operators only.

    Return a function that adds the shapes to the kernels.
    """
    from llm_perf_opt.analysis.operators.flops import COUNTED_OPERATORS
    from llm_perf_opt.analysis.operators.work import add_kernel_work, link_calls, operator_work
    from llm_perf_opt.analysis.targets import shaped_calls
    from llm_perf_opt.captures.kineto.calls import has_shapes, read_operator_calls

    timeline = capture.timeline
    if not has_shapes(capture.facts) or not len(timeline.ops):
        return lambda kernels: None
    calls = read_operator_calls(path, COUNTED_OPERATORS, capture.facts["threads"])
    linked = link_calls(timeline, attribution, calls)
    facts.operator_work = operator_work(timeline, attribution, calls, linked)
    facts.shaped_calls = shaped_calls(timeline, attribution, calls, linked)
    return lambda kernels: add_kernel_work(kernels, timeline, attribution, calls, linked)


def compile_log_facts(path: Path) -> Facts:
    """Read the ``torch.compile`` logs of the same run."""
    from llm_perf_opt.captures.compile_logs import read_compile_log

    return Facts(sources={"compile log": (path,)}, compile_logged=read_compile_log(path))


def memory_facts(path: Path) -> Facts:
    """Read the allocator events of the memory pass."""
    from llm_perf_opt.analysis.telemetry import memory_document
    from llm_perf_opt.analysis.timeline.attribution import attribute
    from llm_perf_opt.captures.documents import read_profile
    from llm_perf_opt.captures.kineto.reader import read_kineto

    profile_path = path.with_name(layout.PROFILE)
    device = (read_profile(profile_path).device if profile_path.is_file() else None) or "cpu"
    capture = read_kineto(path)
    document: dict[str, Any] | None = memory_document(capture, attribute(capture.timeline), device)
    if document is None:
        return Facts()
    used = {phase: MemoryUse(**entry) for phase, entry in document["phases"].items()}
    return Facts(
        sources={"memory": (path,)}, memory={**used, WHOLE: MemoryUse(peak_bytes=document["peak_bytes"])}
    )


# Several captures together: ranks of one program, and, for torch traces, the recording of graphs together with the run that launches them.


def traces_facts(paths: Sequence[Path]) -> Facts:
    """Read the traces; ranks are joined later, with all captures."""
    from llm_perf_opt.analysis.operators.table import add_up
    from llm_perf_opt.analysis.ranks import kept_in_bounds  # NumPy is imported only if captures are read

    found = list(kept_in_bounds(_release_details(trace_facts(path)) for path in paths))
    runs = [each for each in found if not each.recordings]
    recordings = [each for each in found if each.recordings]
    if runs:
        for each in recordings:  # host work during recording is not part of the run
            each.operators, each.metrics, each.sections = [], {}, []
    merged = merge_facts("", [*runs, *recordings])
    merged.operators = add_up([one for each in [*runs, *recordings] for one in each.operators])
    _name_graphs(merged)
    return merged


def exports_facts(paths: Sequence[Path]) -> Facts:
    """Read the nsys captures of several ranks, one after the other."""
    from llm_perf_opt.analysis.ranks import kept_in_bounds

    return merge_facts("", list(kept_in_bounds(map(nsys_facts, paths))))


def _release_details(facts: Facts) -> Facts:
    """Release data that is no longer needed, to bound the memory of many ranks."""
    from llm_perf_opt.captures.timeline import Timeline, no_spans

    for capture in facts.captures:
        if isinstance(capture.found, Timeline):
            capture.found = replace(capture.found, operators=no_spans(), frames=no_spans())
    return facts


def _name_graphs(facts: Facts) -> None:
    """Attribute kernels behind graph launches to the operators that recorded them."""
    from llm_perf_opt.analysis.operators.graph_join import graph_operator_times, join_graphs, join_note
    from llm_perf_opt.analysis.operators.table import add_up
    from llm_perf_opt.captures.kineto.calls import read_recorded
    from llm_perf_opt.captures.timeline import Timeline
    from llm_perf_opt.summary import Operator

    recorded = [run for path in facts.recordings for run in read_recorded(path)]
    for capture in facts.captures if recorded else []:
        if not isinstance(capture.found, Timeline) or capture.attribution is None:
            continue
        join = join_graphs(capture.found, recorded)
        times = graph_operator_times(capture.found, capture.attribution, join)
        named = [
            Operator(one.operator, one.kernels, 0.0, 0.0, one.device_s, one.device_s, one.phase)
            for one in times
        ]
        facts.operators = add_up([*facts.operators, *named])
        note = join_note(join)
        facts.notes += [note] if note else []
