"""Captures as the generators make them, then damaged the way real ones are."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.diagnosis_captures.cases import TRAINING, all_cases, running
from benchmarks.diagnosis_captures.events import AUTOGRAD_THREAD, HostEvent, RankEvents
from benchmarks.diagnosis_captures.gpus import H100
from benchmarks.diagnosis_captures.kineto_file import write_kineto
from benchmarks.diagnosis_captures.labels import Case, World, build
from benchmarks.diagnosis_captures.nsys_file import write_nsys
from benchmarks.diagnosis_captures.programs import train

from llm_perf_opt.cli import main

MS = 1_000_000
Damage = Callable[[RankEvents], None]


@lru_cache(maxsize=8)
def _built(name: str) -> list[RankEvents]:
    return build(next(case for case in all_cases() if case.name == name)).ranks


def ranks(name: str) -> list[RankEvents]:
    """The ranks of a generated capture, free to damage."""
    return deepcopy(_built(name))


def training_ranks(count: int, steps: int, seed: int = 3) -> list[RankEvents]:
    """Ranks of a training run of so many steps."""
    plan = replace(TRAINING, steps=steps)
    return build(
        Case("run", "kineto", (), World(H100, count, clocks_ms=2.0), running(train, plan), seed=seed)
    ).ranks


# --- damages ---------------------------------------------------------------------------------------------------


def _middle(rank: RankEvents) -> int:
    starts = [event.start_ns for event in rank.host]
    return (min(starts) + max(starts)) // 2


def _shift(rank: RankEvents, after_ns: int, by_ns: int) -> None:
    for event in (*rank.host, *rank.devices):
        if event.start_ns >= after_ns:
            event.start_ns += by_ns
            event.end_ns += by_ns


def clock_jumps_back(rank: RankEvents) -> None:
    """From the middle on, all times are 15 ms too early: two halves lie on one another."""
    _shift(rank, _middle(rank), -15 * MS)


def clock_jumps_ahead(rank: RankEvents) -> None:
    """From the middle on, all times are an hour late."""
    _shift(rank, _middle(rank), 3_600_000 * MS)


def device_clock_is_early(rank: RankEvents) -> None:
    """Kernels seem to run before their launches."""
    for event in rank.devices:
        event.start_ns -= 8 * MS
        event.end_ns -= 8 * MS


def ranges_cross(rank: RankEvents) -> None:
    """Ranges of one thread that overlap without one holding the other, and one of another thread over them all."""
    first, last = rank.host[0].start_ns, rank.host[-1].end_ns
    third = (last - first) // 3
    spans = (
        (first, first + 2 * third, 0),
        (first + third, last, 0),
        (first + third // 2, last, AUTOGRAD_THREAD),
    )
    for number, (start, end, thread) in enumerate(spans):
        name = ("prefill", "decode", "decode")[number]
        rank.host.append(HostEvent("range", name, start, end, thread, 900_000 + number))


def some_correlations_missing(rank: RankEvents) -> None:
    """Every third launch has lost its number."""
    for event in [one for one in rank.host if one.kind == "call"][::3]:
        event.correlation = None


def all_correlations_missing(rank: RankEvents) -> None:
    """Nothing says which launch made which kernel."""
    for event in rank.host:
        event.correlation = None
    for device in rank.devices:
        device.correlation = None


def launches_missing(rank: RankEvents) -> None:
    """The host side is there for the second half only, as when a buffer overflows."""
    middle = _middle(rank)
    rank.host[:] = [event for event in rank.host if event.start_ns >= middle or event.kind != "call"]


def ends_before_it_starts(rank: RankEvents) -> None:
    """A few kernels have a negative length."""
    for device in rank.devices[5:50:9]:
        device.start_ns, device.end_ns = device.end_ns, device.start_ns


def _by_name(*damages: Damage) -> dict[str, Damage]:
    return {damage.__name__: damage for damage in damages}


CLOCK_DAMAGES = _by_name(clock_jumps_back, clock_jumps_ahead, device_clock_is_early)
DAMAGES = _by_name(
    ranges_cross, some_correlations_missing, all_correlations_missing, launches_missing, ends_before_it_starts
)


def half_a_collective(rank: RankEvents) -> None:
    """The capture ended while a collective ran: its launch is there, its kernel is not, nor anything after."""
    last = [event for event in rank.devices if "nccl" in event.name][-1]
    rank.devices[:] = [event for event in rank.devices if event.start_ns < last.start_ns]


# --- ingesting -------------------------------------------------------------------------------------------------

OPTIONS = {"kineto": "--trace", "nsys": "--nsys"}


def write(rank: RankEvents, folder: Path, format_: str) -> Path:
    """Write one damaged rank."""
    folder.mkdir(parents=True, exist_ok=True)
    if format_ == "nsys":
        return write_nsys(folder / f"rank{rank.rank}.sqlite", [rank])
    return write_kineto(folder / f"rank{rank.rank}_trace.json", rank)


def ranges_end_on_other_threads(path: Path) -> None:
    """Make an export's ranges start and end on different threads."""
    with sqlite3.connect(path) as database:
        database.execute(
            "UPDATE NVTX_EVENTS SET eventType = 60, endGlobalTid = globalTid + 97, rangeId = rowid WHERE end IS NOT NULL"
        )
    database.close()


def ingest(arguments: list[str], out: Path) -> tuple[int, dict[str, Any] | None]:
    """Run ``llm-perf-opt ingest``; return exit code and summary."""
    code = main(["ingest", *arguments, "--out", str(out)])
    return code, json.loads((out / "summary.json").read_text()) if code == 0 else None


def new_notes(summary: dict[str, Any], clean: list[RankEvents], format_: str, folder: Path) -> set[str]:
    """Notes that the undamaged capture does not get."""
    paths = [write(rank, folder / "clean", format_) for rank in clean]
    arguments = [part for path in paths for part in (OPTIONS[format_], str(path))]
    code, undamaged = ingest(arguments, folder / "clean-out")
    assert code == 0
    assert undamaged is not None
    return set(summary["notes"]) - set(undamaged["notes"])


def assert_possible(summary: dict[str, Any]) -> None:
    """No share above all of it, none below nothing; parts of a budget within its span."""
    for path, value in _shares(summary, ""):
        assert -1e-9 <= value <= 1 + 1e-9, f"{path} = {value}"
    for phase, budget in summary["budget"].items():
        assert sum(part["seconds"] for part in budget["parts"]) <= budget["span_s"] * (1 + 1e-6), phase
        assert sum(part["share_ratio"] for part in budget["parts"]) <= 1 + 1e-6, phase


def _shares(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, one in value.items():
            if isinstance(one, int | float) and key.endswith(("share_ratio", "busy_ratio")):
                yield f"{path}.{key}", one
            else:
                yield from _shares(one, f"{path}.{key}")
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _shares(one, f"{path}[{number}]")
