"""Records a counted phase: the modes of :mod:`llm_perf_opt.workloads.counting.counter` report to it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from llm_perf_opt.analysis.static.counts import AttentionUse, CacheUse, ExpertUse, ModelTree, PhaseCount
from llm_perf_opt.workloads.counting.formulas import (
    ATTENTION_OPERATORS,
    Cost,
    Formula,
    cost_of,
    formula_of,
    qualified_name,
    starts_work,
)

_BATCHED_PRODUCTS = frozenset({"aten::bmm", "aten::baddbmm"})


@dataclass(frozen=True, slots=True)
class _Operator:
    """Cached properties of an operator."""

    name: str
    cost: Cost
    formula: Formula | None
    attention: bool
    starts_work: bool
    """Whether a device has something to do for it: no view, no memory that is only reserved."""


class Recorder:
    """Collects facts; the modes and hooks below report to it."""

    def __init__(self, model: torch.nn.Module, tree: ModelTree, count: PhaseCount) -> None:
        self.count = count
        self.stack: list[str] = [""]
        self.modules: list[torch.nn.Module] = [model]
        self._paths = {id(module): name for name, module in model.named_modules()}
        named = dict(model.named_parameters())
        self._params = {id(param): name for name, param in named.items()}
        self._storages = {param.untyped_storage()._cdata: name for name, param in named.items()}
        self._gathered: list[torch.Tensor] = []  # keeps storages alive, so that their ids are not reused
        self._experts = {param.module for param in tree.params if param.experts}
        self._head = tree.head
        self._operators: dict[Any, _Operator] = {}

    def describe(self, operator: torch._ops.OpOverload) -> _Operator:
        """Return the properties of an operator."""
        found = self._operators.get(operator)
        if found is None:
            name = qualified_name(operator)
            formula = formula_of(operator)
            cost, attention = cost_of(operator), name in ATTENTION_OPERATORS
            found = _Operator(name, cost, formula, attention, starts_work(operator, cost))
            self._operators[operator] = found
        return found

    def parameter_of(self, tensor: torch.Tensor) -> str | None:
        """Return the name of the parameter behind a tensor or view."""
        name = self._params.get(id(tensor))
        return name if name is not None else self._storages.get(tensor.untyped_storage()._cdata)

    def note_operator(self, info: _Operator, args: tuple[Any, ...], out: Any) -> None:
        """Record one executed operator."""
        path = self.stack[-1]
        if not info.attention:
            self.count.operators += info.starts_work
            self.count.products += info.cost == "formula"
            if info.starts_work and info.cost != "formula":
                self.count.moved_bytes += self._activation_bytes(_tensors(args)) + _bytes(_tensors((out,)))
        if info.name == "aten::embedding":
            self._note_rows(path, args[0], out)
            return
        self._note_parameters(path, args)
        if info.name == "aten::index" and (name := self._params.get(id(args[0]))) is not None:
            # Chosen experts copied out of their stack (batched products) are still weights, not activations.
            self._gathered.append(out)
            self._storages[out.untyped_storage()._cdata] = name
        if info.cost == "formula" and info.formula is not None:
            flops = info.formula(args, out)
            if info.attention:
                self.note_attention(args[0], args[1], args[2], out, flops, causal=_causal_argument(args))
                return
            if not (info.name in _BATCHED_PRODUCTS and self._note_plain_attention(args, flops)):
                self.count.own_flops[path] = self.count.own_flops.get(path, 0) + flops
            self.note_activations(path, _tensors(args), _tensors((out,)))
        elif info.cost == "small":
            self.note_small(path, info.name, args, out)
        elif info.cost == "unknown" and _has_numeric_output(out):
            met = self.count.unknown.setdefault(path, {})
            met[info.name] = met.get(info.name, 0) + 1

    def _note_rows(self, path: str, table: torch.Tensor, out: torch.Tensor) -> None:
        name = self.parameter_of(table)
        if name is not None:
            rows = min(out.numel() // max(1, out.shape[-1]), table.shape[0])
            self.count.rows_read[name] = (path, rows, rows * table.shape[-1] * table.element_size())

    def _note_parameters(self, path: str, args: tuple[Any, ...]) -> None:
        for arg in args:
            if isinstance(arg, torch.Tensor):
                name = self._params.get(id(arg))
                if name is not None:
                    self.count.params_read.setdefault(name, path)
            elif isinstance(arg, list | tuple):
                self._note_parameters(path, tuple(arg))

    def note_small(self, path: str, name: str, args: tuple[Any, ...], out: Any) -> None:
        """Record cheap arithmetic by the elements it produces or reduces; index arithmetic is left out."""
        if not _has_numeric_output(out):
            return
        elements = max(tensor.numel() for tensor in _tensors((out, *args)))
        met = self.count.uncounted.setdefault(path, {})
        met[name] = met.get(name, 0) + elements

    def note_activations(self, path: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """Add the bytes of inputs that are not parameters, and of outputs."""
        size = self._activation_bytes(inputs) + _bytes(outputs)
        own = self.count.own_activation_bytes
        own[path] = own.get(path, 0) + size
        self.count.largest_operator_bytes = max(self.count.largest_operator_bytes, size)

    def _activation_bytes(self, tensors: list[torch.Tensor]) -> int:
        return _bytes([tensor for tensor in tensors if self.parameter_of(tensor) is None])

    def note_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: Any,
        flops: int,
        *,
        causal: bool,
    ) -> None:
        """Record one attention; keys and values from the cache are cache traffic, not activations."""
        path, module = self.stack[-1], self.modules[-1]
        self.count.operators += 1
        self.count.products += 1
        queries, keys = int(query.shape[-2]), int(key.shape[-2])
        causal = queries > 1 and (causal or getattr(module, "is_causal", False) is True)
        heads = int(query.shape[-3]) if query.ndim > 2 else 1
        self.count.attention.append(
            AttentionUse(
                path,
                flops,
                queries,
                keys,
                causal,
                self._window(module),
                math.prod(query.shape[:-3]),
                heads,
                self._kv_heads(module) or (int(key.shape[-3]) if key.ndim > 2 else 1),
                int(query.shape[-1]),
            )
        )
        from_cache = queries < keys and bool(self.count.cache)
        inputs = [query] if from_cache else [query, key, value]
        self.note_activations(path, inputs, _tensors((out,)))
        scores = flops // (2 * (query.shape[-1] + value.shape[-1]))
        met = self.count.uncounted.setdefault(path, {})
        met["softmax inside attention"] = met.get("softmax inside attention", 0) + scores

    def _note_plain_attention(self, args: tuple[Any, ...], flops: int) -> bool:
        """Detect the two products of eager attention, so that conventions apply to them.

        They are batched products run directly by a decoder's attention module, one of whose sizes is the
        number of positions its cache layer holds.
        """
        module = self.modules[-1]
        layer = self.count.cache.get(getattr(module, "layer_idx", -1))
        left, right = args[-2].shape, args[-1].shape
        if getattr(module, "is_causal", None) is not True or layer is None or len(left) != 3:
            return False
        if layer.held not in (left[-1], right[-1]) or left[-2] != self.count.positions:
            return False
        batch = max(self.count.batch_size, 1)
        head_dim = left[-1] if right[-1] == layer.held else right[-1]
        use = AttentionUse(
            self.stack[-1],
            flops,
            left[-2],
            layer.held,
            left[-2] > 1,
            self._window(module),
            batch,
            left[0] // batch,
            layer.kv_heads,
            int(head_dim),
            written_out=True,
        )
        self.count.attention.append(use)
        return True

    def _kv_heads(self, module: torch.nn.Module) -> int:
        """Return the heads a module's cache layer holds; 0 without one."""
        layer = self.count.cache.get(getattr(module, "layer_idx", -1))
        return layer.kv_heads if layer is not None else 0

    def _window(self, module: torch.nn.Module) -> int | None:
        """Return the sliding window of an attention module: its own setting, or its cache layer's."""
        window = getattr(module, "sliding_window", None)
        if not isinstance(window, int):
            layer = self.count.cache.get(getattr(module, "layer_idx", -1))
            window = layer.window if layer is not None else None
        return window

    @contextlib.contextmanager
    def watching_modules(self) -> Iterator[None]:
        """Keep the path of the innermost running module; note how experts and the head are called."""
        before = torch.nn.modules.module.register_module_forward_pre_hook(self._enter_module)
        after = torch.nn.modules.module.register_module_forward_hook(self._leave_module, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _enter_module(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        path = self._paths.get(id(module))
        if path is None:
            return
        self.stack.append(path)
        self.modules.append(module)
        if path in self._experts:
            self._note_experts(path, args)
        if path == self._head and args and isinstance(args[0], torch.Tensor):
            rows = args[0].numel() // max(1, args[0].shape[-1])
            self.count.head_rows = (self.count.head_rows or 0) + rows

    def _leave_module(self, module: torch.nn.Module, _args: Any, _out: Any) -> None:
        if id(module) in self._paths:
            self.stack.pop()
            self.modules.pop()

    def _note_experts(self, path: str, args: tuple[Any, ...]) -> None:
        """Read tokens and choices per token from the routing indices (an integer matrix argument)."""
        for arg in args:
            if isinstance(arg, torch.Tensor) and not arg.is_floating_point() and arg.ndim >= 2:
                top_k = int(arg.shape[-1])
                use = self.count.experts.setdefault(path, ExpertUse(0, top_k))
                use.tokens += arg.numel() // max(1, top_k)
                return

    @contextlib.contextmanager
    def watching_caches(self) -> Iterator[None]:
        """Note what layers write to and read from a transformers cache while a module runs.

        Keys and values of an encoder are not part of a growing cache; their adapter counts them as a state.
        """
        try:
            from transformers.cache_utils import Cache
        except ImportError:  # a user's model without transformers: no cache facts
            yield
            return
        original = Cache.update

        def update(
            cache: Any, key: torch.Tensor, value: torch.Tensor, layer: int, *args: Any, **kwargs: Any
        ) -> Any:
            result = original(cache, key, value, layer, *args, **kwargs)
            if len(self.stack) > 1 and not getattr(cache, "is_cross_attention", False):
                self._note_cache(cache, layer, (key, value), result)
            return result

        Cache.update = update
        try:
            yield
        finally:
            Cache.update = original

    def _note_cache(self, cache: Any, layer: int, new: tuple[torch.Tensor, ...], seen: Any) -> None:
        written, held = _bytes_once(new), _bytes_once(seen)
        use = self.count.cache.setdefault(layer, CacheUse())
        use.written_bytes += written
        use.read_bytes += max(0, held - written)
        use.tokens += int(new[0].shape[-2])
        use.held = int(seen[0].shape[-2])
        use.kv_heads = int(new[0].shape[-3]) if new[0].ndim > 2 else 1
        layers = getattr(cache, "layers", None)
        window = getattr(layers[layer], "sliding_window", None) if layers and layer < len(layers) else None
        use.window = window if isinstance(window, int) else None


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _bytes_once(tensors: Any) -> int:
    """Add up tensors; a tensor used as both key and value is counted once."""
    distinct = {id(tensor): tensor for tensor in tensors if isinstance(tensor, torch.Tensor)}
    return sum(tensor.numel() * tensor.element_size() for tensor in distinct.values())


def _causal_argument(args: tuple[Any, ...]) -> bool:
    """Attention kernels take ``is_causal`` as their first boolean positional argument."""
    return next((arg for arg in args if isinstance(arg, bool)), False)


def _has_numeric_output(out: Any) -> bool:
    """Return whether an operator is arithmetic and not index or mask bookkeeping, which has no FLOPs."""
    return any(tensor.is_floating_point() or tensor.is_complex() for tensor in _tensors((out,)))


def _tensors(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(_tensors(value))
    return found
