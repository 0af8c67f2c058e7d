"""Steps of engines: counted once, with the means of what their names say."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.timeline.attribution import attribute
from llm_perf_opt.analysis.timeline.engines import engine_steps, step_metrics, step_section
from llm_perf_opt.analysis.timeline.tables import phase_counts
from tests.unit.timelines import make_timeline

LAUNCH = "cudaLaunchKernel"


def test_steps_are_summed_by_phase() -> None:
    ranges = [
        (0, 100, "execute_context_2(300)_generation_0(0)"),
        (100, 150, "execute_context_0(0)_generation_4(4)"),
        (150, 200, "execute_context_0(0)_generation_4(4)"),
        (200, 250, "execute_context_0(0)_generation_10(10)"),
        (250, 300, "execute_context_1(50)_generation_3(3)"),
    ]
    attribution = attribute(make_timeline(ranges=ranges))
    metrics = step_metrics(engine_steps(attribution))
    assert metrics == {
        "prefill_steps": 1.0, "prefill_requests_per_step": 2.0, "prefill_tokens_per_step": 300.0, "prefill_step_tokens": 300.0,
        "mixed_steps": 1.0, "mixed_requests_per_step": 4.0, "mixed_tokens_per_step": 53.0, "mixed_step_tokens": 53.0,
        "mixed_prefill_tokens_per_step": 50.0, "mixed_decode_requests_per_step": 3.0,
        "decode_steps": 3.0, "decode_requests_per_step": 6.0, "decode_tokens_per_step": 6.0, "decode_step_tokens": 18.0,
    }  # fmt: skip


def test_a_step_named_twice_counts_once() -> None:
    ranges = [
        (0, 100, "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk100sqsq32sqsk100)"),
        (10, 90, "step[DECODE bs=32]"),
    ]
    timeline = make_timeline(ranges=ranges)
    attribution = attribute(timeline)
    (decode,) = engine_steps(attribution)
    assert (decode.phase, decode.steps, decode.requests_per_step) == ("decode", 1, 32.0)
    assert phase_counts(timeline, attribution) == {"decode": 1}


def test_a_size_some_steps_lack_is_a_mean_of_the_others_and_no_total() -> None:
    ranges = [(0, 10, "step[EXTEND bs=2 toks=10]"), (10, 20, "step[SPLIT_PREFILL bs=4]")]
    (prefill,) = engine_steps(attribute(make_timeline(ranges=ranges)))
    assert (prefill.requests_per_step, prefill.tokens_per_step, prefill.tokens) == (3.0, 10.0, None)


def test_captures_without_counting_names_have_no_steps() -> None:
    assert engine_steps(attribute(make_timeline(ranges=[(0, 10, "decode"), (2, 3, "decode_step")]))) == []
    assert step_section("torch_profiler", []) == []


def test_mixed_steps_own_their_kernels_and_their_time() -> None:
    calls = [(10, 12, LAUNCH), (110, 112, LAUNCH)]
    ops = [(20, 90, "k", 0), (120, 140, "k", 1)]
    ranges = [
        (0, 100, "execute_context_1(50)_generation_3(3)"),
        (100, 150, "execute_context_0(0)_generation_4(4)"),
    ]
    attribution = attribute(make_timeline(ops, calls, ranges))
    assert attribution.phases == ("mixed", "decode")
    assert [attribution.phases[phase] for phase in attribution.op_phase] == ["mixed", "decode"]


@pytest.mark.parametrize("mixed", [True, False])
def test_the_section_mentions_mixed_steps_only_where_there_are_any(mixed: bool) -> None:
    name = f"execute_context_1(50)_generation_{3 if mixed else 0}({3 if mixed else 0})"
    (section,) = step_section("s", engine_steps(attribute(make_timeline(ranges=[(0, 10, name)]))))
    assert ("decoding requests" in section.tables[0].columns) == mixed
    assert ("neither phase" in section.paragraphs[0]) == mixed
