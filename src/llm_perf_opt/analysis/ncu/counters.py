"""What Nsight Compute measured, joined to the kernels of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llm_perf_opt.analysis.kernels.families import family_of
from llm_perf_opt.analysis.kernels.match import match_kernels
from llm_perf_opt.analysis.kernels.names import short_name
from llm_perf_opt.analysis.ncu.facts import Ceilings, NcuKernelFacts, analyse_ncu
from llm_perf_opt.analysis.ncu.standing import RunLaunches
from llm_perf_opt.analysis.ncu.summary import enrich_kernels
from llm_perf_opt.model.counters import LaunchConfiguration, NcuCapture
from llm_perf_opt.model.summary import Hardware, Kernel


@dataclass(slots=True)
class CounterFacts:
    """Counters of every profiled kernel, and which kernel of the run each belongs to."""

    facts: list[NcuKernelFacts] = field(default_factory=list)
    matches: dict[str, str] = field(default_factory=dict)
    """ncu kernel name → nsys kernel name."""
    ceilings: Ceilings = field(default_factory=Ceilings)
    """The catalogue's peaks."""

    def violations(self) -> list[str]:
        """Return the counters that contradict each other, in words."""
        return [f"{short_name(fact.kernel)}: {text}" for fact in self.facts for text in fact.violations]


def names_of(kernel: str) -> tuple[str, str]:
    """Return readable name and family."""
    return short_name(kernel), family_of(kernel)


def analyse_counters(capture: NcuCapture, kernels: list[Kernel], hardware: Hardware) -> CounterFacts:
    """Analyse counters; the catalogue's peaks stand in where the report has no ceiling."""
    ceilings = Ceilings(
        {name: peak.dense for name, peak in hardware.peak_flops_per_s.items()}, hardware.bandwidth_bytes_per_s
    )
    facts = analyse_ncu(capture, peak_flops_per_s=ceilings.flops_per_s, peak_bytes_per_s=ceilings.bytes_per_s)
    names = list(dict.fromkeys(kernel.name for kernel in kernels))
    return CounterFacts(facts, match_kernels(facts, names), ceilings)


def add_counters(
    kernels: list[Kernel], counters: CounterFacts, configurations: Sequence[LaunchConfiguration] = ()
) -> list[Kernel]:
    """Return the kernels with what ncu measured; those only ncu saw are appended.

    ``configurations``: how often the run launches each kernel with each grid and block, where a timeline tells.
    """
    return enrich_kernels(
        kernels,
        counters.facts,
        counters.matches,
        names_of,
        run=RunLaunches.of(configurations),
        ceilings=counters.ceilings,
    )
