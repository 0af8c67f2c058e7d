"""Closed-form FLOP formulas by architecture, for each component and phase."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.analysis.static.counts import (
    AttentionUse,
    Conventions,
    attention_flops_under,
    expected_distinct_experts,
)
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.summary import Coverage, Params, Static, StaticModule, StaticPhase
from llm_perf_opt.summary.static import KvLayers, held_positions

# Decoder-only language models: dense, grouped-query, experts, latent attention, sliding windows.


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer, reduced to what its arithmetic depends on. Sizes are numbers of weights or of values."""

    attention_weights: int
    """Projections a position goes through."""
    score_size: int
    """Heads × (query size + value size): multiply-adds per query-key pair."""
    cached_values: int
    """Values kept in the cache per position."""
    dense_weights: int
    """Feed-forward weights every position meets: dense matrices, shared experts, router."""
    window: int | None = None
    experts: int = 0
    top_k: int = 0
    expert_weights: int = 0
    """Weights of one routed expert."""
    key_weights: int = 0
    """Weights applied to every attended key in every pass: the expansion of latent attention's cache."""

    def weights(self) -> int:
        """All weights of the layer's matrices."""
        return self.fixed_weights() + self.experts * self.expert_weights

    def fixed_weights(self) -> int:
        """Weights every pass uses, whichever experts are chosen."""
        return self.attention_weights + self.key_weights + self.dense_weights

    def active_weights(self) -> int:
        """Weights used by one query position."""
        return self.attention_weights + self.dense_weights + self.top_k * self.expert_weights


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder: its layers, embedding and head."""

    hidden: int
    vocabulary: int
    tied: bool
    layers: tuple[DecoderLayer, ...]
    rotary_frequencies: int = 0
    """Length of the rotary frequency vector, for the ``per_layer`` convention."""
    context_limit: int | None = None

    def prefill_flops(self, tokens: int, batch: int, conventions: Conventions) -> int:
        """Body of the decoder over a prompt, head left out."""
        return batch * sum(self._layer(layer, tokens, tokens, conventions) for layer in self.layers)

    def decode_flops(self, context: int, batch: int, conventions: Conventions) -> int:
        """One token per sequence with ``context`` positions cached; windowed layers see their window."""
        return batch * sum(
            self._layer(layer, 1, min(context + 1, layer.window or context + 1), conventions)
            for layer in self.layers
        )

    def _layer(self, layer: DecoderLayer, queries: int, keys: int, conventions: Conventions) -> int:
        pairs = AttentionUse(
            "", 2 * queries * keys * layer.score_size, queries, keys, causal=queries > 1, window=layer.window
        )
        rotary = 2 * self.rotary_frequencies * queries if conventions.rotary == "per_layer" else 0
        projections = 2 * queries * layer.active_weights() + 2 * keys * layer.key_weights
        return projections + attention_flops_under(pairs, conventions.causal) + rotary

    def head_flops(self, rows: int) -> int:
        """Output head over ``rows`` positions."""
        return 2 * rows * self.hidden * self.vocabulary

    def params(self) -> int:
        """Weights of all matrices, embedding and head included; norms and biases left out."""
        tables = 1 if self.tied else 2
        return sum(layer.weights() for layer in self.layers) + tables * self.hidden * self.vocabulary

    def active_params(self) -> int:
        """Weights used by one token in decode, head included, embedding table left out."""
        met = sum(layer.active_weights() + layer.key_weights for layer in self.layers)
        return met + self.hidden * self.vocabulary

    def weights_read(self, tokens: int, *, element_bytes: float) -> float:
        """Bytes of weights a pass over ``tokens`` positions (all sequences) reads, head and rows included."""
        values = 0.0
        for layer in self.layers:
            distinct = expected_distinct_experts(layer.experts, layer.top_k, tokens)
            values += layer.fixed_weights() + distinct * layer.expert_weights
        values += self.hidden * self.vocabulary
        if not self.tied:
            values += min(tokens, self.vocabulary) * self.hidden
        return values * element_bytes

    def kv_layers(self, element_bytes: float) -> list[KvLayers]:
        """Cache size by layer."""
        groups: dict[tuple[int, int | None], int] = {}
        for layer in self.layers:
            key = (layer.cached_values, layer.window)
            groups[key] = groups.get(key, 0) + 1
        return [KvLayers(n, values * element_bytes, window) for (values, window), n in groups.items()]


Config = Mapping[str, Any]


def first(config: Config, *names: str, default: Any = None) -> Any:
    """Return the first of several spellings that is present and not null."""
    return next((config[name] for name in names if config.get(name) is not None), default)


def _grouped_query(config: Config) -> tuple[int, int, int, int]:
    """Projections, score size, cached values and key weights of multi-head or grouped-query attention."""
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    size = int(first(config, "head_dim", default=hidden // heads))
    kv = int(first(config, "num_key_value_heads", default=heads))
    return hidden * size * (2 * heads + 2 * kv), 2 * heads * size, 2 * kv * size, 0


def _latent(config: Config) -> tuple[int, int, int, int]:
    """Multi-head latent attention as transformers runs it: the cache is compressed, each pass expands it."""
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    rope, nope, value = (int(config[k]) for k in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    query_rank, kv_rank = config.get("q_lora_rank"), int(config["kv_lora_rank"])
    queries = heads * (nope + rope)
    weights = hidden * queries if query_rank is None else int(query_rank) * (hidden + queries)
    weights += hidden * (kv_rank + rope) + heads * value * hidden
    return weights, heads * (nope + rope + value), kv_rank + rope, kv_rank * heads * (nope + value)


def _windows(config: Config) -> list[int | None]:
    """Sliding window of every layer."""
    layers = int(config["num_hidden_layers"])
    window = first(config, "sliding_window")
    kinds = first(config, "layer_types")
    if kinds is not None:
        return [int(window) if "sliding" in kind and window else None for kind in kinds]
    if window and config.get("use_sliding_window", True):
        return [int(window)] * layers
    return [None] * layers


@dataclass(frozen=True, slots=True)
class _Mlp:
    dense: int
    experts: int = 0
    top_k: int = 0
    expert: int = 0


def _dense_mlp(config: Config, matrices: int) -> _Mlp:
    return _Mlp(matrices * int(config["hidden_size"]) * int(config["intermediate_size"]))


def _moe_mlp(config: Config) -> _Mlp:
    """Routed experts, the router, shared experts and (Qwen2-MoE) the shared expert's gate."""
    hidden = int(config["hidden_size"])
    experts = int(first(config, "num_experts", "num_local_experts", "n_routed_experts"))
    inner = int(first(config, "moe_intermediate_size", "intermediate_size"))
    shared = int(first(config, "shared_expert_intermediate_size", default=0))
    dense = experts * hidden + 3 * hidden * shared + (hidden if shared else 0)
    dense += 3 * hidden * inner * int(first(config, "n_shared_experts", default=0))
    return _Mlp(dense, experts, int(config["num_experts_per_tok"]), 3 * hidden * inner)


