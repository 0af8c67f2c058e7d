"""Tables about kernels: by time, by family, and NVIDIA's rules."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.analysis.findings.common import describe_target
from llm_perf_opt.core import units
from llm_perf_opt.reporting.tables import Cell, Column, Row, Table, code, columns, num, simple, text
from llm_perf_opt.reporting.wording import phase_name
from llm_perf_opt.summary import Kernel, Summary

_COUNTER_FORMATS = (
    ("_ratio", units.percent),
    ("_flops_per_s", units.flops_per_s),
    ("_bytes_per_s", units.bytes_per_s),
    ("_flops_per_byte", lambda value: units.number(value, "FLOP/B")),
    ("_bytes", units.size),
    ("_hz", lambda value: units.MISSING if value is None else f"{units.count(value)}Hz"),
    ("_s", units.seconds),
    ("flops", units.flops),
)


def kernel_table(kernels: Sequence[Kernel], *, left_out: int = 0, narrow: bool = False) -> Table:
    """Return kernels by time; counters only where any kernel has them, ``narrow``: only the most important ones (the rest is folded)."""
    counted = any(kernel.counters for kernel in kernels)
    phased = any(kernel.phase for kernel in kernels)
    targeted = any(kernel.target is not None for kernel in kernels)
    header = [Column("#", True), Column("kernel"), Column("family")]
    header += [Column("phase")] if phased else []
    header += [Column("launches", True), Column("total", True), Column("share", True, "of all kernel time")]
    if targeted:
        header.append(
            Column(
                "× best",
                True,
                "time of a call ÷ the best measured for its shape on this device; unfold a row",
            )
        )
    if counted:
        header += [
            Column("bound by", help="our class from the counters"),
            Column("NVIDIA", help="whether the verdict of NVIDIA's rules agrees; unfold a row to read it"),
            Column("FLOP/B", True, "arithmetic intensity"),
            *([] if narrow else [Column("achieved", True, "arithmetic rate")]),
            Column("DRAM", True, "share of memory bandwidth"),
            Column("compute", True, "share of arithmetic throughput"),
        ]
    return Table(
        header,
        [_kernel_row(place, k, phased, targeted, counted, narrow) for place, k in enumerate(kernels)],
        left_out,
        grouped_by="Family",
    )


def _kernel_row(place: int, kernel: Kernel, phased: bool, targeted: bool, counted: bool, narrow: bool) -> Row:
    cells = [Cell(str(place + 1), place + 1.0), code(kernel.short_name), text(kernel.family)]
    cells += [text(phase_name(kernel.phase))] if phased else []
    cells += [
        num(kernel.launches, units.count),
        num(kernel.total_s, units.seconds),
        num(kernel.share_ratio, units.percent),
    ]
    if targeted:
        cells.append(num(kernel.target.ratio if kernel.target is not None else None, units.number))
    if counted:
        cells += [
            text(
                kernel.bound if kernel.counters_are_representative else f"{kernel.bound} (not representative)"
            ),
            Cell(
                (kernel.agreement or "see details") if kernel.vendor_verdict else units.MISSING,
                full=kernel.vendor_verdict or "",
            ),
            num(kernel.counters.get("intensity_flops_per_byte"), units.number),
            *([] if narrow else [num(kernel.counters.get("achieved_flops_per_s"), units.flops_per_s)]),
            num(kernel.counters.get("dram_ratio"), units.percent),
            num(kernel.counters.get("compute_ratio"), units.percent),
        ]
    return Row(cells, key=f"kernel-{place}", group=kernel.family, details=kernel_details(kernel))


def kernel_details(kernel: Kernel) -> list[tuple[str, str]]:
    """Return everything known about a kernel that a table row has no room for."""
    facts = [("full name", kernel.name)]
    if kernel.module:
        facts.append(("module", kernel.module))
    if kernel.bound:
        facts.append(("our class", kernel.bound))
    if kernel.vendor_verdict:
        facts.append(("NVIDIA says", kernel.vendor_verdict))
    if kernel.estimated_speedup_ratio is not None:
        facts.append(
            ("NVIDIA's best estimate", f"{units.percent(kernel.estimated_speedup_ratio)} of its time")
        )
    facts.extend(_target_details(kernel))
    facts.extend(_profiled_details(kernel))
    facts.extend(
        (_counter_label(name), _counter(name, value))
        for name, value in kernel.counters.items()
        if value is not None
    )
    return facts


def _target_details(kernel: Kernel) -> list[tuple[str, str]]:
    """Describe the source of the best measured time, and the kernel's ratio to it."""
    target = kernel.target
    if target is None:
        return []
    here, best, median = (units.seconds(s) for s in (target.measured_s, target.best_s, target.median_s))
    facts = [
        ("against the best measured", describe_target(target)),
        ("one call", f"{here} here, {best} at best, {median} in the median ({target.how})"),
        ("shapes compared", "; ".join(target.shapes)),
    ]
    if target.at_stake_s is not None:
        facts.append(("time above the best", units.seconds(target.at_stake_s)))
    return [*facts, ("compared with", target.remark)] if target.remark else facts


