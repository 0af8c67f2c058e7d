"""From kernel facts to the rows of ``summary.json``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from llm_perf_opt.analysis.kernels.families import family_of
from llm_perf_opt.analysis.kernels.match import match_kernels, with_distinct_names
from llm_perf_opt.analysis.kernels.names import short_name
from llm_perf_opt.analysis.ncu.kernels import Ceilings, NcuKernelFacts, analyse_ncu, join_launches
from llm_perf_opt.analysis.ncu.launch_weights import RunLaunches, profiled_phase, standing_of
from llm_perf_opt.analysis.ncu.vendor_rules import best_global_estimate
from llm_perf_opt.captures.ncu.launches import LaunchConfiguration, NcuCapture
from llm_perf_opt.core.phases import PHASES
from llm_perf_opt.summary import Hardware, Kernel
from llm_perf_opt.summary.kernels import CounterConditions, ProfiledLaunches

Namer = Callable[[str], tuple[str, str]]
"""Full kernel name → (readable name, family)."""


def ncu_kernels_to_summary(
    facts: Iterable[NcuKernelFacts],
    matches: Mapping[str, str] | None = None,
    namer: Namer | None = None,
) -> list[Kernel]:
    """Return one row per profiled kernel, under its nsys name where ``matches`` (ncu → nsys) has one.

    Times and shares stay empty: ncu replays single launches, so they do not describe the run.
    """
    rows = []
    for each in facts:
        name = (matches or {}).get(each.kernel, each.kernel)
        short, family = namer(name) if namer else (each.function, "other")
        row = Kernel(
            name=name,
            short_name=short,
            family=family,
            phase=each.phase,
            module=None,
            launches=None,
            total_s=None,
            share_ratio=None,
        )
        rows.append(_fill(row, each, ProfiledLaunches(each.launches, each.phase, None)))
    return rows


def enrich_kernels(
    kernels: list[Kernel],
    facts: Iterable[NcuKernelFacts],
    matches: Mapping[str, str],
    namer: Namer | None = None,
    *,
    run: RunLaunches | None = None,
    ceilings: Ceilings | None = None,
) -> list[Kernel]:
    """Add what ncu measured to kernels known from a timeline; kernels seen only by ncu are appended.

    A launch describes rows of its own phase only; one profiled without NVTX ranges describes its kernel's rows in
    every phase, or, if ``run`` has grids and blocks, in those with the same ones.
    """
    run, ceilings = run or RunLaunches(), ceilings or Ceilings()
    by_name: dict[str, list[NcuKernelFacts]] = defaultdict(list)
    for each in facts:
        by_name[matches.get(each.kernel, each.kernel)].append(each)
    phased = any(row.phase is not None for row in kernels)
    described: set[int] = set()
    for row in kernels:
        parts = [part for each in by_name.get(row.name, ()) for part in each.parts]
        standing = standing_of(row, parts, run, phased=phased) if parts else None
        if standing is None:
            continue
        joined = join_launches(standing.parts, standing.profiled.phase, ceilings, standing.weights)
        _fill(row, joined, standing.profiled)
        described.update(id(part) for part in standing.parts)
    left = [each for each in _all(by_name) if not any(id(part) in described for part in each.parts)]
    return kernels + ncu_kernels_to_summary(left, matches, namer)


def _all(by_name: Mapping[str, list[NcuKernelFacts]]) -> list[NcuKernelFacts]:
    return [each for found in by_name.values() for each in found]


def _fill(row: Kernel, facts: NcuKernelFacts, profiled: ProfiledLaunches) -> Kernel:
    row.bound = facts.bound.bound
    row.vendor_verdict = facts.vendor.text if facts.vendor else None
    row.agreement = facts.agreement
    row.estimated_speedup_ratio = best_global_estimate(facts.rules)
    row.counters = {**row.counters, **facts.counters, "ncu_launches": float(facts.launches)}
    row.profiled = profiled
    return row


# What Nsight Compute measured, joined to the kernels of a run.


@dataclass(slots=True)
class CounterFacts:
    """Counters of every profiled kernel, and which kernel of the run each belongs to."""

    facts: list[NcuKernelFacts] = field(default_factory=list)
    matches: dict[str, str] = field(default_factory=dict)
    """ncu kernel name → nsys kernel name."""
    ceilings: Ceilings = field(default_factory=Ceilings)
    """The catalogue's peaks."""
    kernels: list[Kernel] = field(default_factory=list)
    """The kernels of the run with their counters, and those only ncu saw."""
    conditions: CounterConditions | None = None
    notes: list[str] = field(default_factory=list)

    def violations(self) -> list[str]:
        """Return the counters that contradict each other, as text."""
        return [f"{short_name(fact.kernel)}: {text}" for fact in self.facts for text in fact.violations]


