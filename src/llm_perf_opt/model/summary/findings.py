"""Problems with evidence, and at most what solving them would gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.model.limits import Share, SummedSeconds

Confidence = Literal["high", "medium", "low"]


@dataclass(slots=True)
class Finding:
    """A problem with evidence, and at most what solving it would gain."""

    id: str
    title: str
    phase: str | None
    evidence: list[str]
    gain_upper_s: SummedSeconds | None
    """Upper bound, per sample."""
    arithmetic: str
    advice: str
    confidence: Confidence
    gain_share_ratio: Share | None = None
    """``gain_upper_s`` as a share of what ``gain_of`` names."""
    gain_of: str | None = None
    """``a sample's wall-clock``, or the captured time where nothing was timed without a profiler."""
    improve_command: str | None = None
    """Command that tries the remedies of this finding on the same configuration; null: ``no_experiment`` says why."""
    no_experiment: str | None = None
    """Why there is no such command: no setting answers the finding, none applies here, or the run cannot be repeated."""
    track_record: str | None = None
    """How often the remedies of this finding helped in earlier searches on this machine; null: none was made."""
