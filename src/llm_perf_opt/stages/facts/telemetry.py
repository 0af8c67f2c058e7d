"""Samples of a device as facts."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.analysis.facts import Facts


def telemetry_facts(path: Path) -> Facts:
    """Return what the device told, peaks of memory, and what it did not tell."""
    from llm_perf_opt.analysis.telemetry import absent_notes, memory_of, telemetry_of
    from llm_perf_opt.ingest.telemetry import read_telemetry

    document = read_telemetry(path)
    telemetry = telemetry_of(document)
    energy = telemetry.energy_j
    metrics = {
        "telemetry_cost_ratio": telemetry.cost_ratio,
        "energy_per_token_j": energy.per_token,
        "energy_per_sample_j": energy.per_sample,
    }
    return Facts(
        sources={"telemetry": (path,)},
        notes=absent_notes(document, telemetry),
        metrics={name: value for name, value in metrics.items() if value is not None},
        memory=memory_of(document),
        telemetry=telemetry,
    )