def _is_sparse(config: Config, index: int) -> bool:
    kinds = first(config, "mlp_layer_types")
    if kinds is not None:
        return bool(kinds[index] == "sparse")
    if index < int(first(config, "first_k_dense_replace", default=0)):
        return False
    if index in (first(config, "mlp_only_layers", default=[]) or []):
        return False
    return (index + 1) % int(first(config, "decoder_sparse_step", default=1)) == 0


def _rotated_size(config: Config) -> int:
    """Part of a head that is rotated by rotary embedding."""
    size = int(first(config, "head_dim", default=config["hidden_size"] // config["num_attention_heads"]))
    rope = config.get("rope_parameters") or {}
    share = first(config, "partial_rotary_factor", default=rope.get("partial_rotary_factor"))
    return int(size * share) if share is not None else size


def _decoder_of(config: Config, *, sparse: bool, latent: bool, matrices: int) -> Decoder:
    """Build a decoder from transformers config keys."""
    weights, scores, cached, expansion = (_latent if latent else _grouped_query)(config)
    dense = _dense_mlp(config, matrices)
    moe = _moe_mlp(config) if sparse else dense
    layers = []
    for index, window in enumerate(_windows(config)):
        mlp = moe if sparse and _is_sparse(config, index) else dense
        layers.append(
            DecoderLayer(
                weights, scores, cached, mlp.dense, window, mlp.experts, mlp.top_k, mlp.expert, expansion
            )
        )
    hidden = int(config["hidden_size"])
    rotated = int(config["qk_rope_head_dim"]) if latent else _rotated_size(config)
    return Decoder(
        hidden=hidden,
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        layers=tuple(layers),
        rotary_frequencies=rotated // 2,
        context_limit=first(config, "max_position_embeddings"),
    )


def _family(*, sparse: bool = False, latent: bool = False, matrices: int = 3) -> Callable[[Config], Decoder]:
    return lambda config: _decoder_of(config, sparse=sparse, latent=latent, matrices=matrices)


_GATED, _PLAIN, _SPARSE, _SPARSE_LATENT = (
    _family(),
    _family(matrices=2),
    _family(sparse=True),
    _family(sparse=True, latent=True),
)
DECODERS: dict[str, Callable[[Config], Decoder]] = {
    **dict.fromkeys(
        (
            "llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text", "granite",
            "olmo2", "smollm3", "cohere", "glm4", "ernie4_5", "hunyuan_v1_dense",
        ),
        _GATED,
    ),
    **dict.fromkeys(("starcoder2", "gpt_neox"), _PLAIN),
    **dict.fromkeys(
        ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "unlimited_ocr_text", "deepseek_ocr2_text"),
        _SPARSE,
    ),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), _SPARSE_LATENT),
}  # fmt: skip
"""``model_type`` of a transformers config → how to read it. Each was checked against the counter."""


