"""The kernels that the passes of a model start, and what each costs the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_perf_opt.analysis.roofline.launches import NOTHING_COUNTED, LaunchCost, Launches, launches_of
from llm_perf_opt.core.phases import BEFORE_PREFILL, PREFILL
from llm_perf_opt.model.summary import Static


@dataclass(frozen=True, slots=True)
class Started:
    """Kernels that passes start."""

    passes: Mapping[str, Launches] = field(default_factory=dict)
    """``vision`` or ``encode``, and ``prefill``."""
    step: Launches = NOTHING_COUNTED

    def before(self, number: int) -> list[Launches]:
        """Return those of the passes up to the first token, in sequence; prefill is the last."""
        names = [*(name for name in BEFORE_PREFILL if name in self.passes), PREFILL]
        found = [self.passes.get(name, NOTHING_COUNTED) for name in names]
        return [*([NOTHING_COUNTED] * (number - len(found))), *found][-number:]


def started_by(
    static: Static,
    *,
    step_launches: float | None = None,
    launch_cost: LaunchCost | None = None,
    pass_cost: LaunchCost | None = None,
) -> Started:
    """Return the kernels that passes of a model start; ``pass_cost`` is per counted operator, before the first token."""
    return Started(
        {
            name: launches_of(static.phases[name], cost=pass_cost)
            for name in (*BEFORE_PREFILL, PREFILL)
            if name in static.phases
        },
        launches_of(static.phases.get("decode"), captured=step_launches, cost=launch_cost),
    )
