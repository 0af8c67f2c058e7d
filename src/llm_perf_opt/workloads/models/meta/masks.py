"""Masks on the meta device: transformers asks whether a mask pads anything, and there are no values to look at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def nothing_is_padded(model: Any) -> Iterator[None]:
    """Answer "no padding" wherever transformers looks for it; true of every static count, which pads nothing.

    Some models make a mask of ones themselves when none is given, others look for the padding token in the ids.
    """
    from transformers import masking_utils

    original = getattr(masking_utils, "fast_all", None)

    def all_true(mask: Any) -> Any:
        return True if mask.device.type == "meta" or original is None else original(mask)

    quiet = "warn_if_padding_and_no_attention_mask"
    if original is not None:
        masking_utils.fast_all = all_true
    asking = [module for module in model.modules() if hasattr(type(module), quiet)]
    for module in asking:
        setattr(module, quiet, lambda *_args, **_kwargs: None)
    try:
        yield
    finally:
        if original is not None:
            masking_utils.fast_all = original
        for module in asking:
            vars(module).pop(quiet, None)
