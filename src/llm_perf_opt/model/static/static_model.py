"""The static model at the shapes of a run: what it computes, moves and holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_perf_opt.model.limits import Amount, Bytes, Count, Depth, Flops, Ratio, Share
from llm_perf_opt.model.static.operators import OperatorShapes
from llm_perf_opt.model.static.split import Split
from llm_perf_opt.model.static.work import Minimum, Quantisation


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


@dataclass(slots=True)
class KvPart:
    """Layers that cache alike."""

    layers: Count
    bytes_per_token: Bytes
    """Key and value of one layer, one position, one sequence."""
    window: Count | None = None
    """Positions kept at most; ``None``: all."""
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
