"""The charts of all reports: from values of ``summary.json`` to self-contained SVG.

The general charts (bars, roofline, lines, histogram, timeline) are re-exported from their modules; the
functions here select the values of a summary. Nothing is measured or estimated in this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_perf_opt.analysis.findings.common import describe_target
from llm_perf_opt.analysis.roofline.limits import must_move_bytes
from llm_perf_opt.analysis.roofline.what_if import OtherDevices
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import REQUEST_PHASES
from llm_perf_opt.reporting.charts.axes import Kind
from llm_perf_opt.reporting.charts.bars import Segment, StackedRow, stacked_bars
from llm_perf_opt.reporting.charts.dots import Dot, DotRow, dot_chart
from llm_perf_opt.reporting.charts.lines import Level, Line, line_chart
from llm_perf_opt.reporting.charts.roofline import Roof, RooflinePoint, roofline
from llm_perf_opt.reporting.charts.svg import BUDGET_COLOURS, FAMILY_COLOURS, PHASE_COLOURS, component_colours
from llm_perf_opt.reporting.charts.timeline import Event, Lane, timeline
from llm_perf_opt.reporting.telemetry_tables import QUANTITIES
from llm_perf_opt.summary import Budget, Hardware, Kernel, Prediction, SampleTimes, Static, Telemetry

# Comparisons: samples by phase, devices by their floors.


_MOST_SAMPLES = 40


def sample_chart(samples: Sequence[SampleTimes], title: str = "Every sample, by phase") -> str:
    """Draw the wall-clock of each sample, one colour per phase; lengths compare between samples."""
    rows = [
        StackedRow(
            sample.id,
            [
                Segment(phase, getattr(sample, f"{phase}_s") or 0.0)
                for phase in ("preprocess", *REQUEST_PHASES)
            ],
        )
        for sample in samples[:_MOST_SAMPLES]
    ]
    left_out = len(samples) - len(rows)
    suffix = f" (the first {len(rows)} of {len(samples)})" if left_out else ""
    return stacked_bars(title + suffix, rows, as_share=False, colours=PHASE_COLOURS)


def other_device_chart(devices: Sequence[OtherDevices], *, first_token: bool = False) -> str:
    """Draw expected and least time per token (or to the first one) by device, and the measurement of this run's own device."""
    expects = any(each.tpot_expected_s is not None for each in devices)
    what = "time to first token" if first_token else "time per output token"
    what = f"Expected and least {what}" if expects else f"Least {what}"
    rows = []
    for each in devices:
        floor = each.ttft_floor_s if first_token else each.tpot_floor_s
        measured = each.ttft_measured_s if first_token else each.tpot_measured_s
        if floor is None:
            continue
        expected = each.ttft_expected_s if first_token else each.tpot_expected_s
        dots = [Dot(floor, _FLOOR if each.fits is not False else _TOO_SMALL)]
        low, high = (each.ttft_ends_s if first_token else each.tpot_ends_s) or (None, None)
        dots += [Dot(expected, _EXPECTED, low, high)] if expected is not None else []
        eager = None if first_token else each.tpot_eager_s or each.launch_eager_s
        # Launching one by one limits a step only if it takes longer than the floor.
        one_by_one = _AT_LEAST if each.eager_is_bound else _ONE_BY_ONE
        dots += [Dot(eager, one_by_one)] if eager is not None and eager > floor else []
        dots += [Dot(measured, _MEASURED)] if measured is not None else []
        label = _short_device(each.device) + (" (this run)" if each.is_own else "")
        term = f", {each.floor_term}" if each.floor_term is not None and not first_token else ""
        shown = f"{units.seconds(floor if expected is None else expected)}{term}"
        if measured is not None:
            shown = f"{units.seconds(measured)}, measured"
        rows.append(DotRow(label, dots, shown, each.is_own))
    return dot_chart(f"{what}, by device", rows, x_label="Time (logarithmic)", log=True)


_FLOOR = Kind("floor: no run can be faster", "circle", 0)
_TOO_SMALL = Kind("floor, but the model does not fit", "hollow", 0)
_EXPECTED = Kind("expected (90 % range): measured operators added up", "triangle", 2)
_ONE_BY_ONE = Kind("with every kernel launched by itself", "square", 3)
_AT_LEAST = Kind("with every kernel launched by itself, at least", "square", 3)
_MEASURED = Kind("measured in this run", "diamond", 5)


