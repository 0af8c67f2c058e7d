"""Devices and the names their kernels have, with a simple roofline for how long each runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BF16 = 2
"""Bytes of a bfloat16."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel as a program asks for it."""

    name: str
    duration_ns: int
    ops: tuple[str, ...]
    """Operators around its launch, outermost first."""
    call: str = "cudaLaunchKernel"
    grid: tuple[int, int, int] = (256, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    shapes: tuple[tuple[int, ...], ...] = ()
    wasted: tuple[str, float] | None = None
    """Cause and share of its time that is lost to it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device: what it sustains, and how its libraries name kernels."""

    name: str
    vendor: str
    flops_per_s: float
    """What large bfloat16 products reach in practice."""
    bytes_per_s: float
    names: dict[str, str]
    first_number: int = 0
    """Number of rank 0's device in the capture."""
    properties: dict[str, Any] = field(default_factory=dict)

    def gemm(
        self, m: int, n: int, k: int, op: str = "aten::mm", *, name: str = "gemm", slowdown: float = 1.0
    ) -> Kernel:
        """``m×k`` times ``k×n``."""
        seconds = max(2.0 * m * n * k / self.flops_per_s, BF16 * (m * k + k * n + m * n) / self.bytes_per_s)
        outer = ("aten::linear",) if op in ("aten::mm", "aten::addmm") else ("aten::matmul",)
        call = "cudaLaunchKernelExC" if self.vendor == "nvidia" else "hipExtModuleLaunchKernel"
        return Kernel(
            self.names[name],
            _ns(seconds * slowdown),
            (*outer, op),
            call,
            (-(-m // 128) * -(-n // 128), 1, 1),
            (384, 1, 1),
            ((n,), (m, k), (k, n)) if op == "aten::addmm" else ((m, k), (k, n)),
        )

    def batched(self, b: int, m: int, n: int, k: int) -> Kernel:
        """``b`` products of ``m×k`` and ``k×n``: what eager attention is made of."""
        moved = BF16 * b * (m * k + k * n + m * n)
        seconds = max(2.0 * b * m * n * k / self.flops_per_s, moved / self.bytes_per_s)
        call = "cudaLaunchKernel" if self.vendor == "nvidia" else "hipExtModuleLaunchKernel"
        return Kernel(
            self.names["bmm"],
            _ns(seconds),
            ("aten::matmul", "aten::bmm"),
            call,
            (-(-m // 128), -(-n // 128), b),
            (256, 1, 1),
            ((b, m, k), (b, k, n)),
        )

    def moving(self, name: str, moved_bytes: float, *ops: str, elements: int = 0) -> Kernel:
        """A kernel limited by memory."""
        count = elements or int(moved_bytes) // (2 * BF16)
        generated = self.names[name].startswith("triton_")
        return Kernel(
            self.names[name],
            _ns(moved_bytes / self.bytes_per_s),
            ops,
            "cuLaunchKernel" if generated else "cudaLaunchKernel",
            grid=(max(1, count // 512), 1, 1),
            shapes=((count,),),
        )


def _ns(seconds: float) -> int:
    """No kernel is shorter than its own start and end."""
    return max(1800, int(seconds * 1e9))


_ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, {0}, std::array<char*, {1}ul> >(int, {0}, std::array<char*, {1}ul>)"
_UNROLLED = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<{0}>(at::TensorIteratorBase&, "
    "{0} const&)::{{lambda(int)#1}}>(int, at::native::gpu_kernel_impl_nocast<{0}>(at::TensorIteratorBase&, {0} const&)::{{lambda(int)#1}})"
)
_MUL = "at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> >"
_MUL_FLOAT = "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"

TORCH_NAMES = {
    "embedding": "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)",
    "argmax": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4, 4> >(at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4, 4>)",
    "to_float": _ELEMENTWISE.format(
        "at::native::bfloat16tofloat32_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}",
        2,
    ),
    "to_bf16": _ELEMENTWISE.format(
        "at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}", 2
    ),
    "pow": _ELEMENTWISE.format(
        "at::native::(anonymous namespace)::pow_tensor_scalar_kernel_impl<float, float>(at::TensorIteratorBase&, float)::{lambda(float)#1}",
        2,
    ),
    "mean": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4, 4>)",
    "add_scalar": _ELEMENTWISE.format("at::native::CUDAFunctorOnSelf_add<float>", 2),
    "rsqrt": _ELEMENTWISE.format(
        "at::native::rsqrt_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}",
        2,
    ),
    "mul_float": _UNROLLED.format(_MUL_FLOAT),
    "mul": _UNROLLED.format(_MUL),
    "mul_vectorized": _ELEMENTWISE.format(_MUL, 3),
    "scale": _ELEMENTWISE.format(
        "at::native::AUnaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> >",
        2,
    ),
    "add": _ELEMENTWISE.format("at::native::CUDAFunctor_add<c10::BFloat16>", 3),
    "add_mask": _UNROLLED.format("at::native::CUDAFunctor_add<c10::BFloat16>"),
    "neg": _UNROLLED.format(
        "at::native::neg_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#9}::operator()() const::{lambda(c10::BFloat16)#1}"
    ),
    "cat": "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 4, 64, 64>(at::native::(anonymous namespace)::OpaqueType<2u>*, at::native::(anonymous namespace)::CatArrInputTensorMetadata<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 64, 64>, at::native::(anonymous namespace)::TensorSizeStride<unsigned int, 4u>, int, unsigned int)",
    "softmax": "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float, at::native::(anonymous namespace)::SoftMaxForwardEpilogue>(float*, float const*, int)",
    "softmax_bf16": "void at::native::(anonymous namespace)::cunn_SoftMaxForwardReg<c10::BFloat16, float, c10::BFloat16, at::native::(anonymous namespace)::SoftMaxForwardEpilogue, long, 6>(c10::BFloat16*, c10::BFloat16 const*, long)",
    "adam": "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, float const*, double, double, double, double, double, bool, float*, float*>(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, float const*, double, double, double, double, double, bool, float*, float*)",
    "layer_norm": "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
}
"""Kernels of torch itself: the same on both vendors."""

_VLLM = {
    "norm": "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, c10::BFloat16*, c10::BFloat16 const*, float, int, int)",
    "rope": "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*, c10::BFloat16 const*, int, long, long, long, int, int, int)",
    "cache": "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, long const*, long, long, long, long, long, int, int, int, float const*, float const*)",
    "act": "void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel<c10::BFloat16>(c10::BFloat16 const&)), true>(c10::BFloat16*, c10::BFloat16 const*, int)",
    "custom_all_reduce": "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, vllm::Signal*, __nv_bfloat16*, int, int)",
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
_AMPERE = {
    "gemm": "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_tn",
    "gemm_wide": "ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn",
    "gemm_backward": "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nt",
    "gemm_misaligned": "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_nn_align1>(cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_nn_align1::Params)",
    "gemm_aligned": "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_nn_align8>(cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_nn_align8::Params)",
    "bmm": "ampere_bf16_s16816gemm_bf16_128x64_sliced1x2_ldg8_f2f_stages_64x4_tn",
    "attention": "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >, false, true, false, false, true, true, false, false>(pytorch_flash::Flash_fwd_params)",
    "attention_decode": "void pytorch_flash::flash_fwd_splitkv_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<128, 64, 128, 4, cutlass::bfloat16_t> >, false, false, false, false, true, false, true, false>(pytorch_flash::Flash_fwd_params)",
    "norm": "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3",
    "act": "triton_poi_fused_mul_silu_5",
    "attention_backward": "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, false, false, cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<128, 64, 128, 8, cutlass::bfloat16_t> >, false, true, false, false, true, true, false>(pytorch_flash::Flash_bwd_params)",
}
_FA3 = "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<128>, cute::C<{}>, cute::C<128> >, 128, cutlass::bfloat16_t, float, cutlass::arch::Sm90, true, false, false, true, true, false, false, false, true, true, false, false>, flash::CollectiveEpilogueFwd<cute::tuple<cute::C<128>, cute::C<128>, cute::C<{}> >, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cutlass::bfloat16_t, cutlass::arch::Sm90, 256, true, true, false, false>, flash::VarlenDynamicPersistentTileScheduler<128, 256, 128, false, true, true> > > >(flash::enable_sm90<flash::FlashAttnFwdSm90<>>::Params)"
_HOPPER = {
    "gemm": "nvjet_tst_128x256_64x4_2x1_v_bz_coopB_TNT",
    "gemm_wide": "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT",
    "gemm_backward": "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_NTN",
    "gemm_misaligned": _AMPERE["gemm_misaligned"],
    "gemm_aligned": _AMPERE["gemm_aligned"],
    "bmm": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "attention": _FA3.format(176, 176),
    "attention_decode": _FA3.format(128, 128),
    "attention_backward": "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<flash::CollectiveMainloopBwdSm90<2, 2, 2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<80>, cute::C<128>, cute::C<128> >, cutlass::bfloat16_t, float, cutlass::arch::Sm90, true, false, false, false> > > >(flash::Params)",
}
_CIJK = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT{}_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0_DTVA0_DTVB0_EPS0_FDSI0_GRPM1_GRVWA8_GRVWB8_GSUAMB_GLS0_ISA942_IU1_K1_LBSPPA512_LBSPPB128_LBSPPM0_LPA16_LPB16_LPM0_LRVW8"
_MI300 = {
    "gemm": _CIJK.format("128x160x64"),
    "gemm_wide": _CIJK.format("256x192x64"),
    "gemm_backward": _CIJK.format("160x128x64"),
    "gemm_misaligned": _CIJK.format("16x16x32"),
    "gemm_aligned": _CIJK.format("128x160x64"),
    "bmm": "Cijk_Ailk_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT64x288x64_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0_DTVA0_DTVB0_EPS0_FDSI0_GRPM1_GRVWA8_GRVWB8_GSUAMB_GLS0_ISA942_IU1_K1_LBSPPA1024_LBSPPB128_LBSPPM0_LPA32_LPB16_LPM0_LRVW8",
    "attention": "_ZN7ck_tile6kentryILi2ENS_13FmhaFwdKernelINS_24BlockFmhaPipelineQRKSVSAsyncINS_24BlockFmhaPipelineProblemIDF16bDF16bDF16bffDF16bhfDF16bfDF16bNS_13TileFmhaShapeEEEEEEEJEEEvDpT1_",
    "attention_decode": "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0, 1, 128, 256, false, 4, 1, ck_tile::ComposedAttention<0u, false> >(__hip_bfloat16 const*, __hip_bfloat16 const*, __hip_bfloat16 const*, int, float, int const*, int const*, int)",
    "attention_backward": "_ZN7ck_tile6kentryILi2ENS_20FmhaBwdDQDKDVKernelINS_22BlockFmhaBwdDQDKDVPipelineEEEJEEEvDpT1_",
    "norm": "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib",
    "act": "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS3_PS4_i",
    "all_reduce": "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
    "all_gather": "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
    "reduce_scatter": "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
    "custom_all_reduce": "void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(aiter::RankData*, aiter::RankSignals, aiter::Signal*, __hip_bfloat16*, int, int)",
}

_SIZES = {"maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536}
H100 = Gpu(
    "NVIDIA H100 80GB HBM3",
    "nvidia",
    620e12,
    2.8e12,
    TORCH_NAMES | _VLLM | _HOPPER,
    properties={"totalGlobalMem": 85018279936, "computeMajor": 9, "computeMinor": 0, **_SIZES, "warpSize": 32, "numSms": 132},
)  # fmt: skip
A100 = Gpu(
    "NVIDIA A100-SXM4-80GB",
    "nvidia",
    240e12,
    1.7e12,
    TORCH_NAMES | _VLLM | _AMPERE,
    properties={"totalGlobalMem": 85097971712, "computeMajor": 8, "computeMinor": 0, **_SIZES, "warpSize": 32, "numSms": 108},
)  # fmt: skip
MI300X = Gpu(
    "AMD Instinct MI300X",
    "amd",
    520e12,
    3.8e12,
    TORCH_NAMES | _VLLM | _MI300,
    first_number=2,
    properties={"totalGlobalMem": 206141652992, "computeMajor": 9, "computeMinor": 4, **_SIZES, "warpSize": 64, "numSms": 304},
)  # fmt: skip
