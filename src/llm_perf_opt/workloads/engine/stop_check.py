"""Whether all sequences have ended, learnt without waiting for the device at every token."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.hardware.accelerator import Accelerator


class StopCheck:
    """Learn whether all sequences ended, ``lag`` steps late, so that an accelerator is never waited for at once."""

    def __init__(self, accelerator: Accelerator, lag: int | None = None) -> None:
        """Look one step late where work is asynchronous, at once elsewhere, unless ``lag`` says otherwise."""
        self._accelerator = accelerator
        self._lag = int(accelerator.is_asynchronous) if lag is None else lag
        self._pending: deque[tuple[torch.Tensor, Any]] = deque()

    def push(self, finished: torch.Tensor) -> bool:
        """Take this step's flags; return the answer of ``lag`` steps ago."""
        flag, event = finished.all(), None
        if self._accelerator.is_asynchronous:
            flag = flag.to("cpu", non_blocking=True)
            # The copy is on the stream of the flag's device, which need not be the current one.
            event = self._accelerator.record()
        self._pending.append((flag, event))
        if len(self._pending) <= self._lag:
            return False
        oldest, done = self._pending.popleft()
        if done is not None:
            self._accelerator.wait(done)
        return bool(oldest)
