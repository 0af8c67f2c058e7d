"""A device over time: one chart per quantity, because their units have nothing in common."""

from __future__ import annotations

from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Telemetry
from llm_perf_opt.reporting.charts.lines import Level, Line, line_chart
from llm_perf_opt.reporting.content.telemetry import QUANTITIES


def telemetry_charts(telemetry: Telemetry) -> list[str]:
    """Draw every series that was told, with the limit in force where there is one."""
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
