"""Quantities for people: seconds, bytes, FLOPs and ratios as short text. Missing stays visibly missing."""

from __future__ import annotations

import math

MISSING = "–"
"""What every formatter prints for ``None``: a dash, never a zero."""

_ROUNDS_UP = 0.9995
"""What is this near to the next unit is shown in it: 999.96 ms is 1.00 s."""
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_DECIMAL = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


def _digits(value: float) -> str:
    """Three significant digits without an exponent."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value)
    # Rounded first: 9.996 is 10.0, not 10.00.
    rounded = float(f"{value:.2e}") if abs(value) < 1000 else value
    magnitude = math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(0, 2 - magnitude)}f}"


def seconds(value: float | None) -> str:
    """``0.0123`` → ``12.3 ms``."""
    if value is None:
        return MISSING
    for factor, unit in _SECONDS:
        if abs(value) >= factor * _ROUNDS_UP:
            return f"{_digits(value / factor)} {unit}"
    return "0 s" if value == 0 else f"{_digits(value / 1e-9)} ns"


def _scaled(value: float | None, unit: str) -> str:
    if value is None:
        return MISSING
    for factor, prefix in _DECIMAL:
        if abs(value) >= factor * _ROUNDS_UP:
            return f"{_digits(value / factor)} {prefix}{unit}"
    return f"{_digits(value)} {unit}".rstrip()


def flops(value: float | None) -> str:
    """``4.27e12`` → ``4.27 TFLOP``."""
    return _scaled(value, "FLOP")


def flops_per_s(value: float | None) -> str:
    """``2.095e14`` → ``210 TFLOP/s``."""
    return _scaled(value, "FLOP/s")


def bytes_per_s(value: float | None) -> str:
    """``1.792e12`` → ``1.79 TB/s`` (decimal, as data sheets count)."""
    return _scaled(value, "B/s")


def count(value: float | None) -> str:
    """``3336106240`` → ``3.34 G``; small integers stay as they are."""
    if value is not None and abs(value) < 10_000 and float(value).is_integer():
        return str(int(value))
    return _scaled(value, "").strip()


def size(value: float | None) -> str:
    """``503316480`` → ``480 MiB`` (binary, as memory is counted)."""
    if value is None:
        return MISSING
    for factor, unit in _BINARY:
        if abs(value) >= factor:
            return f"{_digits(value / factor)} {unit}"
    return f"{int(value)} B"


def percent(ratio: float | None) -> str:
    """``0.307`` → ``30.7 %``; tiny shares keep three significant digits."""
    return MISSING if ratio is None else f"{_digits(ratio * 100)} %"


def number(value: float | None, unit: str = "") -> str:
    """Three significant digits and a unit, for quantities without a formatter of their own."""
    return MISSING if value is None else f"{_digits(value)} {unit}".rstrip()
