"""The report's table of what the processor does in each phase."""

from __future__ import annotations

from collections.abc import Mapping

from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Section, SectionTable
from llm_perf_opt.model.summary.cpu_work import CpuWork

_OF = {
    "wall-clock": "the wall-clock without a profiler",
    "profiled": "the time under the profiler, which slows dispatch down",
    "operators": "the time inside operators",
}


def work_section(work: Mapping[str, CpuWork]) -> list[Section]:
    """Return the section, or nothing where no phase ran on the processor."""
    if not work:
        return []
    rows = [
        [
            phase,
            part.name,
            units.seconds(part.seconds),
            units.percent(part.share_ratio),
            part.operator or "",
            units.percent(part.operator_share_ratio) if part.operator is not None else "",
        ]
        for phase, one in work.items()
        for part in one.parts
    ]
    columns = ["phase", "part", "time per sample", "share", "largest operator", "its share"]
    return [
        Section("torch_profiler", "What the processor does", _paragraphs(work), [SectionTable(columns, rows)])
    ]


def _paragraphs(work: Mapping[str, CpuWork]) -> list[str]:
    said = [f"{phase}: shares of {_OF[one.of]}" + _slower(one) for phase, one in work.items()]
    cost = next((one.operator_cost_s for one in work.values() if one.operator_cost_s is not None), None)
    dispatch = "Dispatch is what is left of the wall-clock without a profiler when the work inside operators is taken off"
    if cost is None:
        return [
            f"{'; '.join(said)}.",
            f"{dispatch}. What an operator costs by itself was not measured: only views count.",
        ]
    return [
        f"{'; '.join(said)}.",
        f"{dispatch}; of each operator call, {units.seconds(cost)} count as dispatch, which an operator on one element takes "
        "on this machine.",
    ]


def _slower(work: CpuWork) -> str:
    if work.profiled_ratio is None:
        return ""
    return f" (under the profiler the same work took {units.number(work.profiled_ratio)} times as long)"
