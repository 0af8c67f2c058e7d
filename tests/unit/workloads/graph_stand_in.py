"""A stand-in for ``torch.cuda`` that captures and replays on the CPU, and writes down what was asked of it.

Capturing records every operator with the very tensors it read and wrote; replaying runs them again on the same memory.
So what a real graph would get wrong is wrong here too: an input that was not written to its buffer, a number that Python
worked out, a tensor that moved. Reading a value while capturing is an error, as it is on a device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_READS_A_VALUE = ("_local_scalar_dense", "nonzero", "equal")


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in _READS_A_VALUE:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        self._graph.operations.append((func, args, kwargs or {}, result))
        return result


class RecordedGraph:
    """Operators and the tensors they work on."""

    def __init__(self, api: StandIn) -> None:
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self._api = api

    def pool(self) -> str:
        return "pool"

    def replay(self) -> None:
        self._api.calls.append(("replay", self._api.watched()))
        for func, args, kwargs, result in self.operations:
            for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class _Stream:
    def __init__(self, api: StandIn, name: str) -> None:
        self._api, self.name = api, name

    def wait_stream(self, other: _Stream) -> None:
        self._api.calls.append((f"{self.name} waits for {other.name}", None))


class StandIn:
    """What the capture uses of ``torch.cuda``."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.watched: Any = lambda: None
        """Asked at every replay: what lay in the buffers."""

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    @contextlib.contextmanager
    def device(self, device: str) -> Iterator[None]:
        self.calls.append((f"device {device}", None))
        yield

    def Stream(self, device: str) -> _Stream:
        return _Stream(self, f"side of {device}")

    def current_stream(self, device: str) -> _Stream:
        return _Stream(self, f"main of {device}")

    @contextlib.contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        self.calls.append((f"on {stream.name}", None))
        yield
        self.calls.append((f"off {stream.name}", None))

    def CUDAGraph(self) -> RecordedGraph:
        return RecordedGraph(self)

    @contextlib.contextmanager
    def graph(self, graph: RecordedGraph, pool: Any = None) -> Iterator[None]:
        self.calls.append(("capture", pool))
        with _Recorder(graph):
            yield
        self.calls.append(("captured", None))
