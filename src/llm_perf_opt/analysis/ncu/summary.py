"""From kernel facts to the rows of ``summary.json``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from llm_perf_opt.analysis.ncu.facts import Ceilings, NcuKernelFacts, join_launches
from llm_perf_opt.analysis.ncu.rules import best_global_estimate
from llm_perf_opt.analysis.ncu.standing import RunLaunches, standing_of
from llm_perf_opt.model.summary import Kernel
from llm_perf_opt.model.summary.profiled import ProfiledLaunches

Namer = Callable[[str], tuple[str, str]]
"""Full kernel name → (readable name, family)."""


def ncu_kernels_to_summary(
    facts: Iterable[NcuKernelFacts],
    matches: Mapping[str, str] | None = None,
    namer: Namer | None = None,
) -> list[Kernel]:
    """Return one row per profiled kernel, under its nsys name where ``matches`` (ncu → nsys) has one.

    Times and shares stay empty: ncu replays single launches and says nothing about the run.
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
    """Add what ncu measured to kernels known from a timeline; kernels only ncu saw there are appended.

    A launch describes rows of its own phase only; one profiled without NVTX ranges describes its kernel's rows in
    every phase, or, where ``run`` knows the grids and blocks, in those that have its own.
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
