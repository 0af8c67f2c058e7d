"""Gates: ``tpot:+3%`` fails only when the measurements show, not merely suggest, a slowdown beyond 3 %."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from llm_perf_opt.analysis.metrics import ALPHA, COMPONENT, METRICS, Evidence, kind_of
from llm_perf_opt.compare.data import GateResult, GateStatus, Method
from llm_perf_opt.core.errors import ConfigError, nearest_key
from llm_perf_opt.core.units import format_p_value, format_signed_percent

UNDECIDED: tuple[GateStatus, ...] = ("undecided", "not enough data", "not comparable")
"""What a gate says that neither passed nor failed."""
_SYNTAX = re.compile(r"(?P<metric>[\w.]+):(?P<sign>[+-]?)(?P<amount>\d+(?:\.\d+)?|\.\d+)\s*%")


@dataclass(frozen=True, slots=True)
class Gate:
    """A metric and the worst ratio B ÷ A that is allowed."""

    metric: str
    limit_ratio: float

    @property
    def lower_is_worse(self) -> bool:
        """Whether the metric is better when larger."""
        return kind_of(self.metric).better == "higher"


def parse_gate(text: str) -> Gate:
    """Parse ``tpot:+3%`` or ``tokens_per_s:-3%``; raises :class:`ConfigError` that names the mistake."""
    match = _SYNTAX.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"--gate {text!r} is not METRIC:±PERCENT%",
            hint="for example --gate tpot:+3% or --gate tokens_per_s:-3%",
        )
    metric, sign, amount = match["metric"], match["sign"], float(match["amount"]) / 100
    near = nearest_key(metric, METRICS)
    if metric not in METRICS and not (metric.startswith(COMPONENT) and len(metric) > len(COMPONENT)):
        raise ConfigError(
            f"--gate {text!r}: unknown metric '{metric}'",
            hint=f"did you mean '{near}'?" if near else f"one of {', '.join(METRICS)} or component.<label>",
            key=metric,
        )
    worse = "-" if kind_of(metric).better == "higher" else "+"
    if sign and sign != worse:
        direction = "lower" if worse == "-" else "higher"
        raise ConfigError(
            f"--gate {text!r} would never mean a regression: {metric} is worse when {direction}",
            hint=f"--gate {metric}:{worse}{match['amount']}%",
        )
    if worse == "-" and amount >= 1:
        raise ConfigError(f"--gate {text!r}: nothing can fall by 100 % or more")
    return Gate(metric, 1 - amount if worse == "-" else 1 + amount)


def apply_gate(gate: Gate, evidence: Evidence | None, method: Method) -> GateResult:
    """Decide: a regression needs the whole interval beyond the limit and a rank test that agrees."""
    limit = math.log(gate.limit_ratio)
    if evidence is None:
        return _result(gate, "not enough data", f"{gate.metric} was not measured on both sides")
    if not evidence.decidable(two_sided=False):
        return _result(
            gate,
            "not enough data",
            _too_few(evidence),
            ratio=evidence.b / evidence.a if evidence.a > 0 else None,
        )
    interval = evidence.interval(
        confidence=method.confidence_ratio, resamples=method.resamples, seed=method.seed
    )
    if interval is None:  # decidable evidence has enough blocks; kept for the type checker
        return _result(gate, "not enough data", _too_few(evidence))
    worse_p = evidence.p_below(limit) if gate.lower_is_worse else evidence.p_above(limit)
    beyond = interval.high < limit if gate.lower_is_worse else interval.low > limit
    within = interval.low >= limit if gate.lower_is_worse else interval.high <= limit
    status: GateStatus = "regression" if beyond and worse_p <= ALPHA else "passed" if within else "undecided"
    low, high, ratio = math.exp(interval.low), math.exp(interval.high), math.exp(interval.estimate)
    span = f"{format_signed_percent(ratio)} ({format_signed_percent(low)} to {format_signed_percent(high)}, {evidence.n} {evidence.kind})"
    reasons = {
        "regression": f"{span}: wholly beyond {format_signed_percent(gate.limit_ratio)}, rank test {format_p_value(worse_p)}",
        "passed": f"{span}: wholly within {format_signed_percent(gate.limit_ratio)}",
        "undecided": f"{span}: a change beyond {format_signed_percent(gate.limit_ratio)} is neither shown nor excluded",
    }[status]
    return GateResult(gate.metric, gate.limit_ratio, status, ratio, low, high, worse_p, reasons)


def gate_exit_code(results: list[GateResult], *, strict: bool) -> int:
    """1 for a regression or a side that failed; with ``strict`` also for a gate that could not be decided."""
    failing = {"regression", "side failed"} | ({*UNDECIDED} if strict else set())
    return int(any(result.status in failing for result in results))


def apply_gates(
    gates: list[Gate],
    evidence: Mapping[str, Evidence | None],
    method: Method,
    *,
    failed: str | None = None,
    unlike: Mapping[str, str] | None = None,
) -> list[GateResult]:
    """Apply every gate; a component that no side has is the user's mistake.

    ``failed`` lists sides that did not finish: their measurements pass no gate. ``unlike`` gives for
    metrics why they are of different amounts of work: less work neither passes a gate nor fails it.
    """
    if failed is not None:
        return [_result(gate, "side failed", failed) for gate in gates]
    unknown = [g.metric for g in gates if g.metric.startswith(COMPONENT) and g.metric not in evidence]
    if unknown:
        have = sorted(name for name in evidence if name.startswith(COMPONENT))
        raise ConfigError(
            f"--gate: no side has {unknown[0]}",
            hint=f"components here: {', '.join(have)}" if have else "no component was timed",
            key=unknown[0],
        )
    unlike = unlike or {}
    return [
        _result(gate, "not comparable", unlike[gate.metric])
        if gate.metric in unlike
        else apply_gate(gate, evidence.get(gate.metric), method)
        for gate in gates
    ]


def _too_few(evidence: Evidence) -> str:
    if evidence.kind == "rounds":
        return f"{evidence.n} rounds are too few: five or more can decide (compare --run --rounds 8)"
    if evidence.kind is None:
        return "one value per side: five samples, three repeats (run.repeats=3) or five rounds can decide"
    return (
        f"{evidence.n} {evidence.kind} are too few: three repeats on both sides, five samples or five "
        "rounds can decide"
    )


def _result(gate: Gate, status: GateStatus, reason: str, ratio: float | None = None) -> GateResult:
    return GateResult(gate.metric, gate.limit_ratio, status, ratio, None, None, None, reason)
