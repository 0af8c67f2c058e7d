"""Draft tokens that one forward pass of the model verifies: prompt lookup and a draft model.

A draft token is accepted only if the model itself would choose it, so greedy answers stay the same up to rounding. An
accepted draft saves forward passes; a rejected one makes a pass slightly longer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.workloads.base import ModelAdapter

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import InferConfig, ModelConfig

_LONGEST_MATCH = 3
"""Tokens at the end of the text that are looked up in it, as in transformers' prompt lookup; then fewer, down to one."""


class Proposer(ABC):
    """Drafts the next tokens of one sequence."""

    def __init__(self, most: int) -> None:
        self.most = most
        """Draft tokens of one pass."""

    def begin(self) -> None:
        """Forget the sequence before."""
        return

    @abstractmethod
    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return at most ``count`` tokens that may follow prompt and answer so far."""


class PromptLookup(Proposer):
    """Guesses what followed the last tokens where they occurred before."""

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return the tokens behind the most recent earlier occurrence of the longest match."""
        import numpy as np

        known = np.asarray(tokens)
        for size in range(min(_LONGEST_MATCH, len(known) - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(known[:-1], size)
            places = np.flatnonzero((windows == known[-size:]).all(axis=1))
            if len(places):
                # The most recent one that is followed by enough tokens, else the earliest: it has the most.
                enough = places[places + size + count <= len(known)]
                start = int(enough[-1] if len(enough) else places[0]) + size
                return [int(token) for token in known[start : start + count]]
        return []


class DraftModel(Proposer):
    """Guesses by a smaller model with the same vocabulary, which keeps a cache of its own."""

    def __init__(self, most: int, adapter: Any, model: torch.nn.Module, device: str) -> None:
        super().__init__(most)
        self._adapter, self._model, self._device = adapter, model, device
        self._state: Any = None
        self._read: list[int] = []

    def begin(self) -> None:
        """Start with an empty cache."""
        self._state, self._read = self._adapter.new_state(self._model), []
        self._adapter.refuse_uncut_cache(self._state)

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Let the draft model continue the text greedily."""
        import torch

        kept = next(
            (n for n, (a, b) in enumerate(zip(self._read, tokens, strict=False)) if a != b),
            min(len(self._read), len(tokens)),
        )
        kept = min(kept, len(tokens) - 1)  # the last token is read again: its logits are needed
        self._adapter.crop_cache(self._state, len(self._read) - kept)
        self._read = list(tokens[:kept])
        drafted: list[int] = []
        fed = list(tokens[kept:])
        for _ in range(count):
            places = torch.arange(len(self._read), len(self._read) + len(fed), device=self._device)
            logits = self._adapter.forward(
                self._model,
                self._state,
                input_ids=torch.tensor([fed], device=self._device),
                attention_mask=None,
                position_ids=places[None],
                logits_to_keep=1,
            ).logits
            self._read += fed
            fed = [int(logits[0, -1].argmax())]
            drafted += fed
        return drafted


def make_proposer(
    adapter: ModelAdapter, model: ModelConfig, infer: InferConfig, device: str, dtype: torch.dtype
) -> Proposer | None:
    """Return what guesses tokens in a run; ``None``: nothing does."""
    if infer.prompt_lookup_tokens:
        return PromptLookup(infer.prompt_lookup_tokens)
    if not infer.draft_tokens or model.draft_path is None:
        return None
    from llm_perf_opt.workloads.registry import load_adapter

    if tuple(adapter.phases) != ("prefill", "decode"):
        raise ConfigError(
            f"infer.draft_tokens: adapter {adapter.name} reads more than text, which a draft model does not see",
            hint="leave it out, or use infer.prompt_lookup_tokens",
            key="infer.draft_tokens",
        )
    # Code of its repository is trusted for the model that was named, not for the draft.
    chosen = replace(
        model, adapter="hf_causal_lm", name="draft", path=model.draft_path, config_name=None, arch={}, revision=None,
        trust_remote_code=False,
    )  # fmt: skip
    draft: Any = load_adapter(chosen, infer)
    own, drafted = (each.text_config().vocab_size for each in (_text(adapter), draft))
    if own != drafted:
        raise ConfigError(
            f"model.draft_path={model.draft_path} has a vocabulary of {drafted} tokens, the model one of {own}",
            hint="choose a smaller model of the same family: both must have the same tokens",
            key="model.draft_path",
        )
    return DraftModel(infer.draft_tokens, draft, draft.build(device, dtype), device)


def _text(adapter: ModelAdapter) -> Any:
    if not hasattr(adapter, "text_config"):
        raise ConfigError(
            f"infer.draft_tokens: the vocabulary of adapter {adapter.name} is not known",
            hint="leave it out",
            key="infer.draft_tokens",
        )
    return adapter
