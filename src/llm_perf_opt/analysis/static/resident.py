"""What must be in memory at which context and batch."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.analysis.static.build import kv_resident_bytes
from llm_perf_opt.model.static.document import KvLayers, ResidentRow

_CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_BATCHES = (1, 8, 32)


def resident_rows(
    weights_bytes: float,
    layers: Sequence[KvLayers],
    activation_bytes_per_sequence: float,
    *,
    context_limit: int | None,
    batch_sizes: Sequence[int] = _BATCHES,
) -> list[ResidentRow]:
    """Tabulate memory against context and batch, up to the model's context limit."""
    contexts = [c for c in _CONTEXTS if context_limit is None or c < context_limit]
    if context_limit is not None:
        contexts.append(context_limit)
    rows = []
    for batch in batch_sizes:
        for context in contexts:
            cache = kv_resident_bytes(list(layers), context, batch)
            activations = activation_bytes_per_sequence * batch
            total = weights_bytes + cache + activations
            rows.append(ResidentRow(context, batch, weights_bytes, cache, activations, total))
    return rows


def add_totals(left: float | None, right: float | None) -> float | None:
    """Add two totals; an unknown part makes the sum unknown."""
    return None if left is None or right is None else left + right
