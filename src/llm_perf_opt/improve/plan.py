"""The remedies to try, in order, and the reasons for leaving out the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.roofline.expected_gains import ExpectedGain, Side, expected_gain, side_of
from llm_perf_opt.analysis.statistics import fewest_blocks
from llm_perf_opt.core import units
from llm_perf_opt.core.errors import ConfigError, LlmPerfError, nearest_key
from llm_perf_opt.core.units import canonical_dtype
from llm_perf_opt.hardware.sensors.base import ENERGY
from llm_perf_opt.hardware.sensors.sampler import MonitoredDevice, find_sensor
from llm_perf_opt.improve import configurations
from llm_perf_opt.remedies.base import Remedy, Situation, fixed
from llm_perf_opt.remedies.data import (
    EFFECTS,
    Answered,
    Effect,
    Metric,
    NotTried,
    PredictedBy,
    Role,
    SearchSettings,
    Trial,
    holds_phase,
)
from llm_perf_opt.remedies.registry import check_remedy
from llm_perf_opt.summary import Finding, Summary

if TYPE_CHECKING:
    from llm_perf_opt.analysis.roofline.expected_times import Tables
    from llm_perf_opt.config.schema import AppConfig


# What this machine can measure and the number of pairs can show; checked before anything is loaded.


def refuse_unmeasured(metric: Metric, device: str) -> None:
    """Reject energy as the metric on a device that does not report it."""
    reason = _no_energy(device) if metric == "energy" else None
    if reason is not None:
        raise ConfigError(
            f"--metric energy: {device} has no energy counter: {reason}",
            hint="choose another --metric: total, ttft, tpot or tokens_per_s",
        )


def _no_energy(device: str) -> str | None:
    """Return why the energy of a device is unknown; ``None``: it is known."""
    sensor = find_sensor(MonitoredDevice(device))
    if isinstance(sensor, str):
        return sensor
    reported = sensor.read().energy_j
    reason = sensor.absent.get(ENERGY, "its counter gives no value")
    sensor.close()
    return None if reported is not None else reason


def refuse_few_pairs(settings: SearchSettings, tests: int) -> None:
    """Reject a number of pairs that is too small to show any gain."""
    fewest = fewest_blocks(settings.family_error_ratio / max(1, tests))
    if settings.most_blocks < fewest:
        raise ConfigError(
            f"{settings.most_blocks} pairs of passes cannot show any gain: with an error of "
            f"{units.percent(settings.family_error_ratio)} over {tests} tests it takes {fewest} at least",
            hint=f"--pairs {fewest} or more, a larger --error, or fewer remedies (--only)",
        )


# Expected times of two sides, converted to the metric of the search.


@dataclass(frozen=True, slots=True)
class Predicted:
    """Prediction from tables of measured operators for a change of data type, batch size or number of ranks."""

    source: str | None
    """Frameworks and versions; where there is no gain, why the tables cannot say."""
    gain_s: float | None = None
    """Seconds per sample; ``None``: they cannot say."""
    by: PredictedBy = "bound"
    measured_share_ratio: float | None = None
    change_ratio: float | None = None
    """Of the metric, B ÷ A − 1."""


def _predicted_gain(found: ExpectedGain, metric: Metric, new_tokens: float | None) -> Predicted:
    """Return a gain as ``improve`` measures it: per sample, by its metric."""
    steps = max((new_tokens or 1.0) - 1.0, 0.0)
    a, b = found.before, found.after
    before, after = a.answer_s(steps), b.answer_s(steps)
    if metric == "tokens_per_s":
        rate = (before / a.batch_size) / (after / b.batch_size)
        gain, change = before * (1 - 1 / rate), rate - 1
    elif metric == "ttft":
        gain, change = a.ttft_s - b.ttft_s, b.ttft_s / a.ttft_s - 1
    else:
        gain = before - after
        change = b.tpot_s / a.tpot_s - 1 if metric == "tpot" else after / before - 1
    return Predicted(
        _source(found),
        gain,
        found.basis,
        found.measured_share_ratio,
        # The power draw of a device is not in the tables.
        change if metric != "energy" else None,
    )


def _source(found: ExpectedGain) -> str:
    text = found.source or "no table"
    if found.launched == "as graphs":
        text += "; times of a model launched as graphs"
    return f"{text}; launching takes longer than the work" if found.host_bound else text


_AND = " + "
"""Between the names of remedies that are tried as one."""
_DTYPE_KEYS = ("model.dtype", "model.quantise_weights")
_KEYS = (*_DTYPE_KEYS, "infer.batch_size", "run.ranks")
"""What expected times know of; any other key may change the time in ways they do not."""
_CONFIRMATIONS = 1
_FALLBACKS = 1
"""One confirmation of the strongest remedy alone, where all together does not hold."""
_BUNDLES = 1
"""One experiment on all together that seemed to help a little."""
_ROOM = 2.5
"""Two models and what they work with must fit so many times over."""
_Predictor = Callable[[Sequence[str]], Predicted | None]
"""Overrides → what is predicted of them; ``None``: they change nothing that tables know of."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting of a remedy."""

    remedy: Remedy
    overrides: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    """Those that it answers, the one with the largest bound first."""
    predicted: Predicted | None = None

    @property
    def finding(self) -> Finding | None:
        """The finding with the largest bound among those it answers."""
        return self.findings[0] if self.findings else None

    @property
    def name(self) -> str:
        """The name in reports: its overrides."""
        return " ".join(self.overrides)

    @property
    def bound_s(self) -> float | None:
        """The upper bound of the finding it answers."""
        return self.finding.gain_upper_s if self.finding is not None else None

    @property
    def gain_s(self) -> float | None:
        """Expected gain: from measured operators where covered, else the finding's bound."""
        predicted = self.predicted.gain_s if self.predicted is not None else None
        return predicted if predicted is not None else self.bound_s

    @property
    def predicted_by(self) -> PredictedBy | None:
        """The source of ``gain_s``."""
        if self.predicted is not None and self.predicted.gain_s is not None:
            return self.predicted.by
        return "bound" if self.bound_s is not None else None

    def trial(self, on_top_of: Sequence[str], role: Role) -> Trial:
        """Return its record before anything was measured."""
        # A combination was not predicted: the tables cover only changes of the baseline.
        known = self if not on_top_of else replace(self, predicted=None)
        predicted = known.predicted
        return Trial(
            remedy=self.remedy.name,
            overrides=list(self.overrides),
            finding=self.finding.id if self.finding else None,
            predicted_gain_s=known.gain_s,
            measured=None,
            output="failed",
            decision="failed",
            reason="",
            title=self.remedy.title,
            phase=self.finding.phase if self.finding else None,
            role=role,
            on_top_of=list(on_top_of),
            effect=self.remedy.effect,
            cost=self.remedy.cost,
            answers=[Answered(each.id, each.phase, each.gain_upper_s) for each in self.findings],
            predicted_by=known.predicted_by,
            predicted_source=predicted.source if predicted is not None else None,
            predicted_measured_share_ratio=predicted.measured_share_ratio if predicted is not None else None,
            predicted_change_ratio=predicted.change_ratio if predicted is not None else None,
            bound_gain_s=self.bound_s,
        )


