"""Kernels pair across tile sizes, architectures, element types and profilers."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.kernels.families import family_of
from llm_perf_opt.analysis.kernels.names import short_name
from llm_perf_opt.compare.kernels import compare_families, compare_kernels, structure, typeless
from llm_perf_opt.summary import Kernel


def kernel(name: str, total_s: float, *, phase: str | None = None, launches: int = 10) -> Kernel:
    return Kernel(name, short_name(name), family_of(name), phase, None, launches, total_s, None)


SAME = [
    (
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
        "ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn",
    ),
    (
        "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_stage4_warpsize2x2x1_tensor16x8x16_execute_kernel_cublas",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    ),
    ("nvjet_tst_128x64_64x6_1x2_h_bz_coopA_TNT", "nvjet_tst_192x128_64x4_2x1_v_bz_coopB_TNT"),
    (
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_32x6_tn_align8>(T1::Params)",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8::Params)",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char *, (unsigned long)3>>(int, T2, T3)",
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)",
    ),
    ("triton_poi_fused_add_mul_3", "triton_poi_fused_add_mul_17"),
    ("volta_sgemm_128x64_nn", "turing_sgemm_64x64_nn"),
]
DIFFERENT = [
    ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_nn"),
    ("triton_poi_fused_add_mul_3", "triton_poi_fused_add_div_3"),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int)",
    ),
]


@pytest.mark.parametrize(("one", "two"), SAME)
def test_sizes_and_architecture_are_forgotten(one: str, two: str) -> None:
    assert structure(one) == structure(two)
    (row,) = compare_kernels([kernel(one, 1.0)], [kernel(two, 2.0)])
    assert row.matched == "renamed"
    assert row.ratio == 2.0


@pytest.mark.parametrize(("one", "two"), DIFFERENT)
def test_layouts_and_operations_are_not(one: str, two: str) -> None:
    assert structure(one) != structure(two)
    assert typeless(one) != typeless(two)


def test_types_are_forgotten_later() -> None:
    half = "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn"
    brain = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn"
    assert structure(half) != structure(brain)
    (row,) = compare_kernels([kernel(half, 1.0)], [kernel(brain, 1.0)])
    assert row.matched == "retyped"


def test_what_is_left_pairs_by_family_and_the_rest_is_listed() -> None:
    a = [kernel("ampere_bf16_s16816gemm_bf16_128x64_tn", 3.0), kernel("my_secret_thing", 1.0)]
    b = [kernel("nvjet_tst_128x64_64x6_1x2_h_bz_coopA_TNT", 1.0), kernel("softmax_warp_forward", 0.5)]
    rows = {row.matched: row for row in compare_kernels(a, b)}
    assert set(rows) == {"family", "only in A", "only in B"}
    assert rows["family"].family == "gemm"
    assert rows["only in A"].a_names == ["my_secret_thing"]
    assert rows["only in A"].ratio is None
    assert rows["only in B"].b_names == ["softmax_warp_forward"]


def test_unknown_kernels_never_pair_by_being_unknown() -> None:
    rows = compare_kernels([kernel("zzz_one", 1.0)], [kernel("qqq_two", 1.0)])
    assert sorted(row.matched for row in rows) == ["only in A", "only in B"]


def test_exact_names_win_and_phases_keep_apart() -> None:
    name = "ampere_bf16_s16816gemm_bf16_128x64_tn"
    a = [kernel(name, 1.0, phase="prefill"), kernel(name, 2.0, phase="decode", launches=20)]
    b = [kernel(name, 3.0, phase="prefill"), kernel(name, 2.0, phase="decode", launches=10)]
    rows = {row.phase: row for row in compare_kernels(a, b)}
    assert rows["prefill"].matched == rows["decode"].matched == "exact"
    assert rows["prefill"].ratio == 3.0
    assert rows["decode"].ratio == 1.0
    assert rows["decode"].per_launch_ratio == 2.0


def test_a_capture_without_phases_pairs_with_one_that_has_them() -> None:
    name = "ampere_bf16_s16816gemm_bf16_128x64_tn"
    a = [kernel(name, 1.0, phase="prefill"), kernel(name, 2.0, phase="decode")]
    (row,) = compare_kernels(a, [kernel(name, 6.0)])
    assert (row.matched, row.phase, row.a_s, row.ratio) == ("exact", None, 3.0, 2.0)


def test_every_kernel_is_in_exactly_one_row_and_no_time_is_lost() -> None:
    a = [kernel(one, 1.0) for one, _ in SAME] + [kernel(one, 0.5) for one, _ in DIFFERENT[:2]]
    b = [kernel(two, 2.0) for _, two in SAME]
    rows = compare_kernels(a, b)
    assert sorted(name for row in rows for name in row.a_names) == sorted({k.name for k in a})
    assert sum(row.a_s or 0.0 for row in rows) == pytest.approx(sum(k.total_s or 0.0 for k in a))
    assert sum(row.b_s or 0.0 for row in rows) == pytest.approx(14.0)
    families = compare_families(a, b)
    assert sum(row.a_s or 0.0 for row in families) == pytest.approx(sum(k.total_s or 0.0 for k in a))
    assert sum(row.b_share_ratio or 0.0 for row in families) == pytest.approx(1.0)


def test_parameters_at_the_end_of_a_name_are_forgotten() -> None:
    assert structure("f(int)") == structure("void f<3>(int, T2 (*)(float))") == structure("f") == "f"


def test_layouts_of_products_pair_only_as_a_family_and_an_operation_pairs_in_any_wrapping() -> None:
    one, two = DIFFERENT[0]
    (row,) = compare_kernels([kernel(one, 1.0)], [kernel(two, 1.0)])
    assert row.matched == "family"
    vectorised = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char *, (unsigned long)3>>(int, T2, T3)"
    unrolled = "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>, 4>(int)"
    (row,) = compare_kernels([kernel(vectorised, 1.0)], [kernel(unrolled, 1.0)])
    assert row.matched == "retyped"
