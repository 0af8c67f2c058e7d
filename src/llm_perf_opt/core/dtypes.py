"""Data types by one spelling, and their size."""

from __future__ import annotations

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
