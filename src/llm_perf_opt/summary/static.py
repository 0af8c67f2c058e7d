"""The static model at the shapes of a run: what it computes, moves and holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from llm_perf_opt.core.limits import Amount, Bytes, Count, Depth, Flops, Ratio, Share

# The operators of a model by shape: what expected times are composed of.


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
    """Size of the rotated part of a key, kept next to it."""
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


# A model over several ranks, by static analysis: what each stores and what they exchange.


@dataclass(slots=True)
class Exchange:
    """Collectives of one kind in one pass of a phase, by static analysis."""

    phase: str
    name: Literal["all_reduce", "all_gather", "all_to_all"]
    calls: Count
    bytes: Bytes
    """Payload of one rank, all calls: the tensor that is summed, what every rank has in the end, what a rank sends."""
    link_bytes: Bytes
    """What goes over a rank's links in one direction at least: all-reduce the payload (a ring needs 2(n−1)/n of it, a switch
    that adds up needs it once), the others (n−1)/n of it."""
    follows: Literal["positions", "sequences"] = "positions"
    """What the payload grows with."""


@dataclass(slots=True)
class RankShare:
    """What one rank of a split model holds."""

    rank: Count
    params: Count
    weight_bytes: Bytes | None
    """``None`` where the sizes of a quantised checkpoint are not known."""
    kv_bytes_per_token: Bytes | None = None
    """Of all its layers, for one position of one sequence; ``None``: not known."""
    experts: Count | None = None
    """Whole experts of every layer; ``None`` where it has a part of each, or there are none."""


@dataclass(slots=True)
class Split:
    """The model over several ranks by the plan of its architecture, by static analysis."""

    kind: Literal["tensor", "tensor+expert"]
    """``tensor``: every layer is cut. ``tensor+expert``: the experts stay whole and are shared out, the rest is cut."""
    ranks: Count
    shares: list[RankShare] = field(default_factory=list)
    """By rank; rank 0 never has less than another."""
    replicated_bytes: Bytes | None = None
    """Weights that every rank has whole; part of each share."""
    read_bytes: dict[str, Bytes] = field(default_factory=dict)
    """Phase → weights that rank 0 reads in one pass at least."""
    exchanges: list[Exchange] = field(default_factory=list)
    element_bytes: Bytes | None = None
    """Size of one element that they exchange."""
    reason: str | None = None
    """Why it cannot be split so; nothing else is given then."""


# What is said of a model's work besides the counts themselves: how weights are stored, and the least that would do.


@dataclass(slots=True)
class Quantisation:
    """How a quantised checkpoint keeps its weights (``quantization_config``)."""

    method: str
    """As the checkpoint names it: ``fp8``, ``gptq``, ``awq``, ``mxfp4``, ``bitsandbytes``, ``torchao``, …"""
    dtype: str | None = None
    """Type most quantised parameters are stored in (``int4``, ``float8``, …); ``None``: the method is not known."""
    compute_dtype: str | None = None
    """Data type of both operands of matrix products according to the checkpoint; ``None``: weights are widened to the run's own type."""
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


@dataclass(slots=True)
class Params:
    """Parameter counts."""

    total: Count
    """All parameters, each counted once."""
    active_per_token: Count | None
    """Parameters one token meets in decode (routed experts not chosen are left out)."""
    components: dict[str, Count]
    """Component label → parameters."""
    as_run_per_token: Count | None = None
    """Parameters one token meets in decode as the code runs it; ``None``: no more than ``active_per_token``."""


@dataclass(slots=True)
class StaticPhase:
    """What one phase computes and moves as it is run, for one sample (batch included)."""

    flops: Flops | None
    """Multiply-add counted as two."""
    weight_bytes: Bytes | None
    """Weights that must be read once."""
    activation_bytes: Bytes | None
    """Inputs and outputs of every counted operator."""
    kv_bytes: Bytes | None
    """Key-value cache read and written."""
    intensity: Ratio | None
    """FLOP per byte of weights and KV cache and activations that leave the chip in the model's floor."""
    tokens: Amount | None = None
    """Positions this phase computes (prefill: prompt length; decode: 1 per step)."""
    operators: Count | None = None
    """Operators that start work on a device, as the model's code calls them one by one."""
    products: Count | None = None
    """Of them products, convolutions and attention: fusing the small ones leaves these."""
    minimum: Minimum | None = None
    """The least work with the same result; ``None``: what is run is the least. Floors and utilisation rest on it."""

    @property
    def least_flops(self) -> float | None:
        """FLOPs the phase cannot avoid."""
        return self.minimum.flops if self.minimum is not None else self.flops

    @property
    def least_weight_bytes(self) -> float | None:
        """Weights the phase cannot avoid reading."""
        return self.minimum.weight_bytes if self.minimum is not None else self.weight_bytes

    @property
    def least_kv_bytes(self) -> float | None:
        """Cache traffic the phase cannot avoid."""
        return self.minimum.kv_bytes if self.minimum is not None else self.kv_bytes


