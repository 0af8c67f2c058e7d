"""The adapter: how llm-perf-opt builds, feeds and steps this model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch.nn.utils.rnn import pack_sequence

from llm_perf_opt.config.schema import InferConfig, ModelConfig
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads.base import (
    Batch,
    ModelAdapter,
    Phase,
    PhaseShapes,
    Sample,
)

VOCABULARY = 256
END = 0


class RecurrentModel(torch.nn.Module):
    """Embedding, one gated recurrent unit, a head. The state plays the part of a key-value cache."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, hidden_size)
        self.core = torch.nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.head = torch.nn.Linear(hidden_size, VOCABULARY)

    def read(self, prompts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Read prompts of any lengths, each from a state of its own, without padding between them."""
        rows = [self.embedding(prompt) for prompt in prompts]
        _, state = self.core(pack_sequence(rows, enforce_sorted=False))
        return self.head(state[-1]), state

    def forward(self, tokens: torch.Tensor, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of the last position and the new state."""
        hidden, state = self.core(self.embedding(tokens), state)
        return self.head(hidden[:, -1]), state


class ByteGruAdapter(ModelAdapter):
    """Bytes in, bytes out. Only what a model must have, and a cache; the rest are the base class's defaults."""

    name = "byte_gru"
    architecture = "one gated recurrent layer"
    phases: tuple[Phase, ...] = ("prefill", "decode")

    def __init__(self, model: ModelConfig, infer: InferConfig) -> None:
        unknown = set(model.arch) - {"hidden_size"}
        if unknown:
            raise ConfigError(
                f"unknown keys in model.arch: {sorted(unknown)}", hint="only hidden_size", key="model.arch"
            )
        super().__init__(model, infer)
        self.hidden_size = int(model.arch.get("hidden_size", 128))

    def components(self) -> Mapping[str, str]:
        """Parts that get a time of their own."""
        return {"core": "core", "head": "head"}

    def weights(self) -> Literal["random"]:
        """No checkpoint exists."""
        return "random"

    def build(self, device: str, dtype: torch.dtype) -> torch.nn.Module:
        """Make the model; on the meta device it has shapes only."""
        torch.manual_seed(self.config.seed)
        with torch.device(device):
            return RecurrentModel(self.hidden_size).to(dtype).eval()

    def prepare(self, samples: Sequence[Sample], device: str, dtype: torch.dtype) -> Batch:
        """Turn prompts into bytes; a sample that cannot be used raises InputError."""
        rows = [self._bytes(sample) for sample in samples]
        lengths = [len(row) for row in rows]
        longest = max(lengths)
        # The engine looks for repeated n-grams in ``input_ids``; the model itself reads ``prompts``.
        padded = [[END] * (longest - len(row)) + row for row in rows]
        inputs = {
            "input_ids": torch.tensor(padded, device=device),
            "prompts": [torch.tensor(row, device=device) for row in rows],
        }
        return Batch(
            [sample.id for sample in samples],
            inputs,
            prompt_tokens=longest,
            image_tokens=0,
            facts={"prompt_tokens": lengths},
        )

    def _bytes(self, sample: Sample) -> list[int]:
        if sample.synthetic_tokens is not None:
            return [1 + place % (VOCABULARY - 1) for place in range(sample.synthetic_tokens)]
        if not sample.prompt:
            raise InputError(f"sample {sample.id} has no prompt")
        return list(sample.prompt.encode("utf-8"))

    def make_cache(self, model: torch.nn.Module, batch: Batch, max_new_tokens: int) -> dict[str, Any]:
        """Optional: whatever ``prefill`` fills and ``decode_step`` reads; here the recurrent state."""
        return {"state": None}

    def prefill(self, model: torch.nn.Module, batch: Batch, vision: Any, cache: Any) -> torch.Tensor:
        """Read the prompt."""
        logits, cache["state"] = model.read(batch.inputs["prompts"])
        return logits

    def decode_step(
        self, model: torch.nn.Module, batch: Batch, tokens: torch.Tensor, step: int, cache: Any
    ) -> torch.Tensor:
        """Read one more byte per sequence."""
        logits, cache["state"] = model(tokens, cache["state"])
        return logits

    def eos_token_ids(self) -> tuple[int, ...]:
        """The NUL byte ends a text."""
        return (END,)

    def text(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Bytes as text."""
        return bytes(token_ids).decode("utf-8", errors="replace")

    def shapes(self, batch: Batch, context_tokens: int) -> PhaseShapes:
        """What the static count is made at."""
        return PhaseShapes(len(batch.sample_ids), batch.prompt_tokens, 0, context_tokens)

    def default_shapes(self) -> PhaseShapes:
        """A typical request."""
        return PhaseShapes(self.infer.batch_size, 128, 0, 144)

    def static_calls(
        self, model: torch.nn.Module, shapes: PhaseShapes
    ) -> Mapping[Phase, Callable[[], object]]:
        """One call per phase with tensors on the meta device."""

        def run(tokens: int) -> object:
            ids = torch.zeros(shapes.batch_size, tokens, dtype=torch.long, device="meta")
            with torch.no_grad():
                return model(ids, None)

        return {"prefill": lambda: run(shapes.prompt_tokens), "decode": lambda: run(1)}
