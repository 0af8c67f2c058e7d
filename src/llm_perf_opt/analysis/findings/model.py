"""The part of the model that is farthest above its hardware limits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from llm_perf_opt.analysis.findings.common import phase_seconds, sample_seconds, sources
from llm_perf_opt.analysis.ledger import split_component
from llm_perf_opt.analysis.ncu.vendor_rules import phase_times
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import REQUEST_PHASES
from llm_perf_opt.summary import Finding, LedgerRow, StaticPhase, Summary
from llm_perf_opt.summary.phases import CpuPartName
from llm_perf_opt.summary.statistics import decode_steps

_WORTH = 0.1
"""Least share of a sample's wall-clock that the gap must take."""
_MOSTLY = 0.6
"""A child that explains this much of its parent's gap is the better name for it."""
_COMPILED = {
    "vision": "a compiled version (model.compile_vision=true)",
    "decode": "a compiled version (model.compile=true with model.cache=static)",
}
_WAITING = ("launch", "sync", "copy")
"""Verdicts on phases that wait: their time above the floor is nobody's fault in particular, and other rules tell."""


@dataclass(slots=True)
class _Group:
    """The same module in all layers: ``model.layers.*.mlp``."""

    path: str
    measured_s: float = 0.0
    floor_s: float = 0.0
    rows: list[LedgerRow] = field(default_factory=list)

    @property
    def gap_s(self) -> float:
        return self.measured_s - self.floor_s


def find_module_gap(summary: Summary) -> list[Finding]:
    """Report, per phase, the module whose measured time is farthest above its roofline floor."""
    total = sample_seconds(summary)
    found = []
    for phase in REQUEST_PHASES:
        verdict = summary.verdicts.get(phase)
        if verdict is not None and verdict.bound in _WAITING:
            continue
        steps = decode_steps(summary.timings) if phase == "decode" else 1.0
        if steps is None:
            continue  # rows are of one step: how many a sample has is not known
        group = _largest_gap([row for row in summary.ledger if row.phase == phase and row.depth > 0])
        if group is not None and total and group.gap_s * steps >= _WORTH * total:
            found.append(_finding(summary, phase, group, steps))
    return found


def _largest_gap(rows: Sequence[LedgerRow]) -> _Group | None:
    """Descend from the model to the innermost module that still explains most of the gap."""
    groups: dict[str, _Group] = {}
    for row in rows:
        if row.measured_s is None or row.floor_s is None:
            continue
        path = re.sub(r"\.\d+(?=\.|$)", ".*", row.module)
        group = groups.setdefault(path, _Group(path))
        group.measured_s += row.measured_s
        group.floor_s += row.floor_s
        group.rows.append(row)
    level = [group for path, group in groups.items() if path.rpartition(".")[0] not in groups]
    best = max(level, key=lambda group: group.gap_s, default=None)
    while best is not None:
        children = [group for path, group in groups.items() if path.rpartition(".")[0] == best.path]
        inner = max(children, key=lambda group: group.gap_s, default=None)
        if inner is None or inner.gap_s < _MOSTLY * best.gap_s:
            return best
        best = inner
    return None


def _finding(summary: Summary, phase: str, group: _Group, steps: float) -> Finding:
    measured, floor, gap = (value * steps for value in (group.measured_s, group.floor_s, group.gap_s))
    whole = phase_times(summary).get(phase)
    share = f" ({units.percent(group.measured_s / whole)} of {phase})" if whole else ""
    evidence = [
        f"{group.path} takes {units.seconds(measured)} per sample{share}, its floor is {units.seconds(floor)}"
    ]
    if len(group.rows) > 1:
        largest = max(group.rows, key=lambda row: (row.measured_s or 0.0) - (row.floor_s or 0.0))
        own = (largest.measured_s or 0.0) * steps
        evidence.append(f"largest of {len(group.rows)}: {largest.module} with {units.seconds(own)}")
    origins = sorted({row.measured_source for row in group.rows if row.measured_source})
    evidence.append(f"time by {', '.join(origins)}; floor by the static model and {summary.hardware.name}")
    name = ".".join(group.path.split(".")[-3:])
    return Finding(
        id="module-gap",
        title=f"{name} is farthest from the hardware's limit in {phase}",
        phase=phase,
        evidence=[*evidence, *sources(summary, "static", "trace", "nsys")],
        gain_upper_s=gap,
        arithmetic=f"{units.seconds(measured)} − {units.seconds(floor)} = {units.seconds(gap)}",
        advice=f"Start with {group.path}: {_ways(summary, phase, group.path)}.",
        # Measured on a CPU: compiling the decode step closed much of such a gap, compiling an encoder little of it.
        confidence="low" if summary.hardware.kind == "cpu" and phase != "decode" else "medium",
    )


