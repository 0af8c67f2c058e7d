"""``kernels.md``: every kernel with its time, what bounds it, and what NVIDIA's tool says."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.core import units
from llm_perf_opt.core.escape import md_code, md_text
from llm_perf_opt.model.summary import Kernel, Summary
from llm_perf_opt.reporting.content.kernels import family_table, kernel_table, vendor_rule_table
from llm_perf_opt.reporting.markdown.writer import prose, render_table, section
from llm_perf_opt.reporting.wording import TIMELINE_NEED

MOST_ROWS = 100
"""Rows of the table; the rest is in ``summary.json`` and sorted and filtered better in ``report.html``."""

MOST_RULES = 20


def kernels_markdown(summary: Summary) -> str:
    """Render the kernels; says what would produce them when there are none."""
    if not summary.kernels:
        return f"# Kernels\n\nNo kernels were captured. This page needs {prose(TIMELINE_NEED)}.\n"
    shown = summary.kernels[:MOST_ROWS]
    left_out = len(summary.kernels) - len(shown)
    return (
        "".join(
            (
                f"# Kernels\n\n{_introduction(summary)}\n\n",
                section("By family", render_table(family_table(summary))),
                section(
                    "By time",
                    "Numbers in the first column lead to the full names below.\n",
                    render_table(kernel_table(shown, left_out=left_out)),
                ),
                section("What NVIDIA's tool says", _vendor(shown)),
                section(
                    "NVIDIA's rules, by what each could gain",
                    render_table(vendor_rule_table(summary), most=MOST_RULES),
                    "Upper bounds; the gains of one kernel do not add up.\n" if summary.vendor_rules else "",
                ),
                section("Full names", _full_names(shown)),
            )
        ).rstrip("\n")
        + "\n"
    )


def _introduction(summary: Summary) -> str:
    count = len(summary.kernels)
    text = f"{count} kernel{'s' if count != 1 else ''}"
    total = summary.metrics.get("kernel_time_s")
    if total is not None:
        text += f", {units.seconds(total)} of device time"
    launches = summary.metrics.get("kernel_launches")
    if launches is not None:
        text += f" in {units.count(launches)} launches"
    classified = summary.coverage.kernel_time_classified_ratio
    if classified is not None:
        text += f"; the family of {units.percent(classified)} of the time is known"
    files = ", ".join(
        md_code(summary.sources[kind]) for kind in ("nsys", "trace", "ncu") if kind in summary.sources
    )
    return f"{text}." + (f" From {files}." if files else "")


def _vendor(kernels: Sequence[Kernel]) -> str:
    parts = []
    for place, kernel in enumerate(kernels, 1):
        if not kernel.vendor_verdict:
            continue
        line = f"- **{place}** {md_code(kernel.short_name)}: we say {md_text(kernel.bound or 'unknown')}"
        if kernel.agreement:
            line += f" ({md_text(kernel.agreement)})"
        line += f". NVIDIA: {md_text(kernel.vendor_verdict)}"
        if kernel.estimated_speedup_ratio is not None:
            line += f" Its best estimate saves {units.percent(kernel.estimated_speedup_ratio)} of the kernel's time."
        parts.append(line)
    return "\n".join(parts)


def _full_names(kernels: Sequence[Kernel]) -> str:
    return "\n".join(f"{place}. {md_code(kernel.name)}" for place, kernel in enumerate(kernels, 1))
