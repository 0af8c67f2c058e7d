"""A model's memory, given back and proved to be: a captured program loads the same model on the same device again."""

from __future__ import annotations

import gc
import logging
import sys
from dataclasses import asdict, dataclass
from typing import Any

from llm_perf_opt.core import units
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.hardware.accelerator import Accelerator, MemoryUse, open_accelerator

LOGGER = logging.getLogger("llm_perf_opt")
TOLERANCE_BYTES = 64 << 20
"""What libraries keep for themselves (workspaces, one block of the allocator) and no model is made of."""


@dataclass(frozen=True, slots=True)
class Release:
    """What giving back a model's memory came to."""

    device: str
    at_start: MemoryUse
    """Before the model was built."""
    before: MemoryUse
    after: MemoryUse

    @property
    def left_bytes(self) -> int:
        """What is held now and was not before the model was built."""
        return max(0, self.after.reserved_bytes - self.at_start.reserved_bytes)

    @property
    def is_proved(self) -> bool:
        """Whether nothing of the model is left."""
        return self.left_bytes <= TOLERANCE_BYTES

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": 1, **asdict(self), "left_bytes": self.left_bytes, "proved": self.is_proved}

    def problem(self) -> str | None:
        """Say what is left, if anything."""
        if self.is_proved:
            return None
        return (
            f"{units.size(self.left_bytes)} of {self.device} could not be given back after measuring "
            f"({units.size(self.after.allocated_bytes)} of it in tensors)"
        )


def give_back(accelerator: Accelerator) -> MemoryUse | None:
    """Collect what nobody refers to, empty the allocator, and look at what is left."""
    if "torch._dynamo" in sys.modules:
        # Compiled functions keep the parameters they were specialised on.
        sys.modules["torch._dynamo"].reset()
    gc.collect()
    if accelerator.memory() is None:
        return None
    accelerator.synchronize()
    accelerator.empty_cache()
    return accelerator.memory()


def require_room(device: str) -> None:
    """Look before a program is started that loads the model again: this process must not hold the device's memory.

    What is held is named in the log; when what is free is less than this process itself needed, nothing is started.
    """
    if device == "cpu" or "torch" not in sys.modules:
        return
    accelerator = open_accelerator(device)
    held = accelerator.memory()
    if held is None or held.reserved_bytes == 0:
        return
    needed, held = accelerator.peak_memory(), give_back(accelerator)
    if held is None or held.reserved_bytes <= TOLERANCE_BYTES:
        return
    said = f"this process still holds {units.size(held.reserved_bytes)} of {device}"
    free = accelerator.free_bytes()
    if free is not None and needed is not None and free < needed.allocated_bytes:
        raise ToolError(
            f"{said}: the captured program needs about {units.size(needed.allocated_bytes)}, and {units.size(free)} are free",
            hint="capture in a run of its own: pipeline.torch_profiler.enable=false pipeline.direct_inference.enable=false "
            "pipeline.telemetry.enable=false",
        )
    LOGGER.warning("%s while the captured program runs", said)
