"""The layers of a decoder as they reach the device: fused, as compiled engines run them, or piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .gpus import BF16, Gpu, Kernel


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of a decoder."""

    hidden: int = 4096
    inner: int = 11008
    heads: int = 32
    kv_heads: int = 8
    layers: int = 12
    vocabulary: int = 32000
    parallel: int = 1
    """Ranks that share every layer."""

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def qkv(self) -> int:
        return self.head * (self.heads + 2 * self.kv_heads) // self.parallel


@dataclass(frozen=True, slots=True)
class Style:
    """How the layers are written."""

    eager_norm: bool = False
    """RMSNorm and rotary embedding one operator at a time."""
    eager_attention: bool = False
    """Two batched products with a softmax between them."""
    misaligned: float = 0.0
    """How many times slower the up projection is, whose size is odd; 0: sizes are even."""


def attention_part(
    gpu: Gpu, model: Model, style: Style, batch: int, tokens: int, context: int
) -> Iterator[Kernel]:
    """From the layer's input to the output projection; ``tokens`` new positions per sequence."""
    rows = batch * tokens
    yield from norm(gpu, style, rows, model.hidden)
    yield gpu.gemm(rows, model.qkv, model.hidden)
    moved = float(rows * model.qkv * BF16)
    if style.eager_norm:
        fused = gpu.moving("rope", 2 * moved, "_C::rotary_embedding")
        yield from _unfused(_eager_rope(gpu, moved), fused)
    else:
        yield gpu.moving("rope", 2 * moved, "_C::rotary_embedding")
    yield gpu.moving("cache", moved, "_C_cache_ops::reshape_and_cache_flash")
    heads = model.heads // model.parallel
    if style.eager_attention:
        yield from _eager_attention(gpu, batch * heads, tokens, context, model.head)
    else:
        yield _flash(gpu, model, batch, tokens, context)
    yield gpu.gemm(rows, model.hidden, model.hidden // model.parallel)


def feed_forward_part(gpu: Gpu, model: Model, style: Style, batch: int, tokens: int) -> Iterator[Kernel]:
    """From the second norm to the down projection."""
    rows, inner = batch * tokens, model.inner // model.parallel
    yield from norm(gpu, style, rows, model.hidden)
    if style.misaligned:
        slow = gpu.gemm(
            rows,
            2 * inner + 1,
            model.hidden,
            "aten::addmm",
            name="gemm_misaligned",
            slowdown=style.misaligned,
        )
        yield replace(slow, wasted=("misaligned-gemm", 1 - 1 / style.misaligned))
    else:
        yield gpu.gemm(rows, 2 * inner, model.hidden, name="gemm_wide")
    yield gpu.moving("act", 3.0 * rows * inner * BF16, "_C::silu_and_mul")
    yield gpu.gemm(rows, model.hidden, inner)


def norm(gpu: Gpu, style: Style, rows: int, width: int) -> Iterator[Kernel]:
    """RMSNorm with the residual: one kernel, or the nine that eager torch makes of it."""
    size = float(rows * width * BF16)
    fused = gpu.moving("norm", 4 * size, "_C::fused_add_rms_norm")
    if style.eager_norm:
        yield from _unfused(_eager_norm(gpu, rows, size), fused)
    else:
        yield fused


def _unfused(chain: Iterable[Kernel], fused: Kernel) -> Iterator[Kernel]:
    """A chain of kernels that one could do: what the one would need is not lost."""
    kernels = list(chain)
    lost = 1 - fused.duration_ns / sum(kernel.duration_ns for kernel in kernels)
    return (replace(kernel, wasted=("unfused-elementwise", lost)) for kernel in kernels)


def _eager_norm(gpu: Gpu, rows: int, size: float) -> Iterator[Kernel]:
    yield gpu.moving("add", 3 * size, "aten::add")
    yield gpu.moving("to_float", 3 * size, "aten::to", "aten::_to_copy", "aten::copy_")
    yield gpu.moving("pow", 4 * size, "aten::pow")
    yield gpu.moving("mean", 2 * size, "aten::mean")
    yield gpu.moving("add_scalar", 8.0 * rows, "aten::add")
    yield gpu.moving("rsqrt", 8.0 * rows, "aten::rsqrt")
    yield gpu.moving("mul_float", 4 * size, "aten::mul")
    yield gpu.moving("to_bf16", 3 * size, "aten::to", "aten::_to_copy", "aten::copy_")
    yield gpu.moving("mul", 2 * size, "aten::mul")


def _eager_rope(gpu: Gpu, moved: float) -> Iterator[Kernel]:
    """``q * cos + rotate_half(q) * sin``, for queries and keys."""
    for part in (0.66, 0.34):
        size = moved * part
        yield gpu.moving("mul", 2 * size, "aten::mul")
        yield gpu.moving("neg", size, "aten::neg")
        yield gpu.moving("cat", 2 * size, "aten::cat")
        yield gpu.moving("mul", 2 * size, "aten::mul")
        yield gpu.moving("add", 3 * size, "aten::add")


def _flash(gpu: Gpu, model: Model, batch: int, tokens: int, context: int) -> Kernel:
    heads, kv_heads = model.heads // model.parallel, max(1, model.kv_heads // model.parallel)
    pairs = tokens * context / (2 if tokens > 1 else 1)  # causal
    seconds = max(
        4.0 * batch * heads * pairs * model.head / (0.7 * gpu.flops_per_s),
        2.0 * batch * context * kv_heads * model.head * BF16 / gpu.bytes_per_s,
    )
    if gpu.vendor == "amd":
        ops: tuple[str, ...] = ("aiter::mha_fwd",)
    elif tokens > 1:
        ops = ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention", "aten::_flash_attention_forward")  # fmt: skip
    else:
        ops = ("vllm::unified_attention_with_output", "_vllm_fa3_C::fwd")
    name = gpu.names["attention" if tokens > 1 else "attention_decode"]
    shapes = ((batch, tokens, heads, model.head), (batch, context, kv_heads, model.head))
    return Kernel(
        name, max(2200, int(seconds * 1e9)), ops, grid=(-(-tokens // 128), heads, batch), shapes=shapes
    )


def _eager_attention(gpu: Gpu, heads: int, tokens: int, context: int, head: int) -> Iterator[Kernel]:
    """Two products; between them kernels that each read and write all scores, which a fused kernel keeps on the chip."""
    scores = float(heads * tokens * context * BF16)
    cast = ("aten::to", "aten::_to_copy", "aten::copy_")
    between: tuple[Kernel, ...] = (
        gpu.moving("scale", 2 * scores, "aten::mul"),
        gpu.moving("add_mask", 2.1 * scores, "aten::add"),
        gpu.moving("to_float", 3 * scores, *cast),
        gpu.moving("softmax", 4 * scores, "aten::softmax", "aten::_softmax"),
        gpu.moving("to_bf16", 3 * scores, *cast),
    )
    if gpu.vendor == "amd":  # softmax in bfloat16, as many vision models have it
        between = (
            between[0],
            between[1],
            gpu.moving("softmax_bf16", 3 * scores, "aten::softmax", "aten::_softmax"),
        )
    yield gpu.batched(heads, tokens, context, head)
    yield from (replace(kernel, wasted=("eager-attention", 1.0)) for kernel in between)
    yield gpu.batched(heads, tokens, head, context)
