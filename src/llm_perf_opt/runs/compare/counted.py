"""Operators of the sides that ``compare --run`` measured: its runs do nothing but time passes, so they are counted after them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.runs.compare.launch import Letter, Plan, check_overrides

if TYPE_CHECKING:
    from llm_perf_opt.analysis.compare.origin import Side
    from llm_perf_opt.model.summary import Static

LOGGER = logging.getLogger("llm_perf_opt.compare")


def count_sides(plan: Plan, a: Side, b: Side) -> None:
    """Give the first run of each side its static model, where the run itself did not count it."""
    sides: tuple[tuple[Letter, Side], ...] = (("a", a), ("b", b))
    for letter, side in sides:
        if side.first.static is None:
            side.first.static = _counted(plan, letter)


def _counted(plan: Plan, letter: Letter) -> Static | None:
    """Return the static model at the shapes of a side's samples; no weights are needed."""
    from llm_perf_opt.stages.static_analysis import analyse
    from llm_perf_opt.workloads.counting.config import NAME, StaticAnalysisConfig

    config = check_overrides(plan.overrides(letter))
    stage = config.pipeline.get(NAME)
    if not isinstance(stage, StaticAnalysisConfig):
        return None
    try:
        return analyse(config, replace(stage, use_synthetic_inputs=False)).static
    except LlmPerfError as error:
        LOGGER.warning("%s: not counted, so nothing is predicted: %s", letter.upper(), error.message)
        return None
