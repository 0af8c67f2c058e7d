"""Steps of an engine (vLLM, SGLang, TensorRT-LLM, …): how many of each phase, and how much each one held."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.timeline.attribution import Attribution
from llm_perf_opt.analysis.timeline.range_meaning import StepSize
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import MIXED, PHASES
from llm_perf_opt.model.summary import Section, SectionTable


@dataclass(frozen=True, slots=True)
class PhaseSteps:
    """The steps of one phase whose ranges count what is in them. Means are over the steps that say."""

    phase: str
    steps: int
    requests_per_step: float | None
    tokens_per_step: float | None
    tokens: int | None
    """Of all steps; ``None`` unless every one says."""
    prefill_tokens_per_step: float | None
    """Mixed steps: prompt positions."""
    decode_requests_per_step: float | None
    """Mixed steps: requests that get their next token."""


def engine_steps(attribution: Attribution) -> list[PhaseSteps]:
    """Return the phases whose ranges say how much is in a step, in their usual order; empty for other captures."""
    ranges = np.bincount(attribution.paths.of_range, minlength=len(attribution.meanings)).tolist()
    found: dict[str, list[tuple[StepSize, int]]] = {}
    for path, meaning in enumerate(attribution.meanings):
        if meaning.step is None or meaning.phase is None or inside_a_step(attribution, path):
            continue
        found.setdefault(meaning.phase, []).append((meaning.step, ranges[path]))
    order = [*PHASES, *(phase for phase in found if phase not in PHASES)]
    return [_phase_steps(phase, found[phase]) for phase in order if phase in found]


def inside_a_step(attribution: Attribution, path: int) -> bool:
    """Two tools may name the same step, one range inside the other: it counts once."""
    around = attribution.paths.ancestors(path)[1:]
    return any(attribution.meanings[above].step is not None for above in around)


def _phase_steps(phase: str, sizes: list[tuple[StepSize, int]]) -> PhaseSteps:
    steps = sum(count for _, count in sizes)
    all_tokens = [(size.all_tokens, count) for size, count in sizes]
    known = [tokens * count for tokens, count in all_tokens if tokens is not None]

    def mean(value: Callable[[StepSize], int | None]) -> float | None:
        return _mean((value(size), count) for size, count in sizes)

    mixed = phase == MIXED
    return PhaseSteps(
        phase=phase,
        steps=steps,
        requests_per_step=mean(lambda size: size.all_requests),
        tokens_per_step=_mean(all_tokens),
        tokens=sum(known) if len(known) == len(sizes) else None,
        prefill_tokens_per_step=mean(lambda size: size.prefill_tokens) if mixed else None,
        decode_requests_per_step=mean(lambda size: size.decode_requests) if mixed else None,
    )


def _mean(values: Iterable[tuple[int | None, int]]) -> float | None:
    known = [(value, count) for value, count in values if value is not None]
    total = sum(count for _, count in known)
    return sum(value * count for value, count in known) / total if total else None


def step_metrics(steps: Iterable[PhaseSteps]) -> dict[str, float | None]:
    """Return the steps as named scalars: ``decode_steps``, ``decode_requests_per_step``, …"""
    metrics: dict[str, float | None] = {}
    for one in steps:
        metrics[f"{one.phase}_steps"] = float(one.steps)
        metrics[f"{one.phase}_requests_per_step"] = one.requests_per_step
        metrics[f"{one.phase}_tokens_per_step"] = one.tokens_per_step
        metrics[f"{one.phase}_step_tokens"] = float(one.tokens) if one.tokens is not None else None
        if one.phase == MIXED:
            metrics["mixed_prefill_tokens_per_step"] = one.prefill_tokens_per_step
            metrics["mixed_decode_requests_per_step"] = one.decode_requests_per_step
    return metrics


def step_section(stage: str, steps: list[PhaseSteps]) -> list[Section]:
    """Return the part of the report about steps; nothing where no range counts what is in a step."""
    if not steps:
        return []
    rows = [
        [
            one.phase,
            units.count(one.steps),
            units.number(one.requests_per_step),
            units.number(one.tokens_per_step),
            units.number(one.prefill_tokens_per_step),
            units.number(one.decode_requests_per_step),
        ]
        for one in steps
    ]
    columns = ["phase", "steps", "requests per step", "tokens per step", "prompt tokens", "decoding requests"]
    if not any(one.phase == MIXED for one in steps):
        columns, rows = columns[:4], [row[:4] for row in rows]
    words = "Read from the names the engine gives its steps; means over the steps of a phase."
    if any(one.phase == MIXED for one in steps):
        words += (
            " Mixed steps hold prompts of some requests and next tokens of others: they are neither phase."
        )
    return [Section(stage, "Steps of the engine", [words], [SectionTable(columns, rows)])]
