"""The smallest workload that is one, for experiments that really run."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.improve.measuring import Spec
from llm_perf_opt.remedies.data import SearchSettings

TINY = [
    "model=llama_tiny",
    "model.arch.num_hidden_layers=2",
    "infer.max_new_tokens=3",
    "dataset.synthetic_tokens=8",
    "infer.warmup_rounds=0",
]
FEW: dict[str, Any] = {"baseline": TINY, "most_blocks": 8, "limit_s": 30.0}


def spec(patch: str | None = None, limit_s: float = 20.0) -> Spec:
    """Return an experiment of two sides with the same settings."""
    return Spec(
        TINY, TINY, "total", SearchSettings(most_blocks=6, seed=0, most_samples=2), 0.05, limit_s, patch=patch
    )
