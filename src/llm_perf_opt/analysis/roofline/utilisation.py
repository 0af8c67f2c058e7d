"""MFU and MBU: the share of the hardware a phase used, with numerator, denominator and source spelled out.

MFU = FLOPs the model needs ÷ (wall-clock × dense peak of the data type).
MBU = bytes the model must move (weights once, KV cache) ÷ (wall-clock × memory bandwidth).
Work is a mean over the samples, so the time is their mean too: samples of different size must not be mixed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llm_perf_opt.analysis.roofline.limits import Ceiling, Limits, limits_for
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import BEFORE_PREFILL, ENCODE, VISION
from llm_perf_opt.model.summary import (
    Hardware,
    Stat,
    Static,
    StaticPhase,
    Timings,
    Utilisation,
)


@dataclass(frozen=True, slots=True)
class Work:
    """What was done in a measured time. ``None``: not counted."""

    flops: float | None
    weight_bytes: float | None
    kv_bytes: float | None


def utilisation(work: Work, seconds: float, limits: Limits) -> Utilisation:
    """Return MFU and MBU of ``work`` done in ``seconds`` of wall-clock; a missing part stays ``None``."""
    if seconds <= 0:
        return Utilisation(arithmetic="no wall-clock time was measured")
    mfu, mfu_text = _mfu(work, seconds, limits.peak)
    mbu, mbu_text = _mbu(work, seconds, limits.bandwidth)
    mfu_reached, mfu_reached_text = share_of_reached("MFU", mfu, limits.peak, limits.reached_peak)
    mbu_reached, mbu_reached_text = share_of_reached("MBU", mbu, limits.bandwidth, limits.reached_bandwidth)
    sentences = [
        text for text in (mfu_text, mfu_reached_text, mbu_text, mbu_reached_text, *limits.missing) if text
    ]
    return Utilisation(
        mfu_ratio=mfu,
        mbu_ratio=mbu,
        mfu_reached_ratio=mfu_reached,
        mbu_reached_ratio=mbu_reached,
        arithmetic="; ".join(sentences) or None,
    )


def share_of_reached(
    name: str, ratio: float | None, limit: Ceiling | None, reached: Ceiling | None
) -> tuple[float | None, str]:
    """Return a share of the data sheet's limit as a share of what was measured, and the sentence that says so."""
    if ratio is None or limit is None or reached is None:
        return None, ""
    share = ratio * limit.value / reached.value
    rate = units.bytes_per_s if name == "MBU" else units.flops_per_s
    return share, f"{name} {units.percent(share)} of the {rate(reached.value)} reached ({reached.source})"


def phase_utilisation(
    static: Static,
    timings: Timings,
    hardware: Hardware,
    dtype: str | None,
    *,
    decode_steps: float | None = None,
    prefill_includes_vision: bool = False,
) -> dict[str, Utilisation]:
    """Return the utilisation of ``vision`` or ``encode``, ``prefill``, ``ttft``, ``decode`` and ``total``, where measured.

    ``decode_steps`` is the number of model steps inside ``timings.decode_s``; without it decode is judged by
    the time per token. ``prefill_includes_vision``: the measured prefill ran the vision tower too, so its
    numerator holds the vision work (many runners nest it there; leaving it out halves the MFU or worse).
    """
    limits = limits_for(hardware, dtype)
    work = {name: _work(phase) for name, phase in static.phases.items()}
    prefill, step = work.get("prefill"), work.get("decode")
    before = [work[name] for name in BEFORE_PREFILL if name in work]
    both = _sum([*before, prefill]) if prefill is not None else None
    first_s = timings.prefill_s if prefill_includes_vision else timings.ttft_s
    decode = _times(step, decode_steps) if step is not None and decode_steps is not None else None
    rows: list[tuple[str, Work | None, Stat | None]] = [
        (VISION, work.get(VISION), timings.vision_s),
        (ENCODE, work.get(ENCODE), timings.encode_s),
        ("prefill", both if prefill_includes_vision else prefill, timings.prefill_s),
        ("ttft", both, first_s),
        (
            "decode",
            decode if decode is not None else step,
            timings.decode_s if decode is not None else timings.tpot_s,
        ),
    ]
    result = {
        name: utilisation(amount, stat.mean, limits)
        for name, amount, stat in rows
        if amount is not None and stat is not None
    }
    if both is not None and decode is not None and first_s is not None and timings.decode_s is not None:
        result["total"] = utilisation(_sum((both, decode)), first_s.mean + timings.decode_s.mean, limits)
    return result


def _mfu(work: Work, seconds: float, peak: Ceiling | None) -> tuple[float | None, str]:
    if work.flops is None or peak is None:
        return None, ""
    ratio = work.flops / (seconds * peak.value)
    text = (
        f"MFU {units.percent(ratio)} = {units.flops(work.flops)} ÷ ({units.seconds(seconds)} × "
        f"{units.flops_per_s(peak.value)} dense {peak.name}, {peak.source})"
    )
    return ratio, text


def _mbu(work: Work, seconds: float, bandwidth: Ceiling | None) -> tuple[float | None, str]:
    if work.weight_bytes is None or bandwidth is None:
        return None, ""
    kv_bytes = work.kv_bytes or 0.0
    could_move = seconds * bandwidth.value
    ratio = (work.weight_bytes + kv_bytes) / could_move
    text = (
        f"MBU {units.percent(ratio)} = ({units.size(work.weight_bytes)} weights + "
        f"{units.size(kv_bytes)} KV cache) ÷ "
        f"({units.seconds(seconds)} × {units.bytes_per_s(bandwidth.value)}, {bandwidth.source})"
    )
    if kv_bytes > 0:
        text += f", weights alone {units.percent(work.weight_bytes / could_move)}"
    return ratio, text


def _work(phase: StaticPhase) -> Work:
    return Work(phase.least_flops, phase.least_weight_bytes, phase.least_kv_bytes)


def _times(work: Work, factor: float) -> Work:
    def scaled(value: float | None) -> float | None:
        return None if value is None else value * factor

    return Work(scaled(work.flops), scaled(work.weight_bytes), scaled(work.kv_bytes))


def _sum(parts: Iterable[Work]) -> Work:
    """Add work; a part that was not counted makes the sum unknown rather than too small."""
    flops: float | None = 0.0
    weights: float | None = 0.0
    kv: float | None = 0.0
    for part in parts:
        flops = None if flops is None or part.flops is None else flops + part.flops
        weights = None if weights is None or part.weight_bytes is None else weights + part.weight_bytes
        kv = None if kv is None else kv + (part.kv_bytes or 0.0)
    return Work(flops, weights, kv)