def _profiled_details(kernel: Kernel) -> list[tuple[str, str]]:
    """Describe the profiled launches relative to the launches of the run."""
    profiled = kernel.profiled
    if profiled is None:
        return []
    facts = [
        ("profiled in", phase_name(profiled.phase) if profiled.phase else "a phase that is not recorded")
    ]
    if profiled.duration_ratio is not None:
        facts.append(
            ("profiled launch", f"{units.number(profiled.duration_ratio)} × the run's mean duration")
        )
    if profiled.configurations is not None:
        covered = units.percent(profiled.covered_ratio)
        facts.append(
            (
                "grids and blocks profiled",
                f"{profiled.profiled_configurations} of {profiled.configurations}, {covered} of its time; "
                "weighted by how often the run has them",
            )
        )
    if profiled.remark:
        facts.append(("not representative", profiled.remark))
    return facts


_UNIT_SUFFIXES = ("_flops_per_byte", "_ratio", "_hz", "_s")


def _counter_label(name: str) -> str:
    """Name a counter without its unit, which its value shows."""
    if name.endswith("_per_s"):
        return name.removesuffix("_per_s").replace("_", " ") + " per second"
    suffix = next((end for end in _UNIT_SUFFIXES if name.endswith(end)), "")
    return name.removesuffix(suffix).replace("_", " ")


def _counter(name: str, value: float) -> str:
    for suffix, show in _COUNTER_FORMATS:
        if name.endswith(suffix):
            return show(value)
    return units.number(value)


def family_table(summary: Summary) -> Table:
    """Return kernel time by family."""
    rows = [
        [
            text(f.family),
            num(f.kernels, units.count),
            num(f.launches, units.count),
            num(f.total_s, units.seconds),
            num(f.share_ratio, units.percent),
        ]
        for f in summary.kernel_families
    ]
    return simple(columns("family", "kernels#", "launches#", "total#", "share#"), rows)


def vendor_rule_table(summary: Summary) -> Table:
    """Return NVIDIA's rules by potential gain; message and arithmetic are folded."""
    header = [
        Column("kernel"),
        Column("phase"),
        Column("rule", help="name of the rule in Nsight Compute"),
        Column("estimate", True, "share of the kernel's time NVIDIA estimates could be saved"),
        Column("kernel's share", True, "of the phase's wall-clock"),
        Column("gain at most", True, "estimate × share × time of the phase"),
    ]
    rows = [
        Row(
            [
                code(rule.kernel),
                text(phase_name(rule.phase)),
                text(rule.rule),
                num(rule.estimated_ratio, units.percent),
                num(rule.share_ratio, units.percent),
                num(rule.gain_upper_s, units.seconds),
            ],
            group=phase_name(rule.phase) if rule.phase else "",
            details=[("NVIDIA says", rule.text), ("arithmetic", rule.arithmetic)],
        )
        for rule in summary.vendor_rules
    ]
    return Table(header, rows)
