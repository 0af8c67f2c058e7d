"""Deprecated: Nsight Systems and Nsight Compute (once "stage 2"). Use ``llm-perf-opt run``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from llm_perf_opt.runners.deprecated import run_deprecated

TOGGLES = (
    "pipeline.static_analysis.enable=false",
    "pipeline.torch_profiler.enable=false",
    "pipeline.nsys.enable=true",
    "pipeline.ncu.enable=true",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the orchestrator with the toggles of the old runner."""
    return run_deprecated("deep_profile_runner", TOGGLES, argv)


if __name__ == "__main__":
    sys.exit(main())
