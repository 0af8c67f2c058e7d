"""What is said of a model's work besides the counts themselves: how weights are stored, and the least that would do."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_perf_opt.model.limits import Bytes, Count, Flops


@dataclass(slots=True)
class Quantisation:
    """How a quantised checkpoint keeps its weights (``quantization_config``)."""

    method: str
    """As the checkpoint names it: ``fp8``, ``gptq``, ``awq``, ``mxfp4``, ``bitsandbytes``, ``torchao``, …"""
    dtype: str | None = None
    """Type most quantised parameters are stored in (``int4``, ``float8``, …); ``None``: the method is not known."""
    compute_dtype: str | None = None
    """Type the checkpoint says products take both operands in; ``None``: weights are widened to the run's own type."""
    params: Count | None = None
    """Parameters stored so."""
    weight_bytes: Bytes | None = None
    """What they take, with scales and zero points."""
    bytes_per_param: float | None = None
    """The same per parameter."""
    modules: Count | None = None
    """Modules that hold them."""
    cache_dtype: str | None = None
    """Type of the key-value cache, where the checkpoint or the user sets one; ``None``: the run's own."""
    reason: str | None = None
    """Why sizes are not known, when they are not."""
    block: list[Count] | None = None
    """Outputs and inputs of the blocks with a scale of their own (``[128, 128]``); ``None``: scales are not kept by block."""


@dataclass(slots=True)
class Minimum:
    """The least work that gives the same result, where the model's code does more than it must."""

    flops: Flops | None
    """Multiply-add counted as two."""
    weight_bytes: Bytes | None
    """Weights that must be read once."""
    kv_bytes: Bytes | None
    """Key-value cache read and written."""
    reasons: list[str] = field(default_factory=list)
    """What the code does beyond it, one sentence each."""
