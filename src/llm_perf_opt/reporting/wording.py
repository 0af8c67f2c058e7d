"""Sentences that several reports share: the workload, coverage, gains, limits, how numbers are made."""

from __future__ import annotations

import shlex

from llm_perf_opt.analysis.expected.compose import COMPUTE_SHARE, KERNEL_S, MEMORY_SHARE
from llm_perf_opt.analysis.roofline.elsewhere import Fit
from llm_perf_opt.core import units
from llm_perf_opt.hardware.silicon.locate import MISSING_WORDS, PACKAGE
from llm_perf_opt.model.summary import (
    Compilations,
    Finding,
    SiliconUse,
    Static,
    Summary,
    Verdict,
    WhatIf,
)
from llm_perf_opt.reporting.plain_words import MEASUREMENT

PHASE_ORDER = ("preprocess", "vision", "encode", "prefill", "ttft", "mixed", "decode", "tpot", "total", "all")
PHASE_NAMES = {
    "all": "whole capture",
    "mixed": "mixed steps",
    "total": "whole sample",
    "ttft": "time to first token",
    "tpot": "one output token",
}
BOUND_NAMES = {
    "compute": "arithmetic (compute)",
    "memory": "memory bandwidth",
    "launch": "launching work",
    "sync": "synchronisation",
    "copy": "copies",
    "communication": "communication between devices",
    "host": "host work between launches",
    "queue": "work held in the queue",
    "balanced": "balanced",
    "unknown": "not decided",
}


def phase_name(phase: str | None) -> str:
    """Name a phase for people."""
    return PHASE_NAMES.get(phase, phase) if phase else units.MISSING


def phase_rank(phase: str) -> int:
    """Order phases by their place in a request."""
    return PHASE_ORDER.index(phase) if phase in PHASE_ORDER else len(PHASE_ORDER)


FLOORS_TEXT = "Roofline floors: what no machine with these limits can beat. Real runs are slower."
SAMPLES_TEXT = (
    "Every sample by itself, as medians of its repeats. Where samples differ in size, the spread above is between "
    "sizes, not noise."
)


IDLE_TEXT = (
    "Time in which a device ran nothing, by what the thread that launches its next work was doing meanwhile. Names are "
    "those of the innermost range, operator or Python function that the capture holds."
)


def budget_text(summary: Summary) -> str:
    """Say what a budget is, and what it is measured against."""
    words = "Every instant of the captured time counted once: the parts of a phase sum to its span."
    if len(summary.devices) > 1 or len(summary.ranks) > 1:
        words += " Every device is split by itself; shown is their mean."
    rebased = [
        f"{phase_name(phase)} {units.number(budget.inflation_ratio)}"
        for phase, budget in summary.budget.items()
        if budget.inflation_ratio is not None and phase != "all"
    ]
    if rebased:
        words += (
            " Spans are wall-clocks without a profiler: the capture gives the time the device works, and how the rest is "
            f"split. Under the profiler the same work took longer by a factor: {', '.join(rebased)}."
        )
    return words


def communication_text(summary: Summary) -> str:
    """Say how much time communication takes, and who waits for whom."""
    talk = summary.communication
    if talk is None:
        return ""
    # Without a device the ranks talk on the host, and who else used its cores is not known.
    whose, alone = (
        ("device", "nothing else running") if summary.devices else ("rank", "the rank waiting in it")
    )
    words = f"Communication runs for {units.seconds(talk.total_s)} per {whose}, {units.seconds(talk.exposed_s)} of it with {alone}"
    words += f" ({units.percent(talk.share_ratio)} of the span)." if talk.share_ratio is not None else "."
    if talk.wait_s is not None:
        words += f" A rank waits in collectives for the last one to enter for {units.seconds(talk.wait_s)} on average."
    if talk.straggler is not None:
        words += f" Rank {talk.straggler} is last where {units.percent(talk.straggler_share_ratio)} of that waiting arises."
    elif talk.wait_s:
        words += " No single rank is the cause."
    return words


def elsewhere_text(summary: Summary) -> str:
    """Say what times on other devices are, where they come from, and at which point they were made."""
    words = times_text(
        summary.silicon,
        expects=any(row.tpot_expected_s is not None for row in summary.what_if),
        counted=summary.static is not None and summary.static.operators is not None,
        row=next((row for row in summary.what_if if row.eager_host_s is not None), None),
    )
    return f"{words} {point_text(summary.what_if[0])}"


def times_text(used: SiliconUse | None, *, expects: bool, counted: bool, row: WhatIf | None = None) -> str:
    """Say what expected times and floors are; ``counted``: the model's operators are known by shape."""
    if used is None:
        return FLOORS_TEXT
    if used.version is None:
        return f"{FLOORS_TEXT} {capitalised(used.reason or MISSING_WORDS)}."
    if not counted:
        return f"{FLOORS_TEXT} Nothing is expected: the model's operators were not counted by shape."
    if not expects:
        return f"{FLOORS_TEXT} Nothing is expected: no limits are known."
    return (
        f"Expected: the model's operators as they were timed on real devices ({PACKAGE} {used.version}, {used.framework} kernels "
        f"first), added up. What no table holds is a roofline at {units.percent(COMPUTE_SHARE)} of the peak and "
        f"{units.percent(MEMORY_SHARE)} of the bandwidth, and {units.seconds(KERNEL_S)} a kernel, products, attention and experts times "
        f'what measured ones take of theirs in the median; "measured" says how much of a '
        f"step rests on tables, and a device without any has 0 %. {_eager_text(row)}{FLOORS_TEXT}"
    )


