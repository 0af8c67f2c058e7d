"""What the model's own ``generate()`` answers: the tokens and logits that an adapter's are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from llm_perf_opt.config.schema import CacheKind
from llm_perf_opt.workloads.base import Batch, Reference

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import ModelConfig


class Generates(Protocol):
    """What is asked of an adapter."""

    config: ModelConfig

    def padding_token_id(self) -> int:
        """Return the id that fills short prompts."""

    def generate(self, model: Any, batch: Batch, chosen: Any) -> Any:
        """Run the model's own ``generate()`` on a batch."""


def greedy_reference(
    adapter: Generates,
    model: torch.nn.Module,
    batch: Batch,
    count: int,
    *,
    stop_ids: Sequence[int],
    no_repeat_ngram_size: int,
) -> Reference:
    """Return the first ``count`` greedy tokens of transformers' ``generate()``, whatever a checkpoint says of sampling."""
    from transformers import GenerationConfig

    chosen = GenerationConfig(
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=list(stop_ids) or None,
        pad_token_id=adapter.padding_token_id(),
        no_repeat_ngram_size=no_repeat_ngram_size or None,
        cache_implementation="static" if _makes_static_cache(adapter.config) else None,
        disable_compile=True,
        output_logits=True,
        return_dict_in_generate=True,
    )
    # What is left open is filled from the checkpoint's own generation settings, which may sample or penalise.
    own, generating = getattr(model, "generation_config", None), cast("Any", model)
    generating.generation_config = chosen
    try:
        out = adapter.generate(generating, batch, chosen)
    finally:
        generating.generation_config = own
    rows: list[list[int]] = out.sequences[:, batch.inputs["input_ids"].shape[1] :].tolist()
    return Reference(rows, list(out.logits))


def _makes_static_cache(config: ModelConfig) -> bool:
    """Whether ``generate()`` is to make its cache, a static one; it is handed one of another data type."""
    return config.cache is CacheKind.static and config.cache_dtype is None
