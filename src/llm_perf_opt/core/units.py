"""Formatting of quantities: seconds, bytes, FLOPs and ratios as short text. Missing stays visibly missing."""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, datetime


def format_p_value(p: float) -> str:
    """``p = 0.031``, or ``p < 0.001`` below that."""
    return "p < 0.001" if p < 0.001 else f"p = {number(p)}"


def format_signed_percent(ratio: float) -> str:
    """``1.031`` → ``+3.1 %``."""
    return f"{(ratio - 1) * 100:+.1f} %"


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


# Data types by one spelling, and their size.


_DTYPE_ALIASES = {
    "fp64": "float64",
    "double": "float64",
    "fp32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp8": "float8",
    "float8_e4m3fn": "float8",
    "float8_e5m2": "float8",
    "fp4": "float4",
    "nvfp4": "float4",
    "mxfp4": "float4",
}
_DTYPE_BYTES = {
    "float64": 8.0,
    "float32": 4.0,
    "tf32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "float8": 1.0,
    "int8": 1.0,
    "float4": 0.5,
    "int4": 0.5,
}


def canonical_dtype(name: str) -> str:
    """Return the one spelling used as a key of peaks: ``torch.bfloat16``, ``bf16`` → ``bfloat16``."""
    plain = name.strip().lower().removeprefix("torch.")
    return _DTYPE_ALIASES.get(plain, plain)


def known_dtypes() -> tuple[str, ...]:
    """Return every data type that has a size, by its one spelling."""
    return tuple(_DTYPE_BYTES)


def dtype_bytes(name: str) -> float | None:
    """Return the bytes of one element as stored in memory; ``None`` for a type we do not know."""
    return _DTYPE_BYTES.get(canonical_dtype(name).split("_accumulate_")[0])


# The time of day, for display. Durations use a monotonic clock (``time.monotonic``).


def timestamp() -> str:
    """Return the time now, ISO 8601 with the offset of this machine's zone, to the second."""
    now = datetime.now(UTC)
    with contextlib.suppress(ValueError, OverflowError, OSError):  # TZ is none: the time in UTC is as true
        now = now.astimezone()
    return now.isoformat(timespec="seconds")
