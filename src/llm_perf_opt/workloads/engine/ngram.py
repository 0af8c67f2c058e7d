"""The no-repeated-n-gram rule as tensor operations: nothing leaves the device, so nothing waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def ban_repeated_ngrams(logits: torch.Tensor, tokens: torch.Tensor, size: int) -> torch.Tensor:
    """Set the logits of tokens that would complete an n-gram already in ``tokens`` to minus infinity.

    ``tokens`` is ``[batch, length]`` and holds the prompt (padding and image positions included) and what was
    generated, as ``transformers``' ``no_repeat_ngram_size`` counts. ``logits`` is changed in place.
    """
    import torch

    length = tokens.shape[1]
    if size <= 0 or length < size:
        return logits
    windows = tokens.unfold(1, size, 1)
    last = tokens[:, length - size + 1 :].unsqueeze(1)
    repeated = (windows[..., :-1] == last).all(-1)
    following = windows[..., -1]
    limit = torch.where(repeated, float("-inf"), float("inf")).to(logits.dtype)
    return logits.scatter_reduce_(1, following, limit, "amin")
