"""``torch_profiler/operators.md``: operators of the profiled pass, host and device time, self and total."""

from __future__ import annotations

from llm_perf_opt.core.escape import md_text
from llm_perf_opt.model.summary import Summary
from llm_perf_opt.reporting.content.detail import operator_table
from llm_perf_opt.reporting.markdown.writer import render_table, section
from llm_perf_opt.reporting.wording import phase_rank

MOST_ROWS = 40
"""Rows per phase; all are in ``summary.json`` and ``report.html``."""


def operators_markdown(summary: Summary) -> str:
    """Render the operator tables, one per phase."""
    phases = sorted(
        {op.phase for op in summary.operators}, key=lambda p: (p is None, phase_rank(p or ""), p or "")
    )
    return (
        "".join(
            (
                "# Operators\n\nFrom one profiled pass; the profiler adds time of its own, so compare "
                "shares, not seconds. "
                "*Self* leaves out what an operator called; *total* includes it, nested calls of the same "
                "operator once. "
                "*Share* is of the self time of the phase: device time where there is any, else host time.\n\n",
                *(
                    section(
                        md_text(phase) if phase else "Outside the phases" if len(phases) > 1 else "All",
                        render_table(
                            operator_table(
                                [op for op in summary.operators if op.phase == phase], phased=False
                            ),
                            most=MOST_ROWS,
                        ),
                    )
                    for phase in phases
                ),
            )
        ).rstrip("\n")
        + "\n"
    )
