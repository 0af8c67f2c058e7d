"""Which module is farthest from its floor, and the sentence about it."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.findings import module_gap
from llm_perf_opt.model.summary import LedgerRow
from tests.unit.summaries import summary, timings


def row(
    module: str, measured: float, floor: float, phase: str = "prefill", depth: int | None = None
) -> LedgerRow:
    depth = module.count(".") + 1 if depth is None else depth
    return LedgerRow(module, phase, depth, measured_s=measured, floor_s=floor, measured_source="hooks")


@pytest.mark.parametrize(("gap", "speaks"), [(0.25, True), (0.24, False)])
def test_a_module_gap_is_worth_a_tenth_of_the_sample(gap: float, speaks: bool) -> None:
    data = summary(timings=timings(prefill=1.0, decode=1.5), ledger=[row("lm", gap + 0.5, 0.5)])
    assert bool(module_gap.find(data)) is speaks


@pytest.mark.parametrize(("child", "named"), [(0.6, "lm.mlp"), (0.59, "lm")])
def test_a_child_that_explains_most_of_the_gap_is_named(child: float, named: str) -> None:
    rows = [row("lm", 1.5, 0.5), row("lm.mlp", child, 0.0), row("lm.attn", 0.1, 0.0)]
    (found,) = module_gap.find(summary(timings=timings(prefill=2.0, decode=1.0), ledger=rows))
    assert found.title == f"{named} is farthest from the hardware's limit in prefill"
    assert found.advice.startswith(f"Start with {named}:")


def test_the_sentence_of_a_module_gap_has_its_numbers() -> None:
    rows = [
        row("m.layers.0.mlp.up", 0.5, 0.25),
        row("m.layers.1.mlp.up", 0.75, 0.0),
        row("component", 9.0, 0.0, depth=0),
        row("m.layers.1.mlp.up", 9.0, 0.0, phase="decode"),
    ]
    data = summary(timings=timings(prefill=2.0), ledger=rows)
    (found,) = module_gap.find(data)
    assert found.title == "*.mlp.up is farthest from the hardware's limit in prefill"
    assert found.evidence == [
        "m.layers.*.mlp.up takes 1.25 s per sample (62.5 % of prefill), its floor is 250 ms",
        "largest of 2: m.layers.1.mlp.up with 750 ms",
        "time by hooks; floor by the static model and GPU",
    ]
    assert found.arithmetic == "1.25 s − 250 ms = 1.00 s"
    assert found.gain_upper_s == 1.0


def test_the_largest_of_several_roots_is_descended() -> None:
    rows = [row("a", 1.0, 0.9), row("b", 1.0, 0.5), row("b.c", 0.9, 0.5), row("a.c", 1.0, 0.0)]
    (found,) = module_gap.find(summary(timings=timings(prefill=2.0), ledger=rows))
    assert found.title.startswith("b.c is farthest")


def test_the_largest_of_several_layers_is_the_one_that_loses_most_over_all_steps() -> None:
    rows = [row("m.0", 0.75, 0.625, "decode"), row("m.1", 0.5, 0.0, "decode")]
    data = summary(timings=timings(prefill=1.0, decode=10.0, tpot=2.5), ledger=rows)
    (found,) = module_gap.find(data)
    assert found.evidence[:2] == [
        "m.* takes 5.00 s per sample (50.0 % of decode), its floor is 2.50 s",
        "largest of 2: m.1 with 2.00 s",
    ]
    (alone,) = module_gap.find(summary(timings=timings(prefill=2.0), ledger=[row("lm", 1.0, 0.0)]))
    assert not any("largest of" in line for line in alone.evidence)


@pytest.mark.parametrize(
    ("rows", "phase", "named", "not_named"),
    [
        (["lm.self_attn"], "prefill", ["model.attn_implementation"], ["experts", "model.compile=true"]),
        (["lm.mlp"], "prefill", ["a fused version"], ["attn_implementation", "experts"]),
        (["lm.mlp", "lm.mlp.experts"], "prefill", ["model.prefill_experts_implementation"], ["attn_imp"]),
        (
            ["lm.mlp"],
            "decode",
            ["model.compile=true", "model.quantise_weights=int8"],
            ["experts", "attn_imp"],
        ),
        (
            ["vision.encoder"],
            "vision",
            ["model.compile_vision=true", "model.attn_implementation"],
            ["experts"],
        ),
    ],
)
def test_the_advice_names_settings_that_change_this_part(
    rows: list[str], phase: str, named: list[str], not_named: list[str]
) -> None:
    ledger = [row(name, 0.9, 0.1, phase) for name in rows]
    data = summary(timings=timings(vision=1.0, prefill=1.0, decode=1.0, tpot=1.0), ledger=ledger)
    (found,) = module_gap.find(data)
    assert all(word in found.advice for word in named), found.advice
    assert not any(word in found.advice for word in not_named), found.advice
