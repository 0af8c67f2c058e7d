"""Read the captures among the sources and join what they say about kernels, operators and time."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.ingest.timings import WallClock
from llm_perf_opt.model.summary import (
    Budget,
    Hardware,
    Kernel,
    Operator,
)
from llm_perf_opt.runs.sources import Sources

if TYPE_CHECKING:
    from llm_perf_opt.analysis.ncu.facts import NcuKernelFacts
    from llm_perf_opt.analysis.timeline.summary import TimelineFacts
    from llm_perf_opt.ingest.torch_profile import TorchProfile
    from llm_perf_opt.model.counters import NcuCapture

LOGGER = logging.getLogger("llm_perf_opt.captures")


@dataclass(slots=True)
class Captures:
    """What all captures say together."""

    kernels: list[Kernel] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    budget: dict[str, Budget] = field(default_factory=dict)
    device_busy_ratio: dict[str, float] = field(default_factory=dict)
    timeline: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)
    module_times: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)
    """(Module or component, phase) → device seconds and launches of the whole capture."""
    module_shares: dict[tuple[str, str], float] = field(default_factory=dict)
    """(Module or component, phase) → share of the phase's host time, where the work ran on the host."""
    phase_counts: dict[str, int] = field(default_factory=dict)
    """Phase → how often the captures of ``module_times`` hold it (decode: steps)."""
    time_attributed_ratio: float | None = None
    kernel_time_classified_ratio: float | None = None
    has_time_axis: bool = False
    kernels_from: str | None = None
    """Which tool the kernels come from: ``trace`` or ``nsys``."""
    device_name: str | None = None
    dtype: str | None = None
    ncu: NcuCapture | None = None
    ncu_facts: list[NcuKernelFacts] = field(default_factory=list)
    ncu_matches: dict[str, str] = field(default_factory=dict)
    """ncu kernel name → nsys kernel name."""


def read_captures(sources: Sources, clock: WallClock | None, notes: list[str], *, strict: bool) -> Captures:
    """Read trace, nsys and ncu; nsys is preferred for kernels because it disturbs the run least."""
    captures = Captures()
    tokens = clock.workload.new_tokens if clock is not None else None
    samples = clock.workload.samples if clock is not None else None
    trace, ncu = sources.trace, sources.ncu
    if trace is not None:
        _guarded(lambda: _add_trace(captures, trace, clock, notes), "torch trace", notes, strict)
    for path in sources.nsys:
        _guarded(
            functools.partial(_add_nsys, captures, path, tokens, samples, notes),
            "nsys capture",
            notes,
            strict,
        )
    if ncu is not None:
        _guarded(lambda: _add_ncu(captures, ncu, notes), "ncu capture", notes, strict)
    return captures


def _guarded(read: Callable[[], None], what: str, notes: list[str], strict: bool) -> None:
    """A stage's capture that cannot be read is a note; one the user named is an error."""
    try:
        read()
    except InputError as error:
        if strict:
            raise
        LOGGER.warning("the %s could not be read: %s", what, error)
        notes.append(f"The {what} could not be read: {error.message}")


def _add_trace(captures: Captures, path: Path, clock: WallClock | None, notes: list[str]) -> None:
    from llm_perf_opt.analysis.operators import operator_records
    from llm_perf_opt.analysis.timeline.attribution import attribute
    from llm_perf_opt.analysis.timeline.module_times import module_host_shares
    from llm_perf_opt.analysis.timeline.summary import summarise_timeline
    from llm_perf_opt.ingest.kineto.reader import read_kineto

    profile = _profile_beside(path)
    if profile is not None:
        captures.operators = profile.operators
        captures.metrics.update(_profiled_pass(profile, clock))
        if profile.trace is None:
            return
    capture = read_kineto(path)
    attribution = attribute(capture.timeline)
    if profile is None:
        captures.operators = operator_records(capture.operators, capture.timeline, attribution)
    if not len(capture.timeline.ops) and not captures.operators:
        raise InputError(
            f"{path} holds no operator and no kernel",
            hint="give a trace that torch.profiler exported after work was done",
            path=str(path),
        )
    if len(capture.timeline.ops):
        _take(captures, summarise_timeline(capture.timeline, source=str(path)), notes, "trace")
    elif not len(capture.timeline.calls):
        # Calls of a GPU's runtime without a kernel: the trace was made without the device, whose time is not known.
        captures.module_shares = module_host_shares(capture.timeline, attribution)


