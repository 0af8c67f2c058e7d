"""The operators that tables hold, by shape, data type and what they compute and move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.hardware.silicon.dtypes import element_bytes

_OUTPUT_BYTES = 2.0
"""Products of small types are written in 16 bits."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """``[m, k] × [k, n]``: m positions meet a weight of n outputs."""

    m: int
    n: int
    k: int
    dtype: str = "bfloat16"

    @property
    def flops(self) -> float:
        """Multiply-add counted as two."""
        return 2.0 * self.m * self.n * self.k

    @property
    def moved_bytes(self) -> float:
        """Both inputs read once, the output written."""
        size = element_bytes(self.dtype)
        return (self.m + self.n) * self.k * size + self.m * self.n * max(size, _OUTPUT_BYTES)


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of one layer: ``context`` over a prompt (causal), ``generation`` of one position over a cache, ``encoder``
    of every position with every other."""

    phase: Literal["context", "generation", "encoder"]
    batch: int
    tokens: int
    """``context``: positions of the prompt; ``generation``: positions attended to, the new one included."""
    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    """Positions attended to at most; 0: all."""
    dtype: str = "bfloat16"
    cache_dtype: str = "bfloat16"

    @property
    def flops(self) -> float:
        """Both products, only the pairs the mask leaves."""
        seen = min(self.tokens, self.window) if self.window else self.tokens
        whole = seen * (seen + 1) / 2 + (self.tokens - seen) * seen
        pairs = {"context": whole, "generation": seen, "encoder": self.tokens**2}[self.phase]
        return 4.0 * self.batch * self.heads * self.head_dim * pairs

    @property
    def moved_bytes(self) -> float:
        """Queries and outputs, keys and values once."""
        size, cached = element_bytes(self.dtype), element_bytes(self.cache_dtype)
        seen = min(self.tokens, self.window) if self.window and self.phase == "generation" else self.tokens
        queries = 1 if self.phase == "generation" else self.tokens
        keys = 2.0 * self.batch * seen * self.kv_heads * self.head_dim * cached
        return keys + 2.0 * self.batch * queries * self.heads * self.head_dim * size


@dataclass(frozen=True, slots=True)
class MoeLayer:
    """Routed experts of one layer on one rank: routing done, gate, up and down products of the chosen experts."""

    tokens: int
    hidden: int
    inter: int
    """Inner size of one whole expert."""
    top_k: int
    experts: int
    """Experts of the layer, on all ranks."""
    tensor_parallel: int = 1
    expert_parallel: int = 1
    dtype: str = "bfloat16"

    @property
    def flops(self) -> float:
        """Three products of the chosen experts, on this rank."""
        ranks = self.tensor_parallel * self.expert_parallel
        return 6.0 * self.tokens * self.top_k * self.hidden * self.inter / ranks

    @property
    def moved_bytes(self) -> float:
        """Weights of the experts that are met, and activations."""
        held = self.experts / self.expert_parallel
        met = held * (1.0 - (1.0 - min(self.top_k / self.experts, 1.0)) ** self.tokens)
        size = element_bytes(self.dtype)
        weights = met * 3.0 * self.hidden * self.inter / self.tensor_parallel * size
        return weights + 2.0 * self.tokens * self.hidden * _OUTPUT_BYTES


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum of one message over all ranks of a group."""

    elements: int
    ranks: int
    dtype: str = "bfloat16"

    @property
    def flops(self) -> float:
        """Additions do not count against a link."""
        return 0.0

    @property
    def moved_bytes(self) -> float:
        """What a rank sends and receives at least."""
        size = element_bytes(self.dtype)
        return 2.0 * (self.ranks - 1) / self.ranks * self.elements * size


@dataclass(frozen=True, slots=True)
class LatentBlock:
    """Latent attention of one layer on one rank with all its projections: what tables time as one."""

    phase: Literal["context", "generation"]
    batch: int
    tokens: int
    """As for :class:`Attention`."""
    heads: int
    """Of this rank."""
    hidden: int
    query_rank: int
    rank: int
    rotated: int
    key: int
    """Size of a head's key, the rotated part left out."""
    value: int
    dtype: str = "bfloat16"
    cache_dtype: str = "bfloat16"

    @property
    def weights(self) -> float:
        """Elements of the projections."""
        down = self.hidden * (self.query_rank + self.rank + self.rotated)
        up = self.heads * (self.query_rank * (self.key + self.rotated) + self.rank * (self.key + self.value))
        return down + up + self.heads * self.value * self.hidden

    @property
    def flops(self) -> float:
        """Projections of the new positions, and attention: expanded over a prompt, absorbed over a cache."""
        rows = self.batch * (1 if self.phase == "generation" else self.tokens)
        if self.phase == "generation":
            pairs, size = float(self.batch * self.tokens), 2 * self.rank + self.rotated
        else:
            pairs, size = (
                self.batch * self.tokens * (self.tokens + 1) / 2,
                self.key + self.rotated + self.value,
            )
        return 2.0 * rows * self.weights + 2.0 * self.heads * pairs * size

    @property
    def moved_bytes(self) -> float:
        """Weights, the compressed cache, positions in and out."""
        rows = self.batch * (1 if self.phase == "generation" else self.tokens)
        cache = self.batch * self.tokens * (self.rank + self.rotated) * element_bytes(self.cache_dtype)
        return self.weights * element_bytes(self.dtype) + cache + 2.0 * rows * self.hidden * _OUTPUT_BYTES


Operator = Gemm | Attention | LatentBlock | MoeLayer | AllReduce
