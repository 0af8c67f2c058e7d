"""A target in words; apart from the rest, because pages need it and nothing of the tables."""

from __future__ import annotations

from llm_perf_opt.core import units
from llm_perf_opt.model.summary.target import KernelTarget


def target_text(target: KernelTarget) -> str:
    """``× 2.4 of the best measured (vLLM 0.24, cuBLAS)``."""
    return f"× {units.number(target.ratio)} of the best measured ({target.source})"
