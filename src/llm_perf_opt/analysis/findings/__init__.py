"""Findings: small rules, each in its own file, that speak only when they have evidence.

A rule takes the summary (timings, budget, kernels, operators, static model, verdicts) and returns findings, or
an empty list when the data does not show the problem or is not there. Gains are upper bounds per sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from llm_perf_opt.analysis.findings import (
    cpu_work,
    host_syncs,
    kv_cache,
    launch_bound,
    losses,
    module_gap,
    more_work,
    noise,
    padding,
    pollution,
    throttling,
    vision_share,
)
from llm_perf_opt.analysis.findings.kernels import (
    copies_and_casts,
    eager_attention,
    far_from_measured,
    full_precision,
    misaligned_gemm,
    old_flash_attention,
    underfilled_grids,
    unfused_elementwise,
)
from llm_perf_opt.model.summary import Finding, Summary

Rule = Callable[[Summary], list[Finding]]

RULES: tuple[Rule, ...] = (
    losses.find,
    launch_bound.find,
    cpu_work.find,
    host_syncs.find,
    eager_attention.find,
    full_precision.find,
    misaligned_gemm.find,
    old_flash_attention.find,
    far_from_measured.find,
    unfused_elementwise.find,
    copies_and_casts.find,
    kv_cache.find,
    more_work.find,
    vision_share.find,
    module_gap.find,
    underfilled_grids.find,
    padding.find,
    pollution.find,
    noise.find,
    throttling.find,
)


def find_all(summary: Summary) -> list[Finding]:
    """Run every rule, in order of :func:`rank_findings`."""
    return rank_findings([finding for rule in RULES for finding in rule(summary)])


def rank_findings(found: Iterable[Finding]) -> list[Finding]:
    """Order findings: the largest bounded gain first, unbounded ones last, ties by id and phase."""
    return sorted(found, key=lambda f: (-(f.gain_upper_s or 0.0), f.id, f.phase or ""))
