"""What expected times of two sides come to in the metric that a search asks for."""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.analysis.expected.gains import ExpectedGain
from llm_perf_opt.model.improve import Metric, PredictedBy


@dataclass(frozen=True, slots=True)
class Predicted:
    """What tables of measured operators say of a change of data type, batch size or number of ranks."""

    source: str | None
    """Frameworks and versions; where there is no gain, why the tables cannot say."""
    gain_s: float | None = None
    """Seconds per sample; ``None``: they cannot say."""
    by: PredictedBy = "bound"
    measured_share_ratio: float | None = None
    change_ratio: float | None = None
    """Of the metric, B ÷ A − 1."""


def predicted_gain(found: ExpectedGain, metric: Metric, new_tokens: float | None) -> Predicted:
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
        # How much power a device draws is in no table.
        change if metric != "energy" else None,
    )


def _source(found: ExpectedGain) -> str:
    words = found.source or "no table"
    if found.launched == "as graphs":
        words += "; times of a model launched as graphs"
    return f"{words}; launching takes longer than the work" if found.host_bound else words
