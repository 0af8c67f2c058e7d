"""Launches that Nsight Compute profiled: shapes from torch's own ranges, and silence without them."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.ncu.kernels import analyse_ncu
from llm_perf_opt.analysis.targets import MeasuredTime, add_profiled_targets, has_shapes, profiled_operator
from llm_perf_opt.captures.ncu.launches import NcuCapture, NcuLaunch, NcuSettings, Quantity
from llm_perf_opt.hardware.silicon.operators import Attention, Gemm
from llm_perf_opt.summary import Kernel
from llm_perf_opt.summary.kernels import KernelTarget
from tests.text_facts import mentions

EIGHT_BIT = "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128"
CUTLASS_EIGHT_BIT = "cutlass3x_sm90_tensorop_s64x128x32gemm_e4m3_e4m3_f32_bf16_bf16_128x128x128"
SPLIT = "void splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
LINEAR = "aten::linear, op_id = 57, sizes = [[16, 559, 1024], [2816, 1024], []], input_op_ids = [(1, 0)]"


AGAIN = LINEAR.replace("op_id = 57", "op_id = 60")
SCALED = "aten::_scaled_mm, op_id = 8, sizes = [[4, 16], [16, 32], [], []]"


def launch(
    *ranges: str, kernel: str = GEMM, seconds: float = 90e-6, clocks: str | None = None, number: int = 0
) -> NcuLaunch:
    metrics = {"gpu__time_duration.sum": Quantity(seconds, "s", str(seconds))}
    settings = NcuSettings(clocks, "all") if clocks else None
    return NcuLaunch(
        kernel,
        str(number),
        "1",
        (1, 1, 1),
        (128, 1, 1),
        "0",
        "9.0",
        metrics,
        ranges=ranges,
        settings=settings,
    )


@pytest.mark.parametrize(
    ("ranges", "kernel", "expected"),
    [
        ((LINEAR,), GEMM, Gemm(16 * 559, 2816, 1024)),
        (("prefill", "aten::mm, seq = 3, op_id = 9, sizes = [[4, 8], [8, 16]]"), GEMM, Gemm(4, 16, 8)),
        (
            (LINEAR, "aten::mm, op_id = 58, sizes = [[8944, 1024], [1024, 2816]]"),
            GEMM,
            Gemm(8944, 2816, 1024),
        ),
        (("aten::mm, sizes = [[4, 8], [8, 16]]",), "turing_h1688gemm_128x64", Gemm(4, 16, 8, "float16")),
        (
            (
                "aten::scaled_dot_product_attention, sizes = [[2, 8, 1, 64], [2, 8, 77, 64], [2, 8, 77, 64], []]",
            ),
            "flash_fwd_splitkv_kernel<cutlass::bfloat16_t>",
            Attention("generation", 2, 77, 8, 8, 64),
        ),
        (
            ("aten::mm, sizes = [[4, 8], [8, 16]]",),
            "cutlass_80_simt_sgemm_128x32",
            None,
        ),  # no type of the tables
        ((SCALED,), EIGHT_BIT, Gemm(4, 32, 16, "float8")),
        ((SCALED,), CUTLASS_EIGHT_BIT, Gemm(4, 32, 16, "float8")),
        (("aten::mm, sizes = [[4, 8], [8, ]]",), GEMM, None),
        (("aten::mm",), GEMM, None),
        ((), GEMM, None),
        (
            (
                "aten::scaled_dot_product_attention, sizes = [[2, 8, 77, 64], [2, 8, 77, 64], [2, 8, 77, 64], []]",
            ),
            "flash_fwd_kernel<cutlass::bfloat16_t>",
            None,  # causal or not, the range does not say
        ),
    ],
)
def test_operator_around_a_launch(ranges: tuple[str, ...], kernel: str, expected: object) -> None:
    assert profiled_operator(launch(*ranges, kernel=kernel)) == expected


def test_a_profiled_launch_has_a_target_and_nothing_at_stake() -> None:
    capture = NcuCapture(
        [launch(LINEAR, clocks="base"), launch(AGAIN, seconds=70e-6, clocks="base", number=1)], "x.ncu-rep"
    )
    assert (
        has_shapes(capture) and not has_shapes(NcuCapture([launch("prefill")], "x")) and not has_shapes(None)
    )
    rows = [Kernel(GEMM, "g", "gemm", None, None, None, None, None)]
    add_profiled_targets(
        rows, analyse_ncu(capture), {}, lambda _: MeasuredTime(40e-6, 50e-6, "measured", "vLLM 0.24, cuBLAS")
    )
    target = rows[0].target
    assert target is not None and target.ratio == pytest.approx(2.0) and target.calls == 2
    assert target.at_stake_s is None and mentions(target.remark, "base")


def test_facts_of_a_trace_are_not_replaced() -> None:
    rows = [Kernel(GEMM, "g", "gemm", None, None, None, None, None)]
    capture = NcuCapture([launch(LINEAR)], "x.ncu-rep")
    first = MeasuredTime(40e-6, 50e-6, "measured", "first")
    add_profiled_targets(rows, analyse_ncu(capture), {}, lambda _: first)
    add_profiled_targets(
        rows, analyse_ncu(capture), {}, lambda _: MeasuredTime(1e-6, 1e-6, "measured", "second")
    )
    assert rows[0].target is not None and rows[0].target.source == "first"


def targets_of(*launches: NcuLaunch) -> dict[str, KernelTarget | None]:
    """Targets of the kernels of a capture, where every shape is measured at 40 µs."""
    names = dict.fromkeys(one.kernel for one in launches)
    rows = [Kernel(name, "k", "gemm", None, None, None, None, None) for name in names]
    best = MeasuredTime(40e-6, 50e-6, "measured", "vLLM 0.24, cuBLAS")
    add_profiled_targets(rows, analyse_ncu(NcuCapture(list(launches), "x")), {}, lambda _: best)
    return {one.name: one.target for one in rows}


def test_kernels_of_one_call_count_together_for_the_longest() -> None:
    inner = "aten::addmm, op_id = 58, sizes = [[2816], [8944, 1024], [1024, 2816]]"
    found = targets_of(
        launch(LINEAR, seconds=90e-6, number=0),
        launch(LINEAR, inner, kernel=SPLIT, seconds=10e-6, number=1),
        launch(AGAIN, seconds=50e-6, number=2),
        launch(AGAIN, kernel=SPLIT, seconds=10e-6, number=3),
    )
    target = found[GEMM]
    assert target is not None and target.calls == 2 and target.measured_s == pytest.approx(80e-6)
    assert target.ratio == pytest.approx(2.0) and found[SPLIT] is None


UNNUMBERED = "aten::mm, sizes = [[4, 8], [8, 16]]"


def test_several_kernels_in_a_range_without_a_number_are_not_compared() -> None:
    """One call of two kernels, or two calls? A range between them tells; nothing else does."""
    together = [launch(UNNUMBERED, number=0), launch(UNNUMBERED, kernel=SPLIT, number=1)]
    assert targets_of(*together) == {GEMM: None, SPLIT: None}
    apart = targets_of(launch(UNNUMBERED, number=0), launch("norm", number=1), launch(UNNUMBERED, number=2))
    assert apart[GEMM] is not None and apart[GEMM].calls == 2


def test_a_call_of_which_not_every_kernel_is_known_is_not_compared() -> None:
    timeless = launch(LINEAR, kernel=SPLIT, number=1)
    timeless.metrics = {}
    assert targets_of(launch(LINEAR), timeless)[GEMM] is None
    alone = launch(LINEAR, kernel=SPLIT)
    alone.nsys_name_md5 = "0" * 32  # of a folder that holds this kernel only
    assert targets_of(alone)[SPLIT] is None
