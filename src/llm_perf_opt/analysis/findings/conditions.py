"""Timings that vary too much to compare: a busy machine, throttling, other users."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llm_perf_opt.analysis.cpu import Overhead, had_processor_alone, overhead_of
from llm_perf_opt.analysis.findings.common import describe_phase, sample_seconds, sources
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import DECODE
from llm_perf_opt.summary import Confidence, Finding, Stat, Summary, Telemetry
from llm_perf_opt.summary.phases import CpuPart, CpuPartName, CpuWork

_SPREAD = 0.25
_FEWEST = 3
_DRIFT = 1.15


def find_noise(summary: Summary) -> list[Finding]:
    """Report a spread or a drift that makes small differences meaningless."""
    evidence = [text for name, stat in _repeated(summary) if (text := _spread(name, stat))]
    drift = summary.metrics.get("last_over_first_repeat_ratio")
    if drift is not None and drift >= _DRIFT:
        evidence.append(
            f"the last repeat took {units.number(drift)} times the first: throttling or growing load"
        )
    load, cores = summary.environment.get("load_average"), (summary.environment.get("cpu") or {}).get("cores")
    if evidence and load and cores and load[0] > cores:
        evidence.append(f"load average {load[0]:.1f} on {cores} cores when the run began")
    if not evidence:
        return []
    return [
        Finding(
            id="noisy-timings",
            title="The timings are noisy",
            phase=None,
            evidence=[*evidence, *sources(summary, "timings")],
            gain_upper_s=None,
            arithmetic="spread = (p95 − p5) ÷ median, over repeats of the same work",
            advice="Raise run.repeats, fix the clocks, keep the machine to yourself; compare runs with "
            "`llm-perf-opt compare --run`.",
            confidence="high",
        )
    ]


def _repeated(summary: Summary) -> list[tuple[str, Stat | None]]:
    """Return the spread over repeats only: samples of different sizes are expected to differ."""
    spreads = summary.repeat_spread
    return list(spreads.items())


def _spread(name: str, stat: Stat | None) -> str | None:
    if stat is None or stat.n < _FEWEST or stat.median <= 0:
        return None
    spread = (stat.p95 - stat.p5) / stat.median
    return (
        f"{name}: spread {units.percent(spread)} of the median over {stat.n} repeats"
        if spread > _SPREAD
        else None
    )


# Numbers that include something other than steady inference.


_FIRST_SLOWER = 1.3
_PROFILER_SLOWER = 1.5


def find_pollution(summary: Summary) -> list[Finding]:
    """Report a first repeat that is much slower than the rest, and a profiler that slows the profiled pass."""
    return [*_warm_up(summary), *_profiler(summary)]


def _warm_up(summary: Summary) -> list[Finding]:
    ratio = summary.metrics.get("first_repeat_ratio")
    if ratio is None or ratio < _FIRST_SLOWER:
        return []
    return [
        Finding(
            id="warm-up-pollution",
            title="The first measured pass was not warmed up",
            phase=None,
            evidence=[
                f"the first repeat took {units.number(ratio)} times the median of the others",
                *sources(summary, "timings"),
            ],
            gain_upper_s=None,
            arithmetic="a measurement problem, not a saving",
            advice="Raise infer.warmup_rounds, so that caches, autotuning and lazy initialisation are over "
            "before timing starts.",
            confidence="high",
        )
    ]


def _profiler(summary: Summary) -> list[Finding]:
    ratio = summary.metrics.get("profiled_over_unprofiled_ratio")
    if ratio is None or ratio < _PROFILER_SLOWER:
        return []
    return [
        Finding(
            id="profiler-pollution",
            title="The profiled pass is much slower than the measured ones",
            phase=None,
            evidence=[
                f"with the profiler attached the same work took {units.number(ratio)} times as long",
                *sources(summary, "trace", "timings"),
            ],
            gain_upper_s=None,
            arithmetic="shares of the operator table lean towards operators that are called often",
            advice="Trust the timings (they are taken without the profiler); use torch-profiler.min for truer shares.",
            confidence="high",
        )
    ]


# A throttled device: heat, a power limit, a container's share of the processor.


_FEWEST_SAMPLES = 10
_LEAST_SHARE = 0.05
"""Below this a reason is a hiccup."""
_NORMAL_UNDER_LOAD = frozenset({"software power cap", "power limit"})
"""A device at its power limit does what it was built for; the clock tells whether that costs much."""
_ADVICE = {
    "processor quota of the container": "raise the container's processor limit, or set run.threads to what it may use",
}
_ELSE = (
    "check cooling and the power limit (nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE; rocm-smi), and do not compare "
    "this run with one that was not throttled"
)


def find_throttling(summary: Summary) -> list[Finding]:
    """Report reasons that held for a share of the samples; reports nothing if the device does not expose them."""
    telemetry = summary.telemetry
    if telemetry is None or not telemetry.throttled_ratio or telemetry.samples < _FEWEST_SAMPLES:
        return []
    held = {reason: share for reason, share in telemetry.throttled_ratio.items() if share >= _LEAST_SHARE}
    if not held:
        return []
    order = sorted(held, key=lambda reason: (-held[reason], reason))
    gain, arithmetic = _gain(summary, telemetry, held)
    advice = dict.fromkeys(_ADVICE.get(reason, _ELSE) for reason in order)
    return [
        Finding(
            id="throttled",
            title="The device was throttled while it was measured",
            phase=None,
            evidence=[
                *(
                    f"{reason}: {units.percent(held[reason])} of {telemetry.samples} samples"
                    for reason in order
                ),
                *_circumstances(telemetry),
                *sources(summary, "telemetry"),
            ],
            gain_upper_s=gain,
            arithmetic=arithmetic,
            advice="; ".join(advice),
            confidence="medium" if set(order) <= _NORMAL_UNDER_LOAD else "high",
        )
    ]


def _gain(summary: Summary, telemetry: Telemetry, held: Mapping[str, float]) -> tuple[float | None, str]:
    """Bound the gain by the clock: no work gets faster by more than the clock does. A quota takes time, not clock."""
    if held.keys() & _ADVICE.keys():
        return None, "reasons ÷ samples; a quota takes whole stretches of time, which the clock does not show"
    seconds, clock, most = sample_seconds(summary), telemetry.clock_hz, telemetry.clock_max_hz
    if seconds is None or clock is None or most is None or clock.mean >= most:
        return None, "reasons ÷ samples; what it costs is not known without the clock and its maximum"
    lost = 1 - clock.mean / most
    return seconds * lost, (
        f"at most {units.seconds(seconds)} × (1 − mean clock {_hertz(clock.mean)} ÷ highest clock {_hertz(most)}) "
        f"= {units.seconds(seconds * lost)} per sample"
    )


def _circumstances(telemetry: Telemetry) -> list[str]:
    found = []
    if telemetry.temperature_c is not None:
        found.append(f"temperature: {telemetry.temperature_c.p95:.0f} °C (p95)")
    if telemetry.power_w is not None:
        limit = f" of {telemetry.power_limit_w:.0f} W" if telemetry.power_limit_w is not None else ""
        found.append(f"power: {telemetry.power_w.p95:.0f}{limit}{'' if limit else ' W'} (p95)")
    return found


def _hertz(value: float) -> str:
    return f"{value / 1e6:.0f} MHz"


# Where a processor spends its time apart from matrix work: a cache that grows by copying, memory movement, dispatch.
#
# The advice of these rules was tested on the default workload (docs/decisions/0010-advice-on-a-cpu.md); changes that made
# the whole answer slower there are not recommended.


_Rule = Callable[[Summary, str, CpuWork, CpuPart], Finding]
MATTERS = 0.05
"""Share of a phase from which a part is worth a word."""


def find_cpu_work(summary: Summary) -> list[Finding]:
    """Report what every phase on the processor loses, and at most what removing it would gain."""
    found = []
    for phase, work in summary.cpu_work.items():
        overhead = overhead_of(summary, phase, work)
        if overhead is not None:
            found.append(_small_operators(summary, phase, work, overhead))
        for name, make in _RULES.items():
            part = work.part(name)
            if name == "dispatch" and overhead is not None:
                continue
            if part is not None and part.share_ratio >= MATTERS:
                found.append(make(summary, phase, work, part))
    return found


def _growing_cache(summary: Summary, phase: str, work: CpuWork, part: CpuPart) -> Finding:
    evidence = [
        f"{part.operator} takes {units.percent(part.share_ratio)} of {describe_phase(phase)} in {units.count(part.calls)} calls; "
        f"model.cache={summary.workload.cache} copies all keys and values for every token",
        *_bandwidth(summary, part),
    ]
    return Finding(
        id="growing-cache",
        title="Decode copies the whole key-value cache for every token",
        phase=phase,
        evidence=[*evidence, *_basis(summary, work)],
        gain_upper_s=part.seconds,
        arithmetic=_arithmetic(work, part),
        advice="Use model.cache=preallocated: room for the whole answer is reserved at the start (prompt and infer.max_new_tokens, "
        "so a short answer holds memory that it never fills), tokens are written in place, and the answer stays the same. What "
        "it gains grows with the context; with a cache of a few megabytes it may be too little to measure. "
        "model.cache=static by itself makes decode slower on a processor, because attention then works on all of the room "
        "behind a mask; it pays only together with model.compile=true.",
        confidence=_confidence(work),
    )


def _movement(summary: Summary, phase: str, work: CpuWork, part: CpuPart) -> Finding:
    return Finding(
        id="memory-movement",
        title=f"{phase.capitalize()} copies and rearranges data",
        phase=phase,
        evidence=[
            f"copies, joins, look-ups and fills take {units.percent(part.share_ratio)} of {describe_phase(phase)} in "
            f"{units.count(part.calls)} calls, most of it in {part.operator} ({units.percent(part.operator_share_ratio)})",
            *_basis(summary, work),
        ],
        gain_upper_s=part.seconds,
        arithmetic=_arithmetic(work, part),
        advice=f"Find who calls {part.operator} (pipeline.torch_profiler.record_shapes=true gives the sizes, with_stack=true the "
        "lines; both slow the profiled pass down) and leave the copy out: keep one layout and one data type, write into a "
        "buffer that is there, use views.",
        confidence=_confidence(work),
    )


def _dispatch(summary: Summary, phase: str, work: CpuWork, part: CpuPart) -> Finding:
    evidence = [
        f"{units.percent(part.share_ratio)} of {describe_phase(phase)} is left when the work inside operators is taken off: Python, "
        f"views, and the cost of {units.count(part.calls)} operator calls",
    ]
    if work.operator_cost_s is not None:
        evidence.append(
            f"an operator on one element takes {units.seconds(work.operator_cost_s)} on this machine"
        )
    return Finding(
        id="dispatch",
        title=f"{phase.capitalize()} spends time calling operators, not computing",
        phase=phase,
        evidence=[*evidence, *_basis(summary, work)],
        gain_upper_s=part.seconds,
        arithmetic=_arithmetic(work, part),
        advice=_dispatch_advice(phase),
        confidence=_confidence(work),
    )


def _small_operators(summary: Summary, phase: str, work: CpuWork, overhead: Overhead) -> Finding:
    """Dispatch, and what matrix products take above their limit because they are too small."""
    gain_s = overhead.share * work.span_s
    return Finding(
        id="dispatch",
        title=f"{phase.capitalize()} is overhead: its operators are too small for this machine",
        phase=phase,
        evidence=[overhead.describe(), *_basis(summary, work)],
        gain_upper_s=gain_s,
        arithmetic=f"{units.percent(overhead.share)} × {units.seconds(work.span_s)} = {units.seconds(gain_s)}",
        advice=_dispatch_advice(phase),
        confidence="medium" if had_processor_alone(summary) else "low",
    )


def _dispatch_advice(phase: str) -> str:
    larger = "A larger infer.batch_size divides the same calls among more answers, each of which then takes longer."
    if phase != DECODE:
        return larger
    return (
        "Compile the decode step: model.compile=true together with model.cache=static, never the static cache alone. The first "
        "pass then compiles for a minute or more, which the timings leave out, and a mixture of experts decodes with batched "
        f"products. {larger}"
    )


_RULES: dict[CpuPartName, _Rule] = {
    "growing cache": _growing_cache,
    "movement": _movement,
    "dispatch": _dispatch,
}


def _bandwidth(summary: Summary, part: CpuPart) -> list[str]:
    """Return the bandwidth of copying the cache where its size is known: one read and one write per step."""
    phase = summary.static.phases.get(DECODE) if summary.static is not None else None
    whole, step = summary.timings.decode_s, summary.timings.tpot_s
    if (
        phase is None
        or not phase.kv_bytes
        or whole is None
        or step is None
        or step.shown <= 0
        or part.seconds <= 0
    ):
        return []
    moved = 2 * phase.kv_bytes * (whole.shown / step.shown)
    reached = moved / part.seconds
    limit = summary.hardware.bandwidth_bytes_per_s
    of = f", {units.percent(reached / limit)} of this machine's bandwidth" if limit else ""
    return [
        f"a step's cache is {units.size(phase.kv_bytes)}; reading and writing it once per token in that time is "
        f"{units.bytes_per_s(reached)}{of}"
    ]


def _basis(summary: Summary, work: CpuWork) -> list[str]:
    notes = []
    if work.of == "wall-clock" and work.profiled_ratio is not None:
        notes.append(
            f"measured against the wall-clock without a profiler; under it the same work took "
            f"{units.number(work.profiled_ratio)} times as long"
        )
    elif work.of == "profiled":
        notes.append("measured against the time under the profiler: shares of work are at least this large")
    return [*notes, *sources(summary, "trace", "timings")]


def _confidence(work: CpuWork) -> Confidence:
    return "high" if work.of == "wall-clock" else "medium"


def _arithmetic(work: CpuWork, part: CpuPart) -> str:
    return f"{units.seconds(work.span_s)} × {units.percent(part.share_ratio)} = at most {units.seconds(part.seconds)}"
