"""Sentences shared by several reports: workload, coverage, gains, limits, methods."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from llm_perf_opt.analysis.roofline.expected_times import COMPUTE_SHARE, KERNEL_S, MEMORY_SHARE
from llm_perf_opt.analysis.roofline.what_if import Fit
from llm_perf_opt.core import units
from llm_perf_opt.hardware.silicon.installation import MISSING_TEXT, describe_tables
from llm_perf_opt.summary import (
    Compilations,
    Finding,
    Hardware,
    SiliconUse,
    Static,
    Summary,
    Timings,
    Verdict,
    WhatIf,
)

# Text on the origin of limits and times: source, date, repeats, disturbance.


_MOST_FILES = 3
"""Files that a line under a section lists by name."""

THEIR_CLOCK = "as given in the file; whether the run was warmed up and synchronised is not known"


def describe_hardware(hardware: Hardware) -> str:
    """Describe the hardware limits of the run and their source."""
    name = hardware.name or "this device"
    if hardware.source == "none":
        return f"No limits are known for {name}: {hardware.reason or 'unknown device'}."
    peaks = ", ".join(
        f"{dtype} {units.flops_per_s(peak.dense)}" for dtype, peak in hardware.peak_flops_per_s.items()
    )
    memory = units.bytes_per_s(hardware.bandwidth_bytes_per_s)
    origins = {
        "catalogue": "from the device catalogue",
        "probe": _measured_when(hardware),
        "user": "given by the user",
    }
    origin = origins.get(hardware.source, f"source: {hardware.source or 'not recorded'}")
    text = f"{name}: dense peaks {peaks or units.MISSING}; memory {memory} ({origin})."
    return f"{text} {reached}" if (reached := _describe_reached(hardware)) else text


def _describe_reached(hardware: Hardware) -> str:
    """Describe measurements on devices of this kind; empty if there are none."""
    rates = [
        f"{dtype} {units.flops_per_s(peak.dense)}" for dtype, peak in hardware.reached_flops_per_s.items()
    ]
    if hardware.reached_bandwidth_bytes_per_s is not None:
        rates.append(f"memory {units.bytes_per_s(hardware.reached_bandwidth_bytes_per_s)}")
    return f"The best measured on such a device: {', '.join(rates)}." if rates else ""


def _measured_when(hardware: Hardware) -> str:
    """Describe when the machine was measured, and whether it was disturbed."""
    text = "measured on this machine"
    if hardware.measured_at is not None:
        text += f" {hardware.measured_at[:16].replace('T', ' ')}"
    if (hardware.measurements or 1) > 1:
        text += f", the best of {hardware.measurements} measurements"
    if hardware.measured_under_load is None:
        return text
    share = hardware.measured_other_load_ratio
    used = "GPU" if hardware.kind == "gpu" else "processor"
    load = f" ({units.percent(share)} of the {used})" if share is not None else ""
    return (
        f"{text} while other programs ran{load}" if hardware.measured_under_load else f"{text}, undisturbed"
    )


_OUR_CLOCK = (
    "wall-clock per sample, warmed up, device-synchronised at phase edges, no profiler attached; "
    "median over samples and "
)
_STOPPED = {
    "asked": "as asked for",
    "narrow": "enough for a narrow interval",
    "time": "as many as the time limit allows",
    "most": "as many as are sensible",
}


def describe_clock(timings: Timings) -> str:
    """Describe how times were measured, the repeats and the precision."""
    if timings.repeats is None:
        return _OUR_CLOCK + "repeats"
    text = f"{_OUR_CLOCK}{timings.repeats} repeat{'s' if timings.repeats > 1 else ''}"
    if timings.stopped is not None:
        text += f" ({_STOPPED[timings.stopped]})"
    if timings.interval_ratio is not None:
        text += f"; the 95 % interval of a pass is {units.percent(timings.interval_ratio)} wide"
    return text


# Meaning of findings and verdicts, for non-experts. Keys are those of the summary.


PHASES = {
    "preprocess": "preparing the input",
    "vision": "looking at the image",
    "encode": "taking in the input",
    "prefill": "reading the request",
    "mixed": "reading requests and writing answers in the same step",
    "draft": "guessing the next words with a smaller model",
    "verify": "verifying draft tokens",
    "decode": "writing the answer",
    "all": "the recording as a whole",
}
BOUNDS = {
    "compute": "limited by how fast the processor can calculate",
    "memory": "limited by how fast data can be read from memory",
    "launch": "mostly waiting for instructions: the accelerator could do more, but its work is sent too late",
    "sync": "mostly waiting because the program stops to look at intermediate results",
    "communication": "mostly busy with communication between accelerators",
    "host": "mostly waiting while the computer does other work, such as preparing the next input",
    "queue": "mostly waiting for something that the recording does not show",
    "one-off": "mostly one-time preparation, such as loading and compiling programs: the recording began too early",
    "copy": "mostly busy moving data between the computer and the accelerator",
    "balanced": "well balanced: calculating and reading memory take about the same time",
    "unknown": "what limits it cannot be determined from this measurement",
}
STAGES = {
    "program": "timing the program",
    "static_analysis": "counting the model's calculations",
    "torch_profiler": "timing the model and recording its operations",
    "telemetry": "watching clock, power and memory",
    "nsys": "recording what the accelerator does",
    "ncu": "measuring single programs on the accelerator",
    "direct_inference": "answering the requests without measuring",
}


@dataclass(frozen=True, slots=True)
class Plain:
    """A finding in plain language: problem and advice."""

    problem: str
    action: str


FINDINGS = {
    "launch-bound": Plain(
        "The processor waits for its next instruction",
        "Have the engineers hand over the whole series of steps at once instead of one by one, or answer several "
        "requests together.",
    ),
    "host-sync": Plain(
        "The program stops to look at intermediate results",
        "Have the engineers keep those decisions on the accelerator, so that it never has to wait.",
    ),
    "exposed-communication": Plain(
        "The accelerators spend much time communicating, and calculate nothing meanwhile",
        "Have the engineers overlap communication with calculation, or send less.",
    ),
    "straggler": Plain(
        "One accelerator is slower than the others, and all of them wait for it",
        "Find out why that one is late: more work, a slower device, or a busy computer.",
    ),
    "input-pipeline": Plain(
        "The accelerator waits for its next input to be prepared",
        "Prepare the next input while the current one is being worked on.",
    ),
    "allocation": Plain(
        "The accelerator waits while memory is reserved and given back",
        "Have the engineers reserve the memory once and keep it.",
    ),
    "host-idle": Plain(
        "The accelerator waits while the computer does something else",
        "Have the engineers do that work at another time, or in parallel.",
    ),
    "queued-work": Plain(
        "The accelerator has work and does not start it",
        "Have the engineers look for what else uses the accelerator at that time.",
    ),
    "one-off-costs": Plain(
        "The recording contains much preparation that happens only once",
        "Record again after the program has warmed up.",
    ),
    "slow-kernels": Plain(
        "A calculation that takes much of the time runs far slower than the accelerator could do it",
        "Have the engineers try another version of that calculation.",
    ),
    "dominant-kernels": Plain(
        "The accelerator is at work all the time; one kind of calculation takes most of it",
        "Nothing waits: only faster calculations or less work make it shorter.",
    ),
    "recompilation": Plain(
        "The program repeats preparations of its calculations while it works",
        "Have the engineers keep sizes fixed, or prepare all of them before the work begins.",
    ),
    "graph-breaks": Plain(
        "The prepared calculation is interrupted by lines that cannot be prepared",
        "Have the engineers rewrite or move those lines.",
    ),
    "growing-cache": Plain(
        "The program copies everything it has read so far for every word it writes",
        "Have the engineers reserve room for the whole answer, so that nothing needs to be copied.",
    ),
    "memory-movement": Plain(
        "Much time goes into copying and rearranging data, not into calculating",
        "Have the engineers find those copies and leave them out.",
    ),
    "dispatch": Plain(
        "Much time goes into preparing many small calculations, not into calculating",
        "Have the engineers put the small calculations together, or answer several requests together.",
    ),
    "full-precision": Plain(
        "The model calculates with more digits than it usually needs",
        "Let it calculate with fewer digits, and check that the answers stay as good.",
    ),
    "full-precision-kernels": Plain(
        "Parts of the model calculate with more digits than they usually need",
        "Find those parts, let them calculate with fewer digits, and check that the answers stay as good.",
    ),
    "eager-attention": Plain(
        "The model compares words with one another in a roundabout way",
        "Have the engineers switch on the fused version of that step; the answers stay the same.",
    ),
    "misaligned-gemm": Plain(
        "Some tables have sizes that the processor reads slowly",
        "Have the engineers round those sizes up.",
    ),
    "old-flash-attention": Plain(
        "An older program is used for a step that has a faster one on this accelerator",
        "Have the engineers try the newer one, and check that the answers stay as good.",
    ),
    "far-from-measured": Plain(
        "Some steps take much longer than others measured for the same work on the same accelerator",
        "Have the engineers find out why, first of all whether the software is up to date.",
    ),
    "unfused-elementwise": Plain(
        "Much time goes into very small calculations",
        "Let a compiler join them into fewer, larger ones.",
    ),
    "copy-kernels": Plain(
        "Time is lost copying and converting data",
        "Keep the data in one form from start to end.",
    ),
    "copies": Plain(
        "The accelerator waits for data from the computer",
        "Prepare the next input while the current one is being worked on.",
    ),
    "more-work-than-needed": Plain(
        "The program calculates more than the model requires",
        "Use software that skips the parts of the model a word does not need.",
    ),
    "kv-cache-growth": Plain(
        "The model's working memory grows with the length of the text and slows it down",
        "Use shorter requests or smaller images, or store that memory with fewer digits.",
    ),
    "module-gap": Plain(
        "One part of the model runs far slower than the machine could",
        "Have the engineers look at that part first: a faster version of it, or fewer digits.",
    ),
    "vision-dominated-ttft": Plain(
        "Looking at the image takes most of the time before the first word",
        "Use smaller images where quality allows, or work on several pages together.",
    ),
    "underfilled-grids": Plain(
        "The pieces of work are too small to keep the accelerator busy",
        "Answer several requests together, so that each piece is larger.",
    ),
    "throttled": Plain(
        "The device was slowed down while it worked, by heat or by a limit",
        "Have cooling, the power limit and the share of the machine looked after, then measure again.",
    ),
    "padding-waste": Plain(
        "Short requests are filled up to the length of long ones",
        "Group requests of similar length.",
    ),
}
"""Finding id → everyday words. A finding that is not listed is shown in its own words."""
MEASUREMENT = {
    "noisy-timings": "The measurements varied from one repetition to the next, so small differences are not significant.",
    "warm-up-pollution": (
        "The first repetition was slower than the others, which makes the typical times look a little worse."
    ),
    "profiler-pollution": (
        "Recording the details slowed the program down; the times on this page were taken without recording."
    ),
}
"""Findings about the measurement itself: they say how far to trust the page, not what to change."""


def explain_finding(finding: Finding) -> Plain:
    """Return a finding in plain language."""
    return FINDINGS.get(finding.id) or Plain(finding.title, finding.advice)


_PHASE_ORDER = (
    "preprocess",
    "vision",
    "encode",
    "prefill",
    "ttft",
    "mixed",
    "draft",
    "verify",
    "decode",
    "tpot",
    "total",
    "all",
)
PHASE_NAMES = {
    "all": "whole capture",
    "mixed": "mixed steps",
    "total": "whole sample",
    "ttft": "time to first token",
    "tpot": "one output token",
}
BOUND_NAMES = {
    "compute": "compute-bound",
    "memory": "memory-bound",
    "launch": "launch-bound",
    "overhead": "overhead-bound",
    "sync": "synchronisation-bound",
    "copy": "copy-bound",
    "communication": "communication-bound",
    "host": "host-bound",
    "queue": "queue-bound",
    "one-off": "one-off costs (capture after warm-up)",
    "balanced": "balanced",
    "unknown": "undetermined",
}


def phase_name(phase: str | None) -> str:
    """Return the readable name of a phase."""
    return PHASE_NAMES.get(phase, phase) if phase else units.MISSING


def phase_rank(phase: str) -> int:
    """Order phases by their place in a request."""
    return _PHASE_ORDER.index(phase) if phase in _PHASE_ORDER else len(_PHASE_ORDER)


_FLOORS_TEXT = "Roofline floors: what no machine with these limits can beat. Real runs are slower."
SAMPLES_TEXT = (
    "Each sample separately, as medians of its repeats. Where samples differ in size, the spread above is between "
    "sizes, not noise."
)
IDLE_TEXT = (
    "Time in which a device ran nothing, by what the thread that launches its next work was doing meanwhile. Names are "
    "those of the innermost range, operator or Python function in the capture."
)


def describe_budget(summary: Summary) -> str:
    """Describe a budget and its reference."""
    text = "Every instant of the captured time counted once: the parts of a phase sum to its span."
    if len(summary.devices) > 1 or len(summary.ranks) > 1:
        text += " Each device is split separately; the mean is shown."
    rebased = [
        f"{phase_name(phase)} {units.number(budget.inflation_ratio)}"
        for phase, budget in summary.budget.items()
        if budget.inflation_ratio is not None and phase != "all"
    ]
    if rebased:
        text += (
            " Spans are wall-clocks without a profiler: the capture gives the time the device works, and how the rest is "
            f"split. Under the profiler the same work took longer by a factor: {', '.join(rebased)}."
        )
    return text


def describe_communication(summary: Summary) -> str:
    """Describe the time of communication, and which ranks wait for which."""
    talk = summary.communication
    if talk is None:
        return ""
    # Without a device the ranks communicate on the host, and other users of its cores are unknown.
    owner, alone = (
        ("device", "nothing else running") if summary.devices else ("rank", "the rank waiting in it")
    )
    text = f"Communication runs for {units.seconds(talk.total_s)} per {owner}, {units.seconds(talk.exposed_s)} of it with {alone}"
    text += f" ({units.percent(talk.share_ratio)} of the span)." if talk.share_ratio is not None else "."
    if talk.wait_s is not None:
        text += f" A rank waits in collectives for the last one to enter for {units.seconds(talk.wait_s)} on average."
    if talk.straggler is not None:
        text += f" Rank {talk.straggler} enters last in {units.percent(talk.straggler_share_ratio)} of that waiting time."
    elif talk.wait_s:
        text += " No single rank is the cause."
    return text


def describe_other_devices(summary: Summary) -> str:
    """Describe times on other devices, their source and their operating point."""
    text = describe_times(
        summary.silicon,
        expects=any(row.tpot_expected_s is not None for row in summary.what_if),
        counted=summary.static is not None and summary.static.operators is not None,
        row=next((row for row in summary.what_if if row.eager_host_s is not None), None),
    )
    return f"{text} {_describe_point(summary.what_if[0])}"


def describe_times(
    used: SiliconUse | None, *, expects: bool, counted: bool, row: WhatIf | None = None
) -> str:
    """Describe expected times and floors; ``counted``: the model's operators are known by shape."""
    if used is None:
        return _FLOORS_TEXT
    if used.version is None:
        return f"{_FLOORS_TEXT} {capitalised(used.reason or MISSING_TEXT)}."
    if not counted:
        return f"{_FLOORS_TEXT} There are no expected times: the model's operators were not counted by shape."
    if not expects:
        return f"{_FLOORS_TEXT} There are no expected times: no limits are known."
    return (
        f"Expected: the model's operators as they were timed on real devices ("
        f"{describe_tables(used.package, used.version, used.collected)}; {used.framework} kernels first), added up. "
        f"Operators without a table use a roofline at {units.percent(COMPUTE_SHARE)} of the peak and "
        f"{units.percent(MEMORY_SHARE)} of the bandwidth, plus {units.seconds(KERNEL_S)} per kernel; matrix products, attention and "
        f'experts are scaled by the median measured/roofline ratio. "measured" is the share of a step that rests on tables; '
        f"0 % for a device without any. {_describe_eager(row)}{_FLOORS_TEXT}"
    )


