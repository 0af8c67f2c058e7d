"""Measured times of single operators on real accelerators, from the tables of the extra ``silicon``.

``open_silicon()`` finds them, ``Silicon.time(operator, device)`` answers. Nothing of the package that brings the
tables is imported: only its files are read, by column and filter, one operator of one device at a time.
"""

from __future__ import annotations

from llm_perf_opt.hardware.silicon.installation import AUTO, OFF
from llm_perf_opt.hardware.silicon.lookup import Silicon, open_silicon
from llm_perf_opt.hardware.silicon.operators import (
    AllReduce,
    Attention,
    Gemm,
    LatentBlock,
    MoeLayer,
    Operator,
)
from llm_perf_opt.hardware.silicon.timing import How, Source, Timing

__all__ = [
    "AUTO",
    "OFF",
    "AllReduce",
    "Attention",
    "Gemm",
    "How",
    "LatentBlock",
    "MoeLayer",
    "Operator",
    "Silicon",
    "Source",
    "Timing",
    "open_silicon",
]
