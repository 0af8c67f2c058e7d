"""The algebra of the static model: sums over the tree, conventions, steps, folding, means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.static.build import build_static, kv_resident_bytes, own_flops, sum_over_steps
from llm_perf_opt.analysis.static.counts import (
    AttentionUse,
    CacheUse,
    Conventions,
    ModelTree,
    ModuleInfo,
    ParamInfo,
    PhaseCount,
    attention_flops_under,
    expected_distinct_experts,
    roll_up,
)
from llm_perf_opt.reporting.static_page import fold_tree
from llm_perf_opt.summary import StaticModule
from llm_perf_opt.summary.static import KvLayers

_NAMES = st.sampled_from(["a", "b", "0", "1", "attn"])
_PATHS = st.lists(_NAMES, max_size=4).map(".".join)


@given(st.dictionaries(_PATHS, st.integers(0, 10**15), max_size=12))
def test_own_plus_children_is_the_module_at_every_node(own: dict[str, int]) -> None:
    total = roll_up(dict(own))
    assert total.get("", 0) == sum(own.values())
    for path, value in total.items():
        depth = len(path.split(".")) if path else 0
        children = [
            name
            for name in total
            if name and name.rpartition(".")[0] == path and len(name.split(".")) == depth + 1
        ]
        assert value == own.get(path, 0) + sum(total[child] for child in children)


@st.composite
def _counted_models(draw: st.DrawFn) -> tuple[ModelTree, dict[str, PhaseCount]]:
    paths = sorted({""} | {p for path in draw(st.lists(_PATHS, max_size=8)) for p in _above(path)})
    modules = tuple(ModuleInfo(path, "M") for path in paths)
    params = tuple(ParamInfo(f"{path}.w", path, draw(st.integers(1, 99)), 2) for path in paths)
    counts = {}
    for phase in ("vision", "prefill", "decode"):
        count = PhaseCount(positions=draw(st.integers(1, 50)), batch_size=draw(st.integers(1, 4)))
        count.own_flops = draw(st.dictionaries(st.sampled_from(paths), st.integers(0, 10**15)))
        for _ in range(draw(st.integers(0, 3))):
            q, k = draw(st.integers(1, 9)), draw(st.integers(9, 20))
            use = AttentionUse(draw(st.sampled_from(paths)), 4 * q * k * 8, q, k, draw(st.booleans()))
            count.attention.append(use)
        count.cache = {layer: CacheUse(tokens=1, written_bytes=4) for layer in range(2)}
        count.params_read = {p.name: p.module for p in params if draw(st.booleans())}
        counts[phase] = count
    return ModelTree(
        modules, params, head=paths[-1] or None, rotary_frequencies=4, rotary_module=paths[0]
    ), counts


def _above(path: str) -> list[str]:
    parts = path.split(".") if path else []
    return [".".join(parts[:end]) for end in range(len(parts) + 1)]


@given(
    _counted_models(),
    st.sampled_from(["full", "halved"]),
    st.sampled_from(["last", "all"]),
    st.sampled_from(["as_run", "per_layer"]),
)
def test_modules_sum_to_the_total_in_every_phase_under_every_convention(
    model: tuple[ModelTree, dict[str, PhaseCount]], causal: str, head: str, rotary: str
) -> None:
    tree, counts = model
    conventions = Conventions(causal, head, rotary)  # type: ignore[arg-type]
    static = build_static(tree, counts, {"all": ""}, conventions)
    rows = {row.name: row for row in static.modules}
    for phase, count in counts.items():
        own = own_flops(count, tree, conventions, phase)
        assert static.phases[phase].flops == sum(own.values()) == rows[""].flops.get(phase, 0)
        for name, row in rows.items():
            children = [r for n, r in rows.items() if n and n != name and n.rpartition(".")[0] == name]
            assert row.flops.get(phase, 0) == own.get(name, 0) + sum(r.flops.get(phase, 0) for r in children)
        read = sum(p.nbytes for p in tree.params if p.name in count.params_read)
        assert static.phases[phase].weight_bytes == read == rows[""].weight_bytes.get(phase, 0)
    assert sum(static.params.components.values()) == static.params.total == rows[""].params


@given(
    st.integers(0, 300), st.integers(0, 400), st.integers(0, 50), st.lists(st.integers(1, 250), max_size=3)
)
def test_sum_over_steps_is_exact_with_any_mix_of_windows(
    first: int, steps: int, fixed: int, windows: list[int]
) -> None:
    def step(context: int) -> int:
        return fixed + 7 * context + sum(3 * min(context + 1, window) for window in windows)

    assert sum_over_steps(step, first, steps) == sum(step(first + i) for i in range(steps))


def test_sum_over_steps_evaluates_a_straight_line_three_times() -> None:
    requested: list[int] = []

    def step(context: int) -> int:
        requested.append(context)
        return 5 + 2 * context

    assert sum_over_steps(step, 493, 100) == sum(5 + 2 * c for c in range(493, 593))
    assert sorted(set(requested)) == [493, 542, 592]


@pytest.mark.parametrize(
    ("queries", "keys", "window", "pairs"),
    [
        (10, 10, None, 50),  # half the square
        (4, 10, None, 32),  # a chunk after six cached positions: q·k - q²/2
        (10, 10, 4, 32),  # a band: w·q - w²/2
        (10, 10, 10, 50),  # a window as long as the prompt is no window
        (10, 10, 99, 50),
    ],
)
def test_halved_attention_counts_the_pairs_a_mask_leaves(
    queries: int, keys: int, window: int | None, pairs: int
) -> None:
    use = AttentionUse("a", 16 * queries * keys, queries, keys, True, window)
    assert attention_flops_under(use, "halved") == 16 * pairs
    assert attention_flops_under(use, "full") == 16 * queries * keys
    seeing = AttentionUse("a", 16 * queries * keys, queries, keys, False, window)
    assert attention_flops_under(seeing, "halved") == 16 * queries * keys


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 500))
def test_expected_experts_stay_between_what_one_token_needs_and_all(
    experts: int, top_k: int, tokens: int
) -> None:
    found = expected_distinct_experts(experts, top_k, tokens)
    assert min(top_k, experts) - 1e-9 <= found <= experts + 1e-9
    assert found <= expected_distinct_experts(experts, top_k, tokens + 1) + 1e-9


def test_windowed_layers_stop_growing() -> None:
    layers = [KvLayers(2, 10.0, None), KvLayers(3, 10.0, 100)]
    assert kv_resident_bytes(layers, 50, 1) == 5 * 500
    # The token that attends is in its window, and not in the cache before its own step.
    assert kv_resident_bytes(layers, 1000, 4) == 4 * (2 * 10_000 + 3 * 990)


def _module(name: str, params: int, flops: float) -> StaticModule:
    return StaticModule(name, "Layer", name.count(".") + 1, params, {"prefill": flops})


def test_equal_layers_fold_into_one_line_with_their_sum() -> None:
    modules = [StaticModule("", "Model", 0, 51, {"prefill": 510.0}), _module("layers", 51, 510)]
    for index in range(6):
        special = index in (2, 5)
        modules.append(_module(f"layers.{index}", 7 if special else 9, 70 if special else 90))
        modules.append(_module(f"layers.{index}.mlp", 5, 50))
    rows = fold_tree(modules)
    assert [(row.label, row.times, row.params) for row in rows] == [
        ("(model)", 1, 51),
        ("layers", 1, 51),
        ("0-1, 3-4 ×4", 4, 36),
        ("mlp", 4, 20),
        ("2, 5 ×2", 2, 14),
        ("mlp", 2, 10),
    ]
    assert rows[2].flops == {"prefill": 360}
    assert [row.depth for row in rows] == [0, 1, 2, 3, 2, 3]
