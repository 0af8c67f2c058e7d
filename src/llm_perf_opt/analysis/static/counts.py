"""Raw counts of one phase, before any convention is applied: plain values, no torch.

The counter (``workloads.counting``) fills these; :mod:`llm_perf_opt.analysis.static.build` turns them into
the static model of a run. Raw counts are kept separate from the conventions, so that conventions are
selectable without counting again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class ParamInfo:
    """One parameter tensor; a tied one appears once, under its first name."""

    name: str
    module: str
    """Path of the module that owns it."""
    numel: int
    element_bytes: float
    experts: int = 0
    """Number of routed experts stacked along the first axis; 0: not an expert tensor."""
    shape: tuple[int, ...] = ()
    stored_bytes: int | None = None
    """Size in a quantised checkpoint, scales and zero points included; ``None``: an element each."""

    @property
    def nbytes(self) -> float:
        """Size in memory."""
        return self.numel * self.element_bytes if self.stored_bytes is None else self.stored_bytes


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """One module of the tree."""

    name: str
    """Dotted path; empty for the root."""
    type: str


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention whose cache is compressed: one vector per position, expanded to keys and values of all heads."""

    path: str
    expansion: str
    """Module that expands (``kv_b_proj``)."""
    heads: int
    rank: int
    """Size of the compressed vector."""
    key: int
    """Size of a head's expanded key, the rotated part left out."""
    rotated: int
    value: int


@dataclass(frozen=True, slots=True)
class ModelTree:
    """The structure of a model, whether or not a phase uses it."""

    modules: tuple[ModuleInfo, ...]
    """Every module, parents before children, the root first."""
    params: tuple[ParamInfo, ...]
    head: str | None = None
    """Path of the output head."""
    rotary_frequencies: int = 0
    """Length of the rotary frequency vector (half the rotated head size); 0: no rotary embedding."""
    rotary_module: str | None = None
    """Path of the language model's rotary embedding."""
    routed: Mapping[str, int] = field(default_factory=dict)
    """Module of stacked experts → experts its router chooses for a token."""
    latent: tuple[LatentAttention, ...] = ()

    def total_params(self) -> int:
        """All parameters, each counted once."""
        return sum(param.numel for param in self.params)

    def weight_bytes(self) -> float:
        """Bytes of all parameters."""
        return sum(param.nbytes for param in self.params)


@dataclass(frozen=True, slots=True)
class AttentionUse:
    """One scaled-dot-product attention, counted as the full query × key rectangle."""

    module: str
    flops: int
    query_length: int
    key_length: int
    causal: bool
    window: int | None = None
    """Sliding window in positions, when the module has one."""
    batch: int = 0
    heads: int = 0
    """0: not known."""
    kv_heads: int = 0
    """Heads of keys and values as they are cached; 0: not known."""
    head_dim: int = 0
    written_out: bool = False
    """One of the two products of attention that is not one operator."""


@dataclass(slots=True)
class ExpertUse:
    """How a mixture-of-experts module was called."""

    tokens: int
    top_k: int


@dataclass(slots=True)
class CacheUse:
    """Traffic of one layer's key-value cache in one phase."""

    written_bytes: float = 0
    read_bytes: float = 0
    """Cached before this call and read by it; what the call itself wrote is not read back."""
    tokens: int = 0
    """Positions written per sequence."""
    held: int = 0
    """Positions attention sees after the last write."""
    window: int | None = None
    kv_heads: int = 0


@dataclass(frozen=True, slots=True)
class StateUse:
    """State besides keys and values (recurrent, convolution, indexer) in one phase, in bytes by place."""

    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    only_read: frozenset[str] = frozenset()
    """Places that are filled once and only read from then on (keys and values of an encoder)."""

    def traffic_bytes(self) -> float:
        """Return the traffic: existing state is read; growth is appended; state of constant size is rewritten."""
        written = sum(
            size - self.before.get(place, 0) if size > self.before.get(place, 0) else size
            for place, size in self.after.items()
            if place not in self.only_read or place not in self.before
        )
        return sum(self.before.values()) + written

    def grown(self) -> set[str]:
        """Return the places that held something before and have grown."""
        return {place for place, size in self.after.items() if 0 < self.before.get(place, 0) < size}