def _describe_eager(row: WhatIf | None) -> str:
    """Describe the launch cost assumed in eager times."""
    if row is None or row.eager_host_s is None:
        return ""
    text = f"Eager takes {units.seconds(row.eager_host_s)} of the host per operator ({row.eager_host_source})"
    return (
        f"{text}: a lower bound, the model's own code is not in it. " if row.eager_is_bound else f"{text}. "
    )


def capitalised(text: str) -> str:
    """Return text with its first letter in upper case, and the rest unchanged."""
    return text[:1].upper() + text[1:]


def _describe_point(row: WhatIf) -> str:
    """Describe the operating point of floors on other devices."""
    return f"At {row.dtype}, batch {row.batch_size}, {row.context_tokens:,} cached positions."


_NO_NAMES = ("causal LM",)
"""Names of adapters that load any model: they do not say which."""


def title_of(summary: Summary) -> str:
    """Return a title: the model, else the server, else the capture and its origin, else the device, else the run."""
    model = summary.workload.model
    if model and model not in _NO_NAMES:
        return model
    if summary.workload.architecture:
        return summary.workload.architecture
    serving = summary.serving
    if serving is not None and serving.engine:
        return f"{serving.engine} {serving.version or ''}".strip() + " under load"
    capture = next((summary.sources[kind] for kind in _CAPTURES if summary.sources.get(kind)), None)
    place = summary.hardware.name
    if capture is not None:
        name = _capture_name([one.replace("\\", "/").rstrip("/") for one in capture.split(", ")])
        return f"{name} on {place}" if place else name
    return place or model or summary.run.id


