"""Two models with one set of weights: both sides of a comparison fit where one model does.

Loading inside :func:`weights_from` gives a separate model (modules, settings, compiled code) whose parameters are those
of the lender. Nothing may write to them; a model of another structure or data type is loaded in the usual way.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llm_perf_opt.analysis.static.split import Plans
from llm_perf_opt.workloads.rank_group import group_size

if TYPE_CHECKING:
    import torch

_LENDER: contextvars.ContextVar[torch.nn.Module | None] = contextvars.ContextVar("lender", default=None)


@contextlib.contextmanager
def weights_from(lender: torch.nn.Module | None) -> Iterator[None]:
    """Let models that are built in the block use the lender's weights; ``None``: each has its own."""
    token = _LENDER.set(lender)
    try:
        yield
    finally:
        _LENDER.reset(token)


def lender_kind() -> type[torch.nn.Module] | None:
    """Return the class of the current lender."""
    lender = _LENDER.get()
    return None if lender is None else type(lender)


def borrow_weights(model: torch.nn.Module) -> bool:
    """Put the lender's tensors into a model on the meta device; ``False``: there is no lender, or its weights do not fit."""
    lender = _LENDER.get()
    if lender is None or not _same_tensors(lender, model):
        return False
    for name, parameter in lender.named_parameters(remove_duplicate=False):
        module, leaf = _place(model, name)
        module._parameters[leaf] = parameter
    for name, buffer in lender.named_buffers(remove_duplicate=False):
        module, leaf = _place(model, name)
        module._buffers[leaf] = buffer.clone()  # small, and rewritten by some models
    return True


def _same_tensors(lender: torch.nn.Module, model: torch.nn.Module) -> bool:
    """Return whether both have the same parameters and buffers, and the new one no tensor outside of them."""
    import torch

    def described(of: torch.nn.Module) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        tensors = {
            **dict(of.named_parameters(remove_duplicate=False)),
            **dict(of.named_buffers(remove_duplicate=False)),
        }
        return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}

    loose = any(
        isinstance(value, torch.Tensor) and value.is_meta
        for module in model.modules()
        for value in vars(module).values()
    )
    return not loose and described(lender) == described(model)


def _place(model: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    parent, _, leaf = name.rpartition(".")
    return model.get_submodule(parent), leaf


# Models split over ranks by the plan that transformers has for their architecture (tensor parallel).


def reason_not_split(config: Any, ranks: int) -> str | None:
    """Return why a model of this (text) configuration cannot be split over so many ranks; ``None``: it can."""
    kind = getattr(config, "model_type", "?")
    if not getattr(config, "base_model_tp_plan", None):
        return f"transformers has no tensor-parallel plan for a '{kind}' model"
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads % ranks:
            return f"{name}={heads} cannot be shared out evenly among {ranks} ranks"
    return None


def plans_of(model: Any) -> Plans | None:
    """Return the transformers plans for splitting a model over ranks; ``None``: its architecture has no plan."""
    tensor = dict(getattr(model, "tp_plan", None) or {})
    return Plans(tensor, dict(getattr(model, "ep_plan", None) or {})) if tensor else None


def distributed_config() -> Any:
    """Return the ``from_pretrained`` arguments to load only this rank's part of every tensor."""
    from transformers.distributed import DistributedConfig

    return DistributedConfig(tp_plan="auto", tp_size=group_size())


def split(model: torch.nn.Module) -> torch.nn.Module:
    """Keep this rank's part of a model that every rank has built identically."""
    kind: Any = type(model)
    config, _, mesh = kind.prepare_distribute_model(distributed_config())
    found: Any = kind.maybe_distribute_model(model, config, mesh)
    found.tie_weights()  # the two names were split separately
    whole: torch.nn.Module = found.eval()
    return whole