@dataclass(slots=True)
class PhaseCount:
    """Raw facts of one phase, by module path. "Own" leaves out the children of a module."""

    own_flops: dict[str, int] = field(default_factory=dict)
    """FLOPs of operators with a formula, attention left out."""
    attention: list[AttentionUse] = field(default_factory=list)
    own_activation_bytes: dict[str, float] = field(default_factory=dict)
    """Inputs (parameters and cached keys and values left out) and outputs of counted operators."""
    largest_operator_bytes: float = 0
    """Largest inputs + outputs of one counted operator."""
    params_read: dict[str, str] = field(default_factory=dict)
    """Parameter read as a whole → the module that read it first."""
    rows_read: dict[str, tuple[str, int, float]] = field(default_factory=dict)
    """Parameter of which rows were looked up → (module, rows, bytes), for embeddings."""
    experts: dict[str, ExpertUse] = field(default_factory=dict)
    """Experts module → how it was called."""
    cache: dict[int, CacheUse] = field(default_factory=dict)
    """Layer index → cache traffic."""
    state: StateUse = field(default_factory=StateUse)
    head_rows: int | None = None
    """Positions (over the batch) the output head was run on; ``None``: it was not run."""
    uncounted: dict[str, dict[str, int]] = field(default_factory=dict)
    """Module → operator without a formula but with small known cost → elements it produced or reduced."""
    unknown: dict[str, dict[str, int]] = field(default_factory=dict)
    """Module → operator whose cost is not known at all → times it was met."""
    operators: int = 0
    """Operators that start work on a device."""
    products: int = 0
    """Of them those with a formula."""
    moved_bytes: float = 0
    """Inputs and outputs of the others, each by itself: what running them one by one moves."""
    positions: int = 0
    """Positions computed per sequence."""
    batch_size: int = 1

    def raw_flops(self) -> int:
        """Total under the counter's own convention (full attention rectangles, as run)."""
        return sum(self.own_flops.values()) + sum(use.flops for use in self.attention)


def ancestors(path: str) -> Iterator[str]:
    """Yield ``path`` and every path above it, down to the root (the empty path)."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def roll_up(own: dict[str, float]) -> dict[str, float]:
    """Sum values of single modules into every module above them; integers stay exact."""
    total: dict[str, float] = {}
    for path, value in own.items():
        for name in ancestors(path):
            total[name] = total.get(name, 0) + value
    return total


def expected_distinct_experts(experts: int, top_k: int, tokens: int) -> float:
    """Expected number of experts that at least one of ``tokens`` chooses, routing being uniform.

    A token is routed to a given expert with probability ``top_k / experts``.
    """
    if experts <= 0 or tokens <= 0:
        return 0.0
    if tokens == 1:
        return float(min(top_k, experts))
    return experts * (1.0 - (1.0 - min(top_k, experts) / experts) ** tokens)


# Choices that change FLOP totals without changing the model, and their descriptions for reports.


Causal = Literal["full", "halved"]
_HeadPositions = Literal["last", "all"]
_Rotary = Literal["as_run", "per_layer"]


@dataclass(frozen=True, slots=True)
class Conventions:
    """Choices that change FLOP totals without changing the model."""

    causal: Causal = "full"
    """``full``: the whole query × key rectangle; ``halved``: the half (or window band) causal masks leave."""
    head_positions: _HeadPositions = "last"
    """Prompt positions the output head is run on in prefill."""
    rotary: _Rotary = "as_run"
    """``per_layer`` adds the rotary angle table as a matrix product in every layer, as older model code
    computes it: 2 × frequencies FLOPs per position and layer."""

    def describe(self) -> dict[str, str]:
        """Return every convention as text, shown next to the numbers."""
        return {
            "mac": "one multiply-add = 2 FLOPs; only matrix products, convolutions and attention are counted",
            "attention": _ATTENTION_TEXTS[self.causal],
            "head_positions": _HEAD_TEXTS[self.head_positions],
            "rotary": _ROTARY_TEXTS[self.rotary],
            "sliding_window": "decode reads what a windowed layer keeps; prefill: see attention",
            "decode": "one step: every sequence of the batch gets one token, the cache holds context_tokens",
            "weights": "each parameter a phase uses is read once per pass; routed experts: expected distinct"
            " experts under uniform routing; embeddings: one row per position",
            "activations": "inputs and outputs of counted operators, unfused; cached keys and values: see kv",
            "kv": "written once per position, all cached positions read per decode step",
            "coverage": "counted FLOPs / (counted + 1 FLOP per element of arithmetic without a formula)",
        }


_ATTENTION_TEXTS = {
    "full": "full: query x key rectangle, causal masks not subtracted",
    "halved": "halved: causal prefill counts q*k - q*q/2 pairs, sliding windows w*q - w*w/2",
}
_HEAD_TEXTS = {
    "last": "last: prefill runs the output head on one position per sequence",
    "all": "all: prefill runs the output head on every prompt position",
}
_ROTARY_TEXTS = {
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
