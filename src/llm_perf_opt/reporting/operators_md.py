"""``torch_profiler/operators.md``: operators of the profiled pass, host and device time, self and total."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt import units
from llm_perf_opt.reporting.escape import md_cell, md_code
from llm_perf_opt.reporting.markdown import section, table
from llm_perf_opt.summary.model import Operator, Summary

_MOST_ROWS = 60


def operators_markdown(summary: Summary) -> str:
    """Render the operator tables, one per phase."""
    phases = list(dict.fromkeys(op.phase for op in summary.operators))
    return "".join(
        (
            "# Operators\n\nFrom one profiled pass; the profiler adds time of its own, so compare shares, not seconds. "
            "*Self* leaves out what an operator called; *total* includes it, nested calls of the same operator once.\n\n",
            *(
                section(
                    phase or "outside the phases",
                    _table([op for op in summary.operators if op.phase == phase]),
                )
                for phase in phases
            ),
        )
    )


def _table(operators: Sequence[Operator]) -> str:
    with_device = any(op.self_device_s is not None for op in operators)
    whole = sum((op.self_device_s or 0.0) if with_device else op.self_cpu_s for op in operators)
    rows = []
    for op in operators[:_MOST_ROWS]:
        own = (op.self_device_s or 0.0) if with_device else op.self_cpu_s
        rows.append(
            [
                md_code(op.name, cell=True),
                str(op.calls),
                units.seconds(op.self_cpu_s),
                units.seconds(op.total_cpu_s),
                units.seconds(op.self_device_s),
                units.seconds(op.total_device_s),
                units.percent(own / whole if whole else None),
            ]
        )
    more = (
        f"\n{len(operators) - _MOST_ROWS} more operators in summary.json.\n"
        if len(operators) > _MOST_ROWS
        else ""
    )
    share = "share of device time" if with_device else "share of host time"
    return (
        table(
            ["operator", "calls", "self host", "total host", "self device", "total device", md_cell(share)],
            rows,
            numbers=range(1, 7),
        )
        + more
    )
