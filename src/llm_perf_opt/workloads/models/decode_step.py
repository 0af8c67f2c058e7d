"""A decode step whose shapes stay the same from token to token and from prompt to prompt.

A compiled step is compiled again for every new shape, and a captured graph reads and writes the addresses it was
captured with. So caches come in a few lengths only, and what changes with a step lies in buffers that are written
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import ConfigError, ToolError

if TYPE_CHECKING:
    import torch

_SHORTEST_ROOM = 64
_LENGTHS_PER_DOUBLING = 8


def cache_room(tokens: int) -> int:
    """Return the length of the cache that holds ``tokens``: one of eight between a power of two and the next.

    What is added is at most an eighth (of caches of 512 tokens and more), and prompts of many lengths share few lengths.
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
        """Mark the prompt; nothing after it is written yet."""
        self.mask.zero_()
        self.mask[:, : prompt_mask.shape[1]] = prompt_mask

    def load(self, tokens: torch.Tensor, positions: torch.Tensor, column: int) -> None:
        """Write the inputs of the next step; ``column`` is the position of its keys."""
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


# Capture a decode step as a CUDA graph, and replay it: one launch instead of hundreds.
#
# A graph repeats kernels at the addresses they were captured with without the Python code between them. So a
# step is captured only if its state keeps its addresses and has no counters on the host; anything else would
# replay the first step forever, with plausible but wrong output.


_WARM_UP_STEPS = 3
"""As torch's own make_graphed_callables: libraries choose their algorithms and allocate in the first ones."""
Step = Callable[[], "torch.Tensor"]


def _has_graphs(device: str) -> bool:
    """Whether steps can be captured on a device: CUDA, and ROCm under the same name."""
    return device.startswith("cuda")


def refuse_without_graphs(device: str) -> None:
    """Reject a device that cannot capture."""
    if not _has_graphs(device):
        raise ConfigError(
            f"model.cuda_graphs=true: {device} cannot capture and replay its work",
            hint="use model.cuda_graphs=false, or run.device=cuda on a machine with such a GPU",
            key="model.cuda_graphs",
        )


class CudaGraphs:
    """Captures steps on one device; their graphs share a pool of memory, because only one runs at a time."""

    def __init__(self, device: str, api: Any = None) -> None:
        """``api``: ``torch.cuda`` unless given."""
        import torch

        self._device = device
        self._api = torch.cuda if api is None else api
        self._pool: Any = None

    def capture(self, step: Step, state: Any) -> Step:
        """Warm ``step`` up on a stream of its own, capture it, and return the replay function.

        ``state`` is what the step writes besides its result; it is left as the warm-up left it.
        """
        with self._api.device(self._device):
            self._warm_up(step, state)
            graph = self._api.CUDAGraph()
            try:
                with self._api.graph(graph, pool=self._pool):
                    result = step()
            except RuntimeError as error:
                raise ToolError(
                    f"the decode step cannot be captured as a CUDA graph: {_first_line(error)}",
                    hint="use model.cuda_graphs=false; model.compile=true alone works with more models",
                    key="model.cuda_graphs",
                ) from error
        self._pool = graph.pool()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay

    def _warm_up(self, step: Step, state: Any) -> None:
        stream, current = self._api.Stream(self._device), self._api.current_stream(self._device)
        stream.wait_stream(current)
        with self._api.stream(stream):
            step()  # allocations of the first step are not a change
            before = fingerprint(state)
            for _ in range(_WARM_UP_STEPS - 1):
                step()
        current.wait_stream(stream)
        _refuse_unsteady(before, fingerprint(state))


def fingerprint(state: Any) -> dict[str, Any]:
    """Return the address of every tensor a cache holds, and every number it counts on the host."""
    return dict(_entries(state, "cache"))


def _refuse_unsteady(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Reject a state whose addresses or host counters change between steps."""
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        raise ConfigError(
            f"model.cuda_graphs=true: this model's cache is not the same from step to step ({', '.join(changed[:3])}), "
            "and a graph would not see the change",
            hint="use model.cuda_graphs=false; model.compile=true alone works with more models",
            key="model.cuda_graphs",
        )


def _entries(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    import torch

    if isinstance(node, torch.Tensor):
        yield path, (node.data_ptr(), tuple(node.shape))
    elif isinstance(node, bool | int | float | str):
        yield path, node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from _entries(value, f"{path}.{key}")
    elif isinstance(node, list | tuple):
        for place, value in enumerate(node):
            yield from _entries(value, f"{path}.{place}")
    elif type(node).__module__.startswith("transformers") and hasattr(node, "__dict__"):
        yield from _entries(vars(node), path)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
