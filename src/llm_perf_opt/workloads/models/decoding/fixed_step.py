"""A decode step whose shapes stay the same from token to token and from prompt to prompt.

A compiled step is compiled again for every new shape, and a captured graph reads and writes the addresses it was
captured with. So caches come in a few lengths only, and what changes with a step lies in buffers that are written
before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SHORTEST_ROOM = 64
_LENGTHS_PER_DOUBLING = 8


def cache_room(tokens: int) -> int:
    """Return the length of the cache that holds ``tokens``: one of eight between a power of two and the next.

    What is added is at most an eighth (of caches of 512 tokens and more), and prompts of many lengths share few rooms.
    """
    largest_power = 1 << max(0, tokens - 1).bit_length() >> 1
    grain = max(_SHORTEST_ROOM, largest_power // _LENGTHS_PER_DOUBLING)
    return -(-tokens // grain) * grain


@dataclass(slots=True)
class StepInputs:
    """Everything a decode step reads besides weights and cache, at fixed addresses."""

    tokens: torch.Tensor
    """``[batch, 1]``."""
    positions: torch.Tensor
    """``[batch, 1]``."""
    mask: torch.Tensor
    """``[batch, room]``: ones where a key counts."""

    @classmethod
    def empty(cls, batch_size: int, room: int, device: torch.device) -> StepInputs:
        """Allocate them."""
        import torch

        def zeros(width: int) -> torch.Tensor:
            return torch.zeros(batch_size, width, dtype=torch.long, device=device)

        return cls(zeros(1), zeros(1), zeros(room))

    def begin(self, prompt_mask: torch.Tensor) -> None:
        """Mark the prompt; nothing behind it is written yet."""
        self.mask.zero_()
        self.mask[:, : prompt_mask.shape[1]] = prompt_mask

    def load(self, tokens: torch.Tensor, positions: torch.Tensor, column: int) -> None:
        """Write what the next step reads; ``column`` is where it will put its keys."""
        self.tokens.copy_(tokens)
        self.positions.copy_(positions)
        self.mask[:, column] = 1


@dataclass(slots=True)
class FixedStep:
    """One shape of decode step: its inputs, its cache, and how it is run."""

    inputs: StepInputs
    cache: Any
    replay: Callable[[], torch.Tensor] | None = None
    """Runs the captured graph; ``None``: nothing is captured (yet)."""
