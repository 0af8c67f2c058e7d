"""``kernels.md``: every kernel with its time, what bounds it, and what NVIDIA's tool says."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt import units
from llm_perf_opt.reporting.escape import md_cell, md_code, md_text
from llm_perf_opt.reporting.markdown import section, table
from llm_perf_opt.summary.model import Kernel, Summary

_MOST_ROWS = 200


def kernel_table(kernels: Sequence[Kernel], first: int = 1) -> str:
    """Return the overview table."""
    rows = [
        [
            str(index),
            md_code(k.short_name, cell=True),
            md_cell(k.family),
            md_cell(k.phase or units.MISSING),
            units.count(k.launches),
            units.seconds(k.total_s),
            units.percent(k.share_ratio),
            md_cell(k.bound or units.MISSING),
            units.number(k.counters.get("intensity_flops_per_byte")),
            units.flops_per_s(k.counters.get("achieved_flops_per_s")),
            units.percent(k.counters.get("dram_ratio")),
            units.percent(k.counters.get("compute_ratio")),
        ]
        for index, k in enumerate(kernels, first)
    ]
    header = [
        "#",
        "kernel",
        "family",
        "phase",
        "launches",
        "total",
        "share",
        "bound",
        "FLOP/B",
        "achieved",
        "DRAM",
        "compute",
    ]
    return table(header, rows, numbers=(0, 4, 5, 6, 8, 9, 10, 11))


def kernels_markdown(summary: Summary) -> str:
    """Render all kernels; says why when there are none."""
    if not summary.kernels:
        return (
            "# Kernels\n\nNo kernels were captured. Kernel tables come from a GPU timeline: enable Nsight Systems "
            "(`pipeline.nsys.enable=true`) on a machine with a GPU, or ingest a capture (`llm-perf-opt ingest --nsys FILE --out DIR`).\n"
        )
    total = sum(k.total_s or 0.0 for k in summary.kernels)
    families: dict[str, float] = {}
    for kernel in summary.kernels:
        families[kernel.family] = families.get(kernel.family, 0.0) + (kernel.total_s or 0.0)
    family_rows = [
        [md_cell(name), units.seconds(value), units.percent(value / total if total else None)]
        for name, value in sorted(families.items(), key=lambda item: (-item[1], item[0]))
    ]
    shown = summary.kernels[:_MOST_ROWS]
    rest = len(summary.kernels) - len(shown)
    return "".join(
        (
            f"# Kernels\n\n{len(summary.kernels)} kernels, {units.seconds(total)} of device time"
            f" ({units.percent(summary.coverage.kernel_time_classified_ratio)} classified).\n\n",
            section(
                "By family", table(["family", "total", "share"], family_rows, numbers=(1, 2)) if total else ""
            ),
            section("By time", kernel_table(shown), f"{rest} more in summary.json.\n" if rest else ""),
            section("NVIDIA's verdicts", _vendor(summary.kernels)),
            section("Full names", _full_names(shown)),
        )
    )


def _vendor(kernels: Sequence[Kernel]) -> str:
    parts = []
    for kernel in kernels:
        if not kernel.vendor_verdict:
            continue
        speedup = (
            f" Estimated speed-up: {units.percent(kernel.estimated_speedup_ratio)} of its time."
            if kernel.estimated_speedup_ratio
            else ""
        )
        agreement = f" {md_text(kernel.agreement)}." if kernel.agreement else ""
        parts.append(
            f"- {md_code(kernel.short_name)}: we say **{md_text(kernel.bound or 'unknown')}**; ncu: {md_text(kernel.vendor_verdict)}{speedup}{agreement}"
        )
    return "\n".join(parts)


def _full_names(kernels: Sequence[Kernel]) -> str:
    return "\n".join(f"{index}. {md_code(kernel.name)}" for index, kernel in enumerate(kernels, 1))
