"""Which make of attention a kernel is: flash 2, 3 or 4, cuDNN, FlashInfer, Composable Kernel, …"""

from __future__ import annotations

from llm_perf_opt.analysis.kernels.families import rule_of

ATTENTION = "attention"
FLASH_2, FLASH_3, FLASH_4, CUDNN = "flash-2", "flash-3", "flash-4", "cudnn"


def attention_kind(name: str) -> str | None:
    """Return the make of a fused attention kernel; ``None`` for any other kernel.

    The makes are those of ``kernel_families.yaml``; ``other`` is attention of a make that no rule names. Eager
    attention has no kernel of its own: its softmax and matrix products are what they are called.
    """
    rule = rule_of(name)
    return rule.kind if rule is not None and rule.family == ATTENTION else None
