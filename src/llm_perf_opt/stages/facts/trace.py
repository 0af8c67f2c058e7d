"""Torch profiler traces as facts: kernels, operators, the profiled pass, memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from llm_perf_opt.analysis.facts import Capture, Facts, ProfiledPass
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.model.summary import MemoryUse

if TYPE_CHECKING:
    from llm_perf_opt.analysis.operators.table import RankBy
    from llm_perf_opt.analysis.timeline.attribution import Attribution
    from llm_perf_opt.ingest.kineto.reader import KinetoCapture
    from llm_perf_opt.ingest.torch_profile import TorchProfile

DISTURBANCE = 1
"""The profiler slows the host down more than Nsight Systems does."""


def trace_facts(path: Path) -> Facts:
    """Read a trace, or the ``profile.json`` that is left when the trace was not kept."""
    from llm_perf_opt.ingest.torch_profile import read_profile

    beside = path.with_name(layout.PROFILE)
    profile = read_profile(beside) if beside.is_file() else None
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
    from llm_perf_opt.analysis.timeline.attribution import attribute
    from llm_perf_opt.analysis.timeline.engines import engine_facts
    from llm_perf_opt.analysis.timeline.module_times import module_host_shares, phase_host_seconds
    from llm_perf_opt.analysis.timeline.summary import summarise_timeline
    from llm_perf_opt.ingest.kineto.reader import read_kineto

    capture = read_kineto(path)
    timeline = capture.timeline
    if steps := capture.facts.get("profiler_steps"):
        facts.metrics["profiler_steps"] = float(steps)
    attribution = attribute(timeline)
    facts.operators = operator_records(
        capture.operators,
        timeline,
        attribution,
        rank_by=cast("RankBy", profile.rank_by) if profile is not None else "auto",
        limit=profile.max_operators if profile is not None else None,
    )
    if not len(timeline.ops) and not facts.operators:
        raise InputError(
            f"{path} holds no operator and no kernel",
            hint="give a trace that torch.profiler exported after work was done",
            path=str(path),
        )
    engine = engine_facts("torch_profiler", timeline, attribution)
    facts.metrics |= engine.metrics
    facts.sections += engine.sections
    facts.notes += engine.notes
    if engine.is_recording:
        facts.recordings.append(path)
        return  # kernels of a warm-up say nothing of how busy a device is
    _count_work(facts, path, capture, attribution)
    if len(timeline.ops):
        found = summarise_timeline(timeline, attribution=attribution, source=str(path))
        facts.captures.append(
            Capture(path, timeline, found, attribution, tool="torch profiler", disturbance=DISTURBANCE)
        )
        if facts.shaped_calls:
            from llm_perf_opt.analysis.targets.calls import TracedKernel

            facts.traced_kernels = [TracedKernel(k.name, k.phase, k.total_s or 0.0) for k in found.kernels]
    elif not len(timeline.calls):
        # Calls of a GPU's runtime without a kernel: the trace was made without the device, whose time is not known.
        facts.module_shares = module_host_shares(timeline, attribution)
        facts.host_seconds = phase_host_seconds(timeline, attribution)
        _add_host_collectives(facts, path, capture)


def _add_host_collectives(facts: Facts, path: Path, capture: KinetoCapture) -> None:
    """Find what a rank on a CPU says to the others; payloads where the trace recorded shapes."""
    from llm_perf_opt.analysis.ranks.host import host_collectives
    from llm_perf_opt.ingest.kineto.calls import has_shapes
    from llm_perf_opt.ingest.kineto.host_payloads import host_payloads

    shaped = has_shapes(capture.facts)
    payloads = host_payloads(path, capture.facts["threads"]) if shaped else []
    found = host_collectives(capture.timeline, path.name, payloads)
    facts.host_collectives += [found] if found is not None else []


def _count_work(facts: Facts, path: Path, capture: KinetoCapture, attribution: Attribution) -> None:
    """Count the work of a trace that recorded shapes; the file is read a second time, for these operators only."""
    from llm_perf_opt.analysis.operators.flops import COUNTED_OPERATORS
    from llm_perf_opt.analysis.operators.work import link_calls, operator_work
    from llm_perf_opt.analysis.targets.calls import shaped_calls
    from llm_perf_opt.ingest.kineto.calls import has_shapes, read_operator_calls

    timeline = capture.timeline
    if not has_shapes(capture.facts) or not len(timeline.ops):
        return
    calls = read_operator_calls(path, COUNTED_OPERATORS, capture.facts["threads"])
    linked = link_calls(timeline, attribution, calls)
    facts.operator_work = operator_work(timeline, attribution, calls, linked)
    facts.shaped_calls = shaped_calls(timeline, attribution, calls, linked)


def memory_facts(path: Path) -> Facts:
    """Read what the allocators reported in the pass that watched them."""
    from llm_perf_opt.analysis.memory.peaks import memory_document
    from llm_perf_opt.analysis.timeline.attribution import attribute
    from llm_perf_opt.ingest.kineto.reader import read_kineto
    from llm_perf_opt.ingest.torch_profile import read_profile

    beside = path.with_name(layout.PROFILE)
    device = (read_profile(beside).device if beside.is_file() else None) or "cpu"
    capture = read_kineto(path)
    document: dict[str, Any] | None = memory_document(capture, attribute(capture.timeline), device)
    if document is None:
        return Facts()
    used = {phase: MemoryUse(**entry) for phase, entry in document["phases"].items()}
    return Facts(
        sources={"memory": (path,)}, memory={**used, WHOLE: MemoryUse(peak_bytes=document["peak_bytes"])}
    )
