"""The operators of a model by shape: what expected times are composed of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.model.limits import Amount, Bytes, Count, Flops


@dataclass(slots=True)
class ProductShape:
    """Products of positions with a weight, alike in shape."""

    phase: str
    name: str
    """Module path, layer numbers as ``*``."""
    calls: Count
    """Modules of this name in one pass."""
    rows: Amount
    """Positions over the batch, m."""
    outputs: Count
    """n."""
    inputs: Count
    """k."""
    rows_follow: Literal["positions", "sequences"] = "positions"
    """What the rows grow with: the positions of a pass, or sequences alone (the output head, images)."""


@dataclass(slots=True)
class LatentShape:
    """Keys and values of all heads as one vector per position."""

    rank: Count
    """Size of the compressed vector."""
    rotated: Count
    """Size of the rotated part of a key, kept beside it."""
    value_dim: Count
    """Size of a head's value."""


@dataclass(slots=True)
class AttentionShape:
    """Attention of layers that are alike."""

    phase: str
    name: str
    calls: Count
    queries: Count
    """Positions that ask, per sequence."""
    keys: Count
    """Positions attended to, per sequence; a window is not taken off."""
    heads: Count
    kv_heads: Count
    head_dim: Count
    causal: bool = True
    window: Count | None = None
    batch: Count = 1
    """Sequences, or images and windows of images."""
    latent: LatentShape | None = None
    """Where keys and values are kept compressed."""


@dataclass(slots=True)
class ExpertShape:
    """Routed experts of layers that are alike."""

    phase: str
    name: str
    calls: Count
    tokens: Amount
    hidden: Count
    inter: Count
    """Inner size of one expert."""
    experts: Count
    top_k: Count


@dataclass(slots=True)
class SmallShape:
    """Element-wise work of modules that are alike: norms, activations, rotations, sums."""

    phase: str
    name: str
    calls: Count
    elements: Amount
    """The most one of its operators touches, per module: what one fused kernel would read and write."""


@dataclass(slots=True)
class OperatorShapes:
    """Operators of every phase at the shapes they were counted at."""

    batch_size: Amount
    prompt_tokens: Amount
    context_tokens: Amount
    hidden: Count | None = None
    """Size of a position between layers, which ranks exchange."""
    products: list[ProductShape] = field(default_factory=list)
    attention: list[AttentionShape] = field(default_factory=list)
    experts: list[ExpertShape] = field(default_factory=list)
    small: list[SmallShape] = field(default_factory=list)
    apart_bytes: dict[str, Bytes] = field(default_factory=dict)
    """Phase → what its element-wise and moving operators read and write when each runs by itself."""
    apart_operators: dict[str, Count] = field(default_factory=dict)
    """Phase → how many those are."""
    other_flops: dict[str, Flops] = field(default_factory=dict)
    """Phase → FLOPs of convolutions and other products whose shape no table has."""
