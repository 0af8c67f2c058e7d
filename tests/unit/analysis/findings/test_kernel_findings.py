"""Rules about kernels: where they speak, what they claim, and where they are silent."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.analysis.findings import attention as eager_attention
from llm_perf_opt.analysis.findings import attention as old_flash_attention
from llm_perf_opt.analysis.findings import find_all, kernels
from llm_perf_opt.summary import Hardware, Kernel, Operator, Summary
from llm_perf_opt.summary.devices import DeviceUse
from tests.text_facts import any_mentions, mentions, mentions_in_order, numbers
from tests.unit.summaries import budget, kernel, summary

SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, c10::BFloat16, float>(int)"
SCALE = "void at::native::vectorized_elementwise_kernel<8, at::native::AUnaryFunctor<c10::BFloat16, at::native::binary_internal::MulFunctor<float> > >(int)"
FLASH_2 = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4> >(int)"
)
FLASH_2_BACK = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<int>(int)"
NARROW = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align{}>(T1::Params)"


def captured(*rows: Kernel, **fields: Any) -> Summary:
    """A capture of 2 s in which kernels run all the time."""
    return summary(kernels=list(rows), budget={"all": budget(2.0, compute=1.0)}, **fields)


def attention(softmax_s: float = 0.4, products: int = 800, **fields: Any) -> Summary:
    rows = [
        kernel(SOFTMAX, "softmax", softmax_s, launches=100),
        kernel("mm", "gemm", 1.0 - softmax_s, launches=products),
    ]
    return captured(*rows, *fields.pop("more", []), **fields)


def bmm(calls: int, phase: str | None = None, name: str = "aten::bmm") -> Operator:
    return Operator(name, calls, 0.0, 0.0, None, None, phase)


# Eager attention


def test_eager_attention_is_detected_by_softmax_between_products() -> None:
    (found,) = eager_attention.find_eager_attention(attention())
    assert (found.id, found.confidence, found.phase) == ("eager-attention", "medium", None)
    assert found.gain_upper_s == pytest.approx(2.0 * 0.4)
    share, longest, company = found.evidence
    assert mentions(share, "40.0 %", "softmax")
    assert mentions(longest, "100", "4.00 ms")
    assert numbers(company) == ["8.00"], "products per softmax, and no launch of a fused kernel"
    assert mentions_in_order(found.arithmetic, "400 ms", "1.00 s")


def test_batched_operators_make_it_certain_however_many_products_there_are() -> None:
    (found,) = eager_attention.find_eager_attention(attention(products=9000, operators=[bmm(200)]))
    assert found.confidence == "high"
    assert numbers(found.evidence[2]) == ["2.00"]
    assert eager_attention.find_eager_attention(attention(products=9000, operators=[bmm(149)])) == []


@pytest.mark.parametrize(
    ("softmax_s", "products"),
    [(0.04, 800), (0.4, 1700), (0.4, 100)],
    ids=["small share", "one per step: choosing tokens", "not beside products"],
)
def test_other_softmax_is_not_attention(softmax_s: float, products: int) -> None:
    assert eager_attention.find_eager_attention(attention(softmax_s, products)) == []


@pytest.mark.parametrize(
    "name",
    [
        "void cunn_SoftMaxForward<4, float, float, float, at::native::LogSoftMaxForwardEpilogue>(int)",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 7, true, false>(int)",
        "void <unnamed>::softmax_warp_forward<float, float, float, (int)6, (bool)1, (bool)0>(int)",
    ],
)
def test_a_softmax_with_logarithm_is_a_loss_or_sampling(name: str) -> None:
    data = attention()
    data.kernels[0].name = name
    assert eager_attention.find_eager_attention(data) == []


def test_fused_attention_that_does_the_work_silences_it() -> None:
    fused = kernel(FLASH_2, "attention", 0.1, launches=100)
    assert eager_attention.find_eager_attention(attention(more=[fused], operators=[bmm(200)])) == []
    fused.launches = 50  # another part of the model
    (found,) = eager_attention.find_eager_attention(attention(more=[fused]))
    assert mentions(found.evidence[2], "8.00", "50")


def test_phases_are_rated_by_themselves() -> None:
    data = attention(more=[kernel(FLASH_2, "attention", 0.1, launches=500, phase="decode")])
    for row in data.kernels[:2]:
        row.phase = "vision"
    (found,) = eager_attention.find_eager_attention(data)
    assert found.phase == "vision"
    data.kernels[2].phase = "vision"
    assert eager_attention.find_eager_attention(data) == []


def test_the_math_path_is_named_and_advised_upon() -> None:
    path = bmm(100, name="aten::_scaled_dot_product_attention_math")
    (found,) = eager_attention.find_eager_attention(attention(operators=[bmm(200), path]))
    assert "math" in found.title and "sdpa_kernel" in found.advice
    (eager,) = eager_attention.find_eager_attention(attention(operators=[bmm(200)]))
    assert "math" not in eager.title and "model.attn_implementation=sdpa" in eager.advice
    assert "model.attn_implementation" not in found.advice, "SDPA is what fell back"


@pytest.mark.parametrize(
    ("launches", "total_s", "counted"),
    [
        (100, 0.3, True),
        (200, 0.6, True),
        (400, 1.2, False),
        (150, 0.45, False),
        (100, 0.05, False),
        (100, 1.0, False),
    ],
    ids=["as often", "twice", "too often", "not a multiple", "too short", "too long"],
)
def test_scaling_and_masking_count_where_they_are_of_the_scores(
    launches: int, total_s: float, counted: bool
) -> None:
    data = attention(more=[kernel(SCALE, "elementwise", total_s, launches=launches)])
    (found,) = eager_attention.find_eager_attention(data)
    share = (0.4 + (total_s if counted else 0.0)) / (1.0 + total_s)
    assert found.gain_upper_s == pytest.approx(2.0 * share)
    assert len(eager_attention.claimed(data)) == 1 + counted
    assert any_mentions(found.evidence, data.kernels[2].short_name) is counted
    assert len(found.evidence) == 3 + counted


def test_another_module_or_operation_is_not_around_the_softmax() -> None:
    near = kernel(SCALE, "elementwise", 0.3, launches=100)
    data = attention(more=[near])
    near.module, data.kernels[0].module = "mlp", "attn"
    assert len(eager_attention.claimed(data)) == 1
    near.module = "attn"
    assert len(eager_attention.claimed(data)) == 2
    near.name = "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl>(int)"
    assert len(eager_attention.claimed(data)) == 1


# Narrow loads


@pytest.mark.parametrize(("elements", "saved"), [("1", 7 / 8), ("2", 3 / 4), ("8", None), ("16", None)])
def test_narrow_loads_are_bounded_by_the_width_of_aligned_ones(elements: str, saved: float | None) -> None:
    name = NARROW.format(elements)
    found = kernels.find_misaligned_gemm(captured(kernel(name, "gemm", 0.5), kernel("mm", "gemm", 0.5)))
    assert [one.gain_upper_s for one in found] == (
        [] if saved is None else [pytest.approx(2.0 * 0.5 * saved)]
    )


@pytest.mark.parametrize(
    ("name", "wide"),
    [
        ("cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1", 4.0),
        ("cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align2", 2.0),
        ("cutlass_75_tensorop_f16_s1688gemm_f16_128x128_nn_align1", 8.0),
        ("cutlass_80_tensorop_i16832gemm_s8_256x128_128x3_tn_align1", 16.0),
        ("cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1", 2.0),
        ("cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align2", None),  # 16 bytes
        ("cutlass_80_simt_sgemm_128x32_8x5_nn_align1", None),  # element by element by design
        ("cutlass_80_tensorop_tf32_s1688gemm_128x64_nt_align1", None),  # full-precision-kernels has it
        ("cutlass_80_something_align1", None),
    ],
)
def test_the_width_follows_the_element(name: str, wide: float | None) -> None:
    found = kernels.find_misaligned_gemm(captured(kernel(name, "gemm", 1.0)))
    assert [one.gain_upper_s for one in found] == (
        [] if wide is None else [pytest.approx(2.0 * (1 - 1 / wide))]
    )


def test_few_narrow_loads_are_no_finding() -> None:
    rows = [kernel(NARROW.format("1"), "gemm", 0.049), kernel("mm", "gemm", 0.951)]
    assert kernels.find_misaligned_gemm(captured(*rows)) == []
    rows[0].total_s, rows[1].total_s = 0.05, 0.95
    (found,) = kernels.find_misaligned_gemm(captured(*rows))
    assert mentions(found.evidence[1], "10", "5.00 ms")


# An old flash generation


def on(device: str | None, *rows: Kernel, devices: list[DeviceUse] | None = None) -> Summary:
    return captured(*rows, hardware=Hardware(device, "gpu", {}, None, "none"), devices=devices or [])


def flash(total_s: float = 0.5, name: str = FLASH_2, launches: int = 1000) -> list[Kernel]:
    return [kernel(name, "attention", total_s, launches=launches), kernel("mm", "gemm", 0.5)]


def test_flash_2_on_hopper_is_bounded_by_the_published_ratio() -> None:
    (found,) = old_flash_attention.find_old_flash_attention(on("NVIDIA H100 80GB HBM3", *flash()))
    assert found.gain_upper_s == pytest.approx(2.0 * 0.5 * 0.5)
    assert "500 ms × (1 − 1/2.00) = 250 ms" in found.arithmetic
    assert mentions_in_order(found.arithmetic, "250 ms", "1.00 s")
    assert "arXiv:2407.08608" in found.arithmetic
    assert mentions(found.evidence[1], "1000", "500 µs")
    (found,) = old_flash_attention.find_old_flash_attention(on("NVIDIA H200", *flash(name=FLASH_2_BACK)))
    assert found.gain_upper_s == pytest.approx(2.0 * 0.5 * (1 - 1 / 1.75))


def test_flash_2_on_the_next_generation_has_no_published_ratio() -> None:
    (found,) = old_flash_attention.find_old_flash_attention(on("NVIDIA B200", *flash()))
    assert found.gain_upper_s is None
    assert mentions_in_order(found.arithmetic, "500 ms", "1.00 s")
    assert "×" not in found.arithmetic and "arXiv" not in found.arithmetic


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA GeForce RTX 5090",
        "NVIDIA RTX PRO 6000 Blackwell",
        "AMD Instinct MI300X",
        None,
    ],
)
def test_devices_without_a_newer_make_are_left_alone(device: str | None) -> None:
    assert old_flash_attention.find_old_flash_attention(on(device, *flash())) == []


@pytest.mark.parametrize(
    "rows",
    [
        flash(0.02),
        flash(launches=25_001),
        flash(name="void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128> >(int)"),
        flash(
            name="void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<int>>>(int)"
        ),
        flash(name="cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_kernel0_0"),
    ],
    ids=["small share", "short launches", "decode", "flash 3", "cudnn"],
)
def test_other_attention_on_hopper_is_left_alone(rows: list[Kernel]) -> None:
    assert old_flash_attention.find_old_flash_attention(on("NVIDIA H100 80GB HBM3", *rows)) == []


def test_the_devices_of_the_capture_name_it_unless_they_differ() -> None:
    hopper, ampere = DeviceUse(0, "NVIDIA H100 PCIe"), DeviceUse(1, "NVIDIA A100-PCIE-40GB")
    assert len(old_flash_attention.find_old_flash_attention(on(None, *flash(), devices=[hopper]))) == 1
    assert old_flash_attention.find_old_flash_attention(on(None, *flash(), devices=[hopper, ampere])) == []


# Small and unfused kernels


def pieces(mean_s: float, launches: int = 1000, products: int = 1000) -> Summary:
    seconds = mean_s * launches
    rows = [
        kernel("add", "elementwise", seconds, launches=launches),
        kernel("mm", "gemm", seconds, launches=products),
    ]
    return captured(*rows)


@pytest.mark.parametrize(
    ("mean_s", "launches", "products", "speaks"),
    [
        (9e-6, 1000, 1000, True),  # small
        (11e-6, 1000, 1000, False),  # neither small nor more than one per product
        (11e-6, 2000, 1000, True),  # in pieces
        (11e-6, 1999, 1000, False),
        (0.9e-3, 2000, 1000, True),
        (1.1e-3, 2000, 1000, False),  # large, whatever its company
        (0.2, 10, 10, False),  # 200 ms are not small
        (0.2, 100, 10, False),
        (2e-6, 49, 10, False),  # few
        (2e-6, 50, 10, True),
        (11e-6, 1000, 0, False),  # nothing to compare with
    ],
)
def test_small_or_in_pieces(mean_s: float, launches: int, products: int, speaks: bool) -> None:
    assert bool(kernels.find_unfused_elementwise(pieces(mean_s, launches, products))) is speaks


def test_the_length_of_a_launch_and_parallel_kernels_are_reported() -> None:
    (found,) = kernels.find_unfused_elementwise(pieces(5e-6, 4000, 1000))
    together, longest, company = found.evidence
    assert mentions(together, "4000", "1", "5.00 µs")
    assert mentions(longest, "add", "4000", "5.00 µs")
    assert numbers(company) == ["4.00"]


def test_no_kernel_is_claimed_twice() -> None:
    rows = [
        kernel(SOFTMAX, "softmax", 0.5e-3, launches=100),
        kernel(SCALE, "elementwise", 0.4e-3, launches=100),
        kernel("rms", "norm", 0.5e-3, launches=100),
        kernel(NARROW.format("1"), "gemm", 0.4e-3, launches=400),
        kernel(FLASH_2, "attention", 0.0, launches=1),
    ]
    found = {one.id: one for one in find_all(captured(*rows))}
    total = 1.8e-3
    assert found["eager-attention"].gain_upper_s == pytest.approx(2.0 * 0.9e-3 / total)
    assert found["unfused-elementwise"].gain_upper_s == pytest.approx(2.0 * 0.5e-3 / total)
    assert found["misaligned-gemm"].gain_upper_s == pytest.approx(2.0 * 0.4e-3 / total * 7 / 8)
    assert sum(one.gain_upper_s or 0.0 for one in found.values()) <= 2.0


def test_narrow_products_are_compared_with_the_rate_of_the_wide_ones() -> None:
    """Where shapes tell their work: 0.4 s for what the others would do in 0.1 s."""
    data = captured(kernel(NARROW.format("1"), "gemm", 0.4), kernel("mm", "gemm", 0.6))
    data.metrics |= {"narrow_product_flops": 1e12, "narrow_product_s": 0.4, "wide_product_flops_per_s": 1e13}
    (found,) = kernels.find_misaligned_gemm(data)
    assert found.confidence == "high"
    assert mentions_in_order(found.arithmetic, "400 ms", "1.00 s", "300 ms")
    assert found.gain_upper_s == pytest.approx(2.0 * 0.3)
    data.metrics["wide_product_flops_per_s"] = 2.6e12
    assert kernels.find_misaligned_gemm(data) == [], "narrow, but no slower than the others"
    data.metrics["narrow_product_s"] = 0.1
    (found,) = kernels.find_misaligned_gemm(data)
    assert found.confidence == "medium", "too little of it is known"
