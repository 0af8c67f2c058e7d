"""Every case."""

from __future__ import annotations

from tests.faults.matrix import checkpoint, configuration, data, ingest, machine, paths, report, tools

CASES = (
    *configuration.CASES,
    *checkpoint.CASES,
    *data.CASES,
    *ingest.CASES,
    *report.CASES,
    *paths.CASES,
    *tools.CASES,
    *machine.CASES,
)
