"""Findings: small rules, each in its own file, that report only what they have evidence for.

A rule takes the summary (timings, budget, kernels, operators, static model, verdicts) and returns findings, or
an empty list when the data does not show the problem or is not there. Gains are upper bounds per sample.
"""

from __future__ import annotations

from collections.abc import Callable

from llm_perf_opt.analysis import context
from llm_perf_opt.analysis.context import rank_findings as rank_findings
from llm_perf_opt.analysis.findings import attention, conditions, idle, kernels, model
from llm_perf_opt.summary import Finding, Summary

Rule = Callable[[Summary], list[Finding]]
RULES: tuple[Rule, ...] = (
    idle.find_losses,
    idle.find_one_off,
    idle.find_launch_bound,
    conditions.find_cpu_work,
    idle.find_host_syncs,
    attention.find_eager_attention,
    kernels.find_full_precision,
    kernels.find_misaligned_gemm,
    attention.find_old_flash_attention,
    kernels.find_far_from_measured,
    kernels.find_slow_kernels,
    kernels.find_unfused_elementwise,
    kernels.find_copies_and_casts,
    attention.find_kv_cache_growth,
    model.find_more_work,
    model.find_vision_share,
    model.find_module_gap,
    kernels.find_underfilled_grids,
    model.find_padding,
    conditions.find_pollution,
    conditions.find_noise,
    conditions.find_throttling,
)


def find_all(summary: Summary) -> list[Finding]:
    """Run every rule; keep what the capture supports, in order of :func:`rank_findings`."""
    program = context.program_of(summary)
    found = [
        context.name_profiler_overhead(context.fit_advice(finding, program, summary), summary)
        for rule in RULES
        for finding in rule(summary)
    ]
    kept = context.keep_supported(found, summary)
    kept += context.keep_supported(kernels.find_dominant_kernels(summary, kept), summary)
    return rank_findings(kept)
