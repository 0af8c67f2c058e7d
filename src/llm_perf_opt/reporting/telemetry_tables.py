"""What a device reported, and memory against the static model, as tables and text."""

from __future__ import annotations

from collections.abc import Callable

from llm_perf_opt.core import units
from llm_perf_opt.reporting.tables import Cell, Table, columns, num, simple, text
from llm_perf_opt.reporting.wording import phase_name, phase_rank
from llm_perf_opt.summary import MemoryUse, Stat, Summary, Telemetry

Formatter = Callable[[float | None], str]


def hertz(value: float | None) -> str:
    """``1.98e9`` → ``1980 MHz``."""
    return units.MISSING if value is None else f"{value / 1e6:.0f} MHz"


def watts(value: float | None) -> str:
    """``412.7`` → ``413 W``."""
    return units.number(value, "W")


def celsius(value: float | None) -> str:
    """``64.0`` → ``64.0 °C``."""
    return units.number(value, "°C")


def joules(value: float | None) -> str:
    """``0.0312`` → ``0.0312 J``."""
    return units.number(value, "J")


QUANTITIES: dict[str, tuple[str, Formatter]] = {
    "clock_hz": ("clock", hertz),
    "power_w": ("power", watts),
    "temperature_c": ("temperature", celsius),
    "memory_bytes": ("memory in use", units.size),
}
"""Field of :class:`Telemetry` → its name and how it is shown."""


def describe_telemetry(telemetry: Telemetry) -> str:
    """Describe what was sampled, how often and at which cost."""
    who = (
        f"{telemetry.device} by {telemetry.reader}"
        if telemetry.reader
        else "No library reported on the device"
    )
    if not telemetry.reader:
        return f"{who}; see the notes for the reason."
    return (
        f"{who}: {telemetry.samples} samples in {units.seconds(telemetry.span_s)} of measured passes, one every "
        f"{units.seconds(telemetry.interval_s)}. Sampling took {units.percent(telemetry.cost_ratio)} of one processor. "
        f"{_describe_throttling(telemetry)}"
    )


def _describe_throttling(telemetry: Telemetry) -> str:
    if telemetry.throttled_ratio is None:
        return "Throttling was not reported."
    if not telemetry.throttled:
        return "No throttling was reported."
    shares = telemetry.throttled_ratio
    held = ", ".join(f"{reason} ({units.percent(shares[reason])})" for reason in telemetry.throttled)
    return f"Throttled, with the share of the samples: {held}."


def telemetry_table(telemetry: Telemetry) -> Table:
    """Return one row per quantity that was reported."""
    limits = {"clock_hz": telemetry.clock_max_hz, "power_w": telemetry.power_limit_w}
    rows = []
    for field, (name, show) in QUANTITIES.items():
        stat: Stat | None = getattr(telemetry, field)
        if stat is not None:
            values = (stat.p5, stat.median, stat.p95, limits.get(field))
            rows.append([text(name), *(num(value, show) for value in values)])
    return simple(columns("quantity", "p5#", "median#", "p95#", "limit#"), rows)


def energy_table(telemetry: Telemetry) -> Table:
    """Return the energy of the measured passes; empty where no meter reported it."""
    energy = telemetry.energy_j
    if energy.total is None:
        return simple(columns("energy", "value#"), [])
    rows = [
        [text(name), num(value, joules)]
        for name, value in (
            ("per generated token", energy.per_token),
            ("per sample", energy.per_sample),
            ("measured passes", energy.total),
        )
    ]
    return simple(columns("energy", "value#"), rows)


def memory_table(summary: Summary) -> Table:
    """Return the memory in use by phase, next to the static model; columns without a value are left out."""
    phases = sorted(summary.memory, key=phase_rank)
    shown: list[tuple[str, Callable[[MemoryUse], float | None]]] = [
        ("peak#", lambda use: use.peak_bytes),
        ("predicted#", lambda use: use.predicted_bytes),
        ("reserved#", lambda use: use.reserved_bytes),
        ("at its begin#", lambda use: use.begin_bytes),
        ("at its end#", lambda use: use.end_bytes),
    ]
    kept = [
        (label, value)
        for label, value in shown
        if any(value(summary.memory[phase]) is not None for phase in phases)
    ]
    rows: list[list[Cell]] = [
        [text(phase_name(phase)), *(num(value(summary.memory[phase]), units.size) for _, value in kept)]
        for phase in phases
    ]
    return simple(columns("phase", *(label for label, _ in kept)), rows)


def describe_memory(summary: Summary) -> str:
    """Describe what the peaks count and the basis of the prediction."""
    counts = {use.counts for use in summary.memory.values()}
    if counts == {"process"}:
        counted = (
            "What the process gained since before the model was built: also scratch of libraries and what the host's "
            "allocator keeps. Reserved: the whole process."
        )
    elif counts == {"allocator"}:
        counted = (
            "All memory the device's allocator has allocated. Reserved: memory it holds from the driver."
        )
    elif summary.workload.device == "cpu":
        counted = "As the allocator reported it in a pass of its own: allocated since the pass began."
    else:
        counted = "As the allocator reported it in a separate pass: all memory the allocator has allocated."
    if any(use.predicted_bytes is not None for use in summary.memory.values()):
        counted += (
            " Predicted: weights, cache at the phase's end and, in the phase that has it, the largest operator; "
            "nothing for what the runtime and libraries need."
        )
    return counted
