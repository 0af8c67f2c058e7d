from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.analysis.roofline.expected_calls import At
from llm_perf_opt.analysis.roofline.expected_gains import Side, expected_gain
from llm_perf_opt.analysis.roofline.expected_times import Tables, Target
from llm_perf_opt.hardware.silicon import Attention, Gemm, Operator, Source, Timing
from llm_perf_opt.summary import Peak
from tests.unit.analysis.roofline.test_expected import decoder

LIMITS = Target("a device", {"bfloat16": Peak(1e14, ""), "float8": Peak(2e14, "")}, 1e12)
BEFORE = Side(decoder(), ("prefill",), At(1, 100, 100), LIMITS, (1e-4,), 1e-4)


class HalfInEight:
    """A product takes 1 ms whatever its rows, half of it in eight bits."""

    def time(self, operator: Operator, device: str, *, framework: str | None = None) -> Timing | None:
        if not isinstance(operator, Gemm | Attention):
            return None
        seconds = 0.5e-3 if isinstance(operator, Gemm) and operator.dtype == "float8" else 1e-3
        source = Source("vllm", "1.0", "table")
        return Timing(seconds, "measured", source)


def at(**changes: object) -> Side:
    return replace(BEFORE, at=replace(BEFORE.at, **changes))  # type: ignore[arg-type]


def test_eight_bits_gain_what_the_tables_give_for_products() -> None:
    found = expected_gain(BEFORE, at(dtype="float8"), Tables(HalfInEight()))
    assert found is not None and found.source == "vllm 1.0" and found.basis == "measured operators"
    # Of 2 × 4 products, attention of 2 layers and the head, only the products of the layers halve.
    assert found.before.tpot_s - found.after.tpot_s == pytest.approx(8 * 0.5e-3)
    assert found.launched == "one by one" and not found.host_bound


def test_a_larger_batch_gains_per_token_though_not_per_step() -> None:
    found = expected_gain(BEFORE, at(batch_size=8), Tables(HalfInEight()))
    assert found is not None
    assert found.after.tpot_s >= found.before.tpot_s
    assert found.after.tokens_per_s == pytest.approx(8 * found.before.tokens_per_s, rel=1e-3)


def test_a_host_that_takes_longer_than_the_work_hides_the_change() -> None:
    slow = replace(BEFORE, launches_s=(0.1,), step_launches_s=0.1)
    found = expected_gain(slow, replace(slow, at=at(dtype="float8").at), Tables(HalfInEight()))
    assert found is not None and found.host_bound
    assert found.after.tpot_s == found.before.tpot_s == 0.1
    assert found.basis == "measured operators", "what the work rests on is another question"
    graph = replace(slow, step_graph=True)
    found = expected_gain(graph, replace(graph, at=at(dtype="float8").at), Tables(HalfInEight()))
    assert found is not None and not found.host_bound and found.after.tpot_s < found.before.tpot_s
    assert found.launched == "steps as graphs"


def test_without_counted_launches_both_sides_are_taken_as_graphs() -> None:
    unknown = replace(BEFORE, launches_s=(None,), step_launches_s=None)
    found = expected_gain(unknown, at(dtype="float8"), Tables(HalfInEight()))
    assert found is not None and found.launched == "as graphs"


def test_outside_the_tables_it_is_the_roofline_and_without_limits_nothing() -> None:
    class Nothing(HalfInEight):
        def time(self, operator: Operator, device: str, *, framework: str | None = None) -> Timing | None:
            return None

    found = expected_gain(BEFORE, at(batch_size=8), Tables(Nothing()))
    assert found is not None and found.basis == "roofline" and found.source is None
    unknown = replace(BEFORE, target=Target("a device", {}, None))
    assert expected_gain(unknown, unknown, Tables(Nothing())) is None


def test_both_sides_are_of_one_frameworks_kernels() -> None:
    class TwoFrameworks(HalfInEight):
        """vLLM has 16 bits at 1 ms; SGLang has them at 3 ms, and eight bits at 2 ms."""

        def time(self, operator: Operator, device: str, *, framework: str | None = None) -> Timing | None:
            if not isinstance(operator, Gemm | Attention):
                return None
            wide = not (isinstance(operator, Gemm) and operator.dtype == "float8")
            name = "vllm" if wide and framework == "vllm" else "sglang"
            seconds = 1e-3 if name == "vllm" else 3e-3 if wide else 2e-3
            source = Source(name, "1.0", "table")
            return Timing(seconds, "measured", source)

    found = expected_gain(BEFORE, at(dtype="float8"), Tables(TwoFrameworks(), "vllm"))
    assert found is not None and found.source == "sglang 1.0"
    assert found.after.tpot_s < found.before.tpot_s, "against vLLM's 16 bits it would look slower"
