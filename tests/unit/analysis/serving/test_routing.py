"""Balance of experts: planted imbalance, even routing, drift, and the choices of a real router."""

from __future__ import annotations

import json

import numpy as np
import pytest

from llm_perf_opt.analysis.serving.routing import describe_routing
from llm_perf_opt.captures.serving import OWN_ROUTING
from llm_perf_opt.captures.serving.engines import read_routing
from llm_perf_opt.captures.serving.records import Int64
from llm_perf_opt.summary.serving import Routing

LAYERS, EXPERTS = 3, 16


def windows(shares: np.ndarray, count: int = 8, choices: int = 4000, seed: int = 1) -> list[Int64]:  # type: ignore[type-arg]
    """Draw choices of every layer by the shares of its experts."""
    draw = np.random.default_rng(seed)
    return [np.stack([draw.multinomial(choices, shares) for _ in range(LAYERS)]) for _ in range(count)]


def described(held: list[Int64]) -> Routing:
    found = describe_routing(held)
    assert found is not None
    return found


EVEN = np.full(EXPERTS, 1 / EXPERTS)
SKEWED = np.array([8.0] * 4 + [1.0] * 12)
SKEWED /= SKEWED.sum()


def test_a_lasting_imbalance_is_worth_moving_experts() -> None:
    found = described(windows(SKEWED))
    # Four experts with 8/44 of the choices each, all on the first of four ranks: 32/44 ÷ 1/4.
    four = next(one for one in found.ranks if one.ranks == 4)
    assert four.busiest_ratio == pytest.approx(32 / 44 * 4, rel=0.02)
    # One of them on each rank is as even as it gets.
    assert four.rebalanced_ratio == pytest.approx(1.0, abs=0.05)
    assert four.gain_ratio == pytest.approx(1 - 44 / 128, abs=0.03)
    assert found.busiest_ratio[0] == pytest.approx(8 / 44 * EXPERTS, rel=0.05)
    assert found.verdict.startswith("Moving experts is worth it")


def test_even_routing_is_left_alone_although_chance_makes_some_experts_busier() -> None:
    found = described(windows(EVEN, choices=300))
    assert max(found.busiest_ratio) > 1.02
    assert all((one.gain_ratio or 0) < 0.05 for one in found.ranks)
    assert found.verdict.startswith("Moving experts is not worth it")


def test_an_imbalance_that_moves_on_gives_no_gain() -> None:
    moving = [*windows(SKEWED, 4), *windows(SKEWED[::-1].copy(), 4)]
    found = described(moving)
    assert found.drift_ratio is not None and found.drift_ratio > 0.5
    four = next(one for one in found.ranks if one.ranks == 4)
    assert four.gain_ratio is not None
    lasting = next(one for one in described(windows(SKEWED)).ranks if one.ranks == 4)
    assert four.gain_ratio < (lasting.gain_ratio or 0) - 0.1


def test_too_few_choices_or_windows_give_no_verdict() -> None:
    assert "too few" in described(windows(SKEWED, choices=20)).verdict
    assert "one window" in described(windows(SKEWED, 1)).verdict
    assert describe_routing([]) is None and describe_routing([np.zeros((2, 4), np.int64)]) is None
    odd = described([np.full((1, 7), 1000), np.full((1, 7), 1000)])
    assert odd.ranks == [] and "cannot be spread" in odd.verdict


def test_lines_that_are_no_windows_are_left_out() -> None:
    lines = [
        json.dumps({"format": OWN_ROUTING}), json.dumps({"counts": [[1, 2], [3, 4]]}), "{", json.dumps({"counts": [[1], [2]]}),
        json.dumps({"counts": [[1, 2], [3]]}), json.dumps({"counts": [[-1, 2], [3, 4]]}), json.dumps({"counts": "x"}),
    ]  # fmt: skip
    (window,) = read_routing([line.encode() for line in lines])
    assert window.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("planted", [False, True])
def test_choices_of_a_real_router_are_counted(planted: bool) -> None:
    """A model with random weights, and one whose routers always choose the first two experts."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    from llm_perf_opt.stages.serve.transformers_steps import RoutingRecorder

    config = Qwen3MoeConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, moe_intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, num_experts=8, num_experts_per_tok=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(config).eval()
    if planted:
        for layer in model.model.layers:
            layer.mlp.gate.forward = lambda hidden: (
                torch.zeros(len(hidden), 8), torch.full((len(hidden), 2), 0.5), torch.tensor([[0, 1]]).expand(len(hidden), 2)
            )  # fmt: skip
    lines: list[dict[str, object]] = []
    times = iter(range(100))
    recorder = RoutingRecorder(lines.append, clock=lambda: float(next(times)))
    handle = torch.nn.modules.module.register_module_forward_pre_hook(recorder.hook)
    try:
        with torch.no_grad():
            for _ in range(2):
                model(torch.randint(0, 64, (1, 40)))
    finally:
        handle.remove()
    recorder.flush()
    held = read_routing([json.dumps(line).encode() for line in lines])
    assert len(held) == len(lines) == 2  # the clock makes every pass a window, with both layers
    counts = np.sum(held, axis=0)
    assert counts.shape == (2, 8)
    assert counts.sum(axis=1).tolist() == [2 * 40 * 2] * 2  # tokens × chosen experts, in each layer
    found = described([counts])
    assert found.unused == ([6, 6] if planted else found.unused)
    assert found.busiest_ratio[0] == 4.0 if planted else found.busiest_ratio[0] < 4
