"""What limits a kernel, from its counters; and what NVIDIA's own rules say, side by side.

Classes: ``compute`` (arithmetic units), ``issue`` (the SM is busy issuing, but not with floating-point work, as
in copy kernels), ``l1``, ``l2``, ``dram``, ``memory`` (a memory unit, the capture does not say which),
``underfilled`` (fewer blocks than the device holds at once), ``latency`` (nothing is busy), ``balanced``,
``unknown``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llm_perf_opt.core import units

if TYPE_CHECKING:
    from llm_perf_opt.model.counters import NcuRule

BUSY = 0.60
"""From here on a unit limits the kernel; below it NVIDIA speaks of latency (its SpeedOfLight rule)."""
CLOSE = 0.10
"""Compute and memory this close together, both busy, are balanced."""

_UNIT_NAMES = {"l1": "L1/TEX", "l2": "L2", "dram": "DRAM", "memory": "memory", "compute": "SM"}


@dataclass(frozen=True, slots=True)
class BoundVerdict:
    """Our class, with the comparison that decided it."""

    bound: str
    arithmetic: str
    evidence: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class VendorVerdict:
    """NVIDIA's SpeedOfLight verdict."""

    bound: str | None
    """In our words; ``None`` when its sentence is not known to us."""
    text: str
    """In its words."""


def classify(values: Mapping[str, float | None], has_arithmetic: bool | None) -> BoundVerdict:
    """Return what limits a kernel.

    ``has_arithmetic``: whether floating-point work was measured (``False``: measured and none, ``None``: not
    measured). A busy SM without any is never called compute-bound.
    """
    compute = values.get("compute_ratio")
    memory = _memory_units(values)
    if compute is None and not memory:
        return BoundVerdict("unknown", "neither compute nor memory throughput was collected")
    shares = {**({"compute": compute} if compute is not None else {}), **memory}
    evidence = [f"{_UNIT_NAMES[name]} {units.percent(share)} of peak" for name, share in shares.items()]
    evidence += _latency_evidence(values)
    unit, share = max(memory.items(), key=lambda item: item[1]) if memory else ("", 0.0)
    top = max(shares.values())
    said = ", ".join(evidence[: len(shares)])
    if top < BUSY:
        return _not_busy(values, top, said, evidence, complete=compute is not None and bool(memory))
    if compute is not None and memory and min(compute, share) >= BUSY and abs(compute - share) < CLOSE:
        text = f"{said}: SM and {_UNIT_NAMES[unit]} are both above {BUSY:.0%} and within {CLOSE:.0%} of each other"
        return BoundVerdict("balanced", text, evidence)
    if compute is not None and compute >= share:
        bound = "issue" if has_arithmetic is False else "compute"
        why = (
            ""
            if bound == "compute"
            else "; no floating-point arithmetic was measured, so it is instruction issue"
        )
        return BoundVerdict(bound, f"{said}: the SM is the busiest, above {BUSY:.0%}{why}", evidence)
    return BoundVerdict(unit, f"{said}: {_UNIT_NAMES[unit]} is the busiest, above {BUSY:.0%}", evidence)


def _not_busy(
    values: Mapping[str, float | None], top: float, said: str, evidence: list[str], *, complete: bool
) -> BoundVerdict:
    waves = values.get("waves")
    if waves is not None and waves < 1:
        text = f"the grid is {waves:.2f} waves, less than the device holds at once; busiest unit {units.percent(top)}"
        return BoundVerdict("underfilled", text, evidence)
    if not complete:
        return BoundVerdict("unknown", f"{said}; the rest was not collected", evidence)
    return BoundVerdict("latency", f"{said}: no unit reaches {BUSY:.0%}, the kernel waits", evidence)


