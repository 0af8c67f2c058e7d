"""The search: singles first, ranked by the predicted gains; then combined one by one, each measured again.

Gains do not add: a remedy that helps alone may do nothing in combination with another. So a combination grows by one remedy at a time, and
each must show a gain on top of what is kept already. The result is written after every experiment.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_perf_opt.core.errors import ConfigError, LlmPerfError
from llm_perf_opt.improve import configurations, judge
from llm_perf_opt.improve.baseline import set_measured
from llm_perf_opt.improve.experiment import Outcome, run_experiment
from llm_perf_opt.improve.judge import conclude, is_reverted, overrides_of, reason_reverted, set_best
from llm_perf_opt.improve.measuring import Spec
from llm_perf_opt.improve.plan import Candidate, Planned
from llm_perf_opt.improve.worker import describe_failure
from llm_perf_opt.remedies.base import conflicting_key
from llm_perf_opt.remedies.data import EXPERIMENTS, TIME_IS_OVER, Improvement, NotTried, Role, Trial

LOGGER = logging.getLogger("llm_perf_opt.improve")
LEAST_EXPERIMENT_S = 15.0
"""With less time left, no experiment is begun."""
_SHARE = 2.0
"""An experiment may use so many times its fair share of what is left: most end early."""
_MOST_SINGLE = 0.5
"""Share of what is left that one remedy may take as a whole, loading and compiling included."""
_ENOUGH_PAIRS = 40
"""Pairs of passes that an experiment has time for, whatever its share."""
_RESERVED: dict[Role, float] = {"single": 0.3, "combination": 0.15}
"""Share of the time that experiments of a kind leave to those after them, once there is something to keep: singles to
combinations and the confirmation, combinations to the confirmation."""
_WIDEST = 0.5
"""The confirmation goes on until the interval of the whole gain is half as wide as the gain: it is what people will quote."""
_LEAST_TOGETHER = 2
_TESTS_ARE_OVER = "all tests that the family error is shared among were made"
Runner = Callable[..., Outcome]
Saved = Callable[[Improvement], None]


@dataclass(slots=True)
class Search:
    """The state of a search."""

    planned: Planned
    result: Improvement
    out: Path
    budget_s: float
    saved: Saved
    runner: Runner = run_experiment
    clock: Callable[[], float] = time.monotonic
    began: float = 0.0
    kept: list[Trial] = field(default_factory=list)
    """The combination so far, in the order it grew."""
    taken_back: bool = False
    """Whether it was measured again and lost what it had."""
    time_is_over: bool = False
    least_s: float = LEAST_EXPERIMENT_S
    """With less time left, no experiment is begun."""

    def run(self) -> Improvement:
        """Try everything the time allows; an interruption keeps what was measured."""
        self.began = self.clock()
        # Set before the end, because a killed process cannot report.
        self.result.status = "interrupted"
        self._settle()  # a search that is killed in its first experiment can be resumed
        try:
            self._explore()
            self._confirm()
            self.result.status = "out of time" if self.time_is_over else "complete"
        finally:
            self._settle()
        return self.result

    @property
    def tests(self) -> int:
        """Tests the family error is shared among."""
        return self.result.method.tests or self._planned_tests()

    def _planned_tests(self) -> int:
        return self.planned.tests

    def _confirmations(self) -> int:
        """Tests reserved for confirmation."""
        return self.planned.confirmations

    # --- the three parts -------------------------------------------------------------------------------------

    def _explore(self) -> None:
        """Find the remedies to keep."""
        self._singles()
        self._combinations()

    def _singles(self) -> None:
        groups: dict[str, list[Candidate]] = {}
        for candidate in self.planned.candidates:
            groups.setdefault(candidate.remedy.name, []).append(candidate)
        for candidates in groups.values():
            before = 0.0
            for candidate in candidates:
                trial = self._try(candidate, [], "single")
                if trial is None:
                    return
                better = trial.decision in judge.HELPED and self._gain(trial) >= before
                if candidate.remedy.grows == "steps" and not better:
                    self._leave_out(
                        candidates[candidates.index(candidate) + 1 :], "the step before it was no better"
                    )
                    break
                before = self._gain(trial)

    def _combinations(self) -> None:
        winners = self._winners()
        self.kept = winners[:1]
        used = {trial.remedy for trial in self.kept}
        for winner in winners[1:]:
            if winner.remedy in used:  # one setting of each: so many tests are planned
                continue
            before = overrides_of(self.kept)
            clash = conflicting_key(before, winner.overrides)
            if clash is not None:
                LOGGER.info("%s: not combined, it sets %s to another value", winner.remedy, clash)
                continue
            if {*winner.overrides} <= {*before}:
                continue  # contained in what is kept already
            used.add(winner.remedy)
            trial = self._try(self.planned.candidate(winner), before, "combination")
            if trial is None:
                return
            if trial.decision == "keep":
                self.kept.append(trial)
        if self._again(used):
            self._likely_together()

    def _again(self, used: set[str]) -> bool:
        """Retest remedies affected by one already kept, on top of it; for example, a compiled step has
        less work between two thread barriers. Return whether there was time."""
        for candidate in self.planned.candidates:
            names, before = {trial.remedy for trial in self.kept}, overrides_of(self.kept)
            if (
                candidate.remedy.name in {*used, *names}
                or not names & {*candidate.remedy.again_on}
                or conflicting_key(before, candidate.overrides) is not None
                or {*candidate.overrides} <= {*before}
            ):
                continue
            trial = self._try(candidate, before, "combination")
            if trial is None:
                return False
            if trial.decision == "keep":
                self.kept.append(trial)
        return True

    def _likely_together(self) -> None:
        """Try all remedies with an inconclusive gain together; they are kept or dropped as a whole."""
        before = overrides_of(self.kept)
        taken = list(before)
        likely: list[Trial] = []
        for trial in sorted(self.result.tried, key=lambda each: -self._gain(each)):
            another = trial.remedy not in {each.remedy for each in likely}
            new = not {*trial.overrides} <= {*taken}
            if self._is_likely(trial) and another and new and conflicting_key(taken, trial.overrides) is None:
                likely.append(trial)
                taken += trial.overrides
        if len(likely) < _LEAST_TOGETHER:
            return
        overrides = overrides_of(likely)
        title = "all that seemed to help, but too little to be shown alone"
        bundle = self.planned.together([each.remedy for each in likely], overrides, title)
        tried = self._try(bundle, before, "combination")
        if tried is not None and tried.decision == "keep":
            self.kept.append(tried)

    def _is_likely(self, trial: Trial) -> bool:
        found = trial.measured
        same = trial.output == "equal" and trial.effect != "quality"
        harmless = trial.role == "single" and (same or judge.is_allowed(trial.effect, self.result.method))
        if not harmless or trial.decision != "drop" or found is None or found.verdict != "not shown":
            return False
        return judge.exceeds_threshold(found.change_ratio, self.result.metric, self.result.method)

    def _confirm(self) -> None:
        """Measure the kept combination against the baseline again, in new processes, to avoid selection bias."""
        if not self.kept:
            return
        while self.kept:
            title = (
                "all that is kept, measured again" if len(self.kept) > 1 else "what is kept, measured again"
            )
            whole = self.planned.together([t.remedy for t in self.kept], overrides_of(self.kept), title)
            trial = self._try(whole, [], "confirmation")
            why = reason_reverted(trial, self.result.method) if trial is not None else None
            if why is None:
                return
            note = f"{whole.name} was not kept: measured again, {why}"
            self.result.notes = [*(each for each in self.result.notes if each != note), note]
            # If the combination is reverted, the strongest single remedy may still hold.
            lost, self.kept = (self.kept[1:], self.kept[:1]) if len(self.kept) > 1 else (self.kept, [])
            for each in lost:
                each.decision, each.reason = "drop", f"a gain was shown, but measured again {why}"
        self.taken_back = True

    # --- one experiment --------------------------------------------------------------------------------------

    def _try(self, candidate: Candidate, on_top_of: Sequence[str], role: Role) -> Trial | None:
        """Measure a candidate unless it was already; ``None``: the time is over."""
        known = self._known(candidate, on_top_of, role)
        if known is not None:
            return known
        left = self._left_s(role)
        if left < self.least_s:
            self._out_of_time(candidate, role)
            return None
        if self._tests_are_over(role):
            self._end_before(candidate, role, _TESTS_ARE_OVER)
            return None
        number = len(self.result.tried) + 1
        LOGGER.info(
            "%d: %s%s", number, candidate.name, f" on top of {' '.join(on_top_of)}" if on_top_of else ""
        )
        trial = self._measure(candidate, list(on_top_of), role, left)
        if trial is None:
            return self._cut(candidate, role)
        self.result.tried.append(trial)
        LOGGER.info("%d: %s: %s", number, trial.decision, trial.reason)
        self._settle()
        return trial

    def _cut(self, candidate: Candidate, role: Role) -> Trial | None:
        """Leave out a candidate that was not measured in time; ``None``: there is none left for anything else."""
        if role != "single" or self._left_s(role) < self.least_s:
            self._out_of_time(candidate, role)
            return None
        self.time_is_over = True
        self._leave_out([candidate], TIME_IS_OVER)
        return candidate.trial([], role)

    def _out_of_time(self, candidate: Candidate, role: Role) -> None:
        """Record what was cut by the budget."""
        self.time_is_over = True
        self._end_before(candidate, role, TIME_IS_OVER)

    def _measure(self, candidate: Candidate, on_top_of: list[str], role: Role, left_s: float) -> Trial | None:
        """Measure a candidate; ``None``: the budget ended before anything was measured."""
        a = configurations.merged(self.result.baseline.overrides, on_top_of)
        b = configurations.merged(a, candidate.overrides)
        trial = candidate.trial(on_top_of, role)
        try:
            first, second = configurations.checked(a), configurations.checked(b)
        except LlmPerfError as error:
            trial.reason = error.message
            return trial
        refused = configurations.other_work(first, second, candidate.remedy.effect)
        if refused is not None:
            trial.reason = f"refused: {refused}"
            return trial
        settings = self.result.method
        spec = Spec(
            a=a,
            b=b,
            metric=self.result.metric,
            settings=replace(settings, seed=settings.seed + len(self.result.tried)),
            alpha=settings.family_error_ratio / max(1, self.tests),
            limit_s=(limit_s := self._limit(left_s)),
            more_s=max(0.0, min(limit_s, left_s - limit_s)),
            answer_s=self.result.baseline.total_s,
            total_s=self._most_s(left_s, role),
            widest_ratio=_WIDEST if role == "confirmation" else None,
            environment={"a": dict(first.run.env), "b": dict(second.run.env)},
        )
        own = role == "confirmation" or configurations.needs_own_process(first, second)
        can_share = not configurations.needs_own_process(first, second) and configurations.can_share_weights(
            first, second
        )
        if self.planned.two_do_not_fit:
            # One process can share its weights with the other side; two processes hold them twice.
            own = False
            if not can_share:
                trial.reason = "this setting needs a second copy of the model, which does not fit into memory"
                return trial
        folder = self.out / EXPERIMENTS / f"{len(self.result.tried) + 1:03d}"
        try:
            outcome = self.runner(spec, folder, own_processes=own)
            if own and can_share and outcome.failure_kind == "memory":
                LOGGER.info(
                    "two processes do not fit into the memory: one, with the same weights for both sides"
                )
                outcome = self.runner(spec, folder, own_processes=False)
        except (LlmPerfError, OSError) as error:
            # File errors end this trial, not the search.
            trial.reason = ": ".join(describe_failure(error))
            return trial
        return None if outcome.out_of_budget else self._concluded(trial, outcome)

    def _concluded(self, trial: Trial, outcome: Outcome) -> Trial:
        if outcome.page is not None:
            trial.comparison = str(outcome.page.relative_to(self.out))
        if "a" in outcome.answers and not self.result.baseline.samples:
            self.result.baseline.samples = sorted(outcome.answers["a"].tokens)
        if self.result.baseline.metric_value is None and not trial.on_top_of and outcome.measured is not None:
            set_measured(self.result.baseline, self.result.metric, outcome.measured.a)
        conclude(trial, outcome, self.result.metric, self.result.method)
        trial.measured_gain_s = judge.measured_gain_s(trial, self.result)
        return trial

    def _left_s(self, role: Role) -> float:
        """Return the time for experiments of a kind, reserving some for the confirmation."""
        left = self.budget_s - (self.clock() - self.began)
        kept = any(trial.decision == "keep" for trial in self.result.tried)
        return left - _RESERVED.get(role, 0.0) * self.budget_s if kept else left

    def _tests_are_over(self, role: Role) -> bool:
        """Return whether one more test would exceed the family error; the last ones are for the confirmation.

        A resumed search may combine other remedies than planned.
        """
        made = sum(trial.measured is not None for trial in self.result.tried)
        return made >= self.tests - (0 if role == "confirmation" else self._confirmations())

    def _end_before(self, candidate: Candidate, role: Role, why: str) -> None:
        """Record what was not measured, and why."""
        if role != "single":
            what = "on top of the others" if role == "combination" else "once more, as a whole"
            self.result.notes.append(f"{candidate.name} was not measured {what}: {why}")
            return
        tried = [trial.overrides for trial in self.result.tried]
        settled = [*tried, *(item.overrides for item in self.result.not_tried)]
        rest = [each for each in self.planned.candidates if list(each.overrides) not in settled]
        self._leave_out(rest, why)

    def _limit(self, left_s: float) -> float:
        """Return how long one experiment may measure: its share of the remaining time, at least a useful minimum.

        A few decided remedies are worth more than many undecided ones; the most promising come first.
        """
        ahead = max(1, self.tests - len(self.result.tried))
        enough = _ENOUGH_PAIRS * 2 * (self.result.baseline.total_s or 0.0)
        return max(self.least_s, min(left_s, max(enough, _SHARE * left_s / ahead)))

    def _most_s(self, left_s: float, role: Role) -> float:
        """Return how long one experiment may take in total; single remedies leave time for the others."""
        if role != "single":
            return left_s
        return min(left_s, max(_MOST_SINGLE * left_s, 2 * self.least_s))

    def _known(self, candidate: Candidate, on_top_of: Sequence[str], role: Role) -> Trial | None:
        """Return the trial of an earlier, interrupted search."""
        for trial in self.result.tried:
            same = trial.overrides == list(candidate.overrides) and trial.on_top_of == list(on_top_of)
            if same and trial.role == role:
                return trial
        return None

    # --- what it comes to ------------------------------------------------------------------------------------

    def _leave_out(self, candidates: Sequence[Candidate], reason: str) -> None:
        for candidate in candidates:
            self.result.not_tried.append(
                NotTried(
                    candidate.remedy.name,
                    reason,
                    candidate.remedy.title,
                    candidate.finding.id if candidate.finding else None,
                    list(candidate.overrides),
                )
            )

    def _found(self) -> list[Trial]:
        """Return what is to be kept so far; empty if the confirmation reverted it."""
        found = self.kept or self._best_single()
        return [] if self.taken_back or is_reverted(self.result, overrides_of(found)) else found

    def _best_single(self) -> list[Trial]:
        """Return the best of the singles so far: what a search that ends before its combinations has found."""
        return self._winners()[:1]

    def _winners(self) -> list[Trial]:
        winners = [t for t in self.result.tried if t.role == "single" and t.decision == "keep"]
        return sorted(winners, key=lambda trial: -self._gain(trial))

    def _gain(self, trial: Trial) -> float:
        return (
            judge.gain_of(trial.measured.change_ratio, self.result.metric)
            if trial.measured is not None
            else 0.0
        )

    def _settle(self) -> None:
        """Update steps, best result and grades, and write."""
        result = self.result
        result.ladder = judge.ladder(result.baseline.metric_value, self._found())
        result.grades = judge.grade_findings(result.tried, result.metric)
        set_best(result, self._found())
        self.saved(result)


def refuse_empty(planned: Planned) -> None:
    """Reject a search without anything to try."""
    if not planned.candidates:
        reasons = "; ".join(f"{item.remedy}: {item.reason}" for item in planned.not_tried[:3])
        raise ConfigError(f"no remedy applies here ({reasons})", hint="name your own: --try 'key=value'")
