"""What the steps of one answer share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_perf_opt.workloads.models.decoding.fixed_step import FixedStep

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class DecodePlan:
    """Everything a decode step needs besides the token, made before the loop so that a step only takes slices."""

    positions: torch.Tensor
    """``[…, batch, new_tokens]``: position of each fed-back token; models with several axes of positions have one more in front."""
    mask: torch.Tensor | None
    """``[batch, prompt + new_tokens]`` of ones where a key counts; ``None`` when nothing is padded."""
    fixed_size: bool
    """Static caches need a mask of constant size, marked step by step."""
    fixed: FixedStep | None = None
    """Inputs at fixed addresses, for a step that is compiled or captured."""
