"""Attention in all its makes, by the names that kernels really carry."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.kernels.families import attention_kind, family_of, family_rules

MAKES = [
    (
        "flash-2",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)",
    ),
    ("flash-2", "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)128, (int)64>>(T1)"),
    (
        "flash-2",
        "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64>>(Flash_bwd_params)",
    ),
    (
        "flash-3",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>>>>>>(T1::Params)",
    ),
    (
        "flash-3",
        "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<16>>, 128>>(T1::Params)",
    ),
    (
        "flash-4",
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensor0000o11101213_0",
    ),
    (
        "flash-4",
        "flash_bwd_sm100_bf16_head_dim128_tile128x128_kernel_cutlass_kernel_flash_attncuteflash_bwd_sm100FlashAttentionBackwardSm100_object_at_0",
    ),
    ("cudnn", "cudnn_generated_fort_native_sdpa_sm90_knob_7_64x128x128_4x1x1_kernel0_0"),
    (
        "cudnn",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_31_128x64x64_1x1x1_kernel0_0",
    ),
    (
        "memory-efficient",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t, cutlass::arch::Sm80>::Params)",
    ),
    (
        "flashinfer",
        "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(int)1>>(T2)",
    ),
    ("flashinfer", "void flashinfer::PersistentVariableLengthMergeStatesKernel<8u, 16u, 8u, 4u>(float*)"),
    ("flashinfer", "void flashinfer::PrefillWithKVCacheKernel<flashinfer::CollectiveMainloop<>>(T1)"),
    ("trtllm", "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP64VarSeqQ128Kv128PersistentContext"),
    ("trtllm", "fmha_v2_flash_attention_bf16_64_128_S_q_paged_kv_128_causal_sm90_kernel_nl"),
    ("trtllm", "void tensorrt_llm::kernels::mmha::masked_multihead_attention_kernel<__nv_bfloat16>(T1)"),
    ("ck", "void ck_tile::kentry<2, ck_tile::FmhaFwdKernel<ck_tile::BlockFmhaPipelineQRKSVSAsync<int>>>(T1)"),
    ("ck", "_ZN7ck_tile6kentryILi1ENS_13FmhaFwdKernelIDF16bEEJEEEvDpT1_"),
    ("aiter", "_ZN5aiter35fmha_fwd_hd128_bf16_causal_rtne_grpE"),
    ("aiter", "aiter::fmha_bwd_hd128_bf16_causal_a32_rtna_psskddv"),
    ("aiter", "_ZN5aiter36pa_bf16_pertokenFp8_gqa8_2tg_4w_uhpE.kd"),
    ("mla", "mla_a16w16_qh16_m16x4_n16x1_coex0_mask1_ps"),
    ("mla", "_ZN5aiter40mla_dec_stage1_bf16_a16w16_subQ16_mqa16_E"),
    (
        "mla",
        "void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8>>(Flash_fwd_mla_params)",
    ),
    (
        "mla",
        "void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMlaKernelTmaWarpspecialized<int>>(T1::Params)",
    ),
    ("sage", "void qk_int_sv_f16_attn_kernel<128u, 64u, 32u>(signed char*)"),
    ("sage", "void qk_int8_sv_f8_accum_f32_attn_inst_buf<(int)128>(T1)"),
    ("paged", "kernel_unified_attention_2d"),
    ("paged", "void vllm::paged_attention_v2_kernel<unsigned short, unsigned short, 128, 16>(float*)"),
    ("paged", "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, __hip_bfloat16>(T1)"),
    ("triton", "_fwd_grouped_kernel_stage1"),
    ("triton", "attn_fwd"),
    ("triton", "bwd_kernel_dk_dv"),
    ("flex", "triton_tem_fused_flex_attention_0"),
]
OTHERS = [
    "void at::native::(anonymous namespace)::cunn_SoftMaxForwardReg<c10::BFloat16, float>(long)",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1",
    "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16>(int)",
    "void vllm::rms_norm_dynamic_per_token_quant_kernel<c10::BFloat16>(int)",
    "cudnn_generated_fort_native_conv_sm90_fprop_f16_knob_1_kernel0_0",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int>>>(T1::Params)",
    "create_flashinfer_kv_indices_triton",
    "block_sparse_matmul_kernel",
]


@pytest.mark.parametrize(("kind", "name"), MAKES)
def test_a_fused_kernel_is_attention_of_its_make(kind: str, name: str) -> None:
    assert (family_of(name), attention_kind(name)) == ("attention", kind)


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels_are_of_no_make(name: str) -> None:
    assert attention_kind(name) is None
    assert family_of(name) != "attention"


def test_every_rule_for_attention_names_a_make_and_no_other_rule_does() -> None:
    assert all((rule.kind is not None) == (rule.family == "attention") for rule in family_rules())
