"""Which colour means what, in every chart of every page."""

from __future__ import annotations

from collections.abc import Iterable

from llm_perf_opt.reporting.charts.svg import PALETTE_SIZE

BUDGET_COLOURS = {
    "compute": 0,
    "communication": 2,
    "copy": 4,
    "launch": 1,
    "sync": 5,
    "allocation": 13,
    "data": 11,
    "host": 3,
    "queue": 7,
    "other": 6,
    "idle": 6,
}
"""Palette index of a budget part, so that every chart shows launch time in the same colour."""
FAMILY_COLOURS = {
    "gemm": 0,
    "gemv": 8,
    "attention": 1,
    "kv_cache": 9,
    "elementwise": 2,
    "triton": 10,
    "reduce": 3,
    "norm": 11,
    "copy": 4,
    "memcpy": 12,
    "moe": 5,
    "conv": 13,
    "other": 6,
    "communication": 14,
    "index": 7,
    "sort": 15,
}
"""Palette index of a kernel family: kin share a colour, full and pale. Families not listed take free ones."""

PHASE_COLOURS = {"preprocess": 6, "vision": 2, "encode": 3, "prefill": 0, "mixed": 7, "decode": 1}
"""Palette index of a phase: the same in every chart and on every page."""


def component_colours(names: Iterable[str]) -> dict[str, int]:
    """Give components colours that no phase has; after those are used up, the pale ones."""
    free = [index for index in range(2 * PALETTE_SIZE) if index not in PHASE_COLOURS.values()]
    return {name: free[place % len(free)] for place, name in enumerate(names)}
