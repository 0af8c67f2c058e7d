"""Time of single components (SAM, CLIP, projector, …) by forward hooks that exist only while a phase runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.workloads.engine.clock import Clock


class ComponentTimers:
    """Marks before and after every call of each component, under a range of the component's name."""

    def __init__(
        self,
        model: torch.nn.Module,
        paths: Mapping[str, str],
        clock: Clock,
        ranges: Callable[[str], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._modules = {label: _submodule(model, path, label) for label, path in paths.items()}
        self._clock = clock
        self._ranges = ranges
        self._marks: dict[str, list[tuple[Any, Any]]] = {}

    @contextlib.contextmanager
    def watch(self, phase: str) -> Iterator[None]:
        """Hook every component while a phase runs; the hooks are gone when decoding starts, where they would cost."""
        handles: list[Any] = []
        for label, module in self._modules.items():
            # Components of the vision phase keep their plain name; the language model's say which phase they mean.
            key = f"{label}_s" if phase == "vision" else f"{label}_{phase}_s"
            handles.extend(self._hook(module, label, key))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, module: torch.nn.Module, label: str, key: str) -> list[Any]:
        opened: list[tuple[Any, contextlib.AbstractContextManager[None]]] = []

        def before(_module: Any, _inputs: Any) -> None:
            named = self._ranges(label)
            named.__enter__()
            opened.append((self._clock.mark(), named))

        def after(_module: Any, _inputs: Any, _output: Any) -> None:
            start, named = opened.pop()
            self._marks.setdefault(key, []).append((start, self._clock.mark()))
            named.__exit__(None, None, None)

        return [
            module.register_forward_pre_hook(before),
            module.register_forward_hook(after, always_call=True),
        ]

    def seconds(self) -> dict[str, float]:
        """Return the summed time of each component that ran; call it after the device was synchronised."""
        return {key: sum(self._clock.seconds(*pair) for pair in pairs) for key, pairs in self._marks.items()}


def _submodule(model: torch.nn.Module, path: str, label: str) -> torch.nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise ConfigError(
            f"component {label!r} names a module that does not exist: {path}",
            hint="components() must give paths inside the built model",
            key="model.adapter",
        ) from error
