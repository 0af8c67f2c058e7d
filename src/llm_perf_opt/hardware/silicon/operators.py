"""The operators that tables hold, by shape, data type, FLOPs and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from llm_perf_opt.core.units import canonical_dtype, dtype_bytes

# How each operator's tables are laid out: row filters and grid columns.


_MOE_DISTRIBUTIONS = ("power_law_1.01", "balanced", "power_law_1.2")
"""How tokens fall on experts: lightly skewed first, as in practice."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One kind of table."""

    family: str
    """Folder below a system's."""
    file: str
    axes: tuple[tuple[str, ...], ...]
    """Axes of the grid, each a column or the sum of several."""
    exact: Callable[[Any], Mapping[str, tuple[Any, ...]]]
    """Operator → column → values meant, the first that the table has is taken."""
    point: Callable[[Any], tuple[int, ...]]
    """Operator → its place on the axes."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Columns that older tables lack, and what they would say."""
    moved_to: Callable[[Any, tuple[int, ...]], Any] = lambda op, _point: op
    """The operator at another place of the grid."""


def _columns(*names: str) -> tuple[tuple[str, ...], ...]:
    return tuple((name,) for name in names)


_ATTENTION_EXACT = ("attn_dtype", "kv_cache_dtype", "head_dim", "window_size")


def _attention_exact(op: Attention) -> dict[str, tuple[Any, ...]]:
    values = (_table_spellings(op.dtype), _table_spellings(op.cache_dtype), (op.head_dim,), (op.window,))
    return dict(zip(_ATTENTION_EXACT, values, strict=True))


def _attention_point(op: Attention) -> tuple[int, ...]:
    return op.batch, op.tokens, op.heads, op.kv_heads


def _attention_at(op: Attention, at: tuple[int, ...]) -> Attention:
    return replace(op, batch=at[0], tokens=at[1], heads=at[2], kv_heads=at[3])


GEMM = Layout(
    "gemm",
    "gemm_perf.parquet",
    _columns("m", "n", "k"),
    lambda op: {"gemm_dtype": _table_spellings(op.dtype)},
    lambda op: (op.m, op.n, op.k),
    moved_to=lambda op, at: replace(op, m=at[0], n=at[1], k=at[2]),
)
_CONTEXT_ATTENTION = Layout(
    "attention",
    "context_attention_perf.parquet",
    _columns("batch_size", "isl", "num_heads", "num_key_value_heads"),
    lambda op: {**_attention_exact(op), "step": (0,)},
    _attention_point,
    {"window_size": 0, "step": 0},
    _attention_at,
)
_GENERATION_ATTENTION = Layout(
    "attention",
    "generation_attention_perf.parquet",
    (("batch_size",), ("isl", "step"), ("num_heads",), ("num_key_value_heads",)),
    _attention_exact,
    _attention_point,
    {"window_size": 0},
    _attention_at,
)
_ENCODER_ATTENTION = Layout(
    "encoder_attention",
    "encoder_attention_perf.parquet",
    _columns("batch_size", "isl", "num_heads"),
    lambda op: {"attn_dtype": _table_spellings(op.dtype), "head_dim": (op.head_dim,)},
    lambda op: (op.batch, op.tokens, op.heads),
    moved_to=lambda op, at: replace(op, batch=at[0], tokens=at[1], heads=at[2], kv_heads=at[2]),
)


def _latent_exact(op: LatentBlock) -> dict[str, tuple[Any, ...]]:
    return {
        "architecture": (_LATENT_ARCHITECTURES.get(_latent_sizes(op), ""),),
        "mla_dtype": ("bfloat16",),
        "gemm_type": _table_spellings(op.dtype),
        "kv_cache_dtype": _table_spellings(op.cache_dtype),
    }


def _latent_sizes(op: LatentBlock) -> tuple[int, ...]:
    return op.hidden, op.query_rank, op.rank, op.rotated, op.key, op.value


_LATENT_ARCHITECTURES: Mapping[tuple[int, ...], str] = {
    (7168, 1536, 512, 64, 128, 128): "DeepseekV3ForCausalLM",
}
"""Sizes → what the tables call a block of those sizes."""


