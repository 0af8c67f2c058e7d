"""The image encoder dominates the time to the first token."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import sources
from llm_perf_opt.analysis.ledger import split_component
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Summary

_MOSTLY = 0.5


def find(summary: Summary) -> list[Finding]:
    """Report when more than half of the time to first token is spent on the image."""
    vision, first = summary.timings.vision_s, summary.timings.ttft_s
    if vision is None or first is None or first.median <= 0 or vision.median / first.median < _MOSTLY:
        return []
    gain = min(vision.median, first.median)
    share = gain / first.median
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
            arithmetic=f"the whole of vision, {units.seconds(gain)}; prefill stays",
            advice="Use fewer pixels (infer.mode), fewer tiles (infer.max_tiles), batch the tiles of several "
            "pages, or compile the encoder.",
            confidence="high",
        )
    ]
