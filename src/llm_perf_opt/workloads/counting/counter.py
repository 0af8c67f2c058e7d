"""Count one phase of a model: FLOPs, bytes, cache traffic and coverage, by module, in one pass.

Works on the meta device (no weights, no arithmetic) and on real tensors. It is torch's FlopCounterMode
idea — a dispatch mode that sees every operator — with the missing formulas of
:mod:`llm_perf_opt.workloads.counting.formulas`, and it also notes which parameters are read, what the key-value
cache carries and which operators have no formula, so that nothing needs a second pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from llm_perf_opt.analysis.static.counts import (
    LatentAttention,
    ModelTree,
    ModuleInfo,
    ParamInfo,
    PhaseCount,
    StateUse,
)
from llm_perf_opt.workloads.base import StaticCall
from llm_perf_opt.workloads.counting.formulas import attention_flops
from llm_perf_opt.workloads.counting.recorder import Recorder
from llm_perf_opt.workloads.models.caches import only_read

if TYPE_CHECKING:
    from llm_perf_opt.workloads.base import ModelAdapter, PhaseShapes


def model_tree(model: torch.nn.Module, components: Mapping[str, str] | None = None) -> ModelTree:
    """Describe a model's modules and parameters; tied parameters appear once."""
    modules = tuple(ModuleInfo(name, type(module).__name__) for name, module in model.named_modules())
    by_name = dict(model.named_modules())
    params = []
    for name, param in model.named_parameters():
        owner = name.rpartition(".")[0]
        params.append(
            ParamInfo(
                name,
                owner,
                param.numel(),
                param.element_size(),
                _stacked_experts(by_name[owner], param),
                tuple(param.shape),
            )
        )
    rotary_module, frequencies = _rotary_embedding(model)
    return ModelTree(
        modules,
        tuple(params),
        _head_path(model, components or {}),
        frequencies,
        rotary_module,
        _routed(by_name, {param.module for param in params if param.experts}),
        tuple(found for name, module in by_name.items() if (found := _latent(name, module)) is not None),
    )


def _routed(modules: Mapping[str, torch.nn.Module], experts: set[str]) -> dict[str, int]:
    """Return how many experts are chosen for a token, as set in the module around the experts."""
    found = {}
    for path in sorted(experts):
        around = modules.get(path.rpartition(".")[0])
        chosen = getattr(around, "top_k", getattr(around, "num_experts_per_tok", None))
        if isinstance(chosen, int) and chosen > 0:
            found[path] = chosen
    return found


