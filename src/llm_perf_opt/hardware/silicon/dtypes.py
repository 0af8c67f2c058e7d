"""Data types as the tables spell them."""

from __future__ import annotations

from llm_perf_opt.core.dtypes import canonical_dtype, dtype_bytes

_SPELLINGS = {
    "bfloat16": ("bfloat16",),
    # 16 bits are 16 bits to a tensor core: no table times float16 apart.
    "float16": ("bfloat16", "float16"),
    "float8": ("fp8",),
    "float4": ("nvfp4",),
    "int8": ("int8_wo",),
    "int4": ("int4_wo",),
}
"""Ours → theirs, the first that a table has is taken; a name that is not here is looked for as it is."""
_BYTES = {"fp8_block": 1.0, "int8_wo": 1.0, "sq": 1.0, "int4_wo": 0.5, "w4a16_mxfp4": 0.5, "w4afp8": 0.5}


def table_spellings(dtype: str) -> tuple[str, ...]:
    """Return the names a data type may have in a table, in order; ``fp8_block`` and the like may be asked for by name."""
    if dtype in _BYTES:
        return (dtype,)
    plain = canonical_dtype(dtype)
    return _SPELLINGS.get(plain, (plain,))


def element_bytes(dtype: str) -> float:
    """Return the size of one stored element; 2 for a type nobody knows."""
    return _BYTES.get(dtype) or dtype_bytes(dtype) or 2.0
