"""Time spent moving or re-typing data instead of computing with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.analysis.context import ShapeLimit, shape_limit
from llm_perf_opt.analysis.findings import attention
from llm_perf_opt.analysis.findings.common import (
    describe_target,
    kernel_busy_share,
    kernel_seconds,
    launches_of,
    longest_named,
    mean_launch_s,
    sample_seconds,
    seconds_of,
    share_of_sample,
    sources,
    span_seconds,
)
from llm_perf_opt.analysis.kernels.chains import is_fused_already
from llm_perf_opt.analysis.kernels.families import ALIGNED_BYTES, load_narrowing
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.summary import Finding, Kernel, Summary
from llm_perf_opt.summary.kernels import KernelWork

_FAMILIES = ("copy", "cast", "copy/cast", "copy_cast", "memcpy", "transpose")
_ENOUGH_KERNELS = 0.1


def find_copies_and_casts(summary: Summary) -> list[Finding]:
    """Report copy and cast kernels; copies by the copy engine are reported as a timeline loss."""
    total = kernel_seconds(summary, lambda k: True)
    moved = kernel_seconds(summary, lambda k: k.family in _FAMILIES) - _claimed(summary)
    if not total or moved / total < _ENOUGH_KERNELS:
        return []
    share = moved / total
    return [
        Finding(
            id="copy-kernels",
            title="Copy and cast kernels take a noticeable share",
            phase=None,
            evidence=[
                f"{units.percent(share)} of kernel time in copy and cast kernels",
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=share_of_sample(summary, share),
            arithmetic=f"{units.seconds(moved)} of {units.seconds(total)} kernel time",
            advice="Let the cache be written in place (model.cache=preallocated) instead of growing by copies; look for "
            ".to(dtype), .contiguous() and cat; keep one data type and one layout.",
            confidence="medium",
        )
    ]


def _claimed(summary: Summary) -> float:
    """Return copies inside unfused attention and inside chains; those findings claim them."""
    return sum(
        summary.metrics.get(name) or 0.0 for name in ("attention_pieces_copy_s", "kernel_chain_copy_s")
    )


# float32 arithmetic where the device has much faster half-precision units.


_WORTH = 1.5
"""Least ratio of peaks that makes the change worth its risk."""
_KERNEL_SHARE = 0.05
_F32_MARKS = ("sgemm", "f32f32_f32f32", "s884gemm_f32", "simt_sgemm", "gemmSN_NN_kernel<float", "tf32")


def find_full_precision(summary: Summary) -> list[Finding]:
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
    stray = kernel_seconds(summary, _is_full_precision)
    if not total or stray / total < _KERNEL_SHARE:
        return []
    share = stray / total
    saved, reason = _saved_share(summary)
    gain = share_of_sample(summary, share)
    names = list(dict.fromkeys(k.short_name for k in summary.kernels if _is_full_precision(k)))[:3]
    return [
        Finding(
            id="full-precision-kernels",
            title="Matrix products run in float32 or TF32",
            phase=None,
            evidence=[
                f"{units.percent(share)} of kernel time in {', '.join(names)}",
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=gain * saved if gain is not None and saved is not None else None,
            time_s=gain,
            arithmetic=f"{units.seconds(stray)} of {units.seconds(total)} kernel time; {reason}",
            advice=_precision_advice(summary),
            confidence="medium",
        )
    ]


def _saved_share(summary: Summary) -> tuple[float | None, str]:
    """Return the largest share of these kernels' time that half precision can save, by the peaks; ``None`` if unknown."""
    peaks = summary.hardware.peak_flops_per_s
    half = peaks.get("bfloat16") or peaks.get("float16")
    seconds, left, largest = 0.0, 0.0, 0.0
    for kernel in filter(_is_full_precision, summary.kernels):
        own = peaks.get("tf32" if "tf32" in kernel.name.casefold() else "float32")
        if own is None or half is None or own.dense <= 0:
            return None, "the peaks of this device are not known, so the gain cannot be estimated"
        ratio = max(2.0, half.dense / own.dense)
        seconds += kernel.total_s or 0.0
        left += (kernel.total_s or 0.0) / ratio
        largest = max(largest, ratio)
    saved = 1 - left / seconds if seconds else 0.0
    return saved, f"half precision is at most {units.number(largest)} times as fast by the peaks"


