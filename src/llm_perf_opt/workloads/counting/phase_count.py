"""One phase of an adapter's model, counted by running it without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from llm_perf_opt.analysis.static.counts import ModelTree, PhaseCount, StateUse
from llm_perf_opt.workloads.base import StaticCall
from llm_perf_opt.workloads.counting.counter import count_phase, quick_meta
from llm_perf_opt.workloads.models.decoding.model_state import only_read

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.workloads.base import ModelAdapter, PhaseShapes


def count_adapter_phase(
    adapter: ModelAdapter, model: torch.nn.Module, tree: ModelTree, phase: str, shapes: PhaseShapes
) -> PhaseCount:
    """Count a phase at ``shapes``; where it works on a state, with what that holds before and after."""
    calls = cast("Mapping[str, Callable[[], object]]", adapter.static_calls(model, shapes))
    positions = {
        "vision": shapes.image_tokens,
        "encode": shapes.encoder_tokens,
        "prefill": shapes.prompt_tokens,
    }.get(phase, 1)
    call = calls[phase]
    if not isinstance(call, StaticCall):
        return count_phase(model, call, tree, positions=positions, batch_size=shapes.batch_size)
    with quick_meta():
        state = call.prepare()
    before = dict(call.state_bytes(state))
    counted = count_phase(
        model, lambda: call.run(state), tree, positions=positions, batch_size=shapes.batch_size
    )
    after = dict(call.state_bytes(state))
    counted.state = StateUse(before, after, only_read(after))
    return counted
