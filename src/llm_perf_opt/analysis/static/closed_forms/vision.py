"""Vision towers of the DeepSeek-OCR family: SAM with strided convolutions, CLIP, a Qwen2 encoder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sam:
    """SAM's image encoder, its neck, and the two convolutions that bring the map to 1/64 of the image."""

    hidden: int
    layers: int
    mlp: int
    patch: int
    window: int
    global_layers: int
    channels: int
    """Of the neck."""
    downsample: tuple[int, ...]
    relative_positions: bool
    image_channels: int = 3

    def flops(self, size: int) -> int:
        """One square image of ``size`` pixels."""
        side = size // self.patch
        tokens = side * side
        padded = math.ceil(side / self.window) * self.window
        windows = (padded // self.window) ** 2
        local = self.layers - self.global_layers
        projections = 2 * 4 * self.hidden**2 * (self.global_layers * tokens + local * padded * padded)
        mlp = 2 * self.layers * tokens * 2 * self.hidden * self.mlp
        attention = self.global_layers * self._attention(tokens, side)
        attention += local * windows * self._attention(self.window**2, self.window)
        return projections + mlp + attention + self._convolutions(side)

    def _attention(self, tokens: int, side: int) -> int:
        scores = 4 * tokens * tokens * self.hidden
        return scores + (2 * tokens * 2 * side * self.hidden if self.relative_positions else 0)

    def _convolutions(self, side: int) -> int:
        tokens = side * side
        flops = 2 * tokens * self.hidden * self.image_channels * self.patch**2
        flops += 2 * tokens * self.hidden * self.channels + 2 * tokens * 9 * self.channels**2
        channels = self.channels
        for wider in self.downsample:
            side = (side + 1) // 2  # 3 x 3, stride 2, padding 1
            flops += 2 * side * side * 9 * channels * wider
            channels = wider
        return flops

    def output_side(self, size: int) -> int:
        """Side of the feature map."""
        side = size // self.patch
        for _ in self.downsample:
            side = (side + 1) // 2
        return side


def sam_of(config: Config) -> Sam:
    """Read a transformers SAM config with ``downsample_channels``."""
    return Sam(
        hidden=int(config["hidden_size"]),
        layers=int(config["num_hidden_layers"]),
        mlp=int(config.get("mlp_dim") or config["hidden_size"] * config["mlp_ratio"]),
        patch=int(config["patch_size"]),
        window=int(config["window_size"]),
        global_layers=len(config["global_attn_indexes"]),
        channels=int(config["output_channels"]),
        downsample=tuple(int(width) for width in config["downsample_channels"]),
        relative_positions=bool(config["use_rel_pos"]),
        image_channels=int(config.get("num_channels", 3)),
    )


@dataclass(frozen=True, slots=True)
class Encoder:
    """A plain transformer encoder over feature vectors."""

    hidden: int
    layers: int
    attention_weights: int
    score_size: int
    mlp_weights: int
    extra_tokens: int = 0
    """A class token, for CLIP."""

    def flops(self, tokens: int) -> int:
        """One sequence of ``tokens`` vectors, the extra ones included."""
        weights = self.attention_weights + self.mlp_weights
        return self.layers * (2 * tokens * weights + 2 * tokens * tokens * self.score_size)


def clip_of(config: Config) -> Encoder:
    """Read a CLIP vision config; its patch convolution is not used in this family."""
    hidden = int(config["hidden_size"])
    mlp = 2 * hidden * int(config["intermediate_size"])
    return Encoder(
        hidden, int(config["num_hidden_layers"]), 4 * hidden * hidden, 2 * hidden, mlp, extra_tokens=1
    )


def qwen2_encoder_of(config: Config) -> Encoder:
    """Read the Qwen2-style encoder of DeepSeek-OCR-2: as many learned queries as image positions."""
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    kv, size = int(config["num_key_value_heads"]), int(config.get("head_dim") or hidden // heads)
    weights = hidden * size * (2 * heads + 2 * kv)
    mlp = 3 * hidden * int(config["intermediate_size"])
    return Encoder(hidden, int(config["num_hidden_layers"]), weights, 2 * heads * size, mlp)


def projector_flops(tokens: int, inputs: int, outputs: int) -> int:
    """A linear projector over ``tokens`` positions."""
    return 2 * tokens * inputs * outputs