@dataclass(slots=True)
class StaticModule:
    """One row of the module tree."""

    name: str
    """Dotted path inside the model; empty for the whole."""
    type: str
    """Class name."""
    depth: Depth
    """Depth in the tree."""
    params: Count
    """Parameters below and in this module."""
    flops: dict[str, Flops]
    """Phase → FLOPs."""
    component: str | None = None
    """Component label it belongs to."""
    weight_bytes: dict[str, Bytes] = field(default_factory=dict)
    """Phase → weights read."""
    activation_bytes: dict[str, Bytes] = field(default_factory=dict)
    """Phase → inputs and outputs of counted operators."""
    counted_ratio: Share | None = None
    """Share of this module's arithmetic that was counted, as in ``coverage``."""
    uncounted_ops: list[str] = field(default_factory=list)
    """Operators without a formula met in this module itself, children left out."""


@dataclass(slots=True)
class Coverage:
    """How much of the arithmetic was counted."""

    counted_ratio: Share | None
    """Counted FLOPs ÷ (counted + one FLOP per element of arithmetic without a formula); ``None`` when an
    operator of unknown cost was met."""
    uncounted_ops: list[str]
    """Arithmetic operators that were met and have no formula, the largest first."""
    unknown_ops: list[str] = field(default_factory=list)
    """Those of them whose cost is not even known to be small."""


@dataclass(slots=True)
class AttentionPart:
    """FLOPs of attention itself, which grow with the context, apart from the linear layers'."""

    phase: str
    flops: Flops
    window: Count | None = None
    """Positions attended to at most; ``None``: all."""


@dataclass(slots=True)
class ExpertPart:
    """Routed experts that are chosen alike."""

    weight_bytes: Bytes
    """All experts of all such layers."""
    experts: Count
    """Experts of one layer."""
    top_k: Count
    """Experts one token is sent to."""


def held_positions(context_tokens: float, window: Count | None) -> float:
    """Return the positions a layer's cache holds after ``context_tokens``.

    A window counts the token that attends, which is not cached before its own step: one position fewer is kept.
    """
    return context_tokens if window is None else min(context_tokens, max(window - 1, 0))


@dataclass(slots=True)
class KvPart:
    """Layers that cache alike."""

    layers: Count
    bytes_per_token: Bytes
    """Key and value of one layer, one position, one sequence."""
    window: Count | None = None
    """Sliding window in positions, the attending token included; ``None``: no window."""
    state_bytes: Bytes = 0.0
    """Of one layer and one sequence, whatever the context: recurrent and convolution states."""


@dataclass(slots=True)
class Scaling:
    """What is needed to price the same model at other batch sizes, contexts and data types."""

    batch_size: Amount
    """Sequences per pass; the mean over a run's batches."""
    prompt_tokens: Amount
    context_tokens: Amount
    """Cached positions at the decode step that was counted."""
    element_bytes: Bytes
    """Mean size of a parameter as it is stored."""
    attention: list[AttentionPart] = field(default_factory=list)
    head_flops: dict[str, Flops] = field(default_factory=dict)
    """Phase → FLOPs of the output head."""
    experts: list[ExpertPart] = field(default_factory=list)
    kv: list[KvPart] = field(default_factory=list)
    embedding_bytes_per_token: Bytes = 0.0
    """Row of the embedding table one position looks up."""
    embedding_rows: Count | None = None
    """Rows of that table: more positions than this must repeat some."""
    causal_halved: bool = False
    """Attention of the prompt counts only the pairs a causal mask leaves."""
    head_all_positions: bool = False
    """Prefill runs the output head on every position."""
    cache_element_bytes: Bytes | None = None
    """Size of one cached element; ``None``: that of a parameter."""
    unquantised_bytes: dict[str, Bytes] = field(default_factory=dict)
    """Phase → weights it would read, ``all`` → weights there would be, were they not quantised; empty where they are not."""