def _short_device(name: str) -> str:
    """Drop the vendor name to leave room for the model."""
    return name.removeprefix("NVIDIA ").removeprefix("AMD ")


_PHASE_ORDER = tuple(PHASE_COLOURS)


def _in_phase_order(names: Sequence[str]) -> list[str]:
    known = [name for name in _PHASE_ORDER if name in names]
    return known + [name for name in names if name not in known]


def budget_chart(budget: Mapping[str, Budget], title: str = "Where the wall-clock goes") -> str:
    """Draw the time budget of every phase as a full-length bar."""
    rows = [
        StackedRow(
            phase,
            [Segment(part.name, part.seconds) for part in budget[phase].parts],
            units.seconds(budget[phase].span_s),
        )
        for phase in _in_phase_order(list(budget))
    ]
    return stacked_bars(title, rows, colours={**BUDGET_COLOURS, **PHASE_COLOURS})


def component_chart(static: Static, title: str = "FLOPs by component") -> str:
    """Draw each phase's FLOPs split by component (SAM, CLIP, projector, language model, …)."""
    phases = _in_phase_order(list(static.phases))
    rows = [
        StackedRow(
            phase, [Segment(name, by_phase.get(phase, 0.0)) for name, by_phase in static.components.items()]
        )
        for phase in phases
    ]
    return stacked_bars(
        title,
        [row for row in rows if any(s.value for s in row.segments)],
        formatter=units.flops,
        colours=component_colours(static.components),
    )


def bytes_chart(static: Static, title: str = "Bytes each phase must move") -> str:
    """Draw weights and KV cache of every phase."""
    rows = [
        StackedRow(
            name,
            [Segment("weights", phase.weight_bytes or 0.0), Segment("KV cache", phase.kv_bytes or 0.0)],
        )
        for name in _in_phase_order(list(static.phases))
        for phase in [static.phases[name]]
    ]
    return stacked_bars(title, rows, formatter=units.size, as_share=False)


def phase_roofline(
    static: Static,
    hardware: Hardware,
    dtype: str,
    predictions: Mapping[str, Prediction],
    *,
    title: str = "Roofline by phase",
    focusable: bool = False,
) -> str:
    """Draw the phases under the device's roof: measured ones where they are, others hollow on the roof."""
    points = []
    for name in _in_phase_order(list(static.phases)):
        phase, graded = static.phases[name], predictions.get(name)
        # A measured prefill may hold the vision encoder: its prediction states what the floor covers.
        work = graded.flops if graded is not None and graded.flops else phase.flops
        moved = graded.bytes if graded is not None and graded.bytes else must_move_bytes(phase)
        if not work or not moved:
            continue
        speed = None
        if graded is not None and graded.error_ratio and graded.flops:
            speed = graded.flops / (graded.floor_s * graded.error_ratio)
        points.append(RooflinePoint(name, work / moved, speed, group=name))
    compute, memory = _roofs(hardware, dtype)
    return roofline(
        title,
        points,
        compute=compute,
        memory=memory,
        x_label="Arithmetic intensity (FLOP per byte of weights and KV cache)",
        focusable=focusable,
        colours=PHASE_COLOURS,
    )


def _roofs(hardware: Hardware, dtype: str) -> tuple[list[Roof], list[Roof]]:
    """Return ceilings of the device: the run's data type, float32 next to it, and measured ceilings."""
    names = [name for name in dict.fromkeys((dtype, "float32")) if name in hardware.peak_flops_per_s]
    compute = [Roof(name, hardware.peak_flops_per_s[name].dense) for name in names]
    if dtype in hardware.measured_peak_flops_per_s and hardware.source != "probe":
        compute.append(Roof(f"{dtype} measured", hardware.measured_peak_flops_per_s[dtype].dense))
    elif dtype in hardware.reached_flops_per_s:
        compute.append(Roof(f"{dtype} reached", hardware.reached_flops_per_s[dtype].dense))
    memory = []
    if hardware.bandwidth_bytes_per_s is not None:
        memory.append(Roof("memory", hardware.bandwidth_bytes_per_s))
    if hardware.measured_bandwidth_bytes_per_s is not None and hardware.source != "probe":
        memory.append(Roof("measured", hardware.measured_bandwidth_bytes_per_s))
    elif hardware.reached_bandwidth_bytes_per_s is not None:
        memory.append(Roof("reached", hardware.reached_bandwidth_bytes_per_s))
    return compute, memory


