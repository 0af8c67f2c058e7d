"""Sentences that several reports share: the workload, coverage, gains, limits, how numbers are made."""

from __future__ import annotations

import shlex

from llm_perf_opt.core import units
from llm_perf_opt.model.summary import (
    Finding,
    Static,
    Summary,
    Verdict,
)
from llm_perf_opt.reporting.origins import THEIR_CLOCK, clock_text
from llm_perf_opt.reporting.plain_words import MEASUREMENT

PHASE_ORDER = ("preprocess", "vision", "prefill", "ttft", "decode", "tpot", "total", "all")
PHASE_NAMES = {
    "all": "whole capture",
    "total": "whole sample",
    "ttft": "time to first token",
    "tpot": "one output token",
}
BOUND_NAMES = {
    "compute": "arithmetic (compute)",
    "memory": "memory bandwidth",
    "launch": "launching and host work",
    "sync": "synchronisation",
    "copy": "copies",
    "balanced": "balanced",
    "unknown": "not decided",
}


def phase_name(phase: str | None) -> str:
    """Name a phase for people."""
    return PHASE_NAMES.get(phase, phase) if phase else units.MISSING


def phase_rank(phase: str) -> int:
    """Order phases by their place in a request."""
    return PHASE_ORDER.index(phase) if phase in PHASE_ORDER else len(PHASE_ORDER)


def title_of(summary: Summary) -> str:
    """Name what was measured: the model, else the device, else the run."""
    return summary.workload.model or summary.hardware.name or summary.run.id


def workload_facts(summary: Summary) -> list[tuple[str, str]]:
    """Return what was run, as (name, value), unknown values left out."""
    workload = summary.workload
    facts: list[tuple[str, object]] = [
        ("own program", shlex.join(workload.program) if workload.program else None),
        ("weights", workload.weights),
        ("device", workload.device),
        ("hardware", summary.hardware.name),
        ("data type", workload.dtype),
        ("batch size", f"{round(workload.batch_size, 2):g}" if workload.batch_size else None),
        ("samples", workload.samples),
        ("prompt tokens", units.count(workload.prompt_tokens) if workload.prompt_tokens else None),
        ("of which image tokens", units.count(workload.image_tokens) if workload.image_tokens else None),
        ("new tokens", units.count(workload.new_tokens) if workload.new_tokens else None),
    ]
    return [(name, str(value)) for name, value in facts if value is not None]


def coverage_facts(summary: Summary) -> list[tuple[str, str]]:
    """Return how much of the run is explained; what no source tells is left out."""
    coverage = summary.coverage
    shares = [
        ("device time attributed to a phase", coverage.time_attributed_ratio),
        ("kernel time classified", coverage.kernel_time_classified_ratio),
        ("arithmetic (FLOPs) counted", coverage.flops_counted_ratio),
    ]
    return [(name, units.percent(value)) for name, value in shares if value is not None]


def gain_text(finding: Finding) -> str:
    """Say what solving it is worth at most, as a time and a share."""
    if finding.id in MEASUREMENT:
        return "about the measurement, not a saving"
    if finding.gain_upper_s is None:
        return "worth not bounded by the data at hand"
    text = f"at most {units.seconds(finding.gain_upper_s)}"
    if finding.gain_share_ratio is not None and finding.gain_of:
        return f"{text}, {units.percent(finding.gain_share_ratio)} of {finding.gain_of}"
    return f"{text} per sample"


def shapes_text(static: Static) -> str:
    """Say at which shapes the work was counted; empty when the static model does not tell."""
    at = static.scaling
    if at is None:
        return ""
    return (
        f" Counted for a batch of {at.batch_size:g}, a prompt of {round(at.prompt_tokens):,} tokens,"
        f" and one decode step after {round(at.context_tokens):,} cached positions."
    )


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
            "every instant of the captured span counted once: kernel running, else copy, else waiting in a "
            "synchronisation, else launching, else host",
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
    ]
    return [(name, how, source or "") for present, name, how, source in rows if present]


TIMELINE_NEED = (
    "a GPU timeline: `pipeline.nsys.enable=true` on a machine with an NVIDIA GPU, or "
    "`llm-perf-opt ingest --nsys FILE` (or `--trace FILE`)"
)
_STATIC_NEED = (
    "the static model: `pipeline.static_analysis.enable=true`, or `llm-perf-opt ingest --static FILE`"
)
_LIMITS_NEED = (
    f"{_STATIC_NEED}, and known hardware limits (`hardware.device`, `--device`); for kernels, Nsight Compute "
    "counters (`pipeline.ncu.enable=true`, `--ncu DIR`)"
)
_PEAK_NEED = (
    "a peak of this data type and the memory bandwidth of the device (`hardware.device`, `--device`, "
    "`model.dtype`)"
)
_CLOCK_NEED = "wall-clock timings: `llm-perf-opt run`, or `llm-perf-opt ingest --timings FILE`"
_TRACE_NEED = "a torch profile: `pipeline.torch_profiler.enable=true`, or `llm-perf-opt ingest --trace FILE`"


def missing_sections(summary: Summary) -> list[tuple[str, str]]:
    """Return (sections, what would produce them) for everything this summary cannot show."""
    absent = [
        (summary.wall_clock is None, "time per phase", _CLOCK_NEED),
        (not summary.budget, "wall-clock budget", TIMELINE_NEED),
        (not summary.timeline.get("lanes"), "timeline of one decode step", TIMELINE_NEED),
        (not summary.kernels, "kernels", TIMELINE_NEED),
        (
            not summary.predictions and not _kernel_counters(summary),
            "roofline",
            _LIMITS_NEED if summary.static is None else _PEAK_NEED,
        ),
        (not summary.ledger, "module ledger", _STATIC_NEED),
        (not summary.what_if, "what-if on other devices", _STATIC_NEED),
        (not summary.operators, "operators", _TRACE_NEED),
    ]
    if summary.workload.program:
        # Of a program nothing is known but what captures show: other stages would speak of another workload.
        absent = [row for row in absent if row[2] is TIMELINE_NEED]
    by_need: dict[str, list[str]] = {}
    for is_absent, name, need in absent:
        if is_absent:
            by_need.setdefault(need, []).append(name)
    return [(", ".join(names), need) for need, names in by_need.items()]


def why(verdict: Verdict) -> str:
    """Return a verdict's arithmetic as a sentence that does not repeat the verdict."""
    return sentence(verdict.arithmetic.removeprefix("not decided; "))


def sentence(text: str) -> str:
    """Return text with a capital and a full stop; what begins with a name in lower case is rare enough."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _kernel_counters(summary: Summary) -> bool:
    return any(k.counters.get("intensity_flops_per_byte") is not None for k in summary.kernels)
