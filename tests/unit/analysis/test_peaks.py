"""Peaks of memory in use, of the whole pass and of every phase."""

from __future__ import annotations

from typing import Any

import numpy as np

from llm_perf_opt.analysis.telemetry import memory_document
from llm_perf_opt.analysis.timeline.attribution import attribute
from llm_perf_opt.captures.kineto.reader import KinetoCapture, MemorySamples
from tests.text_facts import mentions
from tests.unit.timelines import Range, make_timeline

HOST, CUDA = 0, 1
RANGES: list[Range] = [
    (10, 20, "prefill"),
    (30, 40, "decode"),
    (50, 60, "decode"),
    (52, 54, "tokenizer"),
    (70, 80, "sam"),
]


def report(*samples: tuple[int, int, int, int], device: str = "cuda:1") -> dict[str, Any] | None:
    """Samples are (time, kind of device, number, bytes in use)."""
    columns = (
        [np.array(column, np.int64) for column in zip(*samples, strict=True)]
        if samples
        else [np.empty(0)] * 4
    )
    timeline = make_timeline(ranges=RANGES)
    capture = KinetoCapture(timeline, None, MemorySamples(*columns), {})  # type: ignore[arg-type]
    return memory_document(capture, attribute(timeline), device)


def test_peaks_of_every_phase_begin_with_what_was_there() -> None:
    found = report(
        (5, CUDA, 1, 100), (12, CUDA, 1, 300), (18, CUDA, 1, 200), (35, CUDA, 1, 150), (55, CUDA, 1, 400), (59, CUDA, 1, 50),
        (70, CUDA, 1, 900),
    )  # fmt: skip
    assert found is not None
    assert (found["schema"], found["device"], found["peak_bytes"], found["events"]) == (1, "cuda:1", 900, 7)
    assert mentions(found["counts"], "allocator")
    assert found["phases"] == {
        "prefill": {"peak_bytes": 300, "begin_bytes": 100, "end_bytes": 200},
        "decode": {"peak_bytes": 400, "begin_bytes": 200, "end_bytes": 50},
    }
    assert list(found["phases"]) == ["prefill", "decode"]  # a component is not a phase


def test_a_phase_without_events_keeps_what_was_there() -> None:
    found = report((5, HOST, -1, 100), (45, HOST, -1, 70), device="cpu")
    assert found is not None
    assert not mentions(found["counts"], "allocator") and mentions(found["counts"], "pass")
    assert found["phases"]["prefill"] == {"peak_bytes": 100, "begin_bytes": 100, "end_bytes": 100}
    assert found["phases"]["decode"] == {"peak_bytes": 100, "begin_bytes": 100, "end_bytes": 70}
    late = report((15, HOST, -1, 70), device="cpu")
    assert late is not None
    assert late["phases"]["prefill"] == {"peak_bytes": 70, "begin_bytes": 0, "end_bytes": 70}


def test_other_devices_are_left_out() -> None:
    mixed = ((5, HOST, -1, 1), (6, CUDA, 0, 2), (7, CUDA, 1, 3))
    assert [report(*mixed, device=name)["peak_bytes"] for name in ("cpu", "cuda", "cuda:0", "cuda:1")] == [
        1,
        2,
        2,
        3,
    ]  # type: ignore[index]
    assert report(*mixed, device="cuda:2") is None
    assert report(device="cpu") is None
