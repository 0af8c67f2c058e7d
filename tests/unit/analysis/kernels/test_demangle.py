"""Mangled names become readable, the same on every machine; anything else stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.kernels.demangle import demangled
from llm_perf_opt.analysis.kernels.families import family_of
from llm_perf_opt.analysis.kernels.match import normalised
from llm_perf_opt.analysis.kernels.names import short_name
from llm_perf_opt.analysis.timeline.tables import rows_of_totals
from llm_perf_opt.captures.timeline import NamedTotal

QUANT = (
    "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib"
)
SILU = "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS3_PS4_i"

ADD = (
    "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastINS0_15CUDAFunctor_addIlEEEEvRNS_18TensorIteratorBase"
    "ERKT_EUliE_EEviT1_"
)
"""``T_`` of the function around the lambda is not ``T1_`` of the kernel."""


@pytest.mark.parametrize(
    ("mangled", "readable"),
    [
        (
            QUANT,
            "void aiter::add_rmsnorm_quant_kernel<std::bfloat16_t, std::bfloat16_t, 64, 8, false, false, true, 1>"
            "(std::bfloat16_t*, std::bfloat16_t*, float*, std::bfloat16_t*, std::bfloat16_t*, std::bfloat16_t*, double, "
            "int, int, int, int, int, int, int, bool)",
        ),
        (
            SILU,
            "void sgl_hip::activation::act_and_mul_kernel<__hip_bfloat16, &(__hip_bfloat16 "
            "silu<__hip_bfloat16>(__hip_bfloat16 const&))>(__hip_bfloat16*, __hip_bfloat16 const*, int)",
        ),
        (
            ADD,
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<long> >"
            "(at::TensorIteratorBase&, at::native::CUDAFunctor_add<long> const&)::{lambda(int)#1}>(int, "
            "at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<long> >(at::TensorIteratorBase&, "
            "at::native::CUDAFunctor_add<long> const&)::{lambda(int)#1})",
        ),
        ("_Z6kernelPfS_i", "kernel(float*, float*, int)"),
        ("_Z6kernelv", "kernel()"),
        ("_ZN2ns6kernelILi3ELb1EEEvPKf.kd", "void ns::kernel<3, true>(float const*)"),
        ("_ZN2ns6kernelILi3EEEvPKf [clone .kd]", "void ns::kernel<3>(float const*)"),
        ("_ZN12_GLOBAL__N_16kernelILm2EEEvv", "void (anonymous namespace)::kernel<2ul>()"),
        ("_Z1fIJidfEEvDpT_", "void f<int, double, float>(int, double, float)"),
        ("_Z1fIJidEEvDpRKT_", "void f<int, double>(int const&, double const&)"),
        ("_Z1fIJEEvDpT_", "void f<>()"),
        ("_Z1fPFviE", "f(void (*)(int))"),
        ("_Z1fRA4_Kf", "f(float const (&) [4])"),
        ("_Z1fIN2ns1AIiEEEvT_", "void f<ns::A<int> >(ns::A<int>)"),
        ("_Z1fILin5ELj7ELN2ns1EE2EEvv", "void f<-5, 7u, (ns::E)2>()"),
        ("_Z1fIXplLi1ELi2EEEvv", "void f<(1)+(2)>()"),
        ("_Z1fDF16_Dv4_f", "f(_Float16, float __vector(4))"),
        ("_ZN1AC1Ei", "A::A(int)"),
        ("_ZZ1fvENKUlfE_clEf", "f()::{lambda(float)#1}::operator()(float) const"),
        ("_Z1fSt6vectorIiSaIiEE", "f(std::vector<int, std::allocator<int> >)"),
        ("_ZN5aiter35fmha_fwd_hd128_bf16_causal_rtne_grpE", "aiter::fmha_fwd_hd128_bf16_causal_rtne_grp"),
    ],
)
def test_readable(mangled: str, readable: str) -> None:
    assert demangled(mangled) == readable


@pytest.mark.parametrize(
    "name",
    [
        "",
        "_Z",
        "void ns::kernel<int>(int)",
        "Cijk_Alik_Bljk_BBS_BH_MT64x64x64",
        "_fwd_kernel",
        "_ZN",
        "_ZN2ns6kernelILi3E",  # cut off
        "_ZN9kernelEv",
        "_Z1fT_",  # a parameter that is not there
        "_Z1fS5_",
        "_Z99999999999999999999f",
        "_Z1fIXzzLi1EEEvv",
        "_ZN" + "1a" * 30_000 + "Ev",  # longer than any kernel's
        "_Z1f" + "P" * 15_000 + "i",  # nested deeper than can be read
    ],
)
def test_what_cannot_be_read_stays_as_it_is(name: str) -> None:
    assert demangled(name) == name


def test_a_short_name_of_gigabytes_is_left_alone() -> None:
    doubling = "".join(
        f"1AIS{'' if i == 0 else chr(47 + i)}_S{'' if i == 0 else chr(47 + i)}_E" for i in range(10)
    )
    name = f"_Z1fI1BI{doubling * 300}EEvv"
    assert len(demangled(name)) < 1_000_000


@given(st.text(alphabet="NESIJLTXPRKDF_0123456789nvZbaifmclUOGMCt", max_size=60))
def test_any_text_is_read_or_left(text: str) -> None:
    assert isinstance(demangled(f"_Z{text}"), str)


def test_names_enter_the_tables_readable() -> None:
    (row,) = rows_of_totals([NamedTotal(QUANT, 3, 300)])
    assert row.name == demangled(QUANT) != QUANT
    assert (row.family, row.short_name) == ("norm", "add_rmsnorm_quant_kernel bf16")
    assert (family_of(QUANT), short_name(QUANT)) == (row.family, row.short_name)
    assert normalised(QUANT) == normalised(row.name)


def test_every_mangled_name_of_the_captures_is_readable(shared_data: object) -> None:
    from pathlib import Path

    from llm_perf_opt.captures.kineto.reader import read_kineto

    assert isinstance(shared_data, Path)
    names: set[str] = set()
    for trace in (
        "mi300-sglang-qwen3-8b-decode",
        "mi300-vllm-piecewise-graphs",
        "mi300-resnet-training-rccl",
    ):
        timeline = read_kineto(shared_data / "torch-traces-more" / f"{trace}.json.gz").timeline
        names.update(timeline.names[index] for index in set(timeline.ops.name.tolist()))
    mangled = {name for name in names if name.startswith("_Z")}
    assert len(mangled) == 11
    assert not [name for name in mangled if demangled(name).startswith("_Z")]
    assert not [name for name in names if family_of(name) == "other"]
