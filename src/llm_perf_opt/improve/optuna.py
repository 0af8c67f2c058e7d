"""A search by Optuna, for spaces that are too large to try one by one: it proposes combinations, the experiments evaluate them.

Every remedy is a choice between its settings and none. Remedies of findings are proposed first, alone; then Optuna's
sampler learns from what was measured. Nothing else changes: each proposal is measured against the baseline until it is
decided, with its share of the family error; answers that differ are never kept; the best is measured once more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.improve.costs import HIGHER_IS_BETTER
from llm_perf_opt.improve.plan import Candidate
from llm_perf_opt.improve.search import Search
from llm_perf_opt.process.tools import import_optional
from llm_perf_opt.remedies.base import conflicting_key
from llm_perf_opt.remedies.data import Role, Trial

DEFAULT_TRIALS = 20
_NONE = "-"
"""The choice that leaves a remedy out."""
_ASKS_PER_TRIAL = 4
"""Proposals that were measured already cost nothing, but they must come to an end."""
_NOT_KEPT = math.log(2)
"""What a proposal costs, as a log ratio, that failed or gave other answers: as if it took twice as long."""


def load_optuna() -> Any:
    """Import Optuna; raise with installation advice if it is missing."""
    try:
        found: Any = import_optional("optuna")
    except ImportError as error:
        raise ConfigError(
            "--search optuna needs Optuna",
            hint='pip install "llm-perf-opt[optuna]", or leave --search out',
        ) from error
    found.logging.set_verbosity(found.logging.WARNING)
    return found


@dataclass(slots=True)
class OptunaSearch(Search):
    """A search with proposals from Optuna."""

    trials: int = DEFAULT_TRIALS
    optuna: Any = field(default_factory=load_optuna)

    def _planned_tests(self) -> int:
        """Every proposal, and the confirmation."""
        return self.trials + 1

    def _confirmations(self) -> int:
        return 1

    def _explore(self) -> None:
        choices = self._choices()
        study = self._study(choices)
        space = {
            name: self.optuna.distributions.CategoricalDistribution([_NONE, *by_name])
            for name, by_name in choices.items()
        }
        for _ in range(_ASKS_PER_TRIAL * self.trials):
            if sum(trial.role != "confirmation" for trial in self.result.tried) >= self.trials:
                break
            suggested = study.ask(space)
            picked = [choices[name][chosen] for name, chosen in suggested.params.items() if chosen != _NONE]
            cost = self._cost(_without_clashes(picked))
            if cost is None:
                break
            study.tell(suggested, cost)
        self.kept = self._best_single()

    def _winners(self) -> list[Trial]:
        winners = [t for t in self.result.tried if t.role != "confirmation" and t.decision == "keep"]
        return sorted(winners, key=lambda trial: -self._gain(trial))

    def _choices(self) -> dict[str, dict[str, Candidate]]:
        """Return every remedy that may be kept alone, with its settings by name."""
        found: dict[str, dict[str, Candidate]] = {}
        for candidate in self.planned.candidates:
            if candidate.remedy.effect != "quality" or self.result.method.allow == "quality":
                found.setdefault(candidate.remedy.name, {})[candidate.name] = candidate
            elif not any(item.remedy == candidate.remedy.name for item in self.result.not_tried):
                self._leave_out([candidate], "it may change the quality (allowed by --allow quality)")
        return found

    def _study(self, choices: dict[str, dict[str, Candidate]]) -> Any:
        """Return a study that begins with the remedies of findings, one by one; deterministic for a seed."""
        sampler = self.optuna.samplers.TPESampler(seed=self.result.method.seed)
        study = self.optuna.create_study(direction="minimize", sampler=sampler)
        for name, by_name in choices.items():
            first = next(iter(by_name.values()))
            if first.finding is not None:
                study.enqueue_trial({**dict.fromkeys(choices, _NONE), name: first.name})
        return study

    def _cost(self, picked: list[Candidate]) -> float | None:
        """Measure a proposal; return its log ratio against the baseline, or ``None``: the time is over."""
        if not picked:
            return 0.0
        role: Role = "single" if len(picked) == 1 else "combination"
        overrides = list(dict.fromkeys(item for candidate in picked for item in candidate.overrides))
        names = [candidate.remedy.name for candidate in picked]
        candidate = (
            picked[0] if role == "single" else self.planned.together(names, overrides, "proposed by Optuna")
        )
        trial = self._try(candidate, [], role)
        if trial is None:
            return None
        if trial.measured is None or trial.decision in ("failed", "ask"):
            return _NOT_KEPT
        change = math.log1p(trial.measured.change_ratio)
        return -change if self.result.metric in HIGHER_IS_BETTER else change

    def _end_before(self, candidate: Candidate, role: Role, why: str) -> None:
        done = sum(trial.role != "confirmation" for trial in self.result.tried)
        self.result.notes.append(
            f"{why} after {done} of {self.trials} proposals; the next was {candidate.name}"
        )


def _without_clashes(picked: list[Candidate]) -> list[Candidate]:
    """Return the candidates that set no key to another value than an earlier one, and something new."""
    taken: list[str] = []
    kept = []
    for candidate in picked:
        if conflicting_key(taken, candidate.overrides) is None and not {*candidate.overrides} <= {*taken}:
            kept.append(candidate)
            taken += candidate.overrides
    return kept
