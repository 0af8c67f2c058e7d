"""Models split over ranks by the plan that transformers has for their architecture (tensor parallel)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llm_perf_opt.analysis.static.split import Plans
from llm_perf_opt.workloads.rank_group import group_size

if TYPE_CHECKING:
    import torch


def why_not_split(config: Any, ranks: int) -> str | None:
    """Say why a model of this (text) configuration cannot be split over so many ranks; ``None``: it can."""
    kind = getattr(config, "model_type", "?")
    if not getattr(config, "base_model_tp_plan", None):
        return f"transformers has no tensor-parallel plan for a '{kind}' model"
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads % ranks:
            return f"{name}={heads} cannot be shared out evenly among {ranks} ranks"
    return None


def plans_of(model: Any) -> Plans | None:
    """Return how transformers splits a model over ranks; ``None``: its architecture has no plan."""
    tensor = dict(getattr(model, "tp_plan", None) or {})
    return Plans(tensor, dict(getattr(model, "ep_plan", None) or {})) if tensor else None


def distributed_config() -> Any:
    """Return what ``from_pretrained`` wants to load only this rank's part of every tensor."""
    from transformers.distributed import DistributedConfig

    return DistributedConfig(tp_plan="auto", tp_size=group_size())


def split(model: torch.nn.Module) -> torch.nn.Module:
    """Keep this rank's part of a model that every rank has built alike."""
    kind: Any = type(model)
    config, _, mesh = kind.prepare_distribute_model(distributed_config())
    found: Any = kind.maybe_distribute_model(model, config, mesh)
    found.tie_weights()  # each of two names got a part of its own
    whole: torch.nn.Module = found.eval()
    return whole
