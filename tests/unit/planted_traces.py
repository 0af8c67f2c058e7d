"""Real traces with a change planted in them: time is inserted, so that everything else stays as it was recorded."""

from __future__ import annotations

import bisect
import copy
import gzip
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_BEHIND_US = 100.0


def read_events(path: Path) -> list[Event]:
    """Read the events of a trace that have a duration, and what names processes and threads."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    return [event for event in events if event.get("ph") in ("X", "M") and event.get("cat") != "Trace"]


def write_trace(events: Sequence[Event], path: Path) -> Path:
    """Write events as a trace."""
    path.write_text(json.dumps({"traceEvents": list(events)}), encoding="utf-8")
    return path


def device_events(events: Iterable[Event]) -> list[Event]:
    """Return what ran on the device, in the order it ran."""
    return sorted((e for e in events if e.get("cat") in _DEVICE), key=lambda e: (e["ts"], e["dur"]))


def kernels_named(events: Iterable[Event], part: str) -> list[Event]:
    """Return the launches of kernels whose name holds ``part``."""
    return [e for e in events if e.get("cat") == "kernel" and part in e["name"]]


def insert_time(events: Sequence[Event], pauses: Sequence[tuple[float, float]]) -> list[Event]:
    """Stop the clock at each of ``(at_us, seconds_us)``: what spans it becomes longer, what follows comes later."""
    ordered = sorted(pauses)
    places = [at for at, _ in ordered]
    passed = [0.0, *itertools.accumulate(length for _, length in ordered)]
    changed = []
    for event in events:
        moved = dict(event)
        if "ts" in event and "dur" in event:
            start, end = event["ts"], event["ts"] + event["dur"]
            new_start = start + passed[bisect.bisect_right(places, start)]
            new_end = end + passed[bisect.bisect_left(places, end)]
            moved |= {"ts": new_start, "dur": max(0.0, new_end - new_start)}
        changed.append(moved)
    return changed


def slower(events: Sequence[Event], part: str, factor: float) -> list[Event]:
    """Make every launch of a kernel take ``factor`` times as long."""
    chosen = kernels_named(events, part)
    return insert_time(events, [(e["ts"] + e["dur"] / 2, e["dur"] * (factor - 1)) for e in chosen])


def launched_twice(events: Sequence[Event], part: str) -> list[Event]:
    """Launch a kernel once more after each of its launches."""
    chosen = kernels_named(events, part)
    moved = insert_time(events, [(e["ts"] + e["dur"], e["dur"]) for e in chosen])
    again = [copy.deepcopy(e) for e in kernels_named(moved, part)]
    for event in again:
        event["ts"] += event["dur"]
        event["args"].pop("correlation", None)
        event["args"].pop("External id", None)
    return [*moved, *again]


def with_pause(events: Sequence[Event], seconds_us: float) -> list[Event]:
    """Let the device idle once more, in the middle of its longest gap."""
    ran = device_events(events)
    gaps = [(b["ts"] - a["ts"] - a["dur"], a["ts"] + a["dur"]) for a, b in itertools.pairwise(ran)]
    length, start = max(gaps)
    return insert_time(events, [(start + length / 2, seconds_us)])


def with_collective(events: Sequence[Event], seconds_us: float) -> list[Event]:
    """Add an all-reduce behind everything else, with nothing beside it."""
    last = device_events(events)[-1]
    kernel = copy.deepcopy(next(e for e in events if e.get("cat") == "kernel"))
    kernel |= {
        "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ts": last["ts"] + last["dur"],
        "dur": seconds_us,
    }
    kernel["args"] = {"device": kernel["args"]["device"], "stream": kernel["args"]["stream"]}
    return [*events, kernel]


def repeated(events: Sequence[Event], times: int) -> list[Event]:
    """Play a trace of one step several times in a row, each a step of its own."""
    timed = [e for e in events if "dur" in e]
    length = max(e["ts"] + e["dur"] for e in timed) - min(e["ts"] for e in timed) + _BEHIND_US
    found = [e for e in events if "dur" not in e]
    for number in range(times):
        for event in timed:
            later = copy.deepcopy(event)
            later["ts"] += number * length
            for key in ("correlation", "External id"):
                if key in later.get("args", {}):
                    later["args"][key] += number * 10_000_000
            if later["name"].startswith("ProfilerStep"):
                later["name"] = f"ProfilerStep#{number}"
            found.append(later)
    return found


def without(events: Sequence[Event], unwanted: Callable[[Event], bool]) -> list[Event]:
    """Leave events out."""
    return [event for event in events if not unwanted(event)]


def cut_off(events: Sequence[Event], share: float) -> list[Event]:
    """Keep what ended before a share of the device's time axis had passed."""
    ran = device_events(events)
    end = ran[0]["ts"] + share * (ran[-1]["ts"] + ran[-1]["dur"] - ran[0]["ts"])
    return [
        event
        for event in events
        if "dur" not in event
        or event["ts"] + event["dur"] <= end
        or (event["ts"] < end and event["cat"] == "user_annotation")
    ]
