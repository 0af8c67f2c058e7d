"""What the modules of a decoder do, by the names the field gives them: which run as one product, which are split.

Data, not code: the first pattern that matches the last part of a module's path decides.
"""

from __future__ import annotations

import re
from typing import Literal

Split = Literal["outputs", "inputs", "none"]
"""Which side of a weight ranks share among them; ``inputs`` leaves partial sums, which an all-reduce adds."""

_SPLITS: tuple[tuple[str, Split], ...] = (
    (r"o_proj|out_proj|down_proj|c_proj|dense_4h_to_h|fc2|wo|w2|w3_down|dense", "inputs"),
    (r"gate|router|shared_expert_gate|q_a_proj|kv_a_proj_with_mqa|wg", "none"),
    (r".*", "outputs"),
)
_FUSED: tuple[tuple[str, str], ...] = (
    (r"q_proj|k_proj|v_proj|query|key|value", "qkv"),
    (r"gate_proj|up_proj|w1|w3", "gate_up"),
    (r"q_a_proj|kv_a_proj_with_mqa", "qkv_a"),
)


Heads = Literal["queries", "cache", "both"]
"""Whose heads a projection makes: those that ask, those that are cached (keys or values), or all in one weight."""

_HEADS: tuple[tuple[str, Heads], ...] = (
    (r"q_proj|query", "queries"),
    (r"k_proj|v_proj|key|value", "cache"),
    (r"qkv_proj|qkv|Wqkv|c_attn|query_key_value", "both"),
)


def split_of(name: str) -> Split:
    """Return how tensor parallelism splits a module's weight."""
    last = name.rpartition(".")[2]
    return next(split for pattern, split in _SPLITS if re.fullmatch(pattern, last))


def fused_name(name: str) -> str:
    """Return the product a module's is part of: every serving engine runs these as one."""
    parent, _, last = name.rpartition(".")
    found = next((fused for pattern, fused in _FUSED if re.fullmatch(pattern, last)), last)
    return f"{parent}.{found}" if parent else found


def heads_made_by(name: str) -> Heads | None:
    """Return whose heads a module's outputs are; ``None``: it makes none."""
    last = name.rpartition(".")[2]
    return next((heads for pattern, heads in _HEADS if re.fullmatch(pattern, last)), None)
