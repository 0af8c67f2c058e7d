"""Narrow loads by the names of products."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.kernels.families import load_narrowing

NAME = "void cutlass::Kernel2<cutlass_80_tensorop_{}gemm_{}_64x64_32x6_tn_align{}>(cutlass::Params)"


@pytest.mark.parametrize(
    ("name", "wider"),
    [
        (NAME.format("bf16_s16816", "bf16", 1), 8.0),
        (NAME.format("f16_s16816", "f16", 2), 4.0),
        (NAME.format("s1688", "tf32", 1), 4.0),
        (NAME.format("bf16_s16816", "bf16", 8), None),
        (NAME.format("bf16_s16816", "bf16", 16), None),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_32x128_8x5_nn_align1>(cutlass::Params)", None),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", None),
        ("_align1_of_something_unknown", None),
    ],
)
def test_how_many_times_as_wide_loads_could_be(name: str, wider: float | None) -> None:
    assert load_narrowing(name) == wider
