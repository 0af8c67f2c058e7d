"""How busy the device was, from kernel tables without a time axis and the wall-clock of unprofiled passes."""

from __future__ import annotations

import math

from llm_perf_opt.analysis.facts import Capture
from llm_perf_opt.analysis.join import Joined
from llm_perf_opt.analysis.verdicts import BUSY_ENOUGH, measured_passes
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.model.summary import Summary, Utilisation

_OVERLAP = "streams that overlap are counted twice, so this is an upper bound"


def busy_from_totals(summary: Summary, joined: Joined) -> None:
    """Relate the kernel time of tables to the wall-clock: of each range they are of, else of the whole run."""
    if joined.has_time_axis or WHOLE in joined.device_busy_ratio or not joined.metrics.get("kernel_time_s"):
        return
    ranges = [
        capture for capture in joined.used_captures if capture.range is not None and capture.range.phase
    ]
    for capture in ranges:
        _busy_of_range(summary, joined, capture)
    if not ranges and None not in joined.truncated:
        _busy_of_run(summary, joined)


def _busy_of_run(summary: Summary, joined: Joined) -> None:
    """Kernel time of the whole capture against the wall-clock of all samples."""
    busy = (joined.metrics.get("kernel_time_s") or 0.0) + (joined.metrics.get("copy_s") or 0.0)
    first, decode = summary.timings.ttft_s, summary.timings.decode_s
    passes = measured_passes(summary.workload)
    if passes is None:
        return
    # Without the time of the other phases this still bounds how busy a timed phase can have been.
    summary.metrics["device_busy_s"] = busy
    if first is None or decode is None:
        return
    wall = passes * (first.median + decode.median)
    of = "samples" if passes == summary.workload.samples else "batches"
    summary.metrics["measured_wall_s"] = wall
    use = summary.utilisation.setdefault(WHOLE, Utilisation())
    use.device_busy_ratio = min(1.0, busy / wall)
    use.arithmetic = f"{busy:.3f} s of device work ÷ ({passes} {of} × ({first.median:.4f} + {decode.median:.4f}) s); {_OVERLAP}"
    if busy > wall:
        summary.notes.append(
            "The kernel table holds more device time than the wall-clock file: they are not of the same run, "
            "or streams overlap."
        )


def _busy_of_range(summary: Summary, joined: Joined, capture: Capture) -> None:
    """Kernel time of one phase against that phase's own wall-clock; a part of a phase says nothing of all of it."""
    of = capture.range
    if of is None or of.phase is None or of.component is not None or of.phase in joined.truncated:
        return
    stat = getattr(summary.timings, f"{of.phase}_s", None)
    busy = sum(kernel.total_s or 0.0 for kernel in capture.facts.kernels)
    if stat is None or not stat.median or not busy:
        return
    least = max(1, math.ceil(busy / stat.median - 1e-9))
    passes = of.passes or least
    ratio = busy / (passes * stat.median)
    most = measured_passes(summary.workload)
    if of.passes is None and ratio >= BUSY_ENOUGH and most != least:
        low = busy / (most * stat.median) if most is not None and most > least else 0.0
        summary.notes.append(
            f"The kernel table of {of.name} does not say how many passes it holds: the device is busy for "
            f"{units.percent(low)} to {units.percent(ratio)} of {of.phase}, which decides nothing."
        )
        return
    held = f"{passes} {'pass' if passes == 1 else 'passes'}" + (
        "" if of.passes else ", the fewest it can hold"
    )
    use = summary.utilisation.setdefault(of.phase, Utilisation())
    use.device_busy_ratio = min(1.0, ratio)
    words = f"busy: {busy:.6f} s of device work ÷ ({held} × {stat.median:.4f} s of {of.phase}); {_OVERLAP}"
    use.arithmetic = f"{use.arithmetic}; {words}" if use.arithmetic else words
