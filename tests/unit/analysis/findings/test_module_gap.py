"""Which module is farthest from its floor, and the sentence about it."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.findings import model
from llm_perf_opt.summary import LedgerRow
from tests.text_facts import mentions, mentions_in_order
from tests.unit.summaries import summary, timings


def row(
    module: str, measured: float, floor: float, phase: str = "prefill", depth: int | None = None
) -> LedgerRow:
    depth = module.count(".") + 1 if depth is None else depth
    return LedgerRow(module, phase, depth, measured_s=measured, floor_s=floor, measured_source="hooks")


@pytest.mark.parametrize(("gap", "speaks"), [(0.25, True), (0.24, False)])
def test_a_module_gap_is_worth_a_tenth_of_the_sample(gap: float, speaks: bool) -> None:
    data = summary(timings=timings(prefill=1.0, decode=1.5), ledger=[row("lm", gap + 0.5, 0.5)])
    assert bool(model.find_module_gap(data)) is speaks


@pytest.mark.parametrize(("child", "named"), [(0.6, "lm.mlp"), (0.59, "lm")])
def test_a_child_that_explains_most_of_the_gap_is_named(child: float, named: str) -> None:
    rows = [row("lm", 1.5, 0.5), row("lm.mlp", child, 0.0), row("lm.attn", 0.1, 0.0)]
    (found,) = model.find_module_gap(summary(timings=timings(prefill=2.0, decode=1.0), ledger=rows))
    assert mentions(found.title, named, "prefill") and mentions(found.advice, named)


def test_the_sentence_of_a_module_gap_has_its_numbers() -> None:
    rows = [
        row("m.layers.0.mlp.up", 0.5, 0.25),
        row("m.layers.1.mlp.up", 0.75, 0.0),
        row("component", 9.0, 0.0, depth=0),
        row("m.layers.1.mlp.up", 9.0, 0.0, phase="decode"),
    ]
    data = summary(timings=timings(prefill=2.0), ledger=rows)
    (found,) = model.find_module_gap(data)
    assert mentions(found.title, "*.mlp.up", "prefill")
    taken, largest, origin = found.evidence
    assert mentions(taken, "m.layers.*.mlp.up", "62.5 %", "prefill")
    assert mentions_in_order(taken, "1.25 s", "250 ms")
    assert mentions(largest, "2", "m.layers.1.mlp.up", "750 ms")
    assert mentions_in_order(origin, "hooks", "GPU")
    assert found.arithmetic == "1.25 s − 250 ms = 1.00 s"
    assert found.gain_upper_s == 1.0


def test_the_largest_of_several_roots_is_descended() -> None:
    rows = [row("a", 1.0, 0.9), row("b", 1.0, 0.5), row("b.c", 0.9, 0.5), row("a.c", 1.0, 0.0)]
    (found,) = model.find_module_gap(summary(timings=timings(prefill=2.0), ledger=rows))
    assert mentions(found.title, "b.c") and not mentions(found.title, "a.c")


def test_the_largest_of_several_layers_is_the_one_that_loses_most_over_all_steps() -> None:
    rows = [row("m.0", 0.75, 0.625, "decode"), row("m.1", 0.5, 0.0, "decode")]
    data = summary(timings=timings(prefill=1.0, decode=10.0, tpot=2.5), ledger=rows)
    (found,) = model.find_module_gap(data)
    assert mentions(found.evidence[0], "m.*", "50.0 %", "decode")
    assert mentions_in_order(found.evidence[0], "5.00 s", "2.50 s")
    assert mentions(found.evidence[1], "2", "m.1", "2.00 s")
    (alone,) = model.find_module_gap(summary(timings=timings(prefill=2.0), ledger=[row("lm", 1.0, 0.0)]))
    assert len(alone.evidence) == len(found.evidence) - 1, "there is no largest of one"


@pytest.mark.parametrize(
    ("rows", "phase", "named", "not_named"),
    [
        (["lm.self_attn"], "prefill", ["model.attn_implementation"], ["experts", "model.compile=true"]),
        (["lm.mlp"], "prefill", ["fused"], ["attn_implementation", "experts"]),
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
    (found,) = model.find_module_gap(data)
    assert all(word in found.advice for word in named), found.advice
    assert not any(word in found.advice for word in not_named), found.advice
