"""The model's code does more than the model needs: all experts, or a cache expanded in every step."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import phase_seconds, sources
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, StaticPhase, Summary

_WORTH_SAYING = 1.2
"""As run ÷ least, of FLOPs or of bytes."""


def find(summary: Summary) -> list[Finding]:
    """Report phases that compute or move at least a fifth more than the least that gives the same result."""
    if summary.static is None:
        return []
    return [
        found
        for name, phase in summary.static.phases.items()
        if (found := _of_phase(summary, name, phase)) is not None
    ]


def _of_phase(summary: Summary, name: str, phase: StaticPhase) -> Finding | None:
    least = phase.minimum
    if least is None:
        return None
    flops = _ratio(phase.flops, least.flops)
    moved = _ratio(_moved(phase.weight_bytes, phase.kv_bytes), _moved(least.weight_bytes, least.kv_bytes))
    times = max(ratio for ratio in (flops, moved, 1.0) if ratio is not None)
    if times < _WORTH_SAYING:
        return None
    evidence = list(least.reasons)
    if flops is not None:
        evidence.append(f"{units.flops(phase.flops)} as run, {units.flops(least.flops)} needed")
    if moved is not None and moved >= _WORTH_SAYING:
        as_run, needed = (
            _moved(phase.weight_bytes, phase.kv_bytes),
            _moved(least.weight_bytes, least.kv_bytes),
        )
        evidence.append(f"{units.size(as_run)} of weights and cache as run, {units.size(needed)} needed")
    seconds = phase_seconds(summary, name)
    # Time can follow the work no further than the work itself shrinks.
    gain = seconds * (1 - 1 / times) if seconds is not None else None
    return Finding(
        id="more-work-than-needed",
        title=f"{name.capitalize()} does {units.number(times)} times the work it needs",
        phase=name,
        evidence=[*evidence, *sources(summary, "static")],
        gain_upper_s=gain,
        arithmetic=(
            f"{units.seconds(seconds)} × (1 − 1 ÷ {units.number(times)}) = at most {units.seconds(gain)}"
            if gain is not None
            else f"{name} was not timed"
        ),
        advice="Where experts are the reason, try another implementation of them (model.prefill_experts_implementation, "
        "model.decode_experts_implementation: grouped_mm, batched_mm, eager). Else use an engine that sends tokens to their "
        "chosen experts only and keeps latent attention compressed (vLLM, SGLang), or change the model's code so. Floors and "
        "utilisation are of the work that is needed.",
        confidence="high",
    )


def _moved(weights: float | None, cache: float | None) -> float | None:
    return None if weights is None else weights + (cache or 0.0)


def _ratio(as_run: float | None, least: float | None) -> float | None:
    return as_run / least if as_run is not None and least else None
