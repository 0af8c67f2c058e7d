"""Every case."""

from __future__ import annotations

from tests.faults.matrix import (
    checkpoint,
    clock,
    concurrency,
    configuration,
    data,
    disks,
    ingest,
    machine,
    paths,
    report,
    server,
    signals,
    tools,
    workload,
)

CASES = (
    *configuration.CASES,
    *checkpoint.CASES,
    *data.CASES,
    *ingest.CASES,
    *report.CASES,
    *paths.CASES,
    *machine.CASES,
    *disks.CASES,
    *concurrency.CASES,
    *clock.CASES,
    *tools.CASES,
    *workload.CASES,
    *server.CASES,
    *signals.CASES,
)