def kernel_place(kernel: Kernel) -> tuple[float, float] | None:
    """Return FLOP per byte and FLOP/s of a kernel: by its counters, else by the shapes it ran; ``None`` without either."""
    intensity = kernel.counters.get("intensity_flops_per_byte")
    speed = kernel.counters.get("achieved_flops_per_s")
    if intensity is not None and speed is not None:
        return intensity, speed
    target = kernel.target
    if target is None or not target.flops or not target.moved_bytes or target.measured_s <= 0:
        return None
    return target.flops / target.moved_bytes, target.flops / target.measured_s


def kernel_roofline(
    kernels: Sequence[Kernel],
    *,
    compute: Sequence[Roof],
    memory: Sequence[Roof],
    title: str = "Roofline by kernel",
    focusable: bool = False,
) -> str:
    """Draw every kernel whose work is known; the mark grows with its share of kernel time.

    The work comes from counters, else from recorded shapes; the best measured time of the shape is shown next to it.
    """
    points = []
    for place, kernel in enumerate(kernels):
        at = kernel_place(kernel)
        if at is None:
            continue
        target = kernel.target
        best = describe_target(target) if target is not None else None
        parts = (kernel.bound and f"{kernel.bound}-bound", kernel.phase, best)
        points.append(
            RooflinePoint(
                kernel.short_name,
                at[0],
                at[1],
                weight=kernel.share_ratio or 0.01,
                group=kernel.family,
                detail=", ".join(filter(None, parts)),
                data={"kernel": str(place), "full-name": kernel.name},
                best_flops_per_s=at[1] * target.ratio if target is not None else None,
            )
        )
    return roofline(
        title, points, compute=compute, memory=memory, focusable=focusable, colours=FAMILY_COLOURS
    )


def memory_chart(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    devices: Mapping[str, float],
    title: str = "Memory against context length",
) -> str:
    """Draw resident bytes over context tokens, one line per batch size, with device sizes as levels."""
    lines = [Line(name, list(points)) for name, points in curves.items()]
    highest = max((value for points in curves.values() for _, value in points), default=0.0)
    # A level far above every line would flatten the chart; the next larger size is sufficient.
    smaller = [Level(name, size) for name, size in devices.items() if size <= highest]
    larger = sorted((size, name) for name, size in devices.items() if size > highest)[:1]
    levels = smaller + [Level(name, size) for size, name in larger if size <= 3 * highest]
    return line_chart(
        title,
        lines,
        x_label="Context (tokens)",
        y_label="Resident memory",
        levels=levels,
        x_format=_format_count,
    )


def _format_count(value: float | None) -> str:
    """Format token counts exactly, with thin gaps: 32 768."""
    return units.MISSING if value is None else f"{value:,.0f}".replace(",", "\u202f")


def timeline_chart(value: Mapping[str, Any], title: str = "One decode step") -> str:
    """Draw ``summary.timeline``."""
    lanes = [
        Lane(
            str(lane["name"]),
            [
                Event(str(e["name"]), float(e["start_s"]), float(e["end_s"]), str(e.get("family") or ""))
                for e in lane.get("events", ())
            ],
        )
        for lane in value.get("lanes", ())
    ]
    return timeline(title, lanes, span_s=value.get("span_s"), colours=FAMILY_COLOURS)


# A device over time: one chart per quantity, because their units differ.


def telemetry_charts(telemetry: Telemetry) -> list[str]:
    """Draw every series that was reported, with the limit in force where there is one."""
    limits = {
        "clock_hz": ("highest clock", telemetry.clock_max_hz),
        "power_w": ("power limit", telemetry.power_limit_w),
    }
    drawn = []
    for series in telemetry.series:
        if series.name not in QUANTITIES:
            continue
        name, show = QUANTITIES[series.name]
        label, limit = limits.get(series.name, ("", None))
        title = name[:1].upper() + name[1:]
        drawn.append(
            line_chart(
                f"{title} during the measured passes",
                [Line(name, series.points)],
                x_label="since the first measured pass began",
                y_label=title,
                levels=[Level(label, limit)] if limit is not None else [],
                x_format=units.seconds,
                y_format=show,
            )
        )
    return drawn
