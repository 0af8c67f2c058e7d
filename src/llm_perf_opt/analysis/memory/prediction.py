"""What the static model says a phase needs in memory, beside what it had."""

from __future__ import annotations

from collections.abc import Mapping

from llm_perf_opt.core.phases import BEFORE_PREFILL, PREFILL, REQUEST_PHASES, WHOLE
from llm_perf_opt.model.summary import MemoryUse, Static, Workload


def join_memory(target: dict[str, MemoryUse], more: Mapping[str, MemoryUse]) -> None:
    """Add peaks of another source: of the same phase, the one that counts everything is kept."""
    for phase, use in more.items():
        there = target.get(phase)
        if there is None or (there.counts is None and use.counts is not None):
            target[phase] = use


def predict_memory(memory: Mapping[str, MemoryUse], static: Static | None, workload: Workload) -> None:
    """Fill in the predictions. A profiler's count on a CPU has no weights in it, so nothing is set against it."""
    for phase, use in memory.items():
        if use.counts is None and (workload.device or "cpu") == "cpu":
            continue
        use.predicted = _needs(phase, static, workload) if static is not None else {}
        use.predicted_bytes = sum(use.predicted.values()) if use.predicted else None


def _needs(phase: str, static: Static, workload: Workload) -> dict[str, float]:
    resident = static.resident_bytes
    prompt, new = workload.prompt_tokens, workload.new_tokens
    if "weights" not in resident or static.scaling is None or prompt is None or new is None:
        return {}
    found = {"weights": resident["weights"]}
    if phase not in BEFORE_PREFILL:  # the cache begins with the prompt; the last token is never fed back
        found["kv_cache"] = _cache(
            static, workload, prompt if phase == PREFILL else prompt + max(0.0, new - 1)
        )
    # The static model knows the largest operator of all phases: it is in the phase that has most positions at once.
    largest_in = next((name for name in BEFORE_PREFILL if name in static.phases), PREFILL)
    if phase in (largest_in, WHOLE) and "activations" in resident:
        found["activations"] = resident["activations"]
    return found if phase in (*REQUEST_PHASES, WHOLE) else {}


def _cache(static: Static, workload: Workload, positions: float) -> float:
    if static.scaling is None:
        return 0.0
    sequences = workload.batch_size or static.scaling.batch_size
    return sequences * sum(
        part.layers * part.bytes_per_token * min(positions, part.window or positions)
        for part in static.scaling.kv
    )
