"""Frameworks and kernels of the measured tables, as people call them."""

from __future__ import annotations

_FRAMEWORKS = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
    "nccl": "NCCL",
    "oneccl": "oneCCL",
}
_KERNELS = {
    "torch.nn.functional.linear": "cuBLAS",
    "sglang_torch_linear": "cuBLAS",
    "CutlassFP8ScaledMMLinearKernel": "CUTLASS",
    "vllm_flash_attn_fa2": "FlashAttention 2",
    "vllm_flash_attn_fa3": "FlashAttention 3",
    "vllm_flash_attn_fa4": "FlashAttention 4",
    "fa3": "FlashAttention 3",
    "vllm_vit_flash_attn_fa2": "FlashAttention 2",
    "vllm_vit_flash_attn_fa3": "FlashAttention 3",
    "vllm_vit_flash_attn_fa4": "FlashAttention 4",
    "flash_attention_v3": "FlashAttention 3",
    "flash_attention_v4": "FlashAttention 4",
    **dict.fromkeys(("torch_flow", "default", "sglang", "vllm_default"), ""),
}
"""Names that mean something to a reader; empty: says no more than the framework does."""


def framework_name(framework: str) -> str:
    """Return ``vLLM`` for ``vllm``."""
    return _FRAMEWORKS.get(framework, framework)


def framework_words(framework: str, version: str, kernel: str = "") -> str:
    """Return ``vLLM 0.24, cuBLAS``."""
    name = f"{framework_name(framework)} {version.removesuffix('.0')}"
    kernel = _KERNELS.get(kernel, kernel)
    return f"{name}, {kernel}" if kernel else name