@dataclass(slots=True)
class Static:
    """The static model at the shapes of this run."""

    params: Params
    kv_bytes_per_token: Bytes | None
    """Key and value of all layers for one position and one sequence."""
    phases: dict[str, StaticPhase]
    """``vision``, ``encode``, ``prefill``, ``decode`` (decode: one step at the mean context)."""
    modules: list[StaticModule]
    """The module tree, in order."""
    coverage: Coverage
    conventions: dict[str, str]
    """How things were counted: ``mac``, ``attention``, ``head_positions``, …"""
    components: dict[str, dict[str, Flops]] = field(default_factory=dict)
    """Component label → phase → FLOPs."""
    resident_bytes: dict[str, Bytes] = field(default_factory=dict)
    """What must be in memory: ``weights``, ``kv_cache``, ``activations``, and their ``total``."""
    source: str | None = None
    """File the numbers come from."""
    scaling: Scaling | None = None
    """How the numbers change with batch, context and data type; ``None`` when they were not counted."""
    quantisation: Quantisation | None = None
    """How a quantised checkpoint keeps its weights; ``None`` for one that is not."""
    operators: OperatorShapes | None = None
    """Products, attention, experts and element-wise work by shape; ``None`` where they were not counted."""
    splits: list[Split] = field(default_factory=list)
    """The model over 2, 4 and 8 ranks, and over those of the run; empty where its architecture has no plan."""


# ``static_compute.json`` as types: the static model of the summary, and what only this document holds.


DOCUMENT_VERSION = "1.0"
Method = Literal["counted", "closed form"]


@dataclass(frozen=True, slots=True)
class KvLayers:
    """Layers that share a cache size."""

    layers: Count
    bytes_per_token: Bytes
    """Key and value of one layer, one position, one sequence."""
    window: Count | None
    """Sliding window in positions, the attending token included; ``None``: no window."""
    state_bytes: Bytes = 0.0
    """Of one layer and one sequence, whatever the context: recurrent and convolution states."""


@dataclass(slots=True)
class ShapesUsed:
    """The shapes the numbers hold for."""

    batch_size: Count
    prompt_tokens: Count
    image_tokens: Count
    context_tokens: Count
    """Cached positions at the decode step."""
    decode_tokens: Count
    """Decode steps of a whole request."""
    vision: dict[str, Any] = field(default_factory=dict)
    """The adapter's description of the images: mode, view sizes, tile grids (columns, rows)."""
    weight: Count = 1
    """How many batches of the run have these shapes."""
    source: str = "configured"
    """``configured``, or ``samples`` for the shapes of real inputs."""
    encoder_tokens: Count = 0
    """Positions the encoder of an encoder-decoder reads."""


@dataclass(slots=True)
class Totals:
    """FLOPs of a whole request (all sequences of the batch)."""

    vision_flops: Flops | None
    prefill_flops: Flops | None
    """Language model over the prompt, vision left out."""
    prefill_including_vision_flops: Flops | None
    """Up to the first token: vision or encoder, and prefill."""
    decode_steps: Count
    decode_flops: Flops | None
    """Sum over all steps, the context growing by one each."""
    request_flops: Flops | None
    kv_prefill_bytes: Bytes | None
    """Cache after the prompt; that of an encoder-decoder holds the encoder's keys and values too."""
    encode_flops: Flops | None = None
    """The encoder of an encoder-decoder."""


@dataclass(slots=True)
class CrossCheck:
    """One number by both ways; they must be equal."""

    phase: str
    component: str
    counted_flops: Flops
    closed_form_flops: Flops
    agrees: bool


@dataclass(slots=True)
class ResidentRow:
    """What must be in memory at a context length and a batch size."""

    context_tokens: Count
    batch_size: Count
    weights_bytes: Bytes
    kv_bytes: Bytes
    activation_bytes: Bytes
    """Estimate: inputs and outputs of the largest single operator at this document's shapes, scaled by batch."""
    total_bytes: Bytes


@dataclass(slots=True)
class StaticDocument:
    """Everything static analysis found."""

    static: Static
    model: dict[str, str | None]
    """``name``, ``architecture``, ``dtype``."""
    shapes: list[ShapesUsed]
    """One entry, or every distinct shape of the real samples; the numbers are then means over batches."""
    totals: Totals
    methods: dict[str, Method]
    """Phase → how it was found."""
    cross_checks: list[CrossCheck] = field(default_factory=list)
    kv_layers: list[KvLayers] = field(default_factory=list)
    resident: list[ResidentRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    has_page: bool = True
    """Whether a page and plots are made from it (``write_reports``)."""
    document_version: str = DOCUMENT_VERSION

    def disagreements(self) -> list[CrossCheck]:
        """Cross-checks that failed."""
        return [check for check in self.cross_checks if not check.agrees]