def _memory_units(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return memory units on one footing, share of peak over the kernel's whole duration."""
    found = {name: values.get(f"{name}_ratio") for name in ("l2", "dram")}
    l1 = values.get("l1_elapsed_ratio")
    if l1 is None and values.get("l1_ratio") is not None:
        # ncu prints L1 relative to the cycles its SM was active; a mostly idle device would look busy.
        active, elapsed = values.get("sm_active_cycles"), values.get("elapsed_cycles")
        scale = min(1.0, active / elapsed) if active is not None and elapsed else 1.0
        l1 = (values.get("l1_ratio") or 0.0) * scale
    known = {name: share for name, share in {"l1": l1, **found}.items() if share is not None}
    total = values.get("memory_ratio")
    if total is not None and (not known or total > max(known.values()) + 0.05):
        known["memory"] = total
    return known


def _latency_evidence(values: Mapping[str, float | None]) -> list[str]:
    evidence = []
    waves = values.get("waves")
    if waves is not None:
        evidence.append(f"{waves:.2f} waves")
    for name, text in (
        ("occupancy_ratio", "achieved occupancy {}"),
        ("theoretical_occupancy_ratio", "theoretical occupancy {}"),
        ("issue_active_ratio", "an instruction issued in {} of cycles"),
    ):
        share = values.get(name)
        if share is not None:
            evidence.append(text.format(units.percent(share)))
    return evidence


_VENDOR_RULES = ("SOLBottleneck", "Bottleneck")
_VENDOR_CLASSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"grid is too small", re.I), "underfilled"),
    (re.compile(r"well-balanced|balanced: to", re.I), "balanced"),
    (re.compile(r"identify the (?P<unit>L1|L2|DRAM)", re.I), "unit"),
    (re.compile(r"analyzing (?P<unit>L1|L2|DRAM)", re.I), "unit"),
    (re.compile(r"memory is more heavily utilized", re.I), "memory"),
    (re.compile(r"compute is more heavily utilized", re.I), "compute"),
    (re.compile(r"low compute throughput and memory bandwidth|latency issues", re.I), "latency"),
    (re.compile(r"in the Compute Workload Analysis", re.I), "compute"),
    (re.compile(r"in the Memory Workload Analysis", re.I), "memory"),
)


def vendor_verdict(rules: Iterable[NcuRule]) -> VendorVerdict | None:
    """Return what NVIDIA's SpeedOfLight rule said; ``None`` when the rule was not collected."""
    for rule in rules:
        if rule.name not in _VENDOR_RULES or not rule.text:
            continue
        for pattern, bound in _VENDOR_CLASSES:
            match = pattern.search(rule.text)
            if match:
                return VendorVerdict(match.group("unit").lower() if bound == "unit" else bound, rule.text)
        return VendorVerdict(None, rule.text)
    return None


_FULL_WAVES = re.compile(r"only ([\d.,]+) full waves")


def vendor_waves(rules: Iterable[NcuRule]) -> float | None:
    """Return the number of waves NVIDIA's rule mentions, when the launch statistics were not collected."""
    for rule in rules:
        match = _FULL_WAVES.search(rule.text)
        if match:
            return float(match.group(1).replace(",", "."))
    return None


def agreement(ours: BoundVerdict, vendor: VendorVerdict | None) -> str | None:
    """Say whether both verdicts agree: ``agrees``, ``partly: …`` or ``differs: …``; ``None`` without NVIDIA's."""
    if vendor is None:
        return None
    if vendor.bound is None:
        return "unclear: NVIDIA's verdict is none we know"
    if ours.bound == vendor.bound:
        return "agrees"
    if ours.bound == "unknown":
        return "unclear: the counters for our own class were not collected"
    memory = {"l1", "l2", "dram", "memory"}
    if ours.bound in memory and vendor.bound in memory:
        return f"partly: both say memory, we {ours.bound}, NVIDIA {vendor.bound}"
    if {ours.bound, vendor.bound} == {"issue", "compute"}:
        return "partly: both say the SM is busiest; we see no floating-point work in it"
    if {ours.bound, vendor.bound} == {"underfilled", "latency"}:
        return f"partly: nothing is busy; we say {ours.bound}, NVIDIA {vendor.bound}"
    return f"differs: we say {ours.bound}, NVIDIA {vendor.bound}"
