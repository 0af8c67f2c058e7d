"""Inference without profiling: the same engine, predictions and gallery under ``direct_inference/``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from llm_perf_opt.runners.profile_orchestrator import main as orchestrate

TOGGLES = (
    "pipeline.static_analysis.enable=false",
    "pipeline.torch_profiler.enable=false",
    "pipeline.direct_inference.enable=true",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the orchestrator with only the direct_inference stage on."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return orchestrate([*TOGGLES, *arguments])


if __name__ == "__main__":
    sys.exit(main())
