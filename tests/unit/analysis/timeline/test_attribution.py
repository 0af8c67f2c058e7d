"""Ranges to phases, components and modules; kernels to ranges."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.timeline.attribution import attribute, by_path_and_name, by_range_and_name
from llm_perf_opt.analysis.timeline.range_names import meaning_of, parse_rules
from llm_perf_opt.analysis.timeline.summary import summarise_timeline
from llm_perf_opt.analysis.timeline.tables import kernel_rows
from llm_perf_opt.core.errors import ConfigError
from tests.text_facts import mentions
from tests.unit.timelines import by_innermost, make_timeline

LAUNCH = "cudaLaunchKernel"


@pytest.mark.parametrize(
    ("name", "role", "phase"),
    [
        ("prefill", "phase", "prefill"),
        ("decode", "phase", "decode"),
        ("vision", "phase", "vision"),
        ("sam", "component", "vision"),
        ("LLM:decode", "phase", "decode"),
        (":decode", "phase", "decode"),
        ("decode_step", "phase", "decode"),
        ("decode step 17", "phase", "decode"),
        ("model_runner.forward_decode", "phase", "decode"),
        ("forward_extend", "phase", "prefill"),
        ("prefill_batch_4", "phase", "prefill"),
        ("execute_context_2_generation_0", "phase", "prefill"),
        ("execute_context_0_generation_8", "phase", "decode"),
        ("module:model.layers.3.mlp", "module", None),
        ("nn.Module: LlamaMLP_0", "module", None),
        ("FSDP::pre_forward (encoder.block.14.layer.0)", "module", None),
        ("aten::mm", "operator", None),
        ("aten::decode", "operator", None),
        ("image_decode_jpeg", "none", None),
        ("ncclAllReduce", "operator", None),
        ("tokenizer", "none", None),
        ("video_decoder", "none", None),
        ("batch_decode_text", "none", None),
    ],
)
def test_names_of_ranges(name: str, role: str, phase: str | None) -> None:
    meaning = meaning_of(name)
    assert (meaning.role, meaning.phase) == (role, phase)


def test_module_paths_are_taken_from_the_name() -> None:
    assert meaning_of("module:model.layers.3.mlp").module == "model.layers.3.mlp"
    assert meaning_of("FSDP::post_forward (encoder.block.1)").module == "encoder.block.1"


def test_rules_can_be_given_and_mistakes_are_named() -> None:
    rules = parse_rules([{"role": "phase", "phase": "denoise", "pattern": "^unet"}])
    assert meaning_of("unet step 4", rules).phase == "denoise"
    with pytest.raises(ConfigError) as broken:
        parse_rules([{"role": "phase", "phase": "x", "pattern": "("}])
    assert mentions(broken.value.message, "rule 1", "'('")
    with pytest.raises(ConfigError) as incomplete:
        parse_rules([{"role": "none", "pattern": "x"}, {"role": "stage", "pattern": "x"}])
    assert mentions(incomplete.value.message, "rule 2", "'stage'")


def test_innermost_phase_wins_and_modules_are_inherited() -> None:
    timeline = make_timeline(
        ops=[(100, 110, "conv", 0), (110, 120, "gemm", 1), (120, 130, "gemm", 2), (130, 140, "norm", 3)],
        calls=[(11, 12, LAUNCH), (21, 22, LAUNCH), (31, 32, LAUNCH), (61, 62, LAUNCH)],
        ranges=[
            (0, 50, "prefill"), (10, 15, "sam"), (20, 25, "module:model.layers.0.mlp"), (21, 24, "aten::mm"),
            (30, 35, "module:model.layers.1.mlp"),
        ],
    )  # fmt: skip
    attribution = attribute(timeline)
    assert attribution.phases == ("prefill", "vision")
    assert [attribution.phases[i] if i >= 0 else None for i in attribution.op_phase] == [
        "vision",
        "prefill",
        "prefill",
        None,
    ]
    rows = {(row.name, row.phase): row for row in kernel_rows(timeline, attribution)}
    assert rows["gemm", "prefill"].module == "model.layers.*.mlp"
    assert rows["gemm", "prefill"].launches == 2
    assert rows["norm", None].module is None
    facts = summarise_timeline(timeline)
    assert {(row.module, row.phase): row.launches for row in facts.modules} == {
        ("model.layers.0.mlp", "prefill"): 1,
        ("model.layers.1.mlp", "prefill"): 1,
    }
    assert facts.components["sam"].total_ns == 10
    assert facts.time_attributed_ratio == 0.75


def test_nested_ranges_of_one_name_count_once() -> None:
    timeline = make_timeline(
        [(9, 10, "k", 0)], [(3, 4, LAUNCH)], [(0, 8, "block"), (1, 7, "block"), (2, 6, "inner")]
    )
    attribution = attribute(timeline)
    assert {key: total.launches for key, total in by_range_and_name(timeline, attribution).items()} == {
        ("block", "k"): 1,
        ("inner", "k"): 1,
    }
    assert {key: total.launches for key, total in by_innermost(timeline, attribution).items()} == {"inner": 1}


def test_rows_come_in_one_order_ties_included() -> None:
    ops = [(10 * i, 10 * i + 5, name, 0) for i, name in enumerate(["b", "a", "d", "c"])]
    for order in (ops, ops[::-1]):
        rows = kernel_rows(timeline := make_timeline(order, [(0, 1, LAUNCH)]), attribute(timeline))
        assert [row.name for row in rows] == ["a", "b", "c", "d"]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 20), st.sampled_from(["decode", "prefill", "layer.0", "layer.1", "x"])),
        max_size=20,
    ),
    st.lists(st.tuples(st.integers(0, 70), st.sampled_from(["k1", "k2"])), min_size=1, max_size=20),
)  # fmt: skip
def test_totals_match_a_plain_walk(
    ranges: list[tuple[int, int, str]], launches: list[tuple[int, str]]
) -> None:
    spans = [(start, start + length, name) for start, length, name in ranges]
    calls = sorted((start, start + 1, LAUNCH) for start, _ in launches)
    names = [name for _, name in sorted(launches)]
    ops = [(1000 + 10 * row, 1003 + 10 * row + row, names[row], row) for row in range(len(calls))]
    timeline = make_timeline(ops, calls, spans)
    expected: Counter[tuple[str, str]] = Counter()
    rows = list(zip(timeline.ranges.start_ns.tolist(), timeline.ranges.end_ns.tolist(), strict=True))
    for row, (start, _, _) in enumerate(calls):
        open_rows = [i for i, (begin, end) in enumerate(rows) if begin <= start <= end]
        chain, current = set(), open_rows[-1] if open_rows else -1
        while current >= 0:
            chain.add(timeline.names[timeline.ranges.name[current]])
            current = int(timeline.ranges.parent[current])
        for label in chain:
            expected[label, names[row]] += 3 + row
    attribution = attribute(timeline)
    found = {key: total.total_ns for key, total in by_range_and_name(timeline, attribution).items()}
    assert found == dict(expected)
    cells = by_path_and_name(timeline, attribution)
    assert sum(total.launches for total in cells.values()) == len(ops)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("decode", True),
        ("lib:decode", True),
        (":decode", True),
        ("a sentence:decode", False),
        ("ns::decode", False),
        ("lib:", False),
    ],
)
def test_a_domain_in_front_of_a_name_is_one_word_and_a_colon(name: str, known: bool) -> None:
    rules = parse_rules([{"role": "phase", "phase": "decode", "pattern": "^decode"}])
    rules += parse_rules([{"role": "phase", "phase": "nothing", "pattern": "^$"}])
    assert meaning_of(name, rules).phase == ("decode" if known else None)