@dataclass(slots=True)
class Planned:
    """All candidates in the order they are tried, and the remedies that do not apply."""

    candidates: list[Candidate]
    not_tried: list[NotTried] = field(default_factory=list)
    two_do_not_fit: bool = False
    """Whether the memory holds one model only, so that both sides must read the same weights."""

    @property
    def tests(self) -> int:
        """Tests the family error is shared among: every single, each extension of the combination, those that are
        tried again on top of others, the last ones."""
        remedies = self._names()
        together = len(remedies) - 1 + _BUNDLES if len(remedies) > 1 else 0
        again = sum(bool(remedies & {*each.remedy.again_on}) for each in self.candidates)
        return len(self.candidates) + together + again + self.confirmations

    @property
    def confirmations(self) -> int:
        """Tests reserved for confirmation."""
        return _CONFIRMATIONS + (_FALLBACKS if len(self._names()) > 1 else 0)

    def _names(self) -> set[str]:
        return {candidate.remedy.name for candidate in self.candidates}

    def candidate(self, trial: Trial) -> Candidate:
        """Return the candidate of a trial; one that is no longer planned is rebuilt from its record."""
        overrides = tuple(trial.overrides)
        known = (c for c in self.candidates if c.remedy.name == trial.remedy and c.overrides == overrides)
        remedy = Remedy(
            name=trial.remedy,
            title=trial.title,
            options=fixed(*overrides),
            effect=trial.effect,
            cost=trial.cost,
        )
        return next(known, Candidate(remedy, overrides))

    def together(self, remedies: Sequence[str], overrides: Sequence[str], title: str) -> Candidate:
        """Return several remedies as one."""
        names = {name for joined in remedies for name in joined.split(_AND)}
        effects = {candidate.remedy.effect for candidate in self.candidates if candidate.remedy.name in names}
        effect: Effect = max(effects, key=EFFECTS.index, default="nothing")
        remedy = Remedy(name=_AND.join(remedies), title=title, options=fixed(*overrides), effect=effect)
        return Candidate(remedy, tuple(overrides))


