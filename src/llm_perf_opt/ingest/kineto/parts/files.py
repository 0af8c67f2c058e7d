"""Columns of one part of a trace as files, from the process that read it to the one that wants them.

Plain NumPy files and one MessagePack file; nothing that runs code when it is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from llm_perf_opt.ingest.kineto.collectives import CollectiveEvents
from llm_perf_opt.ingest.kineto.columns import Columns

_FACTS = "facts.msgpack"


class _Facts(msgspec.Struct):
    """What is not a column of numbers."""

    names: list[str]
    threads: list[tuple[float | str, float | str]]
    ranks: list[str]
    thread_names: list[tuple[float | str, float | str, str]]
    counts: dict[str, int]
    overhead_ns: int
    impossible: int
    timed: int
    collectives: Any


def write_part(columns: Columns, collectives: CollectiveEvents, folder: Path) -> None:
    """Write what was read; the facts come last, so that a part without them is known to be unfinished."""
    for table_name, table in columns.tables().items():
        for name in table.names():
            np.save(folder / f"{table_name}.{name}.npy", table.take(name), allow_pickle=False)
    facts = _Facts(
        names=list(columns.names),
        threads=list(columns.threads),
        ranks=list(columns.ranks),
        thread_names=[(pid, tid, name) for (pid, tid), name in columns.thread_names.items()],
        counts=dict(columns.counts),
        overhead_ns=columns.overhead_ns,
        impossible=columns.impossible,
        timed=columns.timed,
        collectives=msgspec.to_builtins(collectives.found),
    )
    (folder / _FACTS).write_bytes(msgspec.msgpack.encode(facts))


def read_part(folder: Path) -> tuple[Columns, CollectiveEvents]:
    """Read what :func:`write_part` wrote."""
    facts = msgspec.msgpack.decode((folder / _FACTS).read_bytes(), type=_Facts)
    columns = Columns()
    for table_name, table in columns.tables().items():
        table.add(
            **{
                name: np.load(folder / f"{table_name}.{name}.npy", allow_pickle=False)
                for name in table.names()
            }
        )
    for ids, keys in (
        (columns.names, facts.names),
        (columns.threads, facts.threads),
        (columns.ranks, facts.ranks),
    ):
        for key in keys:
            _ = ids[key]
    columns.thread_names.update({(pid, tid): name for pid, tid, name in facts.thread_names})
    columns.counts.update(facts.counts)
    columns.overhead_ns, columns.impossible, columns.timed = facts.overhead_ns, facts.impossible, facts.timed
    return columns, CollectiveEvents.from_builtins(facts.collectives)
