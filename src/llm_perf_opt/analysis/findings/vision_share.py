"""The image encoder dominates the time to the first token."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import sources
from llm_perf_opt.analysis.ledger import split_component
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Summary
from llm_perf_opt.model.summary.cpu_work import CpuPartName

_MOSTLY = 0.5
_FUSED: tuple[CpuPartName, ...] = ("dispatch", "element-wise", "normalisation")
"""What a compiler can take out of an encoder on a processor."""


def find(summary: Summary) -> list[Finding]:
    """Report when more than half of the time to first token is spent on the image."""
    vision, first = summary.timings.vision_s, summary.timings.ttft_s
    if vision is None or first is None or first.median <= 0 or vision.median / first.median < _MOSTLY:
        return []
    share = min(vision.median, first.median) / first.median
    gain, arithmetic = _bound(summary, min(vision.median, first.median))
    parts = {
        name.removesuffix("_s"): stat.median
        for name, stat in summary.timings.components.items()
        if stat.median > 0 and split_component(name)[1] == "vision"
    }
    largest = max(parts, key=lambda name: parts[name], default=None)
    evidence = [
        f"vision {units.seconds(vision.median)} of {units.seconds(first.median)} to the first token "
        f"({units.percent(share)})"
    ]
    if largest is not None:
        evidence.append(f"its largest component is {largest} with {units.seconds(parts[largest])}")
    return [
        Finding(
            id="vision-dominated-ttft",
            title="The image encoder dominates the time to the first token",
            phase="vision",
            evidence=[*evidence, *sources(summary, "timings")],
            gain_upper_s=gain,
            arithmetic=arithmetic,
            advice=_advice(summary),
            confidence="low" if "vision" in summary.cpu_work else "medium",
        )
    ]


def _advice(summary: Summary) -> str:
    """Say what to try; another layout of convolutions gave a processor nothing (docs/improve.md)."""
    layout = (
        ""
        if summary.hardware.kind == "cpu"
        else "keep its convolutions with channels last (model.channels_last=true), "
    )
    return (
        f"Compile the encoder (model.compile_vision=true), {layout}batch the tiles of several pages; or, where the answers "
        "stand it, use fewer pixels (infer.mode) or fewer tiles (infer.max_tiles)."
    )


def _bound(summary: Summary, seconds: float) -> tuple[float | None, str]:
    """Return what could go at these pixels: all above the floor; unknown without one, for the encoder itself must run."""
    floor = summary.predictions.get("vision")
    if floor is None:
        return None, (
            f"vision takes {units.seconds(seconds)}; how much of it must stay is not known without its roofline floor"
        )
    gain = max(0.0, seconds - floor.floor_s)
    work = summary.cpu_work.get("vision")
    if work is not None and (fused := work.share(*_FUSED) * seconds) < gain:
        return fused, (
            f"{units.seconds(seconds)} × {units.percent(work.share(*_FUSED))} = at most {units.seconds(fused)}: calls of "
            "operators and element-wise work, which compiling removes or joins; its products stay, its copies are told by "
            "themselves, and fewer pixels lower all of it"
        )
    return gain, (
        f"{units.seconds(seconds)} − {units.seconds(floor.floor_s)} = {units.seconds(gain)}: all of vision above its "
        "roofline floor at these pixels; fewer pixels lower the floor too"
    )
