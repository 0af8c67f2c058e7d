"""float32 arithmetic where the device has much faster half-precision units."""

from __future__ import annotations

from llm_perf_opt.analysis.findings.common import (
    kernel_seconds,
    sample_seconds,
    share_of_sample,
    sources,
)
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Finding, Kernel, Summary

_WORTH = 1.5
"""Least ratio of peaks that makes the change worth its risk."""
_KERNEL_SHARE = 0.05
_F32_MARKS = ("sgemm", "f32f32_f32f32", "s884gemm_f32", "simt_sgemm", "gemmSN_NN_kernel<float", "tf32")


def find(summary: Summary) -> list[Finding]:
    """Report a float32 run on a device that is faster at bfloat16, or float32 matrix kernels in a half-precision run."""
    dtype = summary.workload.dtype
    if dtype in ("float32", "torch.float32"):
        return _whole_run(summary)
    return _stray_kernels(summary)


def _whole_run(summary: Summary) -> list[Finding]:
    peaks = summary.hardware.peak_flops_per_s
    full = peaks.get("float32")
    half = peaks.get("bfloat16") or peaks.get("float16")
    if full is None or half is None or half.dense < _WORTH * full.dense:
        return []
    total = sample_seconds(summary)
    if total is None:
        return []
    ratio = half.dense / full.dense
    # Weights and cache halve, arithmetic gains the ratio of peaks: no phase can gain more than the larger.
    saved = 1 - 1 / max(2.0, ratio)
    return [
        Finding(
            id="full-precision",
            title="The model runs in float32",
            phase=None,
            evidence=[
                f"data type float32; peaks: float32 {units.flops_per_s(full.dense)} ({full.source}), half "
                f"precision {units.flops_per_s(half.dense)} ({half.source})",
                *sources(summary, "timings"),
            ],
            gain_upper_s=total * saved,
            arithmetic=f"{units.seconds(total)} × (1 − 1/{units.number(max(2.0, ratio))}) = "
            f"{units.seconds(total * saved)}",
            advice="Try model.dtype=bfloat16 and compare the outputs; bytes halve and matrix units run at "
            "their half-precision rate.",
            confidence="medium",
        )
    ]


def _stray_kernels(summary: Summary) -> list[Finding]:
    total = kernel_seconds(summary, lambda k: True)
    stray = kernel_seconds(summary, is_full_precision)
    if not total or stray / total < _KERNEL_SHARE:
        return []
    share = stray / total
    saved, reason = _saved_share(summary)
    names = list(dict.fromkeys(k.short_name for k in summary.kernels if is_full_precision(k)))[:3]
    return [
        Finding(
            id="full-precision-kernels",
            title="Matrix products run in float32 or TF32",
            phase=None,
            evidence=[
                f"{units.percent(share)} of kernel time in {', '.join(names)}",
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=_scaled(share_of_sample(summary, share), saved),
            arithmetic=f"{units.seconds(stray)} of {units.seconds(total)} kernel time; {reason}",
            advice="Find which module keeps float32 weights or up-casts its input (vision encoders and "
            "routers often do).",
            confidence="medium",
        )
    ]


def _saved_share(summary: Summary) -> tuple[float, str]:
    """Most of a float32 kernel's time that half precision can save: by the peaks, else all of it."""
    peaks = summary.hardware.peak_flops_per_s
    full, half = peaks.get("float32"), peaks.get("bfloat16") or peaks.get("float16")
    if full is None or half is None or full.dense <= 0:
        return 1.0, "not more than all of it can be saved"
    ratio = max(2.0, half.dense / full.dense)
    return 1 - 1 / ratio, f"half precision is at most {units.number(ratio)} times as fast by the peaks"


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def is_full_precision(kernel: Kernel) -> bool:
    """Return whether a kernel's name says that it multiplies in float32 or TF32."""
    return any(mark in kernel.name for mark in _F32_MARKS)