def _latent(path: str, module: torch.nn.Module) -> LatentAttention | None:
    """Detect latent attention by its sizes and the layer that expands the compressed vector."""
    names = ("num_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    sizes = [getattr(module, name, None) for name in names]
    expansion = getattr(module, "kv_b_proj", None)
    if not isinstance(expansion, torch.nn.Linear) or not all(isinstance(size, int) for size in sizes):
        return None
    heads, rank, key, rotated, value = (int(size) for size in sizes if size is not None)
    if tuple(expansion.weight.shape) != (heads * (key + value), rank):
        return None
    return LatentAttention(path, f"{path}.kv_b_proj", heads, rank, key, rotated, value)


def _stacked_experts(owner: torch.nn.Module, param: torch.Tensor) -> int:
    """Return how many experts a tensor stacks, or 0: transformers keeps them as ``[experts, …]``."""
    count = getattr(owner, "num_experts", None)
    if isinstance(count, int) and "expert" in type(owner).__name__.lower():
        return count if param.ndim >= 2 and param.shape[0] == count else 0
    return 0


def _head_path(model: torch.nn.Module, components: Mapping[str, str]) -> str | None:
    if "lm_head" in components:
        return components["lm_head"]
    getter = getattr(model, "get_output_embeddings", None)
    head = getter() if callable(getter) else None
    named = model.named_modules() if head is not None else ()
    return next((name for name, module in named if module is head), None)


def _rotary_embedding(model: torch.nn.Module) -> tuple[str | None, int]:
    """Find the language model's rotary embedding: the last one, since vision towers come first."""
    found: tuple[str | None, int] = (None, 0)
    for name, module in model.named_modules():
        frequencies = getattr(module, "inv_freq", None)
        if isinstance(frequencies, torch.Tensor) and "rotary" in type(module).__name__.lower():
            found = (name, frequencies.numel())
    return found


def count_phase(
    model: torch.nn.Module,
    call: Callable[[], object],
    tree: ModelTree,
    *,
    positions: int,
    batch_size: int,
) -> PhaseCount:
    """Run ``call`` under the counter and return what it did."""
    recorder = Recorder(model, tree, PhaseCount(positions=positions, batch_size=batch_size))
    with (
        torch.no_grad(),
        recorder.watching_modules(),
        recorder.watching_caches(),
        _AttentionFunctionMode(recorder),
        _OperatorDispatchMode(recorder),
    ):
        call()
    return recorder.count


class _OperatorDispatchMode(TorchDispatchMode):  # type: ignore[misc]
    """Intercepts every operator."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._whole: set[Any] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        info = self._recorder.describe(func)
        if info.cost != "formula" and func not in self._whole:
            # Composite operators (they reach this point in inference mode) are counted by their parts.
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            self._whole.add(func)
        out = _OUTPUTS.of(func, args, kwargs)
        self._recorder.note_operator(info, args, out)
        return out


class _ShapesDispatchMode(TorchDispatchMode):  # type: ignore[misc]
    """Runs operators for the shapes of their results alone."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _OUTPUTS.of(func, args, kwargs or {})


class _MetaOutputs:
    """Shapes of results on the meta device, each worked out once.

    torch runs many operators on that device in Python, a millisecond each, and the layers of a model are alike.
    """

    MOST_KNOWN = 20_000

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, list[tuple[Any, Any, torch.dtype]]]] = {}
        self._is_pure: dict[Any, bool] = {}

    def of(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what the operator returns."""
        key = self._key(func, args, kwargs)
        if key is None:
            return func(*args, **kwargs)
        if (known := self._known.get(key)) is not None:
            kind, results = known
            made = [
                torch.empty_strided(shape, stride, dtype=dtype, device="meta")
                for shape, stride, dtype in results
            ]
            return made[0] if kind is torch.Tensor else kind(made)
        out = func(*args, **kwargs)
        new: Sequence[Any] = out if isinstance(out, list | tuple) else [out]
        if new and all(type(one) is torch.Tensor and one.is_meta and not one.storage_offset() for one in new):
            if len(self._known) >= self.MOST_KNOWN:
                self._known.clear()
            self._known[key] = (type(out), [(one.shape, one.stride(), one.dtype) for one in new])
        return out

    def _key(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what decides the shape of the result; ``None`` where it may be a view or written in place."""
        pure = self._is_pure.get(func)
        if pure is None:
            schema = func._schema
            values = (*schema.arguments, *schema.returns)
            pure = all(value.alias_info is None for value in values)
            self._is_pure[func] = pure
        if not pure:
            return None
        try:
            described = (_described(args), _described(tuple(sorted(kwargs.items()))))
            key = (func, torch.get_default_dtype(), *described)
            hash(key)
        except (_NotOnMeta, TypeError):
            return None
        return key


_OUTPUTS = _MetaOutputs()


class _NotOnMeta(Exception):
    """A tensor with values, which may decide the shape of a result."""


def _described(values: Any) -> tuple[Any, ...]:
    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or not value.is_meta:
                raise _NotOnMeta
            found.append((value.shape, value.stride(), value.dtype))
        elif isinstance(value, list | tuple):
            found.append(_described(value))
        else:
            found.append((type(value), value))
    return tuple(found)


class _AttentionFunctionMode(TorchFunctionMode):  # type: ignore[misc]
    """Counts scaled-dot-product attention as one operator, before torch decomposes it on the meta device."""

    def __init__(self, recorder: Recorder | None) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        query, key, value = _attention_arguments(args, kwargs)
        if query.device.type != "meta":
            return func(*args, **kwargs)
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
        if self._recorder is None:
            return out
        flops = attention_flops(query.shape, key.shape, value.shape)
        causal = bool(kwargs.get("is_causal", args[5] if len(args) > 5 else False))
        self._recorder.note_attention(query, key, value, out, flops, causal=causal)
        return out


def _attention_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    names = ("query", "key", "value")
    query, key, value = (args[i] if i < len(args) else kwargs[name] for i, name in enumerate(names))
    return query, key, value


# One phase of an adapter's model, counted by running it without weights.


def count_adapter_phase(
    adapter: ModelAdapter, model: torch.nn.Module, tree: ModelTree, phase: str, shapes: PhaseShapes
) -> PhaseCount:
    """Count a phase at ``shapes``; for a stateful phase, with the state before and after."""
    calls = cast("Mapping[str, Callable[[], object]]", adapter.static_calls(model, shapes))
    positions = {
        "vision": shapes.image_tokens,
        "encode": shapes.encoder_tokens,
        "prefill": shapes.prompt_tokens,
    }.get(phase, 1)
    call = calls[phase]
    if not isinstance(call, StaticCall):
        return count_phase(model, call, tree, positions=positions, batch_size=shapes.batch_size)
    with torch.no_grad(), _AttentionFunctionMode(None), _ShapesDispatchMode():
        state = call.prepare()
    before = dict(call.state_bytes(state))
    counted = count_phase(
        model, lambda: call.run(state), tree, positions=positions, batch_size=shapes.batch_size
    )
    after = dict(call.state_bytes(state))
    counted.state = StateUse(before, after, only_read(after))
    return counted
