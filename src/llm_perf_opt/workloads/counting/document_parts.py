"""Parts of a static document that follow from what was counted: totals, checks, memory, ranks, notes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.static.build import kv_resident_bytes, sum_over_steps
from llm_perf_opt.analysis.static.resident import add_totals, resident_rows
from llm_perf_opt.analysis.static.split import Counted, Kind, split_model
from llm_perf_opt.model.static.document import CrossCheck, KvLayers, StaticDocument, Totals
from llm_perf_opt.model.static.split import Split
from llm_perf_opt.workloads.models.checkpoints.tensor_parallel import plans_of

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.model.summary import Static
    from llm_perf_opt.workloads.base import ModelAdapter, PhaseShapes


SPLITS = (2, 4, 8)
"""Numbers of ranks a model is split over on paper, beside that of the run."""


def totals(
    static: Static,
    layers: list[KvLayers],
    shapes: PhaseShapes,
    *,
    phases: Collection[str],
    steps: int,
    step_flops: Callable[[int], int],
) -> Totals:
    """Add up a request of ``steps`` tokens; ``phases`` are those the model has."""

    def of(phase: str) -> float | None:
        """FLOPs of a phase; nothing for a phase the model does not have, unknown for one that failed."""
        if phase in static.phases:
            return static.phases[phase].flops
        return None if phase in phases else 0

    first_token = add_totals(add_totals(of("vision"), of("encode")), of("prefill"))
    decode: float | None = None
    if "decode" in static.phases:
        decode = sum_over_steps(step_flops, shapes.prompt_tokens, steps)
    return Totals(
        vision_flops=static.phases["vision"].flops if "vision" in static.phases else None,
        encode_flops=static.phases["encode"].flops if "encode" in static.phases else None,
        prefill_flops=of("prefill"),
        prefill_including_vision_flops=first_token,
        decode_steps=steps,
        decode_flops=decode,
        request_flops=add_totals(first_token, decode),
        kv_prefill_bytes=kv_resident_bytes(layers, shapes.prompt_tokens, shapes.batch_size)
        if layers
        else None,
    )


def splits(
    adapter: ModelAdapter, model: torch.nn.Module | None, counted: Counted, ranks: Sequence[int]
) -> list[Split]:
    """Return the model over several ranks; nothing where its architecture has no plan."""
    plans = plans_of(model)
    if plans is None:
        return []
    kinds: tuple[Kind, ...] = ("tensor", "tensor+expert") if plans.expert else ("tensor",)
    return [
        Split(kind, number, reason=reason)
        if (reason := adapter.why_not_split(number)) is not None
        else split_model(counted, plans, number, kind)
        for kind in kinds
        for number in ranks
    ]


def cross_checks(
    static: Static, expected: Mapping[str, Mapping[str, int]], labels: Collection[str]
) -> list[CrossCheck]:
    """Hold the count against a closed form: ``expected`` is phase → component → FLOPs."""
    checks = []
    for phase, components in expected.items():
        for label, value in components.items():
            if label in labels:
                seen = static.components.get(label, {}).get(phase, 0)
                checks.append(CrossCheck(phase, label, seen, value, seen == value))
        whole = static.phases[phase].flops or 0
        total = sum(components.values())
        checks.append(CrossCheck(phase, "total", whole, total, whole == total))
    return checks


def add_memory(
    document: StaticDocument,
    shapes: PhaseShapes,
    *,
    weights_bytes: float,
    activations_bytes: float,
    context_limit: int | None,
) -> None:
    """Say what must be in memory, at these shapes and at others; activations are those of the largest operator."""
    cache = kv_resident_bytes(document.kv_layers, shapes.context_tokens, shapes.batch_size)
    document.static.resident_bytes = {
        "weights": weights_bytes,
        "kv_cache": cache,
        "activations": activations_bytes,
        "total": weights_bytes + cache + activations_bytes,
    }
    document.resident = resident_rows(
        weights_bytes, document.kv_layers, activations_bytes / shapes.batch_size, context_limit=context_limit
    )


def document_notes(document: StaticDocument, phases: Collection[str]) -> list[str]:
    """Say what is not known and what disagrees; ``phases`` are those the model has."""
    notes = []
    missing = [phase for phase in phases if phase not in document.static.phases]
    if missing:
        notes.append(f"not known at all: {', '.join(missing)}")
    for check in document.disagreements():
        difference = check.counted_flops - check.closed_form_flops
        notes.append(
            f"{check.phase} {check.component}: counted {check.counted_flops:.0f} FLOPs, closed form"
            f" {check.closed_form_flops:.0f} (difference {difference:+.0f}); the count is reported"
        )
    if document.static.coverage.unknown_ops:
        notes.append("operators of unknown cost were met: " + ", ".join(document.static.coverage.unknown_ops))
    return notes


def describe_error(error: BaseException) -> str:
    """Return an error's type and first line, short enough for a note."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {line[:300]}"


def dtype_name(dtype: torch.dtype) -> str:
    """``bfloat16`` of ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")
