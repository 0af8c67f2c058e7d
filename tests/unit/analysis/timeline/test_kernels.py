"""Families and readable names of kernels from many libraries."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.kernels.families import OTHER, family_of, family_rules
from llm_perf_opt.analysis.kernels.names import bare_name, name_rules, short_name
from llm_perf_opt.analysis.timeline.tables import classified_ratio, rows_of_totals
from llm_perf_opt.captures.timeline import NamedTotal

FAMILIES = {
    "gemv": [
        "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, float, (bool)0>(T13)",
        "void gemv2T_kernel_val<int, int, __half, __half, __half, float, (int)128, (int)16>(T13, T6, T6)",
        "void gemvNSP_kernel<float, float, float, float, (int)1, (int)32, (int)4, (int)1024>(cublasGemvParams)",
        "void kgemm_4bit_inference_naive<__nv_bfloat16, 128, 16>(int, int, int, __nv_bfloat16*)",
        "void mul_mat_vec_q<(ggml_type)2, 1>(void const*, void const*, float*, int, int, int, int)",
    ],
    "gemm": [
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_tn",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT",
        "nvjet_hsh_256x128_64x4_2x1_v_bz_TNN",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(T1::Params)",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>>>(T1::Params)",
        "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, __nv_bfloat16>(cublasLt::cublasSplitKParams<T6>)",
        "void marlin::Marlin<__half, 1125899906842624l, 256, 1, 8, 8, true, 4, 8, false>(int4 const*)",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 2112u, 7168u, 1u>(float*, int*)",
        "triton_tem_fused_mm_7",
        "gemmk1_kernel<int, float, (int)256, (int)5, cublasGemvTensorStridedBatched<const float>>(cublasGemmk1Params<T2>)",
        "_w8a8_triton_block_scaled_mm",
        "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1",
    ],
    "attention": [
        "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)64, (int)64, (int)256, (int)4>>(Flash_fwd_params)",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>>(T1::Params)",
        "void vllm::paged_attention_v2_kernel<unsigned short, unsigned short, 128, 16, 128>(float*, float*)",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<flashinfer::PosEncodingMode, 2, 4, 8, 16, 8>(T1)",
        "void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits<1>>(T1)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_128x128x64_4x1x1_kernel0_0",
        "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP64VarSeqQ128Kv128PersistentContext",
        "kernel_unified_attention_2d",
        "_fwd_grouped_kernel_stage1",
        "_fwd_kernel_stage2",
        "triton_tem_fused_flex_attention_0",
        "void tensorrt_llm::kernels::mmha::masked_multihead_attention_kernel<unsigned short, 128>(T1)",
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<(int)128, (int)64>>(flash::Flash_fwd_params)",
    ],
    "kv_cache": [
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, 0>(__nv_bfloat16 const*)",
        "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16>(T1 const*)",
    ],
    "moe": [
        "fused_moe_kernel",
        "void vllm::moe::topkGatingSoftmax<8, 64, 4, 16>(float const*, bool const*, float*, int)",
        "void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*)",
        "void moe_sum_reduce_warp_token_vec_kernel<8>(T1)",
        "void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel_expert<__nv_bfloat16>(T1)",
    ],
    "rope": [
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)",
        "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, 128>(T1)",
        "_triton_mrope_forward",
    ],
    "norm": [
        "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)",
        "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)",
        "rms_norm_f32",
    ],
    "softmax": [
        "void <unnamed>::softmax_warp_forward<float, float, float, (int)6, (bool)0, (bool)0>(T2 *)",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>(float*)",
    ],
    "quantisation": [
        "void vllm::scaled_fp8_quant_kernel<c10::BFloat16>(T1)",
        "void per_token_group_quant_8bit_kernel<c10::BFloat16, c10::Float8_e4m3fn>(T1)",
        "void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*, unsigned char*)",
        "quantize_q8_1(float const*, void*, long, long)",
    ],
    "conv": [
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x32x64_stage5_execute_kernel__5x_cudnn",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_128x128_32x3_nhwc_align8>(T1::Params)",
        "void implicit_convolve_sgemm<float, float, (int)1024, (int)5, (int)5>(int, int, int)",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<1, c10::BFloat16, int>(T1)",
        "void im2col_kernel<float>(long, float const*)",
    ],
    "communication": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>(T1)",
    ],
    "copy": [
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]>(int, T1)",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda(float) (instance 1)]>(int, T2, T3)",
        "void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType<(unsigned int)2>, unsigned int>(T1 *)",
        "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float>(T1)",
    ],
    "reduce": [
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>(T3)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long>>(T3)",
    ],
    "sort": [
        "void at::native::sbtopk::gatherTopK<float, unsigned int, (int)1, (bool)0>(T1)",
        "void at::native::bitonicSortKVInPlace<(int)-2, (int)-1, (int)16, (int)16, long, long>(T1)",
        "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<T1>(T2)",
        "void at_cuda_detail::cub::DeviceScanKernel<T1>(T2)",
    ],
    "index": [
        "void at::native::index_elementwise_kernel<(int)128, (int)4, at::native::index_put_kernel_impl<T1>>(T2)",
        "void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *)",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>(T1)",
    ],
    "embedding": ["void embedding_kernel<float>(T1)", "void at::native::(anonymous namespace)::EmbeddingBag_updateOutputKernel_sum_mean<float, long>(T1)"],
    "sampling": [
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024, T1>(T2)",
        "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>(T1)",
        "void vllm::apply_repetition_penalties_kernel<float>(T1)",
    ],
    "ssm": ["void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<32, 4, 1>>(SSMParamsBase)", "_chunk_scan_fwd_kernel", "fused_recurrent_gated_delta_rule_fwd_kernel"],
    "triton": ["triton_poi_fused_mul_silu_0", "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2", "triton_per_fused_native_layer_norm_4"],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char *, (unsigned long)3>>(int, T2, T3)",
        "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float>>(T1)>(int, T3)",
        "void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel<c10::BFloat16>(c10::BFloat16 const&)), true>(T1)",
        "void <unnamed>::elementwise_kernel_with_index<int, at::native::arange_cuda_out(const c10::Scalar &)>(T1)",
    ],
    "resample": ["void at::native::<unnamed>::upsample_gen2d_aa_out_frame<float, float, BicubicFilterFunctor>(T2)"],
    "memcpy": ["[CUDA memcpy Host-to-Device]", "[CUDA memcpy HtoD]", "Memcpy DtoH (Device -> Pinned)"],
    "memset": ["[CUDA memset]", "Memset (Device)"],
    "graph": ["[CUDA graph]"],
    OTHER: ["my_special_thing", "k"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family, names in FAMILIES.items() for name in names]
)
def test_family(family: str, name: str) -> None:
    assert family_of(name) == family


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (FAMILIES["gemv"][0], "gemvx bf16"),
        (FAMILIES["gemm"][4], "cutlass bf16 s161616gemm 32x32_128x2"),
        (FAMILIES["copy"][1], "elementwise bfloat16_copy"),
        (FAMILIES["gemm"][0], "ampere bf16 s16816gemm 128x128 64x4"),
        (FAMILIES["gemm"][1], "xmma gemm f32 64x256x8"),
        (FAMILIES["gemm"][2], "nvjet tst 128x256_64x4"),
        (FAMILIES["attention"][0], "flash_fwd_splitkv d64"),
        (FAMILIES["attention"][1], "fmha_cutlassF bf16 64x64"),
        (FAMILIES["elementwise"][0], "elementwise add bf16"),
        (FAMILIES["reduce"][0], "reduce Mean f32"),
        (FAMILIES["memcpy"][0], "memcpy Host-to-Device"),
        (FAMILIES["norm"][1], "vectorized_layer_norm_kernel bf16"),
        (FAMILIES["triton"][0], "triton_poi_fused_mul_silu"),
        ("fused_moe_kernel", "fused_moe_kernel"),
    ],
)  # fmt: skip
def test_short_name(name: str, short: str) -> None:
    assert short_name(name) == short


def test_bare_name() -> None:
    assert bare_name("void a::b<int, c<d>>(T1 *, e)") == "b"
    assert (
        bare_name("at::native::<unnamed>::fill_reverse_indices_kernel(long *, int)")
        == "fill_reverse_indices_kernel"
    )
    assert bare_name("void (anonymous namespace)::k<1>(int)") == "k"
    assert bare_name("plain") == "plain"


@given(st.text(max_size=200))
def test_any_name_has_a_family_and_a_short_name(name: str) -> None:
    assert family_of(name) in {rule.family for rule in family_rules()} | {OTHER}
    assert len(short_name(name)) <= 80


def test_rules_are_data_that_compile() -> None:
    assert len(family_rules()) > 20
    assert len(name_rules()) > 15


def test_every_kernel_of_a_real_run_is_classified(shared_data: Path) -> None:
    path = shared_data / "rtx5090-deepseek-ocr" / "nsys" / "all-stage.cuda_gpu_kern_sum.csv"
    with path.open(newline="") as stream:
        table = [
            NamedTotal(row["Name"], int(row["Instances"]), int(row["Total Time (ns)"]))
            for row in csv.DictReader(stream)
        ]
    rows = rows_of_totals(table)
    ratio = classified_ratio(rows)
    assert ratio is not None
    assert ratio > 0.99
    assert all(row.short_name for row in rows)
    assert rows[0].family == "gemv"
