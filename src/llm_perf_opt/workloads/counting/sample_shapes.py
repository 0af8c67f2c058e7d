"""The shapes of a run's real samples, for a static count that holds for exactly this run."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.workloads.base import PhaseShapes, Sample

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig
    from llm_perf_opt.workloads.base import ModelAdapter

Weighted = list[tuple[PhaseShapes, int]]


def sample_shapes(config: AppConfig, adapter: ModelAdapter, steps: int) -> tuple[Weighted, list[str]]:
    """Prepare every batch of the run on the CPU; return its distinct shapes with counts, and what was left out.

    The decode step is taken in the middle of ``steps``.
    """
    import torch

    from llm_perf_opt.workloads.registry import load_dataset
    from llm_perf_opt.workloads.setup import workload_config

    workload = workload_config(config)
    dataset = load_dataset(workload.dataset)
    seen: dict[str, tuple[PhaseShapes, int]] = {}
    for batch in _batches(dataset.samples(), workload.infer.batch_size):
        prepared = adapter.prepare(batch, "cpu", torch.float32)
        shapes = adapter.shapes(prepared, prepared.prompt_tokens + (steps - 1) // 2)
        known = seen.get(repr(shapes))
        seen[repr(shapes)] = (shapes, known[1] + 1 if known else 1)
    if not seen:
        raise InputError(
            "the data set has no sample to take shapes from",
            hint="check dataset.root and dataset.sampling, or set pipeline.static_analysis.use_synthetic_inputs=true",
        )
    return list(seen.values()), list(dataset.problems())


def _batches(samples: Iterator[Sample], size: int) -> Iterator[Sequence[Sample]]:
    while batch := list(itertools.islice(samples, size)):
        yield batch


def representative_shapes(shapes: Weighted, limit: int) -> tuple[Weighted, str | None]:
    """Keep at most ``limit`` shapes, evenly spread over prompt lengths; each stands for its nearest neighbours."""
    if len(shapes) <= limit:
        return shapes, None
    ordered = sorted(shapes, key=lambda item: (item[0].prompt_tokens, item[0].batch_size))
    step = (len(ordered) - 1) / max(1, limit - 1)
    kept = sorted({round(index * step) for index in range(limit)})
    weights = dict.fromkeys(kept, 0)
    for index, (shape, times) in enumerate(ordered):
        near = min(
            kept, key=lambda k: (abs(ordered[k][0].prompt_tokens - shape.prompt_tokens), abs(k - index))
        )
        weights[near] += times
    note = f"{len(shapes)} distinct shapes of samples are represented by {len(kept)} (max_shapes)"
    return [(dataclasses.replace(ordered[k][0]), weights[k]) for k in kept], note
