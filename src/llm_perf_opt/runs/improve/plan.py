"""What would be tried, in which order, and why the rest is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.nearest import nearest_key
from llm_perf_opt.model.improve import Effect, NotTried, Role, Trial
from llm_perf_opt.model.summary import Finding, Summary
from llm_perf_opt.runs.remedies.base import Remedy, Situation, fixed

_CONFIRMATIONS = 1
_ROOM = 2.5
"""Two models and what they work with must fit so many times over."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting of a remedy."""

    remedy: Remedy
    overrides: tuple[str, ...]
    finding: Finding | None = None

    @property
    def name(self) -> str:
        """What reports call it: its overrides."""
        return " ".join(self.overrides)

    def trial(self, on_top_of: Sequence[str], role: Role) -> Trial:
        """Return its record before anything was measured."""
        return Trial(
            remedy=self.remedy.name,
            overrides=list(self.overrides),
            finding=self.finding.id if self.finding else None,
            predicted_gain_s=self.finding.gain_upper_s if self.finding else None,
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
        )


@dataclass(slots=True)
class Planned:
    """All candidates in the order they are tried, and the remedies that do not apply."""

    candidates: list[Candidate]
    not_tried: list[NotTried] = field(default_factory=list)
    two_do_not_fit: bool = False
    """Whether the memory holds one model only, so that each side needs its own process."""

    @property
    def tests(self) -> int:
        """Tests the family error is shared among: every single, every possible growth of the combination, the last one."""
        remedies = len({candidate.remedy.name for candidate in self.candidates})
        return len(self.candidates) + max(0, remedies - 1) + _CONFIRMATIONS

    def candidate(self, remedy: str, overrides: Sequence[str]) -> Candidate:
        """Return the candidate of a trial."""
        return next(c for c in self.candidates if c.remedy.name == remedy and c.overrides == tuple(overrides))

    def together(self, remedies: Sequence[str], overrides: Sequence[str], title: str) -> Candidate:
        """Return several remedies as one."""
        effects = {
            candidate.remedy.effect for candidate in self.candidates if candidate.remedy.name in remedies
        }
        effect: Effect = "rounding" if "rounding" in effects else "nothing"
        remedy = Remedy(name=" + ".join(remedies), title=title, options=fixed(*overrides), effect=effect)
        return Candidate(remedy, tuple(overrides))


def plan(remedies: Sequence[Remedy], situation: Situation, only: Sequence[str] = ()) -> Planned:
    """Rank the remedies that apply by the bound of the finding they answer; the rest have a reason."""
    chosen = _chosen(remedies, only, situation)
    planned = Planned([], two_do_not_fit=_does_not_fit(situation))
    for remedy in chosen:
        reason = remedy.why_not(situation)
        finding = remedy.finding(situation)
        options = [tuple(option) for option in remedy.options(situation)] if reason is None else []
        if reason is None and not options:
            reason = "nothing else to choose here"
        if reason is not None:
            planned.not_tried.append(
                NotTried(remedy.name, reason, remedy.title, finding.id if finding else None)
            )
        planned.candidates.extend(Candidate(remedy, option, finding) for option in options)
    places = {remedy.name: place for place, remedy in enumerate(chosen)}
    # What changes the quality can only be asked about: all that may be kept comes first.
    planned.candidates.sort(
        key=lambda each: (each.remedy.effect == "quality", -_bound(each), places[each.remedy.name])
    )
    return planned


def _bound(candidate: Candidate) -> float:
    return (candidate.finding.gain_upper_s or 0.0) if candidate.finding is not None else 0.0


def _chosen(remedies: Sequence[Remedy], only: Sequence[str], situation: Situation) -> list[Remedy]:
    """Keep the remedies that are named, or whose finding is; an unknown name is refused."""
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
    return situation.on_cpu and weights is not None and memory is not None and _ROOM * weights > memory


def situation_facts(summary: Summary) -> dict[str, object]:
    """Return what a summary tells a remedy of the model."""
    static = summary.static
    params = static.params if static is not None else None
    modules = static.modules if static is not None else []
    mixture = any("experts" in module.name.split(".") for module in modules) if modules else None
    phases = tuple(
        name for name in ("vision", "prefill", "decode") if getattr(summary.timings, f"{name}_s") is not None
    )
    return {
        "findings": list(summary.findings),
        "mixture": mixture,
        "phases": phases,
        "samples": summary.workload.samples,
        "weight_bytes": None if params is None else int(params.total * 4),
    }