def _capture_name(files: list[str]) -> str:
    """Name one capture by its file, those of several ranks by their folder and number."""
    folders = {one.rpartition("/")[0] for one in files}
    folder = next(iter(folders)).rpartition("/")[2] if len(folders) == 1 else ""
    if len(files) == 1 or not folder:
        return files[0].rpartition("/")[2] + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    return f"{folder} ({len(files)} captures)"


_CAPTURES = ("nsys", "trace", "ncu", "serving")
TOKENS_VERIFIED = {
    True: "The first tokens match generate().",
    False: "The first tokens do NOT match generate() (see the notes).",
    None: None,
}
"""``workload.tokens_verified`` → text of a report; a note explains why nothing was checked."""


def workload_facts(summary: Summary) -> list[tuple[str, str]]:
    """Return the workload as (name, value), without unknown values."""
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
    ]
    return [(name, str(value)) for name, value in facts if value is not None]


def _compilations(found: Compilations | None) -> str | None:
    """Describe compilations before and during measuring."""
    if found is None:
        return None
    during = (
        f"{found.measured} while measuring ({units.seconds(found.measured_s)})" if found.measured else "none"
    )
    return f"{found.warmup} in the warm-up ({units.seconds(found.warmup_s)}), {during}" + (
        "" if found.measured else " while measuring"
    )


