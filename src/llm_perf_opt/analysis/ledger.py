"""The module ledger: one row per module and phase, joined from every source that knows about it.

Measured times are taken from the source nearest to the truth: hooks of the un-profiled passes (wall-clock), then
device time attributed by the timeline. The others stand beside it, and a disagreement is shown, not averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llm_perf_opt import units
from llm_perf_opt.analysis.roofline import Limits, floor_time, limits_for
from llm_perf_opt.summary.model import Hardware, LedgerRow, Static, StaticModule, Timings

TOLERANCE = 0.25
"""Relative difference between sources from which it is worth showing."""
DEEPEST = 3
"""Deeper modules are in the static report; the ledger stays readable."""


@dataclass(frozen=True, slots=True)
class ModuleTime:
    """Device time and launches a timeline attributes to a module range, per sample."""

    device_s: float
    launches: int


def build_ledger(
    static: Static | None,
    timings: Timings,
    hardware: Hardware,
    dtype: str | None,
    device_times: Mapping[tuple[str, str], ModuleTime] | None = None,
) -> list[LedgerRow]:
    """Join static work, floors, hooks and timeline; rows come in the order of the module tree."""
    device_times = with_parents(device_times or {})
    limits = limits_for(hardware, dtype)
    rows = _component_rows(static, timings, limits, device_times)
    if static is not None:
        rows.extend(
            _row(module, phase, flops, limits, device_times)
            for module in static.modules
            if module.name and module.depth <= DEEPEST
            for phase, flops in module.flops.items()
            if flops
        )
    return rows


def with_parents(
    device_times: Mapping[tuple[str, str], ModuleTime],
) -> dict[tuple[str, str], ModuleTime]:
    """Add to every module what runs inside it: timelines count a launch for its innermost module only, static work
    of a module holds its children."""
    inclusive: dict[tuple[str, str], ModuleTime] = {}
    for (module, phase), own in device_times.items():
        parts = module.split(".")
        for depth in range(1, len(parts) + 1):
            key = (".".join(parts[:depth]), phase)
            before = inclusive.get(key, ModuleTime(0.0, 0))
            inclusive[key] = ModuleTime(before.device_s + own.device_s, before.launches + own.launches)
    return inclusive


def _component_rows(
    static: Static | None,
    timings: Timings,
    limits: Limits,
    device_times: Mapping[tuple[str, str], ModuleTime],
) -> list[LedgerRow]:
    """Return one row per component and phase: the level at which hooks measure."""
    work = static.components if static is not None else {}
    hooks = {split_component(name): stat for name, stat in timings.components.items()}
    labels = list(dict.fromkeys([*work, *(label for label, _ in hooks)]))
    rows = []
    for label in labels:
        measured = {phase: stat for (name, phase), stat in hooks.items() if name == label}
        phases = list(dict.fromkeys([*(p for p, flops in work.get(label, {}).items() if flops), *measured]))
        for phase in phases:
            row = LedgerRow(
                module=label,
                phase=phase,
                depth=0,
                params=static.params.components.get(label) if static is not None else None,
                flops=work.get(label, {}).get(phase),
                bytes=_component_bytes(static, label, phase),
            )
            if phase in measured:
                row.measured_s, row.measured_source = measured[phase].mean, "hooks"
            _add_device_time(row, _component_time(static, label, phase, device_times))
            rows.append(_finished(row, limits))
    return rows


def _component_time(
    static: Static | None, label: str, phase: str, device_times: Mapping[tuple[str, str], ModuleTime]
) -> ModuleTime | None:
    """Take a range named like the component, else the sum of the component's topmost modules."""
    named = device_times.get((label, phase))
    if named is not None or static is None:
        return named
    modules = [m.name for m in static.modules if m.component == label and m.name]
    tops = [name for name in modules if not any(name.startswith(f"{other}.") for other in modules)]
    found = [time for name in tops if (time := device_times.get((name, phase))) is not None]
    if not found:
        return None
    return ModuleTime(sum(time.device_s for time in found), sum(time.launches for time in found))


def split_component(name: str) -> tuple[str, str]:
    """Split a timing's name into component and phase: ``lm_head_prefill_s`` → (``lm_head``, ``prefill``).

    Components without a phase in their name belong to the vision tower.
    """
    label = name.removesuffix("_s")
    for phase in ("prefill", "decode"):
        if label.endswith(f"_{phase}"):
            return label.removesuffix(f"_{phase}"), phase
    return label, "vision"


def _component_bytes(static: Static | None, label: str, phase: str) -> float | None:
    if static is None:
        return None
    inside = [m for m in static.modules if m.component == label and phase in m.weight_bytes]
    if not inside:
        return None
    # Weights of a module include its children: take the highest modules of the component only.
    tops = [
        m
        for m in inside
        if not any(m.name.startswith(f"{other.name}.") for other in inside if other is not m)
    ]
    return sum(m.weight_bytes[phase] for m in tops)


def _row(
    module: StaticModule,
    phase: str,
    flops: float,
    limits: Limits,
    device_times: Mapping[tuple[str, str], ModuleTime],
) -> LedgerRow:
    row = LedgerRow(
        module=module.name,
        phase=phase,
        depth=module.depth,
        params=module.params,
        flops=flops,
        bytes=module.weight_bytes.get(phase),
    )
    _add_device_time(row, device_times.get((module.name, phase)))
    return _finished(row, limits)


def _add_device_time(row: LedgerRow, device: ModuleTime | None) -> None:
    if device is None:
        return
    row.device_s, row.launches = device.device_s, device.launches
    if row.measured_s is None:
        row.measured_s, row.measured_source = device.device_s, "timeline"
        return
    row.others_s["timeline"] = device.device_s
    # Wall-clock holds waiting that device time does not: only more device time than wall-clock contradicts.
    if device.device_s > row.measured_s * (1 + TOLERANCE):
        row.disagreement = f"timeline {units.seconds(device.device_s)} against {row.measured_source} {units.seconds(row.measured_s)}"


def _finished(row: LedgerRow, limits: Limits) -> LedgerRow:
    """Add floor and utilisation where work, time and limits are all known."""
    if (
        row.flops is not None
        and row.bytes is not None
        and limits.peak is not None
        and limits.bandwidth is not None
    ):
        row.floor_s = floor_time(row.flops, row.bytes, limits.peak, limits.bandwidth).seconds
    if row.measured_s:
        if row.flops is not None and limits.peak is not None:
            row.mfu_ratio = row.flops / (row.measured_s * limits.peak.value)
        if row.bytes is not None and limits.bandwidth is not None:
            row.mbu_ratio = row.bytes / (row.measured_s * limits.bandwidth.value)
        if row.floor_s is not None and row.measured_s < row.floor_s / (1 + TOLERANCE):
            row.disagreement = f"measured {units.seconds(row.measured_s)} is below the floor {units.seconds(row.floor_s)}: work and time do not belong together"
    return row
