"""Every case."""

from __future__ import annotations

from tests.faults.matrix import (
    checkpoint,
    clock,
    concurrency,
    configuration,
    data,
    disks,
    foreign,
    ingest,
    machine,
    paths,
    report,
    server,
    signals,
    structure,
    tools,
    verbs,
    workload,
)

CASES = (
    *configuration.CASES,
    *checkpoint.CASES,
    *data.CASES,
    *ingest.CASES,
    *report.CASES,
    *foreign.CASES,
    *structure.CASES,
    *paths.CASES,
    *machine.CASES,
    *disks.CASES,
    *concurrency.CASES,
    *clock.CASES,
    *tools.CASES,
    *verbs.CASES,
    *workload.CASES,
    *server.CASES,
    *signals.CASES,
)
