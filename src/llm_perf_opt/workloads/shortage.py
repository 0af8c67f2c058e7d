"""What an allocator says when memory runs out, as numbers; accelerators and the host have words of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_AMOUNT = r"(\d+(?:\.\d+)?)\s*(bytes|B|[KMGT]iB)"
_TRIED = re.compile(rf"(?:Tried|tried) to allocate {_AMOUNT}")
_TOTAL = re.compile(rf"total capacity of {_AMOUNT}")
_FREE = re.compile(rf"of which {_AMOUNT} is free")
_ALLOCATED = re.compile(rf"{_AMOUNT} is allocated by PyTorch")
_UNUSED = re.compile(rf"{_AMOUNT} is reserved by PyTorch but unallocated")
# The host's allocators have no class of their own for having run out.
_HOST_WORDS = ("can't allocate memory", "cannot allocate memory", "not enough memory", "std::bad_alloc")


@dataclass(frozen=True, slots=True)
class Shortage:
    """What an allocator said; ``None``: it did not."""

    tried_bytes: float | None = None
    total_bytes: float | None = None
    free_bytes: float | None = None
    allocated_bytes: float | None = None
    unused_bytes: float | None = None
    """Held by torch's allocator in pieces that fit nothing."""

    @property
    def missing_bytes(self) -> float | None:
        """How much more would have been needed for this one allocation."""
        if self.tried_bytes is None or self.free_bytes is None:
            return None
        return max(0.0, self.tried_bytes - self.free_bytes)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on an accelerator or on the host."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        any(words in text for words in _HOST_WORDS) or "out of memory" in text
    )


def shortage(error: BaseException, host_free_bytes: int | None = None) -> Shortage:
    """Read an allocator's message; the host's own does not say what was free, so that is handed in."""
    text = str(error)
    found = {
        "tried_bytes": _amount(_TRIED, text),
        "total_bytes": _amount(_TOTAL, text),
        "free_bytes": _amount(_FREE, text),
        "allocated_bytes": _amount(_ALLOCATED, text),
        "unused_bytes": _amount(_UNUSED, text),
    }
    if found["free_bytes"] is None and host_free_bytes is not None:
        found["free_bytes"] = float(host_free_bytes)
    return Shortage(**found)


def _amount(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return None if match is None else float(match[1]) * _UNITS[match[2]]