def coverage_facts(summary: Summary) -> list[tuple[str, str]]:
    """Return how much of the run is explained; unknown values are left out."""
    coverage = summary.coverage
    shares = [
        ("device time attributed to a phase", coverage.time_attributed_ratio),
        ("kernel time classified", coverage.kernel_time_classified_ratio),
        ("arithmetic (FLOPs) counted", coverage.flops_counted_ratio),
    ]
    return [(name, format_share(value)) for name, value in shares if value is not None]


def format_share(ratio: float) -> str:
    """Return a share of which 100 % means all."""
    shown = units.percent(ratio)
    return "more than 99.9 %" if ratio < 1 and shown == units.percent(1.0) else shown


_NO_SAVING = frozenset(("one-off-costs", "dominant-kernels"))
"""Findings that say where the time is, and never that it can be saved."""


def describe_gain(finding: Finding) -> str:
    """Describe the maximum gain as a time and a share."""
    if finding.id in MEASUREMENT:
        return "about the measurement, not a saving"
    if finding.id in _NO_SAVING:
        return "does not recur, so no saving" if finding.id == "one-off-costs" else "no saving is claimed"
    if finding.gain_upper_s is None:
        return "gain cannot be estimated from this data"
    text = f"at most {units.seconds(finding.gain_upper_s)}"
    if finding.gain_share_ratio is not None and finding.gain_of:
        return f"{text}, {units.percent(finding.gain_share_ratio)} of {finding.gain_of}"
    return f"{text} per sample"


