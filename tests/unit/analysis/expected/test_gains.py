from __future__ import annotations

import pytest

from llm_perf_opt.analysis.expected.calls import At
from llm_perf_opt.analysis.expected.compose import Target
from llm_perf_opt.analysis.expected.estimate import Tables
from llm_perf_opt.analysis.expected.gains import expected_gain
from llm_perf_opt.hardware.silicon import Attention, Gemm, Operator, Source, Timing
from llm_perf_opt.model.summary import Peak
from tests.unit.analysis.expected.test_expected import decoder

LIMITS = Target("a device", {"bfloat16": Peak(1e14, ""), "float8": Peak(2e14, "")}, 1e12)


class HalfInEight:
    """A product takes 1 ms whatever its rows, half of it in eight bits."""

    def time(self, operator: Operator, device: str, *, framework: str | None = None) -> Timing | None:
        if not isinstance(operator, Gemm | Attention):
            return None
        seconds = 0.5e-3 if isinstance(operator, Gemm) and operator.dtype == "float8" else 1e-3
        source = Source("vllm", "1.0", "table")
        return Timing(seconds, "measured", source, seconds, seconds, source)


def test_eight_bits_gain_what_the_tables_say_of_products() -> None:
    before, after = At(1, 100, 100), At(1, 100, 100, "float8")
    found = expected_gain(decoder(), before, after, LIMITS, Tables(HalfInEight()))
    assert found is not None and found.source == "vllm 1.0"
    # Of 2 × 4 products, attention of 2 layers and the head, only the products of the layers halve.
    assert found.tpot_before_s - found.tpot_after_s == pytest.approx(8 * 0.5e-3)
    assert 0 < found.token_gain_ratio < 0.5


def test_a_larger_batch_gains_per_token_though_not_per_step() -> None:
    found = expected_gain(decoder(), At(1, 100, 100), At(8, 100, 100), LIMITS, Tables(HalfInEight()))
    assert found is not None
    assert found.tpot_after_s >= found.tpot_before_s
    assert found.token_gain_ratio == pytest.approx(7 / 8, rel=1e-3)


def test_where_tables_do_not_reach_nothing_is_said() -> None:
    class Nothing:
        def time(self, operator: Operator, device: str, *, framework: str | None = None) -> Timing | None:
            return None

    assert expected_gain(decoder(), At(1, 100, 100), At(8, 100, 100), LIMITS, Tables(Nothing())) is None
