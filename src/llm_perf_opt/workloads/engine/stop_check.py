"""The answers of a batch as they grow, and whether all have ended, learnt without waiting for the device at every token."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from llm_perf_opt.workloads.engine.ngram import ban_repeated_ngrams

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.hardware.accelerator import Accelerator
    from llm_perf_opt.workloads.base import Batch

Observe = Callable[["torch.Tensor"], None]


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


class Sequences:
    """Tokens of a batch as they grow, on the device; chooses the next one and knows when all have ended."""

    def __init__(
        self,
        batch: Batch,
        limit: int,
        accelerator: Accelerator,
        *,
        device: str,
        stop_ids: Sequence[int],
        no_repeat_ngram_size: int,
        observe: Observe | None = None,
    ) -> None:
        """Make room for ``limit`` tokens behind each prompt; ``observe`` sees the logits of every step."""
        import torch

        self._observe = observe
        prompt = batch.inputs.get("input_ids")
        self._ngram = no_repeat_ngram_size if prompt is not None else 0
        self._stop = torch.tensor(stop_ids, device=device) if stop_ids else None
        self._pad = next(iter(stop_ids), 0)
        self._start = 0 if prompt is None else prompt.shape[1]
        self._all = torch.zeros(len(batch.sample_ids), self._start + limit, dtype=torch.long, device=device)
        if prompt is not None:
            self._all[:, : self._start] = prompt
        self._finished: torch.Tensor | None = None
        self._check = StopCheck(accelerator)
        self.count = 0
        self.stopped = False
        self.last: torch.Tensor = self._all[:, :0]

    def choose(self, logits: torch.Tensor) -> None:
        """Take the most likely token of each sequence that may follow, greedily."""
        import torch

        end = self._start + self.count
        if self._observe is not None:
            self._observe(logits)
        if self._ngram:
            logits = ban_repeated_ngrams(logits.float(), self._all[:, :end], self._ngram)
        tokens = logits.argmax(-1)
        if self._stop is not None:
            if self._finished is not None:
                tokens = torch.where(self._finished, self._pad, tokens)
            ended = torch.isin(tokens, self._stop)
            self._finished = ended if self._finished is None else self._finished | ended
            self.stopped = self._check.push(self._finished)
        self._all[:, end] = tokens
        self.last = self._all[:, end : end + 1]
        self.count += 1

    def drop_tokens_after_stop(self) -> int:
        """Drop tokens made after the last sequence had ended; return how many are left."""
        if self._stop is not None:
            self.count = max(len(ids) for ids in self.token_ids())
        return self.count

    def token_ids(self) -> list[list[int]]:
        """Return each sequence's tokens, up to and including its end."""
        rows: list[list[int]] = self._all[:, self._start : self._start + self.count].tolist()
        if self._stop is None:
            return rows
        stop = set(self._stop.tolist())
        return [
            row[: next((place + 1 for place, token in enumerate(row) if token in stop), len(row))]
            for row in rows
        ]
