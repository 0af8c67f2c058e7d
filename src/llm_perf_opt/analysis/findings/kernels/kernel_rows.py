"""What rules about kernels share: how long a launch lasts, and kernels as evidence.

No kernel's time is claimed twice. The order, first come first served:

1. ``eager-attention``: softmax, and the scaling and masking of scores around it;
2. ``full-precision-kernels``: matrix products in float32 or TF32 by their name;
3. ``misaligned-gemm``: other matrix products with narrow loads;
4. ``old-flash-attention``: fused attention;
5. ``far-from-measured``: matrix products, attention and experts that are left;
6. ``unfused-elementwise``: element-wise, norm and reduction kernels that are left.

``copy-kernels`` has the families of copies, which none of these touches. ``underfilled-grids`` speaks of the same
kernels from another side (how full the device is, by counters) and is not added to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Kernel

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
