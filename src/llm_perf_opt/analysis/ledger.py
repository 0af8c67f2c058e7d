"""The module ledger: one row per module and phase, joined from all sources.

Measured times are taken from the source nearest to the truth: hooks of the un-profiled passes (wall-clock), then
device time attributed by the timeline, then, on a CPU, the phase's wall-clock split by what the profiler saw. The
others are shown next to it, and a disagreement is shown, not averaged. Work and time of ``decode`` are those of one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from llm_perf_opt.analysis.roofline.limits import Limits, floor_time, limits_for
from llm_perf_opt.analysis.validation import below_floor
from llm_perf_opt.core import units
from llm_perf_opt.summary import Hardware, LedgerRow, Stat, Static, Timings
from llm_perf_opt.summary.statistics import decode_steps

Time = TypeVar("Time")
_TOLERANCE = 0.25
"""Relative difference between sources from which it is worth showing."""
SHALLOWEST, MOST_MODULES = 3, 200
"""The tree goes as deep as this many modules allow, and at least this deep; the rest is in the static report. Modules
and not rows: a run with one phase less shows the same modules."""


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
    host_times: Mapping[tuple[str, str], float] | None = None,
) -> list[LedgerRow]:
    """Join static work, floors, hooks and timeline; rows come in the order of the module tree.

    ``host_times``: (module, phase) → seconds of work on the host, children included; in decode of one step.
    """
    device_times, host_times = with_parents(device_times or {}), host_times or {}
    limits = limits_for(hardware, dtype)
    rows = _component_rows(static, timings, limits, device_times, host_times)
    if static is not None:
        modules = _working_modules(static)
        depths = [module.depth for module in static.modules if module.name]
    else:
        modules = _timed_modules({*device_times, *host_times}, {(row.module, row.phase) for row in rows})
        depths = list({row.module: row.depth for row in modules}.values())
    deepest = _deepest(depths)
    for row in modules:
        if row.depth <= deepest:
            _add_device_time(row, device_times.get((row.module, row.phase)))
            _add_host_time(row, host_times.get((row.module, row.phase)))
            rows.append(_finished(row, limits))
    return rows


def _working_modules(static: Static) -> list[LedgerRow]:
    return [
        LedgerRow(
            module=module.name,
            phase=phase,
            depth=module.depth,
            params=module.params,
            flops=flops,
            bytes=module.weight_bytes.get(phase),
        )
        for module in static.modules
        if module.name
        for phase, flops in module.flops.items()
        if flops
    ]


def _timed_modules(keys: set[tuple[str, str]], components: set[tuple[str, str]]) -> list[LedgerRow]:
    """Return modules that only a capture contains: times without work. Components already have rows."""
    return [
        LedgerRow(module=name, phase=phase, depth=name.count(".") + 1)
        for name, phase in sorted(keys - components, key=lambda key: (key[1], _natural(key[0])))
    ]


def _natural(path: str) -> list[tuple[int, str]]:
    """Sort key by which layer 2 comes before layer 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path.split(".")]


def _deepest(depths: Sequence[int]) -> int:
    """Return the depth of the tree that keeps the table readable."""
    deepest = SHALLOWEST
    while sum(depth <= deepest + 1 for depth in depths) <= MOST_MODULES and deepest < max(depths, default=0):
        deepest += 1
    return deepest


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
    host_times: Mapping[tuple[str, str], float],
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
            hooked = _hooked_s(timings, phase, measured.get(phase))
            if hooked is not None:
                row.measured_s, row.measured_source = hooked, "hooks"
            device = _of_component(static, label, phase, device_times)
            _add_device_time(row, _sum_of(device) if device else None)
            host = _of_component(static, label, phase, host_times)
            _add_host_time(row, sum(host) if host else None)
            rows.append(_finished(row, limits))
    return rows


def _hooked_s(timings: Timings, phase: str, stat: Stat | None) -> float | None:
    """Return a component's wall-clock; timings are of all decode steps together, rows of one."""
    if stat is None or phase != "decode":
        return None if stat is None else stat.shown
    steps = decode_steps(timings)
    return stat.shown / steps if steps else None


def _of_component(
    static: Static | None, label: str, phase: str, times: Mapping[tuple[str, str], Time]
) -> list[Time]:
    """Take a range named like the component, else those of the component's topmost modules."""
    named = times.get((label, phase))
    if named is not None or static is None:
        return [] if named is None else [named]
    modules = [m.name for m in static.modules if m.component == label and m.name]
    tops = [name for name in modules if not any(name.startswith(f"{other}.") for other in modules)]
    return [time for name in tops if (time := times.get((name, phase))) is not None]


def _sum_of(times: Sequence[ModuleTime]) -> ModuleTime:
    return ModuleTime(sum(time.device_s for time in times), sum(time.launches for time in times))


def split_component(name: str) -> tuple[str, str]:
    """Split a timing's name into component and phase: ``lm_head_prefill_s`` → (``lm_head``, ``prefill``).

    Components without a phase in their name belong to the vision tower.
    """
    label = name.removesuffix("_s")
    for phase in ("encode", "prefill", "decode"):
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


def _add_device_time(row: LedgerRow, device: ModuleTime | None) -> None:
    if device is None:
        return
    row.device_s, row.launches = device.device_s, device.launches
    if row.measured_s is None:
        row.measured_s, row.measured_source = device.device_s, "timeline"
        return
    row.others_s["timeline"] = device.device_s
    # Wall-clock includes waiting that device time does not: only device time above wall-clock is a contradiction.
    if device.device_s > row.measured_s * (1 + _TOLERANCE):
        row.disagreement = (
            f"timeline {units.seconds(device.device_s)} against {row.measured_source} "
            f"{units.seconds(row.measured_s)}"
        )


def _add_host_time(row: LedgerRow, seconds: float | None) -> None:
    if seconds is None:
        return
    if row.measured_s is None:
        row.measured_s, row.measured_source = seconds, "profiler"
        return
    row.others_s["profiler"] = seconds
    if row.measured_s > 0 and not 1 / (1 + _TOLERANCE) <= seconds / row.measured_s <= 1 + _TOLERANCE:
        row.disagreement = (
            f"profiler {units.seconds(seconds)} against {row.measured_source} {units.seconds(row.measured_s)}"
        )


def _finished(row: LedgerRow, limits: Limits) -> LedgerRow:
    """Add floor and utilisation where work, time and limits are all known."""
    floor = None
    if (
        row.flops is not None
        and row.bytes is not None
        and limits.peak is not None
        and limits.bandwidth is not None
    ):
        floor = floor_time(row.flops, row.bytes, limits.peak, limits.bandwidth)
        row.floor_s = floor.seconds
    if row.measured_s:
        if row.flops is not None and limits.peak is not None:
            row.mfu_ratio = row.flops / (row.measured_s * limits.peak.value)
        if row.bytes is not None and limits.bandwidth is not None:
            row.mbu_ratio = row.bytes / (row.measured_s * limits.bandwidth.value)
        if row.floor_s is not None and row.measured_s < row.floor_s / (1 + _TOLERANCE):
            row.disagreement = (
                f"measured {units.seconds(row.measured_s)} is below the floor {units.seconds(row.floor_s)}: "
                f"{below_floor(row.bytes if floor is not None and floor.bound == 'memory' else None)}"
            )
    return row
