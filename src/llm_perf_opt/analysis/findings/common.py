"""Helpers shared by several rules: time of a phase, time of kernels, source of a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from llm_perf_opt.core import units
from llm_perf_opt.core.phases import PHASES, REQUEST_PHASES, WHOLE
from llm_perf_opt.summary import Kernel, Stat, Summary
from llm_perf_opt.summary.kernels import KernelTarget


def phase_seconds(summary: Summary, phase: str) -> float | None:
    """Return the measured wall-clock of a phase per sample; the whole run is the sum of its phases."""
    if phase == WHOLE:
        first = summary.timings.ttft_s or summary.timings.prefill_s
        decode = summary.timings.decode_s
        return first.shown + decode.shown if first is not None and decode is not None else None
    stat: Stat | None = getattr(summary.timings, f"{phase}_s", None)
    return stat.shown if stat is not None else None


def sample_seconds(summary: Summary) -> float | None:
    """Return the wall-clock of one sample: first token plus decode, else what is known of its phases.

    Vision may be nested in prefill, so the phases are only added where the whole is not known.
    """
    known = [seconds for phase in REQUEST_PHASES if (seconds := phase_seconds(summary, phase)) is not None]
    return phase_seconds(summary, WHOLE) or (sum(known) if known else None)


def span_seconds(summary: Summary, phase: str) -> float | None:
    """Return the wall-clock per sample, or the captured span where nothing was measured without a profiler."""
    measured = phase_seconds(summary, phase)
    if measured is not None:
        return measured
    budget = summary.budget.get(phase)
    return budget.span_s if budget is not None else None


def part_share(summary: Summary, phase: str, name: str) -> float | None:
    """Return the share of one budget part; ``None`` without a timeline of this phase."""
    budget = summary.budget.get(phase)
    if budget is None:
        return None
    return sum(part.share_ratio for part in budget.parts if part.name == name)


def kernel_seconds(summary: Summary, wanted: Callable[[Kernel], bool]) -> float:
    """Sum the device time of matching kernels."""
    return sum(k.total_s or 0.0 for k in summary.kernels if wanted(k))


def kernel_busy_share(summary: Summary, phase: str) -> float | None:
    """Return the share of wall-clock in which kernels run: from the timeline, else from totals (an upper bound)."""
    share = part_share(summary, phase, "compute")
    if share is not None:
        return share
    use = summary.utilisation.get(phase)
    return use.device_busy_ratio if use is not None else None


def share_of_sample(summary: Summary, share_of_kernel_time: float) -> float | None:
    """Turn a share of kernel time into seconds of one sample: share × share with kernels running × wall-clock."""
    key = _only_phase(summary) or WHOLE
    seconds, busy = span_seconds(summary, key), kernel_busy_share(summary, key)
    if seconds is None or busy is None:
        return None
    if (
        key in summary.budget
    ):  # the timeline's computing time leaves communication out; the share must do the same
        everything = kernel_seconds(summary, lambda k: True)
        computing = kernel_seconds(summary, lambda k: k.family != "communication")
        share_of_kernel_time *= everything / computing if computing > 0 else 1.0
    return seconds * busy * min(1.0, share_of_kernel_time)


def _only_phase(summary: Summary) -> str | None:
    """Return the phase of all kernels when a capture covers a single one: shares of it are shares of that phase."""
    phases = {kernel.phase for kernel in summary.kernels}
    only = next(iter(phases)) if len(phases) == 1 else None
    return only if only in PHASES else None


def describe_phase(phase: str) -> str:
    """Name a phase inside a sentence."""
    return "the captured time" if phase == WHOLE else phase


def sources(summary: Summary, *kinds: str) -> list[str]:
    """Name the files a finding rests on."""
    return [f"{kind}: {_shortened(summary.sources[kind])}" for kind in kinds if kind in summary.sources]


def _shortened(files: str) -> str:
    """Name one of many files; the list of sources has them all."""
    listed = files.split(", ")
    return files if len(listed) <= _FILES_NAMED else f"{listed[0]} and {len(listed) - 1} more"


_FILES_NAMED = 2


# What rules about kernels share: how long a launch lasts, and kernels as evidence.
#
# Each kernel's time is claimed by at most one finding, in this order:
#
# 1. ``eager-attention``: softmax, and the scaling and masking of scores around it;
# 2. ``full-precision-kernels``: matrix products in float32 or TF32 by their name;
# 3. ``misaligned-gemm``: other matrix products with narrow loads;
# 4. ``old-flash-attention``: fused attention;
# 5. ``far-from-measured``: matrix products, attention and experts that are left;
# 6. ``slow-kernels``: shapes of matrix products and attention that are left;
# 7. ``unfused-elementwise``: element-wise, norm and reduction kernels that are left;
# 8. ``dominant-kernels``: the largest family of a busy device, where nothing above is worth a twentieth of the time.
#
# ``copy-kernels`` covers the copy families, which none of these claims. ``underfilled-grids`` reports the same
# kernels from another angle (device occupancy, from counters) and is not added to them.


_NAMED = 3
"""Kernels that evidence names; the others are counted."""


def seconds_of(kernels: Iterable[Kernel]) -> float:
    """Return the device time of kernels; those without a time add none."""
    return sum(kernel.total_s or 0.0 for kernel in kernels)


def launches_of(kernels: Iterable[Kernel]) -> int:
    """Return how often kernels ran; those that were not counted add none."""
    return sum(kernel.launches or 0 for kernel in kernels)


def mean_launch_s(kernel: Kernel) -> float | None:
    """Return how long one launch lasts; ``None`` when time or launches are not known."""
    if not kernel.launches or kernel.total_s is None:
        return None
    return kernel.total_s / kernel.launches


def longest_named(kernels: Sequence[Kernel]) -> list[str]:
    """Name the longest kernels, each with its launches and the mean length of one."""
    ordered = sorted(kernels, key=lambda kernel: (-(kernel.total_s or 0.0), kernel.name))
    lines = [_with_launches(kernel) for kernel in ordered[:_NAMED]]
    left = ordered[_NAMED:]
    if left:
        lines.append(f"{len(left)} more with {units.seconds(seconds_of(left))}")
    return lines


def _with_launches(kernel: Kernel) -> str:
    mean = mean_launch_s(kernel)
    if mean is None or kernel.launches is None:
        return f"{kernel.short_name}: {units.seconds(kernel.total_s)}"
    plural = "launch" if kernel.launches == 1 else "launches"
    return f"{kernel.short_name}: {units.count(kernel.launches)} {plural}, {units.seconds(mean)} each"


# A target as text; kept separate because pages need it without the tables.


def describe_target(target: KernelTarget) -> str:
    """``× 2.4 of the best measured (vLLM 0.24, cuBLAS)``."""
    return f"× {units.number(target.ratio)} of the best measured ({target.source})"