def plan(
    remedies: Sequence[Remedy],
    situation: Situation,
    only: Sequence[str] = (),
    predict: _Predictor | None = None,
    *,
    allow: Effect = "nothing",
) -> Planned:
    """Rank the applicable remedies by predicted gain, else by the bound of their finding.

    The rest are returned with reasons.
    """
    chosen = _chosen(remedies, only, situation)
    planned = Planned([], two_do_not_fit=_does_not_fit(situation))
    now = configurations.flat(situation.config)
    for remedy in chosen:
        # A gain in a phase that the metric does not include is not a gain of the metric.
        findings = tuple(
            each for each in remedy.findings(situation) if holds_phase(situation.metric, each.phase)
        )
        applicable = check_remedy(remedy, situation)
        options = [
            option
            for option in applicable.options
            if not all(configurations.is_set(now, item) for item in option)
        ]
        if applicable.options and not options:
            planned.not_tried.append(NotTried(remedy.name, "set already", remedy.title))
        if applicable.reason is not None:
            planned.not_tried.append(
                NotTried(remedy.name, applicable.reason, remedy.title, findings[0].id if findings else None)
            )
        planned.candidates.extend(
            Candidate(remedy, option, findings, predict(option) if predict is not None else None)
            for option in options
        )
    places = {remedy.name: place for place, remedy in enumerate(chosen)}
    best: dict[str, float] = {}
    for each in planned.candidates:
        best[each.remedy.name] = max(best.get(each.remedy.name, 0.0), each.gain_s or 0.0)
    # Remedies that change quality are only proposed unless allowed, so those that may be kept come first. Ties are broken
    # by the order of findings in the report.
    order = {(found.id, found.phase): place for place, found in enumerate(situation.findings)}

    def rank(each: Candidate) -> tuple[bool, float, int, int]:
        left_to_user = each.remedy.effect == "quality" and allow != "quality"
        place = order[each.finding.id, each.finding.phase] if each.finding is not None else len(order)
        return left_to_user, -_promise(each, best), place, places[each.remedy.name]

    planned.candidates.sort(key=rank)
    return planned


def _promise(candidate: Candidate, best: Mapping[str, float]) -> float:
    """Return what a candidate is ranked by; ordered steps of a remedy stay in their order, by the best of them."""
    return best[candidate.remedy.name] if candidate.remedy.grows == "steps" else candidate.gain_s or 0.0


def _chosen(remedies: Sequence[Remedy], only: Sequence[str], situation: Situation) -> list[Remedy]:
    """Keep the remedies that are named, or whose finding is; an unknown name is rejected."""
    if not only:
        return list(remedies)
    names = {remedy.name for remedy in remedies}
    answered = {item.partition(":")[0] for remedy in remedies for item in remedy.answers}
    for name in only:
        if name.partition(":")[0] not in names | answered:
            near = nearest_key(name, sorted(names | answered))
            raise ConfigError(
                f"no remedy is named '{name}' or answers a finding of that name",
                hint=f"did you mean {near}?" if near else f"remedies: {', '.join(sorted(names))}",
            )
    own = [remedy for remedy in remedies if remedy.name in only]
    return own + [remedy for remedy in remedies if remedy not in own and _answers(remedy, only)]


def _answers(remedy: Remedy, only: Sequence[str]) -> bool:
    return any(_answers_finding(item, *name.partition(":")[::2]) for name in only for item in remedy.answers)


def _answers_finding(item: str, finding: str, phase: str) -> bool:
    """Whether ``id`` or ``id:phase`` of a remedy is the finding that was named, with or without its phase."""
    known, _, own = item.partition(":")
    return known == finding and (not own or not phase or own == phase)


def _does_not_fit(situation: Situation) -> bool:
    weights, memory = situation.weight_bytes, situation.machine.memory_bytes
    return weights is not None and memory is not None and _ROOM * weights > memory


@dataclass(frozen=True, slots=True)
class TablePredictor:
    """The baseline of a search, and the tables of measured operators that predict changes of it."""

    summary: Summary
    overrides: Sequence[str]
    metric: Metric
    tables: Tables | None

    def __call__(self, overrides: Sequence[str]) -> Predicted | None:
        """Return the prediction for overrides; ``None``: they change nothing that expected times cover."""
        try:
            before = configurations.checked(self.overrides)
            after = configurations.checked(configurations.merged(self.overrides, overrides))
        except LlmPerfError:
            return None  # errors in them are reported by the experiment
        changed = configurations.changed_keys(before, after)
        if not any(key in _KEYS for key in changed):
            return None
        other = [key for key in changed if key not in _KEYS]
        if other:
            return Predicted(f"no table knows what {other[0]} changes")
        side, reason = side_of(self.summary, self.tables, stored_dtype=_stored(before))
        if side is None or self.tables is None:
            return Predicted(reason)
        found = expected_gain(side, _changed(side, changed, after), self.tables)
        if found is None:
            return Predicted("neither tables nor limits reach the changed operators")
        return _predicted_gain(found, self.metric, self.summary.workload.new_tokens)


def _stored(config: AppConfig) -> str | None:
    """Return what weights are quantised to when they are loaded; ``None``: they are not."""
    stored = config.model.quantise_weights
    return stored.value if stored is not None else None


def _changed(side: Side, changed: Sequence[str], after: AppConfig) -> Side:
    at = side.at
    if any(key in _DTYPE_KEYS for key in changed):
        at = replace(at, dtype=_stored(after) or canonical_dtype(after.model.dtype.value))
    return replace(
        side,
        at=replace(
            at,
            batch_size=after.infer.batch_size if "infer.batch_size" in changed else at.batch_size,
            tensor_parallel=after.run.ranks if "run.ranks" in changed else at.tensor_parallel,
        ),
    )
