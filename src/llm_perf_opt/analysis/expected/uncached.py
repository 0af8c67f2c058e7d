"""What an operator reads from memory in any model, however often a table's timing repeated it.

Tables repeat one call. Where its weights fit into a cache, later repetitions find them there; a model meets other weights in
between. No expected time is shorter than reading these bytes once.
"""

from __future__ import annotations

from llm_perf_opt.hardware.silicon import AllReduce, Attention, Gemm, LatentBlock, MoeLayer, Operator
from llm_perf_opt.hardware.silicon.dtypes import element_bytes


def uncached_bytes(operator: Operator) -> float:
    """Return weights and cached keys and values; of experts those of one token, which others may share."""
    match operator:
        case Gemm():
            return float(operator.n) * operator.k * element_bytes(operator.dtype)
        case Attention(phase="generation"):
            seen = min(operator.tokens, operator.window) if operator.window else operator.tokens
            position = 2.0 * operator.kv_heads * operator.head_dim * element_bytes(operator.cache_dtype)
            return operator.batch * seen * position
        case MoeLayer(expert_parallel=1):
            expert = 3.0 * operator.hidden * operator.inter * element_bytes(operator.dtype)
            return operator.top_k * expert / operator.tensor_parallel
        case LatentBlock():
            seen = operator.tokens if operator.phase == "generation" else 0
            cached = operator.batch * seen * (operator.rank + operator.rotated)
            return operator.weights * element_bytes(operator.dtype) + cached * element_bytes(
                operator.cache_dtype
            )
        case Attention() | MoeLayer() | AllReduce():
            return 0.0
