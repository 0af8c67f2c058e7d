"""Best possible times on the device, predicted before the run and graded after it."""

from __future__ import annotations

from llm_perf_opt.analysis.roofline.launches import Launches, launches_of
from llm_perf_opt.analysis.roofline.limits import Floor, limits_for, phase_floor
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import ENCODE, VISION
from llm_perf_opt.summary import Hardware, Prediction, Stat, Static, StaticPhase, Timings


def predict_phases(
    static: Static,
    hardware: Hardware,
    dtype: str | None,
    timings: Timings | None = None,
    *,
    decode_steps: float | None = None,
    prefill_includes_vision: bool = False,
) -> dict[str, Prediction]:
    """Return floors of ``vision`` or ``encode``, ``prefill``, ``decode``, ``ttft`` and ``tpot``, as far as they can be computed.

    ``decode`` covers ``decode_steps`` steps and is graded by ``timings.decode_s``; without ``decode_steps``
    it is one step, graded by the time per token. ``prefill_includes_vision`` is for timings in which the
    vision tower ran inside the measured prefill: prefill then means both, as measured.
    A phase whose work or limit is unknown is absent; :func:`missing_reasons` has the reasons.
    """
    timings = timings or Timings()
    limits = limits_for(hardware, dtype)
    floors = {
        name: floor
        for name, phase in static.phases.items()
        if (floor := phase_floor(phase, limits, _launches(hardware, phase))) is not None
    }
    result: dict[str, Prediction] = {}
    prefill, step = floors.get("prefill"), floors.get("decode")
    first_token = prefill
    for name, measured_s in ((VISION, timings.vision_s), (ENCODE, timings.encode_s)):
        if name in static.phases:
            first_token = _in_sequence(name, floors.get(name), first_token)
        if (floor := floors.get(name)) is not None:
            result[name] = _graded(floor, measured_s)
    whole = first_token if prefill_includes_vision else prefill
    if whole is not None:
        result["prefill"] = _graded(whole, timings.prefill_s)
    if step is not None and decode_steps is not None and decode_steps > 0:
        result["decode"] = _graded(_repeated(step, decode_steps), timings.decode_s)
    elif step is not None:
        result["decode"] = _graded(step, timings.tpot_s)
    if first_token is not None:
        measured = timings.prefill_s if prefill_includes_vision and timings.ttft_s is None else timings.ttft_s
        result["ttft"] = _graded(first_token, measured)
    if step is not None:
        result["tpot"] = _graded(step, timings.tpot_s)
    return result


def missing_reasons(static: Static, hardware: Hardware, dtype: str | None) -> list[str]:
    """Explain why predictions are absent: unknown limits, or a phase whose work was not counted."""
    reasons = list(limits_for(hardware, dtype).missing)
    for name, phase in static.phases.items():
        if phase.flops is None:
            reasons.append(f"the FLOPs of {name} were not counted")
        if phase.weight_bytes is None:
            reasons.append(f"the weights {name} reads were not counted")
    return reasons


def _launches(hardware: Hardware, phase: StaticPhase) -> Launches | None:
    """Return the kernels of a pass; a CPU starts none."""
    return launches_of(phase) if hardware.kind == "gpu" else None


def _graded(floor: Floor, measured: Stat | None) -> Prediction:
    if measured is None or floor.seconds <= 0:
        return Prediction(floor.seconds, floor.bound, None, floor.arithmetic, floor.flops, floor.moved_bytes)
    ratio = measured.shown / floor.seconds
    text = f"{floor.arithmetic}; measured {units.seconds(measured.shown)} = {units.number(ratio)} × the floor"
    return Prediction(floor.seconds, floor.bound, ratio, text, floor.flops, floor.moved_bytes)


def _in_sequence(name: str, first: Floor | None, second: Floor | None) -> Floor | None:
    """Add two floors of which the second needs the result of the first; unknown parts make an unknown sum."""
    if first is None or second is None:
        return None
    longer = first if first.seconds > second.seconds else second
    return Floor(
        first.seconds + second.seconds,
        longer.bound,
        first.compute_s + second.compute_s,
        first.memory_s + second.memory_s,
        f"{name} {first.arithmetic} + prefill {second.arithmetic}",
        first.flops + second.flops,
        first.moved_bytes + second.moved_bytes,
        first.launch_s + second.launch_s,
    )


def _repeated(step: Floor, steps: float) -> Floor:
    text = f"{units.count(steps)} steps × {step.arithmetic}"
    times = (step.seconds * steps, step.bound, step.compute_s * steps, step.memory_s * steps)
    return Floor(*times, text, step.flops * steps, step.moved_bytes * steps, step.launch_s * steps)
