"""One ceiling for both sides: utilisation against two different ones compares the ceilings, not the runs.

A ceiling that was measured beside other work is too low and makes a slow run look well used. So where both sides ran on
the same device, both are put against the better known ceiling: a data sheet before a measurement, and of two
measurements the higher, because a machine can do what it was once seen to do. Where the devices differ there is no
common ceiling, and the two shares stand side by side without a ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llm_perf_opt.analysis.roofline.limits import Ceiling, limits_for
from llm_perf_opt.core import units
from llm_perf_opt.core.dtypes import canonical_dtype
from llm_perf_opt.model.summary import Hardware, Summary


@dataclass(frozen=True, slots=True)
class CommonCeiling:
    """What puts a utilisation of either side against the same ceiling."""

    scale_a: float = 1.0
    """Factor of A's own ratio: A's ceiling ÷ the common one."""
    scale_b: float = 1.0
    comparable: bool = True
    """False: there is no common ceiling, so no ratio of B to A."""
    note: str | None = None


def common_peak(a: Summary, b: Summary) -> CommonCeiling:
    """Return the common arithmetic ceiling, of MFU."""
    types = [canonical_dtype(side.workload.dtype or "unknown") for side in (a, b)]
    one, two = (limits_for(side.hardware, side.workload.dtype).peak for side in (a, b))
    if one is not None and two is not None and types[0] != types[1]:
        return CommonCeiling(
            comparable=False, note=f"MFU is not compared: {types[0]} and {types[1]} have different peaks."
        )
    return _common("MFU", a.hardware, b.hardware, one, two, units.flops_per_s)


def common_bandwidth(a: Summary, b: Summary) -> CommonCeiling:
    """Return the common memory ceiling, of MBU."""
    one, two = (limits_for(side.hardware, side.workload.dtype).bandwidth for side in (a, b))
    return _common("MBU", a.hardware, b.hardware, one, two, units.bytes_per_s)


def _common(
    what: str,
    a: Hardware,
    b: Hardware,
    one: Ceiling | None,
    two: Ceiling | None,
    shown: Callable[[float], str],
) -> CommonCeiling:
    if one is None or two is None or one.value == two.value:
        return CommonCeiling()
    if a.name is None or (a.name, a.kind) != (b.name, b.kind):
        return CommonCeiling(
            comparable=False,
            note=f"{what} is not compared: {a.name or 'the device of A'} and {b.name or 'the device of B'} have "
            "different ceilings.",
        )
    one_is_measured = (a.source == "probe") != (b.source == "probe")
    takes_a = b.source == "probe" if one_is_measured else one.value > two.value
    chosen, other, hardware = (one, two, b) if takes_a else (two, one, a)
    kept, left = ("A", "B") if takes_a else ("B", "A")
    load = ", measured while other programs used the processor" if hardware.measured_under_load else ""
    return CommonCeiling(
        one.value / chosen.value,
        two.value / chosen.value,
        note=f"{what} of both sides is against one ceiling, {kept}'s {shown(chosen.value)} ({chosen.name}); "
        f"the report of {left} is against {shown(other.value)}{load}.",
    )
