"""Decoder-only language models: dense, grouped-query, experts, latent attention, sliding windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.analysis.static.conventions import Conventions, attention_flops_under
from llm_perf_opt.analysis.static.counts import AttentionUse, expected_distinct_experts
from llm_perf_opt.model.static.document import KvLayers


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
        """Weights one position meets as a query."""
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
        """Weights one token meets in decode, head included, embedding table left out."""
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
    """Return the first of several spellings that is there and not null."""
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
    """Part of a head that rotary embedding turns."""
    size = int(first(config, "head_dim", default=config["hidden_size"] // config["num_attention_heads"]))
    rope = config.get("rope_parameters") or {}
    share = first(config, "partial_rotary_factor", default=rope.get("partial_rotary_factor"))
    return int(size * share) if share is not None else size


def decoder_of(config: Config, *, sparse: bool, latent: bool, matrices: int) -> Decoder:
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
    return lambda config: decoder_of(config, sparse=sparse, latent=latent, matrices=matrices)


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
