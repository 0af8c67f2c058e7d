"""Memory and telemetry in ``report.html``."""

from __future__ import annotations

from llm_perf_opt.model.summary import Summary
from llm_perf_opt.reporting.charts.telemetry import telemetry_charts
from llm_perf_opt.reporting.content.telemetry import (
    energy_table,
    memory_table,
    memory_text,
    telemetry_table,
    telemetry_text,
)
from llm_perf_opt.reporting.html.blocks import Block, chart_block, source_block, table_block, text_block


def memory_blocks(summary: Summary) -> list[Block]:
    """Return the peaks by phase; nothing where memory was not watched."""
    if not summary.memory:
        return []
    return [
        table_block(memory_table(summary), "memory"),
        text_block(memory_text(summary), quiet=True),
        *source_block(summary.sources.get("memory")),
    ]


def telemetry_blocks(summary: Summary) -> list[Block]:
    """Return what the device told, over time and as numbers; nothing without the telemetry stage."""
    told = summary.telemetry
    if told is None:
        return []
    tables = (
        (telemetry_table(told), "telemetry", "Over the samples"),
        (energy_table(told), "energy", "Energy"),
    )
    return [
        text_block(telemetry_text(told)),
        *(chart_block(svg) for svg in telemetry_charts(told)),
        *(table_block(table, name, title) for table, name, title in tables if table),
        *source_block(summary.sources.get("telemetry")),
    ]
