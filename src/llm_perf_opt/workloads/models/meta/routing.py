"""Routing on the meta device: some mixtures of experts ask how many positions each expert got, and there are no values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_ASKING = "JetMoeTopKGating"


@contextlib.contextmanager
def spread_evenly(model: Any) -> Iterator[None]:
    """Give every expert the same share of positions; how they are spread does not change what is computed in all."""
    routers = [module for module in model.modules() if type(module).__name__ == _ASKING]
    for router in routers:
        router.forward = _even_forward(router)
    try:
        yield
    finally:
        for router in routers:
            vars(router).pop("forward", None)


def _even_forward(router: Any) -> Any:
    import torch

    def forward(hidden_states: torch.Tensor) -> tuple[Any, ...]:
        logits = router.layer(hidden_states).float()
        chosen, indices = logits.topk(router.top_k, dim=1)
        gates = torch.softmax(chosen, dim=1).type_as(hidden_states).flatten()
        _, order = indices.flatten().sort(0)
        rows, experts = order.numel(), router.num_experts
        sizes = [rows // experts + (expert < rows % experts) for expert in range(experts)]
        return order, order.div(router.top_k, rounding_mode="trunc"), gates[order], sizes, logits

    return forward
