"""Choices that change FLOP totals without changing the model, and their words for reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from llm_perf_opt.analysis.static.counts import AttentionUse

Causal = Literal["full", "halved"]
HeadPositions = Literal["last", "all"]
Rotary = Literal["as_run", "per_layer"]


@dataclass(frozen=True, slots=True)
class Conventions:
    """Choices that change FLOP totals without changing the model."""

    causal: Causal = "full"
    """``full``: the whole query × key rectangle; ``halved``: the half (or window band) causal masks leave."""
    head_positions: HeadPositions = "last"
    """Prompt positions the output head is run on in prefill."""
    rotary: Rotary = "as_run"
    """``per_layer`` adds the rotary angle table as a matrix product in every layer, as older model code
    computes it: 2 × frequencies FLOPs per position and layer."""

    def describe(self) -> dict[str, str]:
        """Return every convention in words, to stand beside the numbers."""
        return {
            "mac": "one multiply-add = 2 FLOPs; only matrix products, convolutions and attention are counted",
            "attention": _ATTENTION_WORDS[self.causal],
            "head_positions": _HEAD_WORDS[self.head_positions],
            "rotary": _ROTARY_WORDS[self.rotary],
            "sliding_window": "decode reads what a windowed layer keeps; prefill: see attention",
            "decode": "one step: every sequence of the batch gets one token, the cache holds context_tokens",
            "weights": "each parameter a phase uses is read once per pass; routed experts: expected distinct"
            " experts under uniform routing; embeddings: one row per position",
            "activations": "inputs and outputs of counted operators, unfused; cached keys and values: see kv",
            "kv": "written once per position, all cached positions read per decode step",
            "coverage": "counted FLOPs / (counted + 1 FLOP per element of arithmetic without a formula)",
        }


_ATTENTION_WORDS = {
    "full": "full: query x key rectangle, causal masks not subtracted",
    "halved": "halved: causal prefill counts q*k - q*q/2 pairs, sliding windows w*q - w*w/2",
}
_HEAD_WORDS = {
    "last": "last: prefill runs the output head on one position per sequence",
    "all": "all: prefill runs the output head on every prompt position",
}
_ROTARY_WORDS = {
    "as_run": "as_run: only what the counted code does",
    "per_layer": "per_layer: plus the angle table as a product in every layer (2 x frequencies per position)",
}


def attention_flops_under(use: AttentionUse, causal: Causal) -> int:
    """Apply the causal convention to one attention."""
    if causal == "full" or not use.causal:
        return use.flops
    q, k = use.query_length, use.key_length
    per_pair = use.flops // (q * k)
    window = use.window
    banded = window is not None and window < q
    doubled_pairs = 2 * window * q - window * window if banded and window else 2 * q * k - q * q
    return per_pair * doubled_pairs // 2