def describe_shapes(static: Static) -> str:
    """Describe the shapes of the static count; empty if unknown."""
    at = static.scaling
    if at is None:
        return ""
    return (
        f" Counted for a batch of {at.batch_size:g}, a prompt of {round(at.prompt_tokens):,} tokens,"
        f" and one decode step after {round(at.context_tokens):,} cached positions."
    )


def describe_counted(static: Static) -> str:
    """Describe how much of the arithmetic was counted, and what was not."""
    ratio, left_out = static.coverage.counted_ratio, static.coverage.uncounted_ops
    if ratio is None:
        return "How much of the arithmetic was counted is not known" + (
            f": the cost of {', '.join(static.coverage.unknown_ops[:12])} is not known."
            if static.coverage.unknown_ops
            else "."
        )
    if not left_out:
        return f"Counted {format_share(ratio)} of the arithmetic."
    return f"Counted {format_share(ratio)} of the arithmetic; not counted, for want of a formula: {', '.join(left_out[:12])}."


def describe_fit(fit: Fit) -> str:
    """Describe where the model fits, the smallest devices first."""
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
        # For a user's program only captures are known: other stages would refer to another workload.
        absent = [row for row in absent if row[2] is TIMELINE_NEED]
    by_need: dict[str, list[str]] = {}
    for is_absent, name, need in absent:
        if is_absent:
            by_need.setdefault(need, []).append(name)
    return [(", ".join(names), need) for need, names in by_need.items()]


def explain_verdict(verdict: Verdict) -> str:
    """Return a verdict's arithmetic as a sentence that does not repeat the verdict."""
    return sentence(verdict.arithmetic.removeprefix("not decided; ").removeprefix("not decided: "))


def sentence(text: str) -> str:
    """Return text with a capital and a full stop; text that begins with a lower-case name is rare."""
    text = text.strip()
    return capitalised(text) + ("" if text.endswith((".", "!", "?")) else ".")


def _kernel_counters(summary: Summary) -> bool:
    return any(k.counters.get("intensity_flops_per_byte") is not None for k in summary.kernels)


def shorten_files(paths: str) -> str:
    """Shorten a long list of files, such as one capture per rank, to its first; a report lists all of them once, under "Source files"."""
    files = paths.split(", ")
    return paths if len(files) <= _MOST_FILES else f"{files[0]} and {len(files) - 1} more files"
