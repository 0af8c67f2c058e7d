"""The device waits for the host to launch work. Where the processor does the work itself: ``cpu_work``."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import part_share, phase_seconds, span_seconds
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import PHASES, WHOLE
from llm_perf_opt.model.summary import Finding, Summary


def find(summary: Summary) -> list[Finding]:
    """Report phases judged launch-bound without a timeline, which has its own losses; the whole run when no phase was."""
    if summary.hardware.kind == "cpu":
        return []
    phases = [p for p in PHASES if _is_launch(summary, p)] or [p for p in (WHOLE,) if _is_launch(summary, p)]
    return [_finding(summary, phase) for phase in phases if phase not in summary.budget]


def _is_launch(summary: Summary, phase: str) -> bool:
    verdict = summary.verdicts.get(phase)
    return verdict is not None and verdict.bound == "launch"


def _finding(summary: Summary, phase: str) -> Finding:
    seconds = span_seconds(summary, phase)
    verdict = summary.verdicts[phase]
    gain, arithmetic = _gain(summary, phase, seconds)
    evidence = [verdict.arithmetic, *verdict.evidence]
    launches = summary.metrics.get("launches_per_token")
    if launches is not None and phase == "decode":
        evidence.append(f"{units.number(launches)} kernel launches per generated token")
    advice = (
        "Replay the decode step as a CUDA graph (model.cuda_graphs=true with model.cache=static) or compile it "
        "(model.compile=true with model.cache=static); fuse small kernels; a larger infer.batch_size shares the launches."
    )
    name = "The run" if phase == WHOLE else phase.capitalize()
    return Finding(
        id="launch-bound",
        title=f"{name} waits for the host to launch work",
        phase=phase,
        evidence=evidence,
        gain_upper_s=gain,
        arithmetic=arithmetic or verdict.arithmetic,
        advice=advice,
        confidence="high"
        if phase in summary.budget
        or (phase in summary.utilisation and summary.utilisation[phase].device_busy_ratio is not None)
        else "medium",
    )


def _gain(summary: Summary, phase: str, seconds: float | None) -> tuple[float | None, str | None]:
    """Bound the gain by the phase's own idle time, else by the idle time of the whole run."""
    if seconds is None:
        return None, None
    waiting = _waiting_share(summary, phase)
    if waiting is not None:
        gain = seconds * waiting
        return (
            gain,
            f"{units.seconds(seconds)} × {units.percent(waiting)} spent launching or on the host = at most "
            f"{units.seconds(gain)}",
        )
    whole, idle = span_seconds(summary, WHOLE), _waiting_share(summary, WHOLE)
    if whole is None or idle is None:
        return None, None
    gain = min(seconds, whole * idle)
    of = "per sample" if phase_seconds(summary, WHOLE) is not None else "captured"
    text = (
        f"the device idles for {units.percent(idle)} of {units.seconds(whole)} {of}; at most "
        f"{units.seconds(gain)} of that is in {phase}"
    )
    return gain, text


def _waiting_share(summary: Summary, phase: str) -> float | None:
    """Take what the device's own activity leaves over."""
    if phase in summary.budget:
        return sum(part_share(summary, phase, name) or 0.0 for name in ("launch", "host"))
    use = summary.utilisation.get(phase)
    if use is not None and use.device_busy_ratio is not None:
        return 1.0 - use.device_busy_ratio
    return None
