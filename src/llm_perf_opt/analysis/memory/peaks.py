"""Memory in use over one pass: the peak, and the peak of every phase."""

from __future__ import annotations

from typing import Any

import numpy as np

from llm_perf_opt.analysis.timeline.attribution import Attribution
from llm_perf_opt.ingest.kineto.reader import KinetoCapture

_HOST, _CUDA = 0, 1


def memory_document(capture: KinetoCapture, attribution: Attribution, device: str) -> dict[str, Any] | None:
    """Return ``memory.json``: what the device's allocator had in use; ``None`` when it reported nothing.

    CUDA's allocator reports everything it holds, weights included. The host's counts from the start of the
    profile, so a CPU run shows what the pass itself added.
    """
    on_cuda = device.startswith("cuda")
    number = int(device.partition(":")[2] or 0)
    samples = capture.memory
    mine = samples.device_type == (_CUDA if on_cuda else _HOST)
    if on_cuda:
        mine &= samples.device == number
    time, used = samples.time_ns[mine], samples.allocated_bytes[mine]
    if not len(time):
        return None
    return {
        "schema": 1,
        "device": device,
        "counts": "everything the allocator holds" if on_cuda else "allocated since the pass began",
        "peak_bytes": int(used.max()),
        "events": len(time),
        "phases": _by_phase(capture, attribution, time, used),
    }


def _by_phase(
    capture: KinetoCapture, attribution: Attribution, time: Any, used: Any
) -> dict[str, dict[str, int]]:
    ranges = capture.timeline.ranges
    found: dict[str, dict[str, int]] = {}
    for path, meaning in enumerate(attribution.meanings):
        if meaning.role != "phase" or meaning.phase is None:
            continue
        for row in np.flatnonzero(attribution.paths.of_range == path).tolist():
            first, last = np.searchsorted(time, (ranges.start_ns[row], ranges.end_ns[row]))
            before = int(used[first - 1]) if first else 0
            inside = used[first:last]
            peak = max(before, int(inside.max(initial=0)))
            after = int(inside[-1]) if len(inside) else before
            entry = found.setdefault(
                meaning.phase, {"peak_bytes": peak, "begin_bytes": before, "end_bytes": after}
            )
            entry["peak_bytes"] = max(entry["peak_bytes"], peak)
            entry["end_bytes"] = after
    return {phase: found[phase] for phase in attribution.phases if phase in found}
