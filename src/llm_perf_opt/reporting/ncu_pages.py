"""Nsight Compute pages: an index, one page per kernel, tables and two charts, from typed facts."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core import units
from llm_perf_opt.core.escape import csv_text, md_block, md_cell, md_code, md_target, md_text
from llm_perf_opt.core.files import atomic_path, atomic_write_text
from llm_perf_opt.reporting.charts.lines import histogram
from llm_perf_opt.reporting.charts.roofline import Roof, RooflinePoint, roofline
from llm_perf_opt.reporting.markdown import table

if TYPE_CHECKING:
    from llm_perf_opt.analysis.ncu.kernels import NcuKernelFacts, PrecisionFacts
    from llm_perf_opt.analysis.ncu.vendor_rules import RankedRule
    from llm_perf_opt.captures.ncu.launches import NcuRule

Namer = Callable[[str], tuple[str, str]]
"""Full kernel name → (readable name, family)."""
_COUNTERS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("duration_s", "duration of a launch", units.seconds),
    ("compute_ratio", "SM throughput, of peak", units.percent),
    ("memory_ratio", "memory throughput, of peak", units.percent),
    ("l1_ratio", "L1/TEX throughput, of peak while active", units.percent),
    ("l2_ratio", "L2 throughput, of peak", units.percent),
    ("dram_ratio", "DRAM throughput, of peak", units.percent),
    ("dram_bytes", "DRAM bytes", units.size),
    ("dram_bytes_per_s", "DRAM bandwidth", units.bytes_per_s),
    ("l1_hit_ratio", "L1 hits", units.percent),
    ("l2_hit_ratio", "L2 hits", units.percent),
    ("occupancy_ratio", "achieved occupancy", units.percent),
    ("theoretical_occupancy_ratio", "theoretical occupancy", units.percent),
    ("waves", "waves of the grid", units.number),
    ("issue_active_ratio", "cycles with an instruction issued", units.percent),
    ("registers_per_thread", "registers per thread", units.count),
    ("sm_count", "SMs", units.count),
    ("sm_frequency_hz", "SM clock", lambda value: units.number(value and value / 1e9, "GHz")),
    ("dram_frequency_hz", "DRAM clock", lambda value: units.number(value and value / 1e9, "GHz")),
)


def write_ncu_pages(
    facts: Sequence[NcuKernelFacts],
    folder: Path,
    *,
    matches: Mapping[str, str] | None = None,
    namer: Namer | None = None,
    ranked: Sequence[RankedRule] = (),
    parquet: bool = True,
) -> list[Path]:
    """Write ``index.md``, ``kernels/*.md``, ``kernels.csv``, ``rules.csv``, ``roofline.svg``, ``durations.svg``.

    ``matches``: ncu name → nsys name, shown as the full name. ``ranked``: rules as time, for the index.
    """
    names = [_names(each, matches or {}, namer) for each in facts]
    pages = _page_names(name[1] for name in names)
    files = [
        atomic_write_text(folder / "kernels" / page, _page(each, name))
        for each, name, page in zip(facts, names, pages, strict=True)
    ]
    files += [
        atomic_write_text(folder / "roofline.svg", _roofline(facts, names)),
        atomic_write_text(folder / "durations.svg", _durations(facts)),
        atomic_write_text(folder / "index.md", _index(facts, names, pages, ranked)),
    ]
    rows = [_row(each, name) for each, name in zip(facts, names, strict=True)]
    files.append(atomic_write_text(folder / "kernels.csv", _csv(rows)))
    files.append(atomic_write_text(folder / "rules.csv", _csv(_rule_rows(facts, names, ranked))))
    if parquet and rows:
        files.append(_write_parquet(rows, folder / "kernels.parquet"))
    return files


def _names(facts: NcuKernelFacts, matches: Mapping[str, str], namer: Namer | None) -> tuple[str, str, str]:
    """Return full name, readable name and family."""
    full = matches.get(facts.kernel, facts.kernel)
    short, family = namer(full) if namer else (facts.function, "other")
    return full, short, family


def _page_names(shorts: Iterable[str]) -> list[str]:
    """Return a file name for each kernel, in order; the number makes it unique."""
    return [
        f"{number:03d}-{re.sub(r'[^A-Za-z0-9]+', '-', short).strip('-').lower()[:60] or 'kernel'}.md"
        for number, short in enumerate(shorts, start=1)
    ]


# --- pages -----------------------------------------------------------------------------------------------


def _page(facts: NcuKernelFacts, names: tuple[str, str, str]) -> str:
    full, short, family = names
    parts = [
        f"# {md_text(short)}",
        md_block(full),
        f"Family {md_text(family)} · {facts.launches} profiled launch{'es' if facts.launches != 1 else ''} · "
        f"grid {_shapes(facts.grids)} · block {_shapes(facts.blocks)} · "
        f"{md_text(facts.device_name or 'device not named')} (compute capability "
        f"{md_text(facts.compute_capability or units.MISSING)})",
        "## What limits it",
        f"**{md_text(facts.bound.bound)}**: {md_text(facts.bound.arithmetic)}.",
        _vendor(facts),
        "## Work against the roofline",
        _precision_table(facts.precisions, facts.peak_bytes_per_s),
        "## Counters",
        table(
            ("quantity", "value"),
            [
                (label, md_cell(show(facts.counters.get(key))))
                for key, label, show in _COUNTERS
                if facts.counters.get(key) is not None
            ],
        ),
    ]
    if facts.rules:
        parts += ["## Findings of NVIDIA's rules", *_rules(facts)]
    remarks = [*facts.violations, *facts.notes]
    if remarks:
        parts += ["## Remarks", "\n".join(f"- {md_text(remark)}" for remark in remarks)]
    parts += ["## Read from", "\n".join(f"- {md_code(Path(source).name)}" for source in facts.sources)]
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _vendor(facts: NcuKernelFacts) -> str:
    if facts.vendor is None:
        return "NVIDIA's verdict was not collected (section SpeedOfLight)."
    return f"NVIDIA: {md_text(facts.vendor.text)}\n\nAgreement: {md_text(facts.agreement or units.MISSING)}."


def _precision_table(precisions: Sequence[PrecisionFacts], bandwidth: float | None) -> str:
    rows = []
    for each in precisions:
        rate, peak = each.achieved_flops_per_s, each.peak_flops_per_s
        rows.append(
            (
                md_cell(each.precision),
                md_cell(units.flops(each.flops)),
                md_cell(units.flops_per_s(rate)),
                md_cell(units.number(each.intensity_flops_per_byte, "FLOP/B")),
                md_cell(units.flops_per_s(peak) + (f" ({each.peak_source})" if peak else "")),
            )
        )
    if not rows:
        return "No floating-point operations were counted in this capture."
    body = table(("precision", "work of a launch", "achieved", "intensity", "ceiling"), rows)
    return f"{body}\nMemory ceiling: {units.bytes_per_s(bandwidth)}."


def _rules(facts: NcuKernelFacts) -> list[str]:
    parts = []
    for rule in sorted(facts.rules, key=lambda each: -(each.speedup_ratio or 0.0)):
        estimate = ""
        if rule.speedup_ratio is not None:
            estimate = f", estimated {rule.speedup_scope or ''} gain {units.percent(rule.speedup_ratio)}"
        parts.append(f"- {md_code(rule.name)} ({md_text(rule.kind + estimate)}): {md_text(rule.text)}")
    return ["\n".join(parts)]


def _shapes(shapes: Sequence[tuple[int, int, int]]) -> str:
    if not shapes:
        return units.MISSING
    first = "×".join(str(size) for size in shapes[0])
    return first if len(shapes) == 1 else f"{first} and {len(shapes) - 1} more"


# --- index -----------------------------------------------------------------------------------------------


def _index(
    facts: Sequence[NcuKernelFacts],
    names: Sequence[tuple[str, str, str]],
    pages: Sequence[str],
    ranked: Sequence[RankedRule],
) -> str:
    header = (
        "kernel",
        "limited by",
        "NVIDIA",
        "time",
        "SM",
        "L2",
        "DRAM",
        "occupancy",
        "intensity",
        "achieved",
    )
    rows = []
    for each, (_, short, _), page in zip(facts, names, pages, strict=True):
        values = each.counters
        rows.append(
            (
                f"[{md_cell(short)}]({md_target('kernels/' + page)})",
                md_cell(each.bound.bound),
                md_cell(each.agreement or units.MISSING),
                md_cell(units.seconds(values.get("duration_s"))),
                *(
                    md_cell(units.percent(values.get(key)))
                    for key in ("compute_ratio", "l2_ratio", "dram_ratio", "occupancy_ratio")
                ),
                md_cell(units.number(values.get("intensity_flops_per_byte"))),
                md_cell(units.flops_per_s(values.get("achieved_flops_per_s"))),
            )
        )
    parts = [
        "# Kernels under Nsight Compute",
        "Shares are of the peak the hardware sustains; intensity is FLOP per byte of DRAM traffic.",
        table(header, rows),
        "![Roofline of the profiled kernels](roofline.svg)",
        "![Durations of the profiled launches](durations.svg)",
    ]
    gains = [row for row in ranked if row.gain_upper_s is not None]
    if gains:
        shorts = {each.kernel: name[1] for each, name in zip(facts, names, strict=True)}
        parts += ["## What NVIDIA's rules could save at most"]
        listed = [
            (
                md_cell(shorts.get(row.kernel, row.kernel)),
                md_cell(row.rule.name),
                md_cell(units.seconds(row.gain_upper_s)),
                md_cell(row.arithmetic),
            )
            for row in gains[:20]
        ]
        parts.append(table(("kernel", "rule", "at most", "arithmetic"), listed))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


# --- charts ----------------------------------------------------------------------------------------------


def _roofline(facts: Sequence[NcuKernelFacts], names: Sequence[tuple[str, str, str]]) -> str:
    points: list[RooflinePoint] = []
    roofs: dict[str, float] = {}
    for each, (full, short, _) in zip(facts, names, strict=True):
        for precision in each.precisions:
            if precision.peak_flops_per_s:
                highest = max(roofs.get(precision.precision, 0.0), precision.peak_flops_per_s)
                roofs[precision.precision] = highest
        intensity = each.counters.get("intensity_flops_per_byte")
        if intensity is not None:
            points.append(
                RooflinePoint(
                    short,
                    intensity,
                    each.counters.get("achieved_flops_per_s"),
                    group=each.precision or "",
                    detail=f"{each.bound.bound}: {full[:160]}",
                )
            )
    bandwidths = [each.peak_bytes_per_s for each in facts if each.peak_bytes_per_s]
    used = {point.group for point in points}
    compute = [Roof(name, value) for name, value in roofs.items() if name in used] or [
        Roof(name, value) for name, value in roofs.items()
    ]
    memory = [Roof("DRAM", max(bandwidths))] if bandwidths else []
    return roofline("Profiled kernels under their ceilings", points, compute=compute, memory=memory)


def _durations(facts: Sequence[NcuKernelFacts]) -> str:
    values = [
        duration
        for each in facts
        for part in each.parts
        if (duration := part.get("duration_s")) is not None and duration > 0
    ]
    return histogram(
        "Durations of the profiled launches",
        values,
        x_label="Duration of a launch",
        x_log=len(set(values)) > 1,
    )


# --- tables ----------------------------------------------------------------------------------------------


def _row(facts: NcuKernelFacts, names: tuple[str, str, str]) -> dict[str, str | float | int | None]:
    full, short, family = names
    return {
        "rank": facts.rank,
        "short_name": short,
        "family": family,
        "phase": facts.phase,
        "launches": facts.launches,
        "bound": facts.bound.bound,
        "vendor_bound": facts.vendor.bound if facts.vendor else None,
        "agreement": facts.agreement,
        "precision": facts.precision,
        **facts.counters,
        "consistent": int(facts.consistent),
        "name": full,
        "ncu_name": facts.kernel,
    }


def _rule_rows(
    facts: Sequence[NcuKernelFacts], names: Sequence[tuple[str, str, str]], ranked: Sequence[RankedRule]
) -> list[dict[str, str | float | int | None]]:
    gains = {(row.kernel, row.rule.section, row.rule.name, row.phase): row for row in ranked}
    rows: list[dict[str, str | float | int | None]] = []
    for each, (_, short, _) in zip(facts, names, strict=True):
        for rule in each.rules:
            found: list[RankedRule | None] = [
                row for key, row in gains.items() if key[:3] == (each.kernel, rule.section, rule.name)
            ]
            rows.extend(_rule_row(short, each.phase, rule, row) for row in found or [None])
    return rows


def _rule_row(
    short: str, phase: str | None, rule: NcuRule, row: RankedRule | None
) -> dict[str, str | float | int | None]:
    return {
        "kernel": short,
        "phase": row.phase if row else phase,
        "section": rule.section,
        "rule": rule.name,
        "kind": rule.kind,
        "scope": rule.speedup_scope,
        "estimated_speedup_ratio": rule.speedup_ratio,
        "gain_upper_s": row.gain_upper_s if row else None,
        "text": rule.text,
    }


def _csv(rows: Sequence[Mapping[str, str | float | int | None]]) -> str:
    out = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {key: csv_text(value) if isinstance(value, str) else value for key, value in row.items()}
        )
    return out.getvalue()


def _write_parquet(rows: Sequence[Mapping[str, str | float | int | None]], path: Path) -> Path:
    import polars

    frame = polars.DataFrame([dict(row) for row in rows], infer_schema_length=None)
    with atomic_path(path) as temporary:
        frame.write_parquet(temporary)
    return path
