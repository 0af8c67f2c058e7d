"""MFU of a foreign trace: claimed with its arithmetic, or not at all with the reason."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.operators.work import OperatorWork, PhaseWork
from llm_perf_opt.analysis.roofline.utilisation import (
    add_traced_utilisation,
    traced_metrics,
    traced_phases,
    traced_section,
)
from llm_perf_opt.summary import Hardware, Peak, Utilisation
from tests.text_facts import mentions

DEVICE = Hardware(
    name="a device",
    kind="gpu",
    peak_flops_per_s={name: Peak(rate, "sheet") for name, rate in (("bfloat16", 1e15), ("float8", 2e15), ("float32", 5e13), ("tf32", 5e14))},
    bandwidth_bytes_per_s=2e12,
    source="catalogue",
)  # fmt: skip


def work(
    flops: dict[str | None, int], busy_s: float = 1e-3, counted: float = 1.0, **more: object
) -> PhaseWork:
    total = sum(flops.values())
    found = PhaseWork(total, flops, total / 1000, 3, busy_s, busy_s, counted * busy_s)
    for name, value in more.items():
        setattr(found, name, value)
    return found


def only(found: PhaseWork, *, tf32: bool = False, hardware: Hardware = DEVICE):  # type: ignore[no-untyped-def]
    (phase,) = traced_phases(OperatorWork({"mixed": found}, tf32), hardware)
    return phase


def test_the_ratio_is_flops_over_busy_time_and_peak() -> None:
    phase = only(work({"bfloat16": 4 * 10**11}))
    assert phase.mfu_busy_ratio == pytest.approx(0.4)
    assert phase.achieved_flops_per_s == pytest.approx(4e14)
    assert phase.intensity_flops_per_byte == pytest.approx(1000)
    found = {"mixed": Utilisation(device_busy_ratio=0.9)}
    add_traced_utilisation(found, [phase], {"mixed": 4e-3})
    assert found["mixed"].mfu_ratio == pytest.approx(0.1), (
        "over the captured time, not over the busy part of it"
    )
    assert found["mixed"].mfu_busy_ratio == pytest.approx(0.4)
    assert found["mixed"].device_busy_ratio == 0.9
    for phrase in ("400 GFLOP", "1.00 ms", "1.00 PFLOP/s", "sheet", "100 %"):
        assert phrase in (found["mixed"].arithmetic or "")


def test_types_are_weighed_by_their_own_peaks() -> None:
    assert only(work({"bfloat16": 10**11, "float8": 2 * 10**11})).mfu_busy_ratio == pytest.approx(0.2)


def test_float32_products_in_reduced_precision_have_its_peak() -> None:
    flops: dict[str | None, int] = {"float32": 10**11}
    assert only(work(flops)).mfu_busy_ratio == pytest.approx(2.0)
    assert only(work(flops), tf32=True).mfu_busy_ratio == pytest.approx(0.2)


def test_too_little_counted_claims_nothing() -> None:
    phase = only(work({"bfloat16": 10**11}, counted=0.94, graph_s=0.05e-3))
    assert (phase.mfu_busy_ratio, phase.achieved_flops_per_s, phase.intensity_flops_per_byte) == (
        None,
        None,
        None,
    )
    assert mentions(phase.reason, "94.0 %", "5.00 %")
    found: dict[str, Utilisation] = {}
    add_traced_utilisation(found, [phase], {"mixed": 1.0})
    assert found == {}
    assert only(work({"bfloat16": 10**11}, counted=0.96)).mfu_busy_ratio is not None


@pytest.mark.parametrize("dtype", [None, "float64"])
def test_a_type_without_a_peak_claims_nothing(dtype: str | None) -> None:
    phase = only(work({dtype: 10**11}))
    assert (phase.mfu_busy_ratio, phase.peak) == (None, None)
    assert "peak" in phase.reason
    assert phase.achieved_flops_per_s == pytest.approx(1e14)


def test_a_small_part_without_a_peak_is_let_pass() -> None:
    assert only(work({"bfloat16": 99 * 10**9, None: 10**9})).mfu_busy_ratio == pytest.approx(0.1)


def test_a_measured_utilisation_counts_first() -> None:
    found = {"mixed": Utilisation(mfu_ratio=0.1, arithmetic="measured")}
    add_traced_utilisation(found, [only(work({"bfloat16": 4 * 10**11}))], {"mixed": 4e-3})
    assert (found["mixed"].mfu_ratio, found["mixed"].arithmetic) == (0.1, "measured")
    assert found["mixed"].mfu_busy_ratio == pytest.approx(0.4)


def test_without_a_span_only_the_busy_ratio_is_known() -> None:
    found: dict[str, Utilisation] = {}
    add_traced_utilisation(found, [only(work({"bfloat16": 4 * 10**11}))], {})
    assert (found["mixed"].mfu_ratio, found["mixed"].mfu_busy_ratio) == (None, pytest.approx(0.4))


def test_the_span_of_several_devices_is_all_of_theirs() -> None:
    found: dict[str, Utilisation] = {}
    add_traced_utilisation(found, [only(work({"bfloat16": 4 * 10**11}, devices=2))], {"mixed": 1e-3})
    assert found["mixed"].mfu_ratio == pytest.approx(0.2)


def test_metrics_and_section_show_what_is_known() -> None:
    good, nothing = (
        only(work({"bfloat16": 4 * 10**11})),
        only(PhaseWork(matrix_s=1.0, busy_s=1.0, graph_s=1.0)),
    )
    assert traced_metrics([good])["mixed_achieved_flops_per_s"] == pytest.approx(4e14)
    assert traced_metrics([nothing]) == {
        "mixed_traced_flops": None, "mixed_traced_flops_coverage_ratio": 0.0,
        "mixed_achieved_flops_per_s": None, "mixed_operand_intensity_flops_per_byte": None,
    }  # fmt: skip
    (section,) = traced_section("torch_profiler", [good], DEVICE)
    assert section.tables[0].rows == [
        ["mixed", "400 GFLOP", "100 %", "1.00 ms", "400 TFLOP/s", "40.0 %", "1000", "compute"]
    ]
    assert traced_section("torch_profiler", [nothing], DEVICE) == []


def test_a_low_intensity_is_under_the_memory_roof() -> None:
    phase = only(work({"bfloat16": 4 * 10**11}, operand_bytes=4e9))
    (section,) = traced_section("torch_profiler", [phase], DEVICE)
    assert section.tables[0].rows[0][-1] == "memory"


def test_a_rate_no_device_reaches_is_not_claimed() -> None:
    phase = only(work({"bfloat16": 10**18}))
    assert (phase.mfu_busy_ratio, phase.achieved_flops_per_s) == (None, None)
    assert mentions(phase.reason, "1000 EFLOP/s")