def _precision_advice(summary: Summary) -> str:
    """Return advice: a program without other products runs in float32 as a whole; a few such products come from one
    module.
    """
    products = kernel_seconds(summary, lambda kernel: kernel.family in ("gemm", "gemv", "conv"))
    if kernel_seconds(summary, _is_full_precision) >= 0.8 * products:
        return (
            "The matrix products run in float32 throughout: use half precision (autocast, or weights in bfloat16 or float16) and "
            "compare the results."
        )
    return "Find which module keeps float32 weights or up-casts its input (vision encoders and routers often do)."


def _is_full_precision(kernel: Kernel) -> bool:
    """Return whether the kernel name indicates a float32 or TF32 product."""
    return any(mark in kernel.name for mark in _F32_MARKS)


# Matrix products with narrow loads, because a dimension or an address is not a multiple of 16 bytes.


_ENOUGH = 0.05
_COUNTED = 0.9
"""Share of their time whose work must be known before their rate is compared."""


def find_misaligned_gemm(summary: Summary) -> list[Finding]:
    """Report CUTLASS products whose names indicate loads of one or two elements at a time."""
    total = kernel_seconds(summary, lambda k: True)
    rows = [kernel for kernel in summary.kernels if _narrowing(kernel) is not None]
    narrow = seconds_of(rows)
    if not total or narrow / total < _ENOUGH:
        return []
    at_rate = _at_aligned_rate(summary, narrow)
    measured = _above_measured(rows, narrow)
    if measured is not None:
        saved = at_rate = measured
        how = f"at the best measured times of these shapes {units.seconds(saved)} of it would go"
    elif at_rate is not None:
        saved = at_rate
        how = f"at the rate of the aligned products in the same capture {units.seconds(saved)} of it would go"
    else:
        saved = sum((k.total_s or 0.0) * (1 - 1 / (_narrowing(k) or 1.0)) for k in rows)
        widest = max(_narrowing(kernel) or 1.0 for kernel in rows)
        how = (
            f"aligned loads of {ALIGNED_BYTES} bytes are up to {units.number(widest)} times as wide, so at most "
            f"{units.seconds(saved)} can go"
        )
    if at_rate is not None and at_rate / total < _ENOUGH:
        return []
    return [
        Finding(
            id="misaligned-gemm",
            title="Matrix products run with narrow loads: a dimension is not a multiple of 16 bytes",
            phase=None,
            evidence=[
                f"{units.percent(narrow / total)} of kernel time in products whose names end in align1 or align2",
                *longest_named(rows),
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=share_of_sample(summary, saved / total),
            arithmetic=f"{units.seconds(narrow)} of {units.seconds(total)} kernel time; {how}",
            advice="Pad the dimension to a multiple of 8 elements of 2 bytes (4 of 4 bytes): vocabulary, hidden size, "
            "sequence length (infer.pad_to_multiple=8), or the start of a slice.",
            confidence="high" if at_rate is not None else "medium",
        )
    ]


def _is_narrow(kernel: Kernel) -> bool:
    """Whether a product loads fewer bytes at a time than an aligned one would."""
    return _narrowing(kernel) is not None


def _narrowing(kernel: Kernel) -> float | None:
    """Return how much wider the loads of an aligned product would be; ``None`` for other kernels."""
    if kernel.family != "gemm" or _is_full_precision(kernel):
        return None
    return load_narrowing(kernel.name)


def _above_measured(rows: Sequence[Kernel], narrow: float) -> float | None:
    """Return their time above the best measured of their shapes; ``None`` unless it is known for nearly all of them."""
    targets = [kernel.target for kernel in rows if kernel.target is not None]
    if sum(target.calls * target.measured_s for target in targets) < _COUNTED * narrow:
        return None
    if any(target.at_stake_s is None for target in targets):
        return None
    return sum(target.at_stake_s or 0.0 for target in targets)


def _at_aligned_rate(summary: Summary, narrow: float) -> float | None:
    """Return what the products would save at the rate of the aligned ones next to them; ``None`` if shapes are unknown."""
    flops, seconds, rate = (
        summary.metrics.get(name)
        for name in ("narrow_product_flops", "narrow_product_s", "wide_product_flops_per_s")
    )
    if not flops or not seconds or not rate or seconds < _COUNTED * narrow:
        return None
    return max(0.0, seconds - flops / rate) * narrow / seconds


# Kernels that take much longer than the best measured time of their shape on their device.


_FAR_FROM_MEASURED_ENOUGH = 0.05
"""Share of kernel time that must be at stake."""
_FAR = 1.5
"""Times the best; tables of one shape and device lie within a few percent of one another, interpolation within ten."""
_FAR_FROM_MEDIAN = 1.25
"""A single good table is not enough: the kernel must be slow compared with the usual ones too."""
_LEAST_EXCESS_S = 3e-6
"""Per call. Tables repeat one call, so that small operands are in a cache; what that saves is less than this."""
_NAMED = 3


def find_far_from_measured(summary: Summary) -> list[Finding]:
    """Report kernels far from the best measured, where their time above it is a large part of all kernel time.

    Kernels whose time another finding already claims for a cause it can name are left to it.
    """
    total = kernel_seconds(summary, lambda k: True)
    claimed = _far_from_measured_claimed(summary)
    rows = [kernel for kernel in summary.kernels if _is_far(kernel) and kernel.name not in claimed]
    rows.sort(key=lambda kernel: (-_stake(kernel), kernel.name))
    stake = sum(map(_stake, rows))
    if not total or stake / total < _FAR_FROM_MEASURED_ENOUGH:
        return []
    exact = all(kernel.target is not None and kernel.target.how == "measured" for kernel in rows)
    left = len(rows) - _NAMED
    more = [f"{left} more with {units.seconds(sum(map(_stake, rows[_NAMED:])))} at stake"] if left > 0 else []
    return [
        Finding(
            id="far-from-measured",
            title="Kernels take much longer than was measured for their shapes on this device",
            phase=None,
            evidence=[*(_evidence(kernel) for kernel in rows[:_NAMED]), *more, *sources(summary, "trace")],
            gain_upper_s=share_of_sample(summary, stake / total),
            arithmetic=f"{' + '.join(_term(kernel) for kernel in rows[:_NAMED])}{' + …' if left > 0 else ''} = "
            f"{units.seconds(stake)} above the best measured, of {units.seconds(total)} kernel time",
            advice="Find out why another kernel was not chosen: sizes that are not a multiple of 8 elements (pad them), an old "
            "library (update torch, cuBLAS, cuDNN), another clock or another process on the device, an attention "
            "implementation that is not the newest, a backend for experts that is not the framework's best.",
            confidence="high" if exact else "medium",
        )
    ]


def _far_from_measured_claimed(summary: Summary) -> set[str]:
    names: set[str] = set()
    if find_misaligned_gemm(summary):
        names |= {kernel.name for kernel in summary.kernels if _is_narrow(kernel)}
    if attention.find_old_flash_attention(summary):
        names |= {kernel.name for kernel in summary.kernels if attention.is_old(kernel)}
    return names


def _is_far(kernel: Kernel) -> bool:
    target = kernel.target
    if target is None or target.at_stake_s is None:
        return False
    return (
        target.ratio >= _FAR
        and target.measured_s >= _FAR_FROM_MEDIAN * target.median_s
        and target.measured_s - target.best_s >= _LEAST_EXCESS_S
    )


def _stake(kernel: Kernel) -> float:
    return (kernel.target.at_stake_s or 0.0) if kernel.target is not None else 0.0


def _evidence(kernel: Kernel) -> str:
    target = kernel.target
    if target is None:
        return kernel.short_name
    shape = f", {target.shapes[0]}" if target.shapes else ""
    return f"{kernel.short_name}: {describe_target(target)}{shape}"


def _term(kernel: Kernel) -> str:
    target = kernel.target
    if target is None:
        return ""
    return (
        f"{units.count(target.calls)} × ({units.seconds(target.measured_s)} − {units.seconds(target.best_s)})"
    )


# Kernels of a busy device that are far from the limit of their own shape, or from their siblings in the same capture.


_BUSY_WITH_KERNELS = 0.8
"""Share of the time that kernels fill, from which the time is theirs to explain."""
_SIMILAR_FLOPS = 8.0
"""Shapes whose work differs by less are compared."""
_SIBLING_SHARE = 0.01
_BELOW_SIBLINGS = 0.15
_AT_STAKE = 0.03
_FAR_BELOW_ROOF = 0.25
"""Good kernels of large shapes reach half of a roof and more; below a quarter something else holds them up."""
_ROOF_SHARE = 0.1
_LONG_CALL_S = 50e-6
"""Shorter calls do not fill a device, whatever the kernel."""


@dataclass(frozen=True, slots=True)
class _Shaped:
    """One shape of one kernel against its limits."""

    kernel: Kernel
    work: KernelWork
    limit: ShapeLimit
    best_sibling: float | None
    """FLOP/s of the fastest similar shape of the same family and type."""
    slowest_sibling: float | None

    @property
    def rate(self) -> float:
        return self.work.flops * self.work.calls / self.work.total_s

    @property
    def below_siblings(self) -> float:
        return max(0.0, 1 - self.rate / self.best_sibling) if self.best_sibling else 0.0


def find_slow_kernels(summary: Summary) -> list[Finding]:
    """Report the shapes that take much of a busy device's time and run far below what it can do, by time × distance."""
    total = kernel_seconds(summary, lambda k: True)
    busy = kernel_busy_share(summary, WHOLE)
    if not total or busy is None or busy < _BUSY_WITH_KERNELS:
        return []
    claimed = _claimed_names(summary)
    rows = [one for one in _shaped(summary, total) if one.kernel.name not in claimed]
    slow = [one for one in rows if one.work.total_s * one.below_siblings >= _AT_STAKE * total]
    slow = [one for one in slow if one.below_siblings >= _BELOW_SIBLINGS]
    far = [one for one in rows if one not in slow and _is_far_below_roof(one, total)]
    if not slow and not far:
        return []
    chosen = sorted((*slow, *far), key=lambda one: -one.work.total_s * _distance(one))
    saved = sum(one.work.total_s * one.below_siblings for one in slow)
    held = sum(one.work.total_s for one in chosen)
    first = chosen[0]
    what = "its siblings in the same capture" if first in slow else "the limit of its own shape"
    return [
        Finding(
            id="slow-kernels",
            title=f"{_kind_of(first.kernel)} with {units.percent(first.work.total_s / total)} of the kernel time runs far below {what}",
            phase=None,
            evidence=[*(_shape_evidence(one, total) for one in chosen[:_NAMED]), *sources(summary, "trace")],
            gain_upper_s=share_of_sample(summary, saved / total) if slow else None,
            time_s=share_of_sample(summary, held / total),
            arithmetic=" + ".join(_sibling_term(one) for one in chosen[:_NAMED] if one in slow)
            + f" = at most {units.seconds(saved)} of {units.seconds(total)} kernel time"
            if slow
            else f"{units.seconds(held)} of {units.seconds(total)} kernel time; how much of the distance can be gained is not known",
            advice="Find out why this kernel was chosen: tune the library for this shape (hipBLASLt or cuBLASLt tuning, TunableOp, "
            "autotuned Triton), try another backend or a newer library, pad or split the dimension that differs from the faster shapes."
            if first in slow
            else "Try another implementation for this shape (another attention backend, a newer library), or a shape the kernel is made "
            "for (head dimension, multiples of 64).",
            confidence="medium",
        )
    ]


def _claimed_names(summary: Summary) -> set[str]:
    """Return kernels whose time other findings claim for a specific cause."""
    names = _far_from_measured_claimed(summary)
    if find_full_precision(summary):
        names |= {kernel.name for kernel in summary.kernels if _is_full_precision(kernel)}
    if find_far_from_measured(summary):
        names |= {kernel.name for kernel in summary.kernels if _is_far(kernel)}
    return names


def _shaped(summary: Summary, total: float) -> list[_Shaped]:
    rows = [
        (kernel, work, limit)
        for kernel in summary.kernels
        for work in kernel.work
        if work.calls
        and work.total_s > 0
        and (limit := shape_limit(work, kernel, summary.hardware)) is not None
    ]
    found = []
    for kernel, work, limit in rows:
        rates = [
            other.flops * other.calls / other.total_s
            for sibling, other, bound in rows
            if other is not work
            and sibling.family == kernel.family
            and other.dtype == work.dtype
            and bound.side == limit.side == "compute"
            and other.total_s >= _SIBLING_SHARE * total
            and 1 / _SIMILAR_FLOPS <= other.flops / work.flops <= _SIMILAR_FLOPS
        ]
        found.append(_Shaped(kernel, work, limit, max(rates, default=None), min(rates, default=None)))
    return found


def _is_far_below_roof(one: _Shaped, total: float) -> bool:
    return (
        one.limit.reached_ratio < _FAR_BELOW_ROOF
        and one.work.total_s >= _ROOF_SHARE * total
        and one.work.total_s / one.work.calls >= _LONG_CALL_S
    )


def _distance(one: _Shaped) -> float:
    return max(
        one.below_siblings, 1 - one.limit.reached_ratio if one.limit.reached_ratio < _FAR_BELOW_ROOF else 0.0
    )


def _kind_of(kernel: Kernel) -> str:
    return {"attention": "Attention", "conv": "A convolution", "moe": "An expert kernel"}.get(
        kernel.family, "A matrix product" if kernel.family in ("gemm", "gemv") else "A kernel"
    )


def _shape_evidence(one: _Shaped, total: float) -> str:
    siblings = ""
    if one.best_sibling is not None and one.slowest_sibling is not None:
        low, high = (units.flops_per_s(rate) for rate in (one.slowest_sibling, one.best_sibling))
        siblings = (
            f"; similar shapes reach {low} to {high}" if low != high else f"; a similar shape reaches {high}"
        )
    return (
        f"{one.work.shape} ({one.kernel.short_name}): {units.percent(one.work.total_s / total)} of kernel time, "
        f"{units.count(one.work.calls)} calls of {units.seconds(one.work.total_s / one.work.calls)}, {units.flops_per_s(one.rate)}, "
        f"{units.percent(one.limit.reached_ratio)} of the {one.limit.side} limit of this shape{siblings}"
    )


def _sibling_term(one: _Shaped) -> str:
    return f"{units.seconds(one.work.total_s)} × (1 − {units.flops_per_s(one.rate)} ÷ {units.flops_per_s(one.best_sibling)})"


# A device that is busy throughout without any finding above: which kernels hold the time, and their distance to limits.


_DOMINANT_BUSY = 0.9
"""Share of the time that kernels fill, from which nothing else can be the conclusion."""
_NOTHING_ELSE = 0.05
"""Share of the time; a finding with a larger gain is the better conclusion."""
_CLEARLY_LARGER = 1.2
"""A family that holds less than this times the next one does not dominate."""


def find_dominant_kernels(summary: Summary, found: Sequence[Finding]) -> list[Finding]:
    """Name the family that holds most of a busy device's time, if no other finding explains a large part of it."""
    total = kernel_seconds(summary, lambda k: True)
    busy = kernel_busy_share(summary, WHOLE)
    span = span_seconds(summary, WHOLE)
    if not total or not span or busy is None or busy < _DOMINANT_BUSY or summary.hardware.kind == "cpu":
        return []
    if any((one.gain_upper_s or one.time_s or 0.0) >= _NOTHING_ELSE * span for one in found):
        return []
    seconds: dict[str, float] = {}
    for kernel in summary.kernels:
        seconds[kernel.family] = seconds.get(kernel.family, 0.0) + (kernel.total_s or 0.0)
    family, *others = sorted(seconds, key=lambda name: (-seconds[name], name))
    if others and seconds[family] < _CLEARLY_LARGER * seconds[others[0]]:
        return []
    rows = [kernel for kernel in summary.kernels if kernel.family == family]
    distance = _reached(summary, rows)
    share = seconds[family] / total
    return [
        Finding(
            id="dominant-kernels",
            title=f"Kernels run for {units.percent(busy)} of the time; {_holder(family, rows, total)} of the kernel time",
            phase=None,
            evidence=[
                f"{units.seconds(span)} captured: waiting is not the problem",
                *longest_named(rows),
                distance or _why_no_distance(summary, rows),
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=None,
            time_s=share_of_sample(summary, share),
            arithmetic=f"{units.seconds(seconds[family])} of {units.seconds(total)} kernel time; "
            + (
                "no shape is far below its limit or its siblings"
                if distance
                else "how far it is from the device's limits is not known"
            ),
            advice="Only less work, lower precision or faster kernels shorten this."
            + (
                ""
                if distance
                else " Measure the longest kernel with counters (Nsight Compute, rocprof-compute) to see how far it is from the limits."
            ),
            confidence="high",
        )
    ]


def _holder(family: str, rows: Sequence[Kernel], total: float) -> str:
    """Name the family, or the longest kernel where no family is known."""
    if family != "other":
        return f"{_FAMILY_TITLES.get(family, family)} kernels hold {units.percent(seconds_of(rows) / total)}"
    longest = max(rows, key=lambda kernel: (kernel.total_s or 0.0, kernel.name))
    return f"{longest.short_name} holds {units.percent((longest.total_s or 0.0) / total)}"


_FAMILY_TITLES = {
    "gemm": "matrix-product",
    "gemv": "matrix-vector",
    "moe": "expert",
    "conv": "convolution",
    "norm": "normalisation",
    "elementwise": "element-wise",
}


def _reached(summary: Summary, rows: Sequence[Kernel]) -> str | None:
    """Describe how near the shapes of these kernels come to their limits, weighted by time; ``None`` if shapes are
    unknown.
    """
    limits = [
        (work.total_s, limit)
        for kernel in rows
        for work in kernel.work
        if (limit := shape_limit(work, kernel, summary.hardware)) is not None
    ]
    known = sum(seconds for seconds, _ in limits)
    if known < 0.5 * seconds_of(rows):
        return None
    side = max(
        ("compute", "memory"), key=lambda name: sum(seconds for seconds, one in limits if one.side == name)
    )
    mean = sum(seconds * one.reached_ratio for seconds, one in limits) / known
    return f"they reach {units.percent(mean)} of the limits of their shapes (mostly {side})"


def _why_no_distance(summary: Summary, rows: Sequence[Kernel]) -> str:
    if not summary.hardware.peak_flops_per_s:
        return "the limits of this device are not known, so neither is the distance"
    if not any(kernel.work for kernel in rows):
        behind = summary.metrics.get("graph_kernel_time_ratio")
        return "the capture has no shapes for these kernels" + (
            ": they run behind graph launches" if behind else ""
        )
    return "the work of these kernels cannot be derived from their shapes"


# Kernels too small to fill the device.


def _underfilled(kernel: Kernel) -> bool:
    waves = kernel.counters.get("waves")
    return kernel.bound == "underfilled" or (waves is not None and waves < 1.0)


def find_underfilled_grids(summary: Summary) -> list[Finding]:
    """Report when kernels whose grid is less than one wave take a noticeable part of the kernel time."""
    rows = [k for k in summary.kernels if k.counters_are_representative and _underfilled(k)]
    total = kernel_seconds(summary, lambda k: True)
    small = sum(k.total_s or 0.0 for k in rows)
    if not rows or (total and small / total < _ENOUGH):
        return []
    share = small / total if total else None
    best = max(rows, key=lambda k: (k.total_s or 0.0, k.short_name))
    waves = [w for k in rows if (w := k.counters.get("waves")) is not None]
    evidence = [
        f"{len(rows)} kernels, among them {best.short_name}"
        + (f" (waves per device {units.number(min(waves))} to {units.number(max(waves))})" if waves else "")
    ]
    if share is not None:
        evidence.append(f"together {units.percent(share)} of the kernel time")
    return [
        Finding(
            id="underfilled-grids",
            title="Kernels are too small to fill the device",
            phase=None,
            evidence=[*evidence, *sources(summary, "ncu")],
            gain_upper_s=share_of_sample(summary, share) if share is not None else None,
            arithmetic=f"{units.seconds(small)} of {units.seconds(total)} kernel time"
            if total
            else "kernel times unknown without a timeline",
            advice="Give each launch more work: a larger infer.batch_size, grouped or batched matrix products for experts "
            "(model.experts_implementation=grouped_mm), split-K.",
            confidence="high" if share is not None else "medium",
        )
    ]


# Many small or unfused element-by-element kernels where one fused kernel would do.
#
# A long kernel is not small, whatever it is called. Two signs count: launches so short that starting and ending them is
# most of their time; and longer ones where several run for every matrix product, which a fused model does not have.


_UNFUSED_ELEMENTWISE_FAMILIES = (
    "elementwise",
    "reduction",
    "reduce",
    "norm",
    "softmax",
    "activation",
    "rope",
)
_PRODUCTS = ("gemm", "gemv", "conv", "moe")
_UNFUSED_ELEMENTWISE_ENOUGH = 0.2
_MANY = 50
"""Launches; fewer are not a habit of the model."""
_SMALL_S = 10e-6
"""A launch costs its host 3 to 5 µs and a device about 2 µs to start and drain: below three of these, what the kernel
computes is the smaller part of what it costs."""
_LARGE_S = 1e-3
"""In 1 ms a device of 1 to 3 TB/s streams over a gigabyte: no launch between two layers of a model is that large."""
_UNFUSED_PER_PRODUCT = 2.0
"""A fused layer has four or five such kernels (two norms, rotary, activation) for four to seven products; one in
pieces has five for every norm alone."""
_ADVICE = (
    "Compile the decode step (model.compile=true with model.cache=static) and the image encoder (model.compile_vision=true), or "
    "use fused norm, rotary and activation kernels."
)
_WORTH_IT = 0.01
"""Share of the wall-clock."""
_ENOUGH_SAVED = 0.08
"""Share of kernel time that fusing chains must be able to save."""


def find_unfused_elementwise(summary: Summary) -> list[Finding]:
    """Report small or unfused kernels that a compiler could fuse: by their order where a timeline is available."""
    saving = summary.metrics.get("kernel_chain_saving_s")
    return _by_names(summary) if saving is None else _by_order(summary, saving)


def _by_order(summary: Summary, saving: float) -> list[Finding]:
    """Chains of three and more such kernels between two heavy ones."""
    total = kernel_seconds(summary, lambda k: True)
    launches = summary.metrics.get("kernel_chain_launches") or 0.0
    if not total or launches < _MANY or saving / total < _ENOUGH_SAVED:
        return []
    gain = share_of_sample(summary, saving / total)
    span = span_seconds(summary, WHOLE)
    if gain is not None and span is not None and gain < _WORTH_IT * span:
        return []  # kernels are a small part of the time
    seconds = summary.metrics.get("kernel_chain_s") or 0.0
    rows = [
        kernel
        for kernel in summary.kernels
        if kernel.family in (*_UNFUSED_ELEMENTWISE_FAMILIES, "copy") and not is_fused_already(kernel.name)
    ]
    return [
        Finding(
            id="unfused-elementwise",
            title="Element-by-element work runs in many small kernels",
            phase=None,
            evidence=[
                f"{units.percent(seconds / total)} of kernel time in {units.count(launches)} launches that follow one another in "
                f"{units.count(summary.metrics.get('kernel_chains'))} chains, {units.seconds(seconds / launches)} per launch",
                *longest_named(rows),
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=gain,
            arithmetic=f"{units.seconds(seconds)} of chains; one kernel for each takes as long as its longest part at least, so "
            f"at most {units.seconds(saving)} of {units.seconds(total)} kernel time can go",
            advice=_ADVICE,
            confidence="medium",
        )
    ]


def _by_names(summary: Summary) -> list[Finding]:
    """Without launch order: a fifth of the kernel time in small kernels, or several of them per product."""
    total = kernel_seconds(summary, lambda k: True)
    rows = _fusible(summary)
    seconds, launches = seconds_of(rows), launches_of(rows)
    if not total or not launches or launches < _MANY or seconds / total < _UNFUSED_ELEMENTWISE_ENOUGH:
        return []
    share = seconds / total
    return [
        Finding(
            id="unfused-elementwise",
            title="Small element-by-element kernels take a large share",
            phase=None,
            evidence=[
                f"{units.percent(share)} of kernel time in {units.count(launches)} launches of {len(rows)} "
                f"element-wise, norm and reduction kernels, {units.seconds(seconds / launches)} per launch",
                *longest_named(rows),
                *_per_product(summary, launches),
                *sources(summary, "nsys", "trace"),
            ],
            gain_upper_s=share_of_sample(summary, share),
            arithmetic=f"{units.seconds(seconds)} of {units.seconds(total)} kernel time; fusing cannot save more "
            "than all of it",
            advice=_ADVICE,
            confidence="medium",
        )
    ]


def _fusible(summary: Summary) -> list[Kernel]:
    taken = {id(kernel) for kernel in attention.claimed(summary)}
    rows = [
        kernel
        for kernel in summary.kernels
        if kernel.family in _UNFUSED_ELEMENTWISE_FAMILIES
        and id(kernel) not in taken
        and not is_fused_already(kernel.name)
    ]
    longest = _LARGE_S if _in_pieces(summary, rows) else _SMALL_S
    return [kernel for kernel in rows if (mean := mean_launch_s(kernel)) is not None and mean <= longest]


def _in_pieces(summary: Summary, rows: Sequence[Kernel]) -> bool:
    """Return whether several of these kernels run for every matrix product; without products it cannot be determined."""
    products = _products(summary)
    return bool(products) and launches_of(rows) >= _UNFUSED_PER_PRODUCT * products


def _products(summary: Summary) -> int:
    return launches_of(kernel for kernel in summary.kernels if kernel.family in _PRODUCTS)


def _per_product(summary: Summary, launches: int) -> list[str]:
    products = _products(summary)
    return [f"{units.number(launches / products)} such launches per matrix product"] if products else []
