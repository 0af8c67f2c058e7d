"""Matrix products with narrow loads, by their names: CUTLASS says how many elements a thread loads at a time."""

from __future__ import annotations

import re

ALIGNED_BYTES = 16
"""The widest load of a thread, which kernels for aligned matrices use."""
_ALIGNMENT = re.compile(r"_align(?P<elements>[12])(?!\d)")
_PLAIN_CORES = re.compile(r"simt", re.IGNORECASE)
"""Kernels without matrix units load element by element whatever the alignment."""
_ELEMENT_BYTES = (
    (1, re.compile(r"_(s8|u8|i8|e4m3|e5m2)|_i\d+gemm")),
    (2, re.compile(r"bf16|f16|_h\d+gemm")),
    (8, re.compile(r"_d\d+gemm|f64")),
    (4, re.compile(r"tf32|_s\d+gemm|f32")),
)


def load_narrowing(name: str) -> float | None:
    """Return how many times as wide the loads of an aligned product would be; ``None`` for kernels that say nothing of it."""
    match = _ALIGNMENT.search(name)
    if match is None or _PLAIN_CORES.search(name):
        return None
    size = next((size for size, pattern in _ELEMENT_BYTES if pattern.search(name)), None)
    if size is None or (wide := ALIGNED_BYTES / (size * int(match["elements"]))) <= 1:
        return None
    return wide
