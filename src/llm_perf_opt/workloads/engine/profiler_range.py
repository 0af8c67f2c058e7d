"""Tell a tool when measuring begins and ends: ``cudaProfilerStart`` and ``cudaProfilerStop`` around the measured passes.

For ``pipeline.nsys.capture_range=cudaProfilerApi``, whose captures open and close by these calls. Only a workload that
was asked to makes them: in an ordinary run they would switch another tool on.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

PROFILER_RANGE = "LLM_PERF_OPT_PROFILER_RANGE"
"""Set to 1 in the environment of a program that is to make the calls."""


@contextlib.contextmanager
def profiler_range() -> Iterator[None]:
    """Enclose what is measured, warm-up left out; without a request, do nothing."""
    if os.environ.get(PROFILER_RANGE) != "1":
        yield
        return
    import torch

    torch.cuda.profiler.start()
    try:
        yield
        torch.cuda.synchronize()  # what still runs belongs to the capture
    finally:
        torch.cuda.profiler.stop()