# Vision towers of the DeepSeek-OCR family: SAM with strided convolutions, CLIP, a Qwen2 encoder.


@dataclass(frozen=True, slots=True)
class _Sam:
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


def _sam_of(config: Config) -> _Sam:
    """Read a transformers SAM config with ``downsample_channels``."""
    return _Sam(
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


def _qwen2_encoder_of(config: Config) -> Encoder:
    """Read the Qwen2-style encoder of DeepSeek-OCR-2: as many learned queries as image positions."""
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    kv, size = int(config["num_key_value_heads"]), int(config.get("head_dim") or hidden // heads)
    weights = hidden * size * (2 * heads + 2 * kv)
    mlp = 3 * hidden * int(config["intermediate_size"])
    return Encoder(hidden, int(config["num_hidden_layers"]), weights, 2 * heads * size, mlp)


def _projector_flops(tokens: int, inputs: int, outputs: int) -> int:
    """A linear projector over ``tokens`` positions."""
    return 2 * tokens * inputs * outputs


_ViewFlops = Callable[[int], dict[str, int]]
"""Side of a square view in pixels → FLOPs of each vision component."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes formulas need; the same values as ``workloads.base.PhaseShapes``, free of adapters."""

    batch_size: int
    prompt_tokens: int
    context_tokens: int
    views: tuple[tuple[int, int], ...] = ()
    """(side in pixels, number of such views over the whole batch)."""


def views_of(vision: Mapping[str, Any], batch_size: int) -> tuple[tuple[int, int], ...]:
    """Read the views of a batch from an adapter's description of its images."""
    if "base_size" not in vision:
        return ()
    grids: Sequence[Any] = vision.get("grids") or [vision.get("grid")] * batch_size
    tiles = sum(int(grid[0]) * int(grid[1]) for grid in grids if grid)
    views = [(int(vision["base_size"]), batch_size)]
    if tiles:
        views.append((int(vision["tile_size"]), tiles))
    return tuple(views)


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """Formulas of one model."""

    family: str
    decoder: Decoder
    view_flops: _ViewFlops | None = None
    """Vision components, for models that see."""

    def flops(self, phase: str, shapes: Shapes, conventions: Conventions) -> dict[str, int]:
        """Return FLOPs by component of one phase (``vision``, ``prefill`` or one ``decode`` step)."""
        batch = shapes.batch_size
        if phase == "vision":
            return self._vision(shapes)
        if phase == "prefill":
            rows = batch * (shapes.prompt_tokens if conventions.head_positions == "all" else 1)
            body = self.decoder.prefill_flops(shapes.prompt_tokens, batch, conventions)
            return {"language_model": body, "lm_head": self.decoder.head_flops(rows)}
        body = self.decoder.decode_flops(shapes.context_tokens, batch, conventions)
        return {"language_model": body, "lm_head": self.decoder.head_flops(batch)}

    def _vision(self, shapes: Shapes) -> dict[str, int]:
        total: dict[str, int] = {}
        if self.view_flops is not None:
            for size, number in shapes.views:
                for label, flops in self.view_flops(size).items():
                    total[label] = total.get(label, 0) + number * flops
        return total


def _deepseek_ocr_views(config: Config) -> _ViewFlops:
    """SAM, then CLIP over its map, then a projector over both outputs side by side."""
    vision = config["vision_config"]
    sam, clip = _sam_of(vision["sam_config"]), clip_of(vision["encoder_config"])
    text = int(config["text_config"]["hidden_size"])
    width = clip.hidden + sam.downsample[-1]

    def flops(size: int) -> dict[str, int]:
        positions = sam.output_side(size) ** 2
        return {
            "sam": sam.flops(size),
            "clip": clip.flops(positions + clip.extra_tokens),
            "projector": _projector_flops(positions, width, text),
        }

    return flops


def _deepseek_ocr2_views(config: Config) -> _ViewFlops:
    """SAM, then an encoder over its map and as many learned queries, then a projector over the queries."""
    vision = config["vision_config"]
    sam, encoder = _sam_of(vision["sam_config"]), _qwen2_encoder_of(vision["encoder_config"])
    text = int(config["text_config"]["hidden_size"])

    def flops(size: int) -> dict[str, int]:
        positions = sam.output_side(size) ** 2
        return {
            "sam": sam.flops(size),
            "vision_encoder": encoder.flops(2 * positions),
            "projector": _projector_flops(positions, encoder.hidden, text),
        }

    return flops


_VIEWS: dict[str, Callable[[Config], _ViewFlops]] = {
    "unlimited_ocr": _deepseek_ocr_views,
    "deepseek_ocr2": _deepseek_ocr2_views,
}


def closed_form_of(config: Config) -> ClosedForm:
    """Return the formulas for a transformers configuration (as a dictionary).

    Raises :class:`InputError` for an architecture without formulas, naming those that have them.
    """
    family = str(config.get("model_type"))
    if family in _VIEWS:
        text = {**config["text_config"], "tie_word_embeddings": config.get("tie_word_embeddings", False)}
        return ClosedForm(family, DECODERS[f"{family}_text"](text), _VIEWS[family](config))
    if family not in DECODERS:
        known = ", ".join(sorted(name for name in (*DECODERS, *_VIEWS) if not name.endswith("_ocr_text")))
        raise InputError(
            f"no closed form for the architecture '{family}'", hint=f"known: {known}", architecture=family
        )
    try:
        return ClosedForm(family, DECODERS[family](config))
    except (KeyError, TypeError) as error:
        raise InputError(
            f"the closed form of '{family}' lacks a dimension: {error}",
            hint="complete model.arch or config.json",
        ) from error


# A static model, or single phases of one, from formulas alone.


def closed_form_static(form: ClosedForm, conventions: Conventions) -> Static:
    """Return the frame of a static model without phases: parameters and conventions.

    Parameters are those of matrices; norms and biases are left out, as stated in the conventions.
    """
    decoder = form.decoder
    head = 0 if decoder.tied else decoder.hidden * decoder.vocabulary
    components = {"language_model": decoder.params() - head, "lm_head": head}
    described = conventions.describe()
    described["params"] = "matrices only: norms and biases are left out of the closed form"
    described["activations"] = "not known to the closed form"
    return Static(
        params=Params(decoder.params(), decoder.active_params(), components),
        kv_bytes_per_token=None,
        phases={},
        modules=[StaticModule(name, form.family, 1, size, {}, name) for name, size in components.items()],
        coverage=Coverage(None, []),
        conventions=described,
    )


def with_closed_phase(
    static: Static,
    form: ClosedForm,
    phase: str,
    shapes: Shapes,
    conventions: Conventions,
    layers: list[KvLayers],
    element_bytes: float,
) -> None:
    """Add a phase by formula: FLOPs, weights and cache; activations stay unknown."""
    by_component = form.flops(phase, shapes, conventions)
    flops = sum(by_component.values())
    weights: float | None = None
    cache: float = 0
    tokens: float | None = None
    if phase != "vision":
        tokens = shapes.prompt_tokens if phase == "prefill" else 1
        weights = form.decoder.weights_read(int(tokens) * shapes.batch_size, element_bytes=element_bytes)
        cache = _cache_bytes(phase, shapes, layers)
        static.kv_bytes_per_token = sum(group.layers * group.bytes_per_token for group in layers)
    intensity = flops / (weights + cache) if weights is not None else None
    static.phases[phase] = StaticPhase(flops, weights, None, cache, intensity, tokens)
    for label, value in by_component.items():
        static.components.setdefault(label, {})[phase] = value
        for module in static.modules:
            if module.name == label and module.component == label:
                module.flops[phase] = value


def _cache_bytes(phase: str, shapes: Shapes, layers: list[KvLayers]) -> float:
    """Prefill writes every prompt position; a decode step reads what is kept and writes one position."""
    if phase == "prefill":
        per_sequence = sum(group.layers * group.bytes_per_token * shapes.prompt_tokens for group in layers)
    else:
        context = shapes.context_tokens
        per_sequence = sum(
            group.layers * group.bytes_per_token * (held_positions(context, group.window) + 1)
            for group in layers
        )
    return shapes.batch_size * per_sequence