def join_counters(
    capture: NcuCapture,
    kernels: list[Kernel],
    hardware: Hardware,
    configurations: Sequence[LaunchConfiguration] = (),
) -> CounterFacts:
    """Analyse counters and join them to the kernels of the run; notes describe how they were taken and contradictions."""
    counters = analyse_counters(capture, kernels, hardware)
    counters.kernels = _add_counters(kernels, counters, configurations)
    counters.conditions = counter_conditions(capture, counters.kernels)
    counters.notes = [
        *condition_notes(counters.conditions, counters.kernels),
        *(f"Counters contradict each other: {text}" for text in counters.violations()),
    ]
    return counters


def names_of(kernel: str) -> tuple[str, str]:
    """Return readable name and family."""
    return short_name(kernel), family_of(kernel)


def analyse_counters(capture: NcuCapture, kernels: list[Kernel], hardware: Hardware) -> CounterFacts:
    """Analyse counters; the catalogue's peaks are used where the report has no ceiling."""
    ceilings = Ceilings(
        {name: peak.dense for name, peak in hardware.peak_flops_per_s.items()}, hardware.bandwidth_bytes_per_s
    )
    names = list(dict.fromkeys(kernel.name for kernel in kernels))
    capture = replace(capture, launches=with_distinct_names(capture.launches, names))
    facts = analyse_ncu(capture, peak_flops_per_s=ceilings.flops_per_s, peak_bytes_per_s=ceilings.bytes_per_s)
    return CounterFacts(facts, match_kernels(facts, names), ceilings)


def _add_counters(
    kernels: list[Kernel], counters: CounterFacts, configurations: Sequence[LaunchConfiguration] = ()
) -> list[Kernel]:
    """Return the kernels with what ncu measured; those only ncu saw are appended.

    ``configurations``: how often the run launches each kernel with each grid and block, where a timeline is available.
    """
    return enrich_kernels(
        kernels,
        counters.facts,
        counters.matches,
        names_of,
        run=RunLaunches.of(configurations),
        ceilings=counters.ceilings,
    )


# Conditions under which counters were taken, and resulting notes.


_CLOCKS = {
    "base": "clocks locked to base",
    "none": "clocks left alone",
    "boost": "clocks locked to boost",
}
_CACHES = {"all": "caches flushed before every replay", "none": "caches left as the launch before left them"}
_NAMED = 3


def counter_conditions(capture: NcuCapture, kernels: Iterable[Kernel]) -> CounterConditions:
    """Return how a capture was taken; ``None`` if not recorded."""
    settings = [launch.settings for launch in capture.launches if launch.settings is not None]
    complete = len(settings) == len(capture.launches)
    phases = {phase for launch in capture.launches if (phase := profiled_phase(launch)) is not None}
    return CounterConditions(
        launches=len(capture.launches),
        clock_control=_joined(each.clock_control for each in settings) if complete else None,
        cache_control=_joined(each.cache_control for each in settings) if complete else None,
        source=_joined(each.source for each in settings) if complete else None,
        phases=[*(phase for phase in PHASES if phase in phases), *sorted(phases - {*PHASES})],
        not_representative=sum(not kernel.counters_are_representative for kernel in kernels),
    )


def condition_notes(found: CounterConditions, kernels: Sequence[Kernel]) -> list[str]:
    """Describe how the counters were taken, which do not represent the run, and what is not recorded."""
    if found.clock_control is None or found.cache_control is None:
        notes = [
            "The counters' capture does not record clock and cache control: by default ncu locks clocks to "
            "base and flushes caches before every replay, so that kernels last longer than in the run."
        ]
    else:
        clocks = ", ".join(_CLOCKS.get(word, word) for word in found.clock_control.split(", "))
        caches = ", ".join(_CACHES.get(word, word) for word in found.cache_control.split(", "))
        notes = [f"Counters were taken with {clocks} and {caches} ({found.source})."]
    counted = [kernel for kernel in kernels if kernel.profiled is not None]
    phased = {kernel.phase for kernel in counted if kernel.phase is not None and kernel.total_s is not None}
    if phased and not found.phases:
        notes.append(
            "The capture of the counters has no NVTX ranges, so its counters are not split by phase: they are shown with "
            "their kernels in every phase."
        )
    unfit = [kernel for kernel in counted if not kernel.counters_are_representative]
    if unfit:
        named = "; ".join(
            f"{kernel.short_name}{f' in {kernel.phase}' if kernel.phase else ''}: {kernel.profiled.remark}"
            for kernel in unfit[:_NAMED]
            if kernel.profiled is not None
        )
        more = f"; and {len(unfit) - _NAMED} more" if len(unfit) > _NAMED else ""
        notes.append(
            f"Counters of {len(unfit)} of {len(counted)} profiled kernels are not representative of the run and are not used for "
            f"verdicts: {named}{more}."
        )
    return notes


def _joined(parts: Iterable[str]) -> str | None:
    return ", ".join(dict.fromkeys(parts)) or None
