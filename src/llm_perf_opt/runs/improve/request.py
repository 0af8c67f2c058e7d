"""What a user asks of a search, and what a search that goes on was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.model.improve import Improvement, Metric, SearchKind
from llm_perf_opt.runs.improve.optuna_search import DEFAULT_TRIALS
from llm_perf_opt.runs.improve.search import LEAST_EXPERIMENT_S, Limits

_OPTIONS = {
    "metric": "--metric",
    "only": "--only",
    "own": "--try",
    "least_gain_ratio": "--least-gain",
    "family_error_ratio": "--error",
    "most_samples": "--samples",
    "most_blocks": "--pairs",
    "seed": "--seed",
    "search": "--search",
    "trials": "--trials",
}
"""What makes a search: it stays as it was begun."""


@dataclass(slots=True)
class Request:
    """What a user asked for."""

    overrides: list[str] = field(default_factory=list)
    run: Path | None = None
    metric: Metric = "total"
    budget_s: float = 600.0
    out: Path | None = None
    resume: Path | None = None
    only: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    least_gain_ratio: float = 0.02
    family_error_ratio: float = 0.05
    most_samples: int = 4
    most_blocks: int = 80
    seed: int = 20240229
    search: SearchKind = "greedy"
    trials: int = DEFAULT_TRIALS
    """Most proposals of a search by Optuna."""

    def limits(self, used_s: float = 0.0, tests: int | None = None) -> Limits:
        """Return how long the experiments may take once the baseline is there."""
        return Limits(
            budget_s=max(LEAST_EXPERIMENT_S, self.budget_s - used_s),
            least_gain_ratio=self.least_gain_ratio,
            family_error_ratio=self.family_error_ratio,
            most_blocks=self.most_blocks,
            most_samples=self.most_samples,
            seed=self.seed,
            tests=tests,
        )


def resumed(request: Request, earlier: Improvement) -> Request:
    """Return the request of the search that goes on; of the new one only the time counts, anything else is refused."""
    if request.run is not None or request.overrides:
        raise ConfigError("--resume goes on with its own configuration", hint="give --resume DIR alone")
    method = earlier.method
    stored: dict[str, Any] = {
        "metric": earlier.metric,
        "only": list(method.only),
        "own": list(method.own),
        "least_gain_ratio": method.least_gain_ratio,
        "family_error_ratio": method.family_error_ratio,
        "most_samples": method.most_samples,
        "most_blocks": method.most_blocks,
        "seed": method.seed,
        "search": method.search,
        "trials": method.tests - 1 if method.search == "optuna" else request.trials,
    }
    usual = Request()
    for name in (each.name for each in fields(Request) if each.name in _OPTIONS):
        given = getattr(request, name)
        if given not in (getattr(usual, name), stored[name]):
            raise ConfigError(
                f"{_OPTIONS[name]}: a search goes on as it was begun",
                hint="give --resume DIR, and --budget if you like; or begin another search with --out",
            )
    return replace(request, **stored)