def _eager_text(row: WhatIf | None) -> str:
    """Say what eager times take launching an operator to cost."""
    if row is None or row.eager_host_s is None:
        return ""
    words = (
        f"Eager takes {units.seconds(row.eager_host_s)} of the host per operator ({row.eager_host_source})"
    )
    return (
        f"{words}: a lower bound, the model's own code is not in it. " if row.eager_is_bound else f"{words}. "
    )


def capitalised(text: str) -> str:
    """Return text with its first letter in upper case, and the rest as it is."""
    return text[:1].upper() + text[1:]


def point_text(row: WhatIf) -> str:
    """Say at which point floors on other devices were made."""
    return f"At {row.dtype}, batch {row.batch_size}, {row.context_tokens:,} cached positions."


_NO_NAMES = ("causal LM",)
"""Names of adapters that load any model: they do not say which."""


def title_of(summary: Summary) -> str:
    """Name what was measured: the model, else the capture and where it was made, else the device, else the run."""
    model = summary.workload.model
    if model and model not in _NO_NAMES:
        return model
    if summary.workload.architecture:
        return summary.workload.architecture
    capture = next((summary.sources[kind] for kind in _CAPTURES if summary.sources.get(kind)), None)
    place = summary.hardware.name
    if capture is not None:
        name = capture.split(", ")[0].replace("\\", "/").rstrip("/").rpartition("/")[2]
        return f"{name} on {place}" if place else name
    return place or model or summary.run.id


_CAPTURES = ("nsys", "trace", "ncu")


_TOKENS_VERIFIED = {
    True: "as generate() gives them",
    False: "NOT as generate() gives them (see the notes)",
    None: None,
}
"""``workload.tokens_verified`` → how a report says it; that nothing was checked, a note explains."""


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
        ("encoder tokens", units.count(workload.encoder_tokens) if workload.encoder_tokens else None),
        ("new tokens", units.count(workload.new_tokens) if workload.new_tokens else None),
        ("compilations", _compilations(workload.compilations)),
        ("decode step", "replayed as a CUDA graph" if workload.cuda_graphs else None),
        ("first tokens", _TOKENS_VERIFIED[workload.tokens_verified] if workload.new_tokens else None),
    ]
    return [(name, str(value)) for name, value in facts if value is not None]


def _compilations(found: Compilations | None) -> str | None:
    """Say what was compiled before and during measuring."""
    if found is None:
        return None
    during = (
        f"{found.measured} while measuring ({units.seconds(found.measured_s)})" if found.measured else "none"
    )
    return f"{found.warmup} in the warm-up ({units.seconds(found.warmup_s)}), {during}" + (
        "" if found.measured else " while measuring"
    )


def coverage_facts(summary: Summary) -> list[tuple[str, str]]:
    """Return how much of the run is explained; what no source tells is left out."""
    coverage = summary.coverage
    shares = [
        ("device time attributed to a phase", coverage.time_attributed_ratio),
        ("kernel time classified", coverage.kernel_time_classified_ratio),
        ("arithmetic (FLOPs) counted", coverage.flops_counted_ratio),
    ]
    return [(name, share_text(value)) for name, value in shares if value is not None]


def share_text(ratio: float) -> str:
    """Return a share of which 100 % means all."""
    shown = units.percent(ratio)
    return "more than 99.9 %" if ratio < 1 and shown == units.percent(1.0) else shown


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


def counted_text(static: Static) -> str:
    """Say how much of the arithmetic was counted, and what was left out of the count."""
    ratio, left_out = static.coverage.counted_ratio, static.coverage.uncounted_ops
    if ratio is None:
        return "How much of the arithmetic was counted is not known" + (
            f": the cost of {', '.join(static.coverage.unknown_ops[:12])} is not known."
            if static.coverage.unknown_ops
            else "."
        )
    if not left_out:
        return f"Counted {share_text(ratio)} of the arithmetic."
    return f"Counted {share_text(ratio)} of the arithmetic; not counted, for want of a formula: {', '.join(left_out[:12])}."


def fit_text(fit: Fit) -> str:
    """Say where the model fits, the smallest devices first."""
    need = f"It needs {units.size(fit.needed_bytes)} of memory"
    if not fit.fitting:
        return f"{need}: more than any of the {fit.known} devices of the catalogue has."
    names = [f"{row.device} ({units.size(row.memory_bytes)})" for row in fit.fitting[:3]]
    more = f" and {len(fit.fitting) - 3} more" if len(fit.fitting) > 3 else ""
    return (
        f"{need} and fits {len(fit.fitting)} of {fit.known} devices, the smallest: {', '.join(names)}{more}."
    )


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
    return capitalised(text) + ("" if text.endswith((".", "!", "?")) else ".")


def _kernel_counters(summary: Summary) -> bool:
    return any(k.counters.get("intensity_flops_per_byte") is not None for k in summary.kernels)
