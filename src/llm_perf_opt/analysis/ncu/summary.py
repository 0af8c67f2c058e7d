"""From kernel facts to the rows of ``summary.json``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from llm_perf_opt.analysis.ncu.facts import NcuKernelFacts
from llm_perf_opt.analysis.ncu.rules import best_global_estimate
from llm_perf_opt.model.summary import Kernel

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
        rows.append(_fill(row, each))
    return rows


def enrich_kernels(
    kernels: list[Kernel],
    facts: Iterable[NcuKernelFacts],
    matches: Mapping[str, str],
    namer: Namer | None = None,
) -> list[Kernel]:
    """Add what ncu measured to kernels known from a timeline; kernels only ncu saw are appended.

    A kernel profiled without NVTX ranges describes its rows in every phase.
    """
    left: list[NcuKernelFacts] = []
    for each in facts:
        name = matches.get(each.kernel, each.kernel)
        rows = [row for row in kernels if row.name == name]
        in_phase = [row for row in rows if each.phase is None or row.phase == each.phase]
        for row in in_phase or rows:
            _fill(row, each)
        if not rows:
            left.append(each)
    return kernels + ncu_kernels_to_summary(left, matches, namer)


def _fill(row: Kernel, facts: NcuKernelFacts) -> Kernel:
    row.bound = facts.bound.bound
    row.vendor_verdict = facts.vendor.text if facts.vendor else None
    row.agreement = facts.agreement
    row.estimated_speedup_ratio = best_global_estimate(facts.rules)
    row.counters = {**row.counters, **facts.counters, "ncu_launches": float(facts.launches)}
    return row
