"""How each number of a report was made, and where it comes from."""

from __future__ import annotations

from llm_perf_opt.model.summary import Summary
from llm_perf_opt.reporting.origins import THEIR_CLOCK, clock_text


def _peak_source(summary: Summary) -> str:
    peak = summary.hardware.peak_flops_per_s.get(summary.workload.dtype or "")
    return peak.source if peak is not None else summary.hardware.source


def methods(summary: Summary) -> list[tuple[str, str, str]]:
    """Return (number, how it was made, file it comes from) for the numbers this summary holds."""
    sources = summary.sources
    rows: list[tuple[bool, str, str, str]] = [
        (
            summary.wall_clock is not None,
            "times",
            clock_text(summary.timings) if summary.stages else THEIR_CLOCK,
            sources.get("timings") or summary.timings.source or "",
        ),
        (
            summary.timings.program_s is not None,
            "wall-clock of the program",
            "from the start of its process to its end, no tool attached; median of the runs",
            sources.get("timings") or summary.timings.source or "",
        ),
        (
            summary.static is not None,
            "FLOPs and bytes",
            "counted from the model's operators"
            + (" at the shapes of this run" if summary.wall_clock is not None and summary.stages else "")
            + "; a multiply-add is two FLOPs",
            sources.get("static", ""),
        ),
        (
            any(use.mfu_ratio is not None for use in summary.utilisation.values()),
            "MFU (model FLOPs utilisation)",
            "counted FLOPs ÷ (mean wall-clock × dense peak of the data type)",
            _peak_source(summary),
        ),
        (
            any(use.mbu_ratio is not None for use in summary.utilisation.values()),
            "MBU (memory bandwidth utilisation)",
            "weights read once and KV cache ÷ (mean wall-clock × memory bandwidth)",
            summary.hardware.bandwidth_source or summary.hardware.source,
        ),
        (
            bool(summary.predictions),
            "floors",
            "the longer of FLOPs ÷ peak and bytes ÷ bandwidth: perfect overlap, no launch cost, so no run "
            "can be faster",
            sources.get("static", ""),
        ),
        (
            bool(summary.budget),
            "wall-clock budget",
            "every instant of the span counted once, device by device: a kernel that computes, else a copy, else communication; "
            "an idle gap goes to what the thread that launches the next operation was doing, or to the queue when it had been "
            "launched; against the unprofiled wall-clock where there is one",
            sources.get("nsys") or sources.get("trace", ""),
        ),
        (
            any(use.device_busy_ratio is not None for use in summary.utilisation.values()),
            "device busy",
            "union of all device activity ÷ wall-clock"
            if summary.budget
            else "sum of all kernel and copy times ÷ wall-clock: streams that overlap count twice, so an upper bound",
            sources.get("nsys") or sources.get("trace", ""),
        ),
        (
            any(kernel.total_s is not None for kernel in summary.kernels),
            "kernel times",
            "device time of every launch, summed by full name; the family follows from the name",
            sources.get("nsys") or sources.get("trace", ""),
        ),
        (
            any(kernel.bound for kernel in summary.kernels),
            "what bounds a kernel",
            "our class from its counters, beside the verdict of NVIDIA's own rules",
            sources.get("ncu", ""),
        ),
        (
            bool(summary.operators),
            "operator times",
            "one profiled pass; the profiler adds time, so compare shares, not seconds",
            sources.get("trace", ""),
        ),
        (
            bool(summary.ledger),
            "module ledger",
            "static work joined with the measurement nearest to the truth; other sources stand beside it "
            "and a disagreement is shown",
            "",
        ),
        (
            bool(summary.findings),
            "gains",
            "upper bounds: the whole of the time that the problem touches; they overlap and do not add up",
            "",
        ),
        (
            bool(summary.what_if),
            "what-if",
            "the same floors with another device's limits",
            "device catalogue",
        ),
        (
            any(row.tpot_expected_s is not None for row in summary.what_if),
            "expected times",
            "operators of the static model, each by the nearest measured shapes on that device, added up; shared among "
            "devices by outputs and inputs of weights, with measured all-reduces",
            _silicon_source(summary),
        ),
    ]
    return [(name, how, source or "") for present, name, how, source in rows if present]


def _silicon_source(summary: Summary) -> str:
    used = summary.silicon
    return f"aiconfigurator-core {used.version}" if used is not None and used.version else ""
