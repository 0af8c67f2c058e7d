"""Compare what a summary claims with what was planted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .labels import CAUSES

FINDING_CAUSES = {cause: cause for cause in CAUSES}
"""Finding id → cause. What is not listed is a claim of its own, never the right one."""
GAIN_TOLERANCE = 0.20
FALSE_ALARM_SHARE = 0.03
TARGETS = {"top_cause": 0.95, "gain": 0.90, "false_alarms": 0}


@dataclass(slots=True)
class Claim:
    """Everything a summary says of one cause, its phases added."""

    cause: str
    gain_s: float | None
    share_ratio: float | None


@dataclass(slots=True)
class Planted:
    """One planted cause, and whether it was found."""

    cause: str
    loss_s: float
    claimed_s: float | None
    found: bool
    """First in the list; a second cause: second, or anywhere with the right size."""
    gain_right: bool


@dataclass(slots=True)
class Outcome:
    """One capture."""

    case: str
    format: str
    ranks: int
    span_s: float
    exit_code: int
    claims: list[Claim]
    planted: list[Planted] = field(default_factory=list)
    false_alarms: list[str] = field(default_factory=list)
    peer_says: str | None = None
    error: str | None = None

    @property
    def top_right(self) -> bool:
        return bool(self.planted) and self.planted[0].found


def claims_of(findings: Iterable[Mapping[str, Any]]) -> list[Claim]:
    """Join the findings of a summary by cause; the largest gain first, those without one last."""
    joined: dict[str, Claim] = {}
    for finding in findings:
        cause = FINDING_CAUSES.get(finding["id"], finding["id"])
        claim = joined.setdefault(cause, Claim(cause, None, None))
        claim.gain_s = _plus(claim.gain_s, finding.get("gain_upper_s"))
        claim.share_ratio = _plus(claim.share_ratio, finding.get("gain_share_ratio"))
    return sorted(joined.values(), key=lambda claim: (claim.gain_s is None, -(claim.gain_s or 0.0)))


def _plus(one: float | None, two: float | None) -> float | None:
    return two if one is None else one if two is None else one + two


def judge(losses_s: Mapping[str, float], claims: list[Claim]) -> list[Planted]:
    """Hold the claims against the planted causes, the largest of which comes first."""
    by_cause = {claim.cause: claim for claim in claims}
    ranked = [claim.cause for claim in claims]
    judged = []
    for place, (cause, loss) in enumerate(losses_s.items()):
        claimed = by_cause[cause].gain_s if cause in by_cause else None
        right_size = claimed is not None and abs(claimed - loss) <= GAIN_TOLERANCE * loss
        in_place = ranked[place : place + 1] == [cause]
        judged.append(Planted(cause, loss, claimed, in_place or (place > 0 and right_size), right_size))
    return judged


def false_alarms(claims: list[Claim], span_s: float) -> list[str]:
    """Claims on a healthy capture that a reader would act on."""
    found = []
    for claim in claims:
        share = claim.share_ratio
        if share is None and claim.gain_s is not None:
            share = claim.gain_s / span_s
        if share is not None and share >= FALSE_ALARM_SHARE:
            found.append(f"{claim.cause} {share:.0%}")
    return found


@dataclass(slots=True)
class Row:
    """The score of one cause."""

    cause: str
    planted: int = 0
    found: int = 0
    gain_right: int = 0


@dataclass(slots=True)
class Score:
    """All captures together."""

    captures: int
    rows: list[Row]
    with_cause: int
    top_right: int
    gains: int
    gains_right: int
    healthy: int
    alarmed: int

    def missed(self) -> list[str]:
        """Name the targets that were not reached."""
        problems = []
        if self.with_cause and self.top_right / self.with_cause < TARGETS["top_cause"]:
            problems.append(
                f"top cause right in {self.top_right} of {self.with_cause}, wanted {TARGETS['top_cause']:.0%}"
            )
        if self.gains and self.gains_right / self.gains < TARGETS["gain"]:
            problems.append(
                f"gain within 20 % in {self.gains_right} of {self.gains}, wanted {TARGETS['gain']:.0%}"
            )
        if self.alarmed > TARGETS["false_alarms"]:
            problems.append(f"false alarms on {self.alarmed} of {self.healthy} healthy captures, wanted none")
        return problems

    def document(self) -> dict[str, Any]:
        """The score as plain values, for ``--json``."""
        return asdict(self)


def score(outcomes: list[Outcome]) -> Score:
    """Count."""
    rows = {cause: Row(cause) for cause in CAUSES}
    for outcome in outcomes:
        for planted in outcome.planted:
            row = rows[planted.cause]
            row.planted += 1
            row.found += planted.found
            row.gain_right += planted.gain_right
    healthy = [outcome for outcome in outcomes if not outcome.planted]
    sick = [outcome for outcome in outcomes if outcome.planted]
    return Score(
        captures=len(outcomes),
        rows=[row for row in rows.values() if row.planted],
        with_cause=len(sick),
        top_right=sum(outcome.top_right for outcome in sick),
        gains=sum(row.planted for row in rows.values()),
        gains_right=sum(row.gain_right for row in rows.values()),
        healthy=len(healthy),
        alarmed=sum(bool(outcome.false_alarms) or outcome.exit_code != 0 for outcome in healthy),
    )
