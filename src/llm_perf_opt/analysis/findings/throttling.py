"""A device that was held back: heat, a power limit, a container's share of the processor."""

from __future__ import annotations

from collections.abc import Mapping

from llm_perf_opt.analysis.findings.common import sample_seconds, sources
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Summary, Telemetry

_FEWEST_SAMPLES = 10
_LEAST_SHARE = 0.05
"""Below this a reason is a hiccup."""
_NORMAL_UNDER_LOAD = frozenset({"software power cap", "power limit"})
"""A device at its power limit does what it was built for; the clock tells whether that costs much."""
_ADVICE = {
    "processor quota of the container": "raise the container's processor limit, or set run.threads to what it may use",
}
_ELSE = (
    "look after cooling and the power limit (nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE; rocm-smi), and do not compare "
    "this run with one that was not held back"
)


def find(summary: Summary) -> list[Finding]:
    """Report reasons that held for a share of the samples; says nothing where the device does not tell."""
    telemetry = summary.telemetry
    if telemetry is None or not telemetry.throttled_ratio or telemetry.samples < _FEWEST_SAMPLES:
        return []
    held = {reason: share for reason, share in telemetry.throttled_ratio.items() if share >= _LEAST_SHARE}
    if not held:
        return []
    order = sorted(held, key=lambda reason: (-held[reason], reason))
    gain, arithmetic = _gain(summary, telemetry, held)
    advice = dict.fromkeys(_ADVICE.get(reason, _ELSE) for reason in order)
    return [
        Finding(
            id="throttled",
            title="The device was held back while it was measured",
            phase=None,
            evidence=[
                *(
                    f"{reason}: {units.percent(held[reason])} of {telemetry.samples} samples"
                    for reason in order
                ),
                *_circumstances(telemetry),
                *sources(summary, "telemetry"),
            ],
            gain_upper_s=gain,
            arithmetic=arithmetic,
            advice="; ".join(advice),
            confidence="medium" if set(order) <= _NORMAL_UNDER_LOAD else "high",
        )
    ]


def _gain(summary: Summary, telemetry: Telemetry, held: Mapping[str, float]) -> tuple[float | None, str]:
    """Bound the gain by the clock: no work gets faster by more than the clock does. A quota takes time, not clock."""
    if held.keys() & _ADVICE.keys():
        return None, "reasons ÷ samples; a quota takes whole stretches of time, which the clock does not show"
    seconds, clock, most = sample_seconds(summary), telemetry.clock_hz, telemetry.clock_max_hz
    if seconds is None or clock is None or most is None or clock.mean >= most:
        return None, "reasons ÷ samples; what it costs is not known without the clock and its maximum"
    lost = 1 - clock.mean / most
    return seconds * lost, (
        f"at most {units.seconds(seconds)} × (1 − mean clock {_hertz(clock.mean)} ÷ highest clock {_hertz(most)}) "
        f"= {units.seconds(seconds * lost)} per sample"
    )


def _circumstances(telemetry: Telemetry) -> list[str]:
    found = []
    if telemetry.temperature_c is not None:
        found.append(f"temperature: {telemetry.temperature_c.p95:.0f} °C (p95)")
    if telemetry.power_w is not None:
        limit = f" of {telemetry.power_limit_w:.0f} W" if telemetry.power_limit_w is not None else ""
        found.append(f"power: {telemetry.power_w.p95:.0f}{limit}{'' if limit else ' W'} (p95)")
    return found


def _hertz(value: float) -> str:
    return f"{value / 1e6:.0f} MHz"