def _profiled_pass(profile: TorchProfile, clock: WallClock | None) -> dict[str, float | None]:
    """How many decode steps our own profiler stage recorded, and how much it slowed them down."""
    steps = profile.active_passes * (profile.new_tokens - 1)
    found: dict[str, float | None] = {"profiled_decode_steps": float(steps) if steps > 0 else None}
    plain = clock.sample_totals.get("+".join(profile.sample_ids)) if clock is not None else None
    # The profiled pass may be cut short; only equal work tells what the profiler costs.
    if plain is not None and plain.new_tokens == profile.new_tokens and plain.seconds > 0:
        found["profiled_over_unprofiled_ratio"] = profile.profiled_s / profile.active_passes / plain.seconds
    return found


def _profile_beside(path: Path) -> TorchProfile | None:
    """Return the stage's own table of operators, ranked and cut as configured; a foreign trace has none."""
    from llm_perf_opt.core.artifacts import PROFILE_NAME
    from llm_perf_opt.ingest.torch_profile import read_profile

    profile = path.with_name(PROFILE_NAME)
    return read_profile(profile) if profile.is_file() else None


def _add_nsys(
    captures: Captures, path: Path, tokens: float | None, samples: int | None, notes: list[str]
) -> None:
    from llm_perf_opt.analysis.timeline.summary import summarise_timeline, summarise_totals
    from llm_perf_opt.ingest.nsys.reader import read_nsys
    from llm_perf_opt.model.timeline import Timeline

    found = read_nsys(path)
    if isinstance(found, Timeline):
        facts = summarise_timeline(found, new_tokens=tokens, samples=samples, source=str(path))
    else:
        facts = summarise_totals(found, new_tokens=tokens, samples=samples, source=str(path))
    _take(captures, facts, notes, "nsys")


def _take(captures: Captures, facts: TimelineFacts, notes: list[str], kind: str) -> None:
    """Take a capture's facts; one of the same tool and other phases adds, everything else replaces.

    nsys and the torch profiler saw different passes: their kernels are never mixed.
    """
    from llm_perf_opt.analysis.timeline.totals import joined_attribution, joined_copies

    notes.extend(warning for warning in facts.warnings if warning not in notes)
    if not facts.kernels:
        return
    if captures.kernels_from not in (None, kind):
        captures.kernels, captures.budget, captures.device_busy_ratio, captures.timeline = [], {}, {}, {}
        captures.module_times, captures.phase_counts = {}, {}
    captures.kernels_from = kind
    phases = {kernel.phase for kernel in facts.kernels}
    kept = [k for k in captures.kernels if k.phase not in phases] if captures.has_time_axis else []
    replaced = len(kept) < len(captures.kernels)
    earlier, attributed_before = dict(captures.metrics), captures.time_attributed_ratio
    captures.kernels = sorted(
        [*kept, *facts.kernels], key=lambda k: (-(k.total_s or 0.0), k.name, k.phase or "")
    )
    captures.budget.update(facts.budget)
    captures.device_busy_ratio.update(facts.device_busy_ratio)
    # One decode step is the picture to draw; a capture of another phase read later does not replace it.
    if facts.timeline and (captures.timeline.get("phase") != "decode" or not kept or "decode" in phases):
        captures.timeline = facts.timeline
    captures.metrics.update(facts.metrics)
    captures.time_attributed_ratio = facts.time_attributed_ratio
    captures.kernel_time_classified_ratio = facts.kernel_time_classified_ratio
    captures.has_time_axis = bool(facts.budget)
    captures.device_name = next(iter(facts.devices.values()), captures.device_name)
    captures.module_times = {
        key: found for key, found in captures.module_times.items() if key[1] not in phases
    }
    captures.phase_counts.update(facts.phase_counts)
    for row in facts.modules:
        if row.phase is not None:
            captures.module_times[row.module, row.phase] = (row.total_ns / 1e9, row.launches)
    if kept:
        # Copies are known per capture, not per phase: of a phase seen twice they cannot be told apart.
        if not replaced:
            captures.time_attributed_ratio = joined_attribution(
                (attributed_before, earlier), (facts.time_attributed_ratio, facts.metrics)
            )
            captures.metrics.update(joined_copies(earlier, facts.metrics))
        _join_totals(captures, earlier)