def _ways(summary: Summary, phase: str, path: str) -> str:
    """Describe what may help this part of the model in this phase, by configuration key.

    Half precision is not guaranteed to help on a CPU: small products become slower. There is no better attention
    implementation for a CPU than the default (docs/improve.md).
    """
    within = path.rpartition(".")[2]
    found = [_COMPILED.get(phase, "a fused version")]
    on_cpu = summary.hardware.kind == "cpu"
    if not on_cpu and phase != "decode" and not re.search(r"mlp|expert|moe|norm|head|embed", within):
        found.append("another attention (model.attn_implementation)")
    mixture = any("experts" in row.module.split(".") for row in summary.ledger)
    if (
        mixture
        and phase in ("prefill", "decode")
        and not re.search(r"attn|attention|norm|head|embed", within)
    ):
        found.append(f"for experts another implementation (model.{phase}_experts_implementation)")
    if not on_cpu:
        found.append("a lower precision (model.dtype=bfloat16)")
    if phase == "decode":
        found.append("weights of fewer bits (model.quantise_weights=int8)")
    return f"{', '.join(found)}, or less work for it"


# The model's code does more than the model needs: all experts, or a cache expanded in every step.


_WORTH_SAYING = 1.2
"""As run ÷ least, of FLOPs or of bytes."""


def find_more_work(summary: Summary) -> list[Finding]:
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
    # Time shrinks at most as much as the work does.
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


# Positions that are computed only because sequences in a batch differ in length.


_ENOUGH = 0.1


def find_padding(summary: Summary) -> list[Finding]:
    """Report when a tenth or more of the prompt positions is padding."""
    share = summary.metrics.get("padding_ratio")
    if share is None or share < _ENOUGH:
        return []
    seconds = phase_seconds(summary, "prefill")
    gain = seconds * share if seconds is not None else None
    return [
        Finding(
            id="padding-waste",
            title="Padding takes part of every batch",
            phase="prefill",
            evidence=[
                f"{units.percent(share)} of the prompt positions are padding",
                *sources(summary, "timings"),
            ],
            gain_upper_s=gain,
            arithmetic=f"{units.seconds(seconds)} × {units.percent(share)} = {units.seconds(gain)}",
            advice="Batch requests of similar length (infer.bucket_by_length=true), or use a runtime that packs sequences.",
            confidence="high",
        )
    ]


# The image encoder dominates the time to the first token.


_VISION_SHARE_MOSTLY = 0.5
_FUSED: tuple[CpuPartName, ...] = ("dispatch", "element-wise", "normalisation")
"""What a compiler can take out of an encoder on a processor."""


def find_vision_share(summary: Summary) -> list[Finding]:
    """Report when more than half of the time to first token is spent on the image."""
    vision, first = summary.timings.vision_s, summary.timings.ttft_s
    if (
        vision is None
        or first is None
        or first.shown <= 0
        or vision.shown / first.shown < _VISION_SHARE_MOSTLY
    ):
        return []
    share = min(vision.shown, first.shown) / first.shown
    gain, arithmetic = _bound(summary, min(vision.shown, first.shown))
    parts = {
        name.removesuffix("_s"): stat.shown
        for name, stat in summary.timings.components.items()
        if stat.shown > 0 and split_component(name)[1] == "vision"
    }
    largest = max(parts, key=lambda name: parts[name], default=None)
    evidence = [
        f"vision {units.seconds(vision.shown)} of {units.seconds(first.shown)} to the first token "
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
    """Return what to try. Another convolution layout gave no gain on a CPU (docs/improve.md)."""
    layout = (
        ""
        if summary.hardware.kind == "cpu"
        else "keep its convolutions with channels last (model.channels_last=true), "
    )
    return (
        f"Compile the encoder (model.compile_vision=true), {layout}batch the tiles of several pages; or, if accuracy allows, "
        "use fewer pixels (infer.mode) or fewer tiles (infer.max_tiles)."
    )


def _bound(summary: Summary, seconds: float) -> tuple[float | None, str]:
    """Return the largest possible gain at this image size: everything above the floor; unknown without a floor, because
    the encoder itself must run.
    """
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
            "operators and element-wise work, which compiling removes or fuses; matrix products remain, copies have a finding "
            "of their own, and fewer pixels reduce all of it"
        )
    return gain, (
        f"{units.seconds(seconds)} − {units.seconds(floor.floor_s)} = {units.seconds(gain)}: all of vision above its "
        "roofline floor at these pixels; fewer pixels lower the floor too"
    )
