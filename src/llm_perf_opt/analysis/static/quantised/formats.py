"""Bytes of one weight matrix in each storage format: packed values, scales, zero points.

A format is a function from the matrix to its bytes. Sizes follow the tensors that the libraries write; marks a pass never
reads (a shape, a version, a description as text) are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_INT32_BITS = 32
_FP32 = 4
_FP16 = 2
_NF4_BLOCK = 64
"""Values that share a scale in bitsandbytes' 4-bit types."""
_NESTED_BLOCK = 256
"""Scales that share a scale where they are quantised themselves."""
_NF4_TABLE = 16 * _FP32
_NESTED_TABLE = 256 * _FP32
_MX_BLOCK = 32


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight as a linear layer holds it; routed experts are a stack of them."""

    rows: int
    """Outputs."""
    columns: int
    """Inputs: groups run along them."""
    stack: int = 1

    @property
    def numel(self) -> int:
        """All elements."""
        return self.rows * self.columns * self.stack


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How a parameter is stored and multiplied."""

    dtype: str
    nbytes: Callable[[Matrix], int]
    compute_dtype: str | None = None
    """Type of both operands where activations are quantised too; ``None``: weights are widened first."""
    block: tuple[int, int] | None = None
    """Outputs and inputs of a block with a scale of its own."""


def ceil_div(value: int, unit: int) -> int:
    """Divide, rounding up."""
    return -(-value // unit)


def _groups(matrix: Matrix, group_size: int) -> int:
    return ceil_div(matrix.columns, group_size) if group_size > 0 else 1


def block_scaled(
    element_bits: int, block: tuple[int, int] | None, scale_bytes: int, *, activation_scale: bool = False
) -> Callable[[Matrix], int]:
    """Values with one scale for each block of rows × columns; ``None``: one scale for the whole matrix."""

    def nbytes(matrix: Matrix) -> int:
        scales = (
            ceil_div(matrix.rows, block[0]) * ceil_div(matrix.columns, block[1]) if block is not None else 1
        )
        each = ceil_div(matrix.rows * matrix.columns * element_bits, 8) + scales * scale_bytes
        return matrix.stack * (each + (_FP32 if activation_scale else 0))

    return nbytes


def gptq(bits: int, group_size: int) -> Callable[[Matrix], int]:
    """``qweight`` and ``qzeros`` packed into 32-bit words, ``scales`` in 16 bits, ``g_idx`` of every input."""

    def nbytes(matrix: Matrix) -> int:
        groups = _groups(matrix, group_size)
        values = ceil_div(matrix.columns * bits, _INT32_BITS) * matrix.rows * 4
        zeros = groups * ceil_div(matrix.rows * bits, _INT32_BITS) * 4
        return matrix.stack * (values + zeros + groups * matrix.rows * _FP16 + matrix.columns * 4)

    return nbytes


def awq(bits: int, group_size: int) -> Callable[[Matrix], int]:
    """``qweight`` and ``qzeros`` packed along the outputs into 32-bit words, ``scales`` in 16 bits."""

    def nbytes(matrix: Matrix) -> int:
        groups = _groups(matrix, group_size)
        words = ceil_div(matrix.rows * bits, _INT32_BITS) * 4
        return matrix.stack * ((matrix.columns + groups) * words + groups * matrix.rows * _FP16)

    return nbytes


def mxfp4(matrix: Matrix) -> int:
    """32 values in 16 bytes (``_blocks``) and one byte of scale (``_scales``)."""
    return matrix.stack * matrix.rows * ceil_div(matrix.columns, _MX_BLOCK) * (_MX_BLOCK // 2 + 1)


def bitsandbytes_4bit(*, double_quant: bool) -> Callable[[Matrix], int]:
    """Two values per byte, a scale per 64 values (``absmax``), in 8 bits with scales of their own if nested."""

    def nbytes(matrix: Matrix) -> int:
        blocks = ceil_div(matrix.numel, _NF4_BLOCK)
        scales = blocks * _FP32
        if double_quant:
            scales = blocks + ceil_div(blocks, _NESTED_BLOCK) * _FP32 + _NESTED_TABLE
        return ceil_div(matrix.numel, 2) + scales + _NF4_TABLE

    return nbytes


def bitsandbytes_8bit(matrix: Matrix) -> int:
    """One byte per value and a 32-bit scale per output (``SCB``)."""
    return matrix.numel + matrix.rows * matrix.stack * _FP32


def per_row(
    element_bits: int, scale_bytes: int, group_size: int = 0, *, with_zero: bool = False
) -> Callable[[Matrix], int]:
    """Values with a scale (and a zero point of its size) for each output, or each group of inputs of it."""

    def nbytes(matrix: Matrix) -> int:
        scales = matrix.rows * _groups(matrix, group_size)
        values = ceil_div(matrix.rows * matrix.columns * element_bits, 8)
        return matrix.stack * (values + scales * scale_bytes * (2 if with_zero else 1))

    return nbytes


@dataclass(frozen=True, slots=True)
class Compressed:
    """The parts of a compressed-tensors scheme that decide its size."""

    bits: int
    strategy: str
    """``tensor``, ``channel``, ``group``, ``block``, ``tensor_group``."""
    group_size: int
    block: tuple[int, int]
    packed: bool
    """Whether values are packed into 32-bit words, row by row."""
    symmetric: bool
    ordered: bool
    """Whether columns carry the number of their group (``actorder=group``)."""
    scale_bytes: int
    fixed_bytes: int
    """Scales of the whole matrix and of its inputs."""

    def nbytes(self, matrix: Matrix) -> int:
        """Return the bytes of a matrix."""
        rows, columns = matrix.rows, matrix.columns
        groups = _groups(matrix, self.group_size) if self.strategy in ("group", "tensor_group") else 1
        scales = {
            "tensor": 1,
            "block": ceil_div(rows, self.block[0]) * ceil_div(columns, self.block[1]),
        }.get(self.strategy, rows * groups)
        if self.packed:
            values = rows * ceil_div(columns, _INT32_BITS // self.bits) * 4
            zeros = ceil_div(rows, _INT32_BITS // self.bits) * 4 * groups
        else:
            values, zeros = ceil_div(rows * columns * self.bits, 8), scales
        total = values + scales * self.scale_bytes + self.fixed_bytes
        total += 0 if self.symmetric else zeros
        return matrix.stack * (total + (columns * 4 if self.ordered else 0))
