"""Names of MIOpen, Composable Kernel, Tensile, FBGEMM and the engines: what the kernels are for."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.kernels.families import family_of
from llm_perf_opt.analysis.kernels.names import short_name


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("conv", "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2"),
        ("conv", "igemm_wrw_gtcx2_nhwc_fp16_bx0_ex1_bt64x64x64"),
        ("conv", "naive_conv_ab_nonpacked_fwd_nchw_half_double_half"),
        ("conv", "miopenSp3AsmConv_v30_3_1_gfx9_fp16_dot2_edc_stride1"),
        ("conv", "MIOpenConvUni"),
        ("conv", "gridwise_convolution_implicit_gemm_v4r4_nchw_kcyx_nkhw"),
        ("conv", "Im2d2Col_v2"),
        (
            "conv",
            "void ck::tensor_operation::device::kernel_grouped_conv_fwd_multiple_abd_xdl_cshuffle<int>(int)",
        ),
        ("conv", "void ck::tensor_operation::device::kernel_batched_gemm_xdlops_bwd_weight<int>(int)"),
        ("copy", "SubTensorOpWithCastTensor1d"),
        ("elementwise", "SubTensorOpWithScalar1d"),
        ("copy", "batched_transpose_32x32_half"),
        ("norm", "MIOpenBatchNormFwdInferSpatialEst"),
        ("gemm", "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1"),
        ("gemm", "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl_cshuffle_v3<int>>(int)"),
        ("moe", "void ck::kernel_moe_gemm_2lds<ck::GridwiseMoeGemm<int>>(int)"),
        (
            "norm",
            "void vllm::rms_norm_dynamic_per_token_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn>(int)",
        ),
        ("norm", "void vllm::fused_add_rms_norm_static_fp8_quant_kernel<c10::BFloat16, 8>(int)"),
        ("norm", "void aiter::add_rmsnorm_quant_kernel<std::bfloat16_t, 64, 8>(int)"),
        (
            "norm",
            "void ck_tile::kentry<1, ck_tile::Rmsnorm2dFwd<ck_tile::Rmsnorm2dFwdPipelineOnePass<int>>>(int)",
        ),
        ("quantisation", "void vllm::dynamic_per_token_scaled_fp8_quant_kernel<c10::BFloat16>(int)"),
        ("quantisation", "void per_token_group_quant_8bit_kernel<c10::BFloat16>(int)"),
        (
            "quantisation",
            "void fbgemm_gpu::(anonymous namespace)::_compute_FP8_quantize_cuda_kernel<float>(float const*)",
        ),
        (
            "embedding",
            "void split_embedding_codegen_forward_unweighted_kernel<c10::Half>(fbgemm_gpu::FixedDivisor)",
        ),
        ("copy", "void fbgemm_gpu::permute_2D_data_kernel<false, int>(int)"),
        ("moe", "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu"),
        ("moe", "_combined_routing_compute"),
        ("moe", "void vllm::moe::topkGatingSoftmax<8, 128>(float const*)"),
        (
            "gemm",
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2>(T1::Params)",
        ),
    ],
)
def test_family(family: str, name: str) -> None:
    assert family_of(name) == family


@pytest.mark.parametrize(
    ("short", "name"),
    [
        (
            "ck_tile Rmsnorm2dFwd bf16",
            "void ck_tile::kentry<1, ck_tile::Rmsnorm2dFwd<ck_tile::P<std::bfloat16_t> >, ck_tile::K>(ck_tile::K)",
        ),
        (
            "ck grouped_conv_fwd_xdl_cshuffle_v3 f32",
            "void ck::tensor_operation::device::(anonymous namespace)::kernel_grouped_conv_fwd_xdl_cshuffle_v3<float>(int)",
        ),
        (
            "Tensile BBS_BH Alik Bljk 256x32x64",
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1_SN_LDSB1",
        ),
        (
            "flash attention 4 Forward sm100",
            "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensor_0",
        ),
    ],
)
def test_short_name(short: str, name: str) -> None:
    assert short_name(name) == short
