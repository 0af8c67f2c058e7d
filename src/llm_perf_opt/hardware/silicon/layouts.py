"""How each operator's tables are laid out: which rows are meant, which columns span the grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llm_perf_opt.hardware.silicon.dtypes import table_spellings
from llm_perf_opt.hardware.silicon.operators import (
    AllReduce,
    Attention,
    Gemm,
    LatentBlock,
    MoeLayer,
    Operator,
)

MOE_DISTRIBUTIONS = ("power_law_1.01", "balanced", "power_law_1.2")
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
    values = (table_spellings(op.dtype), table_spellings(op.cache_dtype), (op.head_dim,), (op.window,))
    return dict(zip(_ATTENTION_EXACT, values, strict=True))


def _attention_point(op: Attention) -> tuple[int, ...]:
    return op.batch, op.tokens, op.heads, op.kv_heads


def _attention_at(op: Attention, at: tuple[int, ...]) -> Attention:
    return replace(op, batch=at[0], tokens=at[1], heads=at[2], kv_heads=at[3])


GEMM = Layout(
    "gemm",
    "gemm_perf.parquet",
    _columns("m", "n", "k"),
    lambda op: {"gemm_dtype": table_spellings(op.dtype)},
    lambda op: (op.m, op.n, op.k),
    moved_to=lambda op, at: replace(op, m=at[0], n=at[1], k=at[2]),
)
CONTEXT_ATTENTION = Layout(
    "attention",
    "context_attention_perf.parquet",
    _columns("batch_size", "isl", "num_heads", "num_key_value_heads"),
    lambda op: {**_attention_exact(op), "step": (0,)},
    _attention_point,
    {"window_size": 0, "step": 0},
    _attention_at,
)
GENERATION_ATTENTION = Layout(
    "attention",
    "generation_attention_perf.parquet",
    (("batch_size",), ("isl", "step"), ("num_heads",), ("num_key_value_heads",)),
    _attention_exact,
    _attention_point,
    {"window_size": 0},
    _attention_at,
)
ENCODER_ATTENTION = Layout(
    "encoder_attention",
    "encoder_attention_perf.parquet",
    _columns("batch_size", "isl", "num_heads"),
    lambda op: {"attn_dtype": table_spellings(op.dtype), "head_dim": (op.head_dim,)},
    lambda op: (op.batch, op.tokens, op.heads),
    moved_to=lambda op, at: replace(op, batch=at[0], tokens=at[1], heads=at[2], kv_heads=at[2]),
)


def _latent_exact(op: LatentBlock) -> dict[str, tuple[Any, ...]]:
    return {
        "architecture": (_LATENT_ARCHITECTURES.get(_latent_sizes(op), ""),),
        "mla_dtype": ("bfloat16",),
        "gemm_type": table_spellings(op.dtype),
        "kv_cache_dtype": table_spellings(op.cache_dtype),
    }


def _latent_sizes(op: LatentBlock) -> tuple[int, ...]:
    return op.hidden, op.query_rank, op.rank, op.rotated, op.key, op.value


_LATENT_ARCHITECTURES: Mapping[tuple[int, ...], str] = {
    (7168, 1536, 512, 64, 128, 128): "DeepseekV3ForCausalLM",
}
"""Sizes → what the tables call a block of those sizes."""


def _latent_at(op: LatentBlock, at: tuple[int, ...]) -> LatentBlock:
    return replace(op, batch=at[0], tokens=at[1], heads=at[2])


CONTEXT_LATENT = Layout(
    "mla",
    "mla_context_module_perf.parquet",
    _columns("batch_size", "isl", "num_heads"),
    lambda op: {**_latent_exact(op), "step": (0,)},
    lambda op: (op.batch, op.tokens, op.heads),
    moved_to=_latent_at,
)
GENERATION_LATENT = Layout(
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
        "moe_dtype": table_spellings(op.dtype),
        "hidden_size": (op.hidden,),
        "inter_size": (op.inter,),
        "topk": (op.top_k,),
        "num_experts": (op.experts,),
        "moe_tp_size": (op.tensor_parallel,),
        "moe_ep_size": (op.expert_parallel,),
        "distribution": MOE_DISTRIBUTIONS,
    },
    lambda op: (op.tokens,),
    moved_to=lambda op, at: replace(op, tokens=at[0]),
)
CUSTOM_ALL_REDUCE = Layout(
    "comm",
    "custom_allreduce_perf.parquet",
    _columns("message_size"),
    lambda op: {"allreduce_dtype": table_spellings(op.dtype), "num_gpus": (op.ranks,)},
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
    "context": CONTEXT_ATTENTION,
    "generation": GENERATION_ATTENTION,
    "encoder": ENCODER_ATTENTION,
}


def layouts_of(operator: Operator) -> tuple[Layout, ...]:
    """Return the kinds of tables that may answer."""
    match operator:
        case Gemm():
            return (GEMM,)
        case Attention():
            return (_ATTENTION[operator.phase],)
        case LatentBlock():
            return (CONTEXT_LATENT if operator.phase == "context" else GENERATION_LATENT,)
        case MoeLayer():
            return (MOE,)
        case AllReduce():
            return (CUSTOM_ALL_REDUCE, NCCL)