def _latent_at(op: LatentBlock, at: tuple[int, ...]) -> LatentBlock:
    return replace(op, batch=at[0], tokens=at[1], heads=at[2])


_CONTEXT_LATENT = Layout(
    "mla",
    "mla_context_module_perf.parquet",
    _columns("batch_size", "isl", "num_heads"),
    lambda op: {**_latent_exact(op), "step": (0,)},
    lambda op: (op.batch, op.tokens, op.heads),
    moved_to=_latent_at,
)
_GENERATION_LATENT = Layout(
    "mla",
    "mla_generation_module_perf.parquet",
    (("batch_size",), ("isl", "step"), ("num_heads",)),
    _latent_exact,
    lambda op: (op.batch, op.tokens, op.heads),
    moved_to=_latent_at,
)
MOE = Layout(
    "moe",
    "moe_perf.parquet",
    _columns("num_tokens"),
    lambda op: {
        "moe_dtype": _table_spellings(op.dtype),
        "hidden_size": (op.hidden,),
        "inter_size": (op.inter,),
        "topk": (op.top_k,),
        "num_experts": (op.experts,),
        "moe_tp_size": (op.tensor_parallel,),
        "moe_ep_size": (op.expert_parallel,),
        "distribution": _MOE_DISTRIBUTIONS,
    },
    lambda op: (op.tokens,),
    moved_to=lambda op, at: replace(op, tokens=at[0]),
)
_CUSTOM_ALL_REDUCE = Layout(
    "comm",
    "custom_allreduce_perf.parquet",
    _columns("message_size"),
    lambda op: {"allreduce_dtype": _table_spellings(op.dtype), "num_gpus": (op.ranks,)},
    lambda op: (op.elements,),
    moved_to=lambda op, at: replace(op, elements=at[0]),
)
NCCL = Layout(
    "comm",
    "nccl_perf.parquet",
    _columns("message_size"),
    lambda op: {"nccl_dtype": ("half", "bfloat16"), "num_gpus": (op.ranks,), "op_name": ("all_reduce",)},
    lambda op: (op.elements,),
    moved_to=lambda op, at: replace(op, elements=at[0]),
)
_ATTENTION = {
    "context": _CONTEXT_ATTENTION,
    "generation": _GENERATION_ATTENTION,
    "encoder": _ENCODER_ATTENTION,
}


def layouts_of(operator: Operator) -> tuple[Layout, ...]:
    """Return the kinds of tables that may apply."""
    match operator:
        case Gemm():
            return (GEMM,)
        case Attention():
            return (_ATTENTION[operator.phase],)
        case LatentBlock():
            return (_CONTEXT_LATENT if operator.phase == "context" else _GENERATION_LATENT,)
        case MoeLayer():
            return (MOE,)
        case AllReduce():
            return (_CUSTOM_ALL_REDUCE, NCCL)


# Data types as the tables spell them.


_SPELLINGS = {
    "bfloat16": ("bfloat16",),
    # Tensor cores treat all 16-bit types the same: no table has separate float16 times.
    "float16": ("bfloat16", "float16"),
    "float8": ("fp8",),
    "float4": ("nvfp4",),
    "int8": ("int8_wo",),
    "int4": ("int4_wo",),
}
"""Ours → theirs, the first that a table has is taken; a name that is not here is looked for as it is."""
_BYTES = {"fp8_block": 1.0, "int8_wo": 1.0, "sq": 1.0, "int4_wo": 0.5, "w4a16_mxfp4": 0.5, "w4afp8": 0.5}


def _table_spellings(dtype: str) -> tuple[str, ...]:
    """Return the names a data type may have in a table, in order; ``fp8_block`` and the like may be requested by name."""
    if dtype in _BYTES:
        return (dtype,)
    plain = canonical_dtype(dtype)
    return _SPELLINGS.get(plain, (plain,))


def element_bytes(dtype: str) -> float:
    """Return the size of one stored element; 2 for an unknown type."""
    return _BYTES.get(dtype) or dtype_bytes(dtype) or 2.0


_OUTPUT_BYTES = 2.0
"""Products of small types are written in 16 bits."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """``[m, k] × [k, n]``: m positions, a weight with n outputs."""

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
        """Both products, only the unmasked pairs."""
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
        """Weights of the used experts, and activations."""
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
