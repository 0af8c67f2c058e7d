"""A large trace read by several processes, one part of the text each.

Decoding JSON is most of the work and keeps one core busy. The text is cut near equal shares, at a guess at a place
between two events. Every process but this one proves its end (see ``worker``); this one takes the last part and what
follows the events. If a part turns out to be anything unusual, all results are thrown away and the file is read in one go:
so the parts never change an answer, only the time it takes.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from llm_perf_opt.captures.kineto.collectives import CollectiveEvents
from llm_perf_opt.captures.kineto.columns import Columns
from llm_perf_opt.captures.kineto.decode import BETWEEN_EVENTS
from llm_perf_opt.captures.kineto.stream import GUESS_WINDOW_BYTES, EventStream
from llm_perf_opt.core.errors import InputError, ToolError

# Columns of one part of a trace as files, passed from the reading process to the main process.
#
# Plain NumPy files and one MessagePack file, which cannot execute code when read.


_FACTS = "facts.msgpack"


class _Facts(msgspec.Struct):
    """Data other than numeric columns."""

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
    """Write a part; the facts come last, so that a part without them is incomplete."""
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


def _read_part(folder: Path) -> tuple[Columns, CollectiveEvents]:
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


_LEAST_PART_BYTES = 128 << 20
"""Below this, starting a process costs more than it saves."""
_MOST_PARTS = 4
_TIMEOUT_S = 3600.0


class _Abandoned(Exception):
    """The part is no longer needed."""


def read_in_parts(path: Path, parts: int | None = None) -> tuple[EventStream, Columns] | None:
    """Read a plain, large trace with several processes; ``None`` if that is not useful or not possible.

    :class:`NeedsExactTimes` is raised as by reading in one go.
    """
    count = _number_of_parts(path) if parts is None else parts
    if count < 2:
        return None
    stream, own = EventStream(path), Columns()
    with (
        tempfile.TemporaryDirectory(prefix="llm-perf-opt-trace-") as folder,
        _Workers(path, Path(folder)) as workers,
    ):
        stream.start_last_part = lambda first, talks: workers.start(_cuts(path, first, count), talks=talks)
        try:
            for events in stream:
                own.add(events)
        except InputError:
            return None  # sequential reading reports the position of the error
        folders = workers.finished()
        if not folders:
            return None
        whole = Columns()
        for part in folders:
            columns, collectives = _read_part(part)
            whole.absorb(columns)
            stream.collectives.also(collectives)
        whole.absorb(own)
    return stream, whole


def _number_of_parts(path: Path) -> int:
    try:
        size = path.stat().st_size
    except OSError:
        return 0  # sequential reading reports the error
    return min(_MOST_PARTS, len(os.sched_getaffinity(0)), size // _LEAST_PART_BYTES)


def _cuts(path: Path, first_event: int, count: int) -> list[int]:
    """Return the start of the parts: the first event, then the first guess after each equal share."""
    size = path.stat().st_size
    cuts = [first_event]
    with path.open("rb") as stream:
        for share in range(1, count):
            place = first_event + (size - first_event) * share // count
            stream.seek(place)
            match = BETWEEN_EVENTS.search(stream.read(GUESS_WINDOW_BYTES))
            if match is not None and place + match.end() - 1 > cuts[-1]:
                cuts.append(place + match.end() - 1)
    return cuts


class _Workers:
    """The other processes; ended if they are not awaited."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path, self._folder = path, folder
        self._pool = concurrent.futures.ThreadPoolExecutor(_MOST_PARTS, thread_name_prefix="trace-part")
        self._abandoned = threading.Event()
        self._parts: list[tuple[Path, concurrent.futures.Future[bool]]] = []

    def __enter__(self) -> _Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandoned.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def start(self, cuts: list[int], *, talks: bool) -> int | None:
        """Start one process for each part but the last; return where the last one begins."""
        if len(cuts) < 2:
            return None
        for number, (begin, end) in enumerate(itertools.pairwise(cuts)):
            folder = self._folder / str(number)
            folder.mkdir()
            self._parts.append((folder, self._pool.submit(self._read, begin, end, folder, talks)))
        return cuts[-1]

    def finished(self) -> list[Path]:
        """Wait for all; return their folders in the order of the file, empty if one of them failed."""
        whole = all(future.result() for _, future in self._parts)
        return [folder for folder, _ in self._parts] if whole else []

    def _read(self, begin: int, end: int, folder: Path, talks: bool) -> bool:
        from llm_perf_opt.process.launch import run_process

        argv = [sys.executable, "-m", "llm_perf_opt.captures.kineto.parts_worker"]
        argv += [str(self._path.resolve()), str(begin), str(end), str(int(talks)), str(folder)]
        try:
            ended = run_process(
                argv, log_dir=None, name="trace-part", timeout_s=_TIMEOUT_S, on_tick=self._still_wanted
            )
        except (_Abandoned, ToolError):
            return False
        return ended.ok

    def _still_wanted(self, _elapsed_s: float) -> None:
        if self._abandoned.is_set():
            raise _Abandoned