def _join_totals(captures: Captures, earlier: dict[str, float | None]) -> None:
    """Totals of several captures, one per range, are those of all of them, not of the one read last."""
    from llm_perf_opt.analysis.timeline.totals import (
        joined_budget,
        joined_busy_ratio,
        kernel_totals,
        set_kernel_shares,
    )

    captures.metrics.update(kernel_totals(captures.kernels))
    set_kernel_shares(captures.kernels, captures.metrics["kernel_time_s"] or 0.0)
    unknown = captures.metrics["unclassified_kernel_time_ratio"]
    captures.kernel_time_classified_ratio = None if unknown is None else 1.0 - unknown
    for name in ("decode_launches", "launches_per_token"):
        if captures.metrics.get(name) is None:
            captures.metrics[name] = earlier.get(name)
    if any(kernel.phase not in captures.budget for kernel in captures.kernels):
        return  # kernels outside every phase: their time is in no phase's budget
    whole = joined_budget(captures.budget)
    busy = joined_busy_ratio(captures.device_busy_ratio, captures.budget)
    if whole is not None:
        captures.budget[WHOLE] = whole
    if busy is not None:
        captures.device_busy_ratio[WHOLE] = busy


def _add_ncu(captures: Captures, path: Path, notes: list[str]) -> None:
    from llm_perf_opt.ingest.ncu.reader import read_ncu

    captures.ncu = read_ncu(path)
    notes.extend(note for note in dict.fromkeys(captures.ncu.notes) if note not in notes)
    named = (launch.device_name for launch in captures.ncu.launches if launch.device_name)
    captures.device_name = captures.device_name or next(named, None)


def analyse_counters(captures: Captures, hardware: Hardware, notes: list[str]) -> None:
    """Add what ncu measured to the kernels; the catalogue's peaks stand in where the report has no ceiling."""
    if captures.ncu is None:
        return
    from llm_perf_opt.analysis.kernels.families import family_of
    from llm_perf_opt.analysis.kernels.match import match_kernels
    from llm_perf_opt.analysis.kernels.names import short_name
    from llm_perf_opt.analysis.ncu.facts import analyse_ncu
    from llm_perf_opt.analysis.ncu.summary import enrich_kernels

    facts = analyse_ncu(
        captures.ncu,
        peak_flops_per_s={name: peak.dense for name, peak in hardware.peak_flops_per_s.items()},
        peak_bytes_per_s=hardware.bandwidth_bytes_per_s,
    )
    captures.ncu_facts = facts
    captures.ncu_matches = match_kernels(
        facts, list(dict.fromkeys(kernel.name for kernel in captures.kernels))
    )
    captures.kernels = enrich_kernels(
        captures.kernels, facts, captures.ncu_matches, lambda name: (short_name(name), family_of(name))
    )
    violations = [f"{short_name(fact.kernel)}: {text}" for fact in facts for text in fact.violations]
    notes.extend(f"Counters contradict each other: {text}" for text in violations if text not in notes)
