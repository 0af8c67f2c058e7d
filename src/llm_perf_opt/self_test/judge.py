"""Evaluate the known program. Pure: from facts to outcomes, so that tests can simulate faulty machines."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from llm_perf_opt.captures.timeline import OpKind, Timeline
from llm_perf_opt.core import units
from llm_perf_opt.self_test.known_work import (
    EXPECTED_OPERATORS,
    EXPECTED_PRODUCT_FLOPS,
    EXPECTED_RANGES,
    EXPECTED_REDUCED,
    EXPECTED_SUM_KERNELS,
    LEAST_PRODUCT_KERNELS,
    PRODUCT_RANGE,
    RANKS,
    ROUND_RANGE,
    SUM_RANGE,
)
from llm_perf_opt.summary import Hardware

# Result of a check: passed, failed, or not possible with the reason.


Status = Literal["passed", "failed", "not possible"]


@dataclass(slots=True)
class Outcome:
    """One check."""

    name: str
    status: Status
    said: str
    """What was compared and what came out, in a sentence."""
    fix: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """The numbers behind it."""
    claim: str = ""
    """What of a report rests on it."""
    compared: bool = True
    """False: it ended before there was anything to compare."""


def passed(name: str, message: str, /, **facts: Any) -> Outcome:
    """Return a check that found what it expected."""
    return Outcome(name, "passed", message, facts=facts)


def failed(name: str, message: str, fix: str | None = None, /, **facts: Any) -> Outcome:
    """Return a check that found something else."""
    return Outcome(name, "failed", message, fix, facts)


def broken(name: str, message: str, fix: str | None = None, /, **facts: Any) -> Outcome:
    """Return a check that failed before there was anything to compare: it refutes nothing."""
    return Outcome(name, "failed", message, fix, facts, compared=False)


def not_possible(name: str, why: str, fix: str | None = None, /, **facts: Any) -> Outcome:
    """Return a check that this machine does not allow."""
    return Outcome(name, "not possible", why, fix, facts)


_CLOCK_TOLERANCE_RATIO = 0.05
_COARSEST_STEP_NS = 1_000
_RELEASED_RATIO = 0.10
"""Of a block that was given back, so much may remain: allocators keep small change."""
_MOST_OF_SHEET_RATIO = 1.05
_LEAST_OF_SHEET_RATIO = 0.30
Facts = Mapping[str, Any]


def judge_device(facts: Facts, resolved: str) -> Outcome:
    """Compare the device that was chosen without torch with what torch offers."""
    name, offered = "device", facts.get("accelerator")
    if offered is None:
        if resolved == "cpu":
            return passed(name, "torch offers no accelerator, and runs use the CPU", **facts)
        return failed(
            name,
            f"runs would use {resolved}, and torch offers no accelerator",
            "llm-perf-opt doctor",
            **facts,
        )
    if resolved == "cpu":
        return failed(
            name,
            f"torch offers {facts.get('count')} × {offered}, and runs would use the CPU",
            f"run.device={offered}:0; and send the bundle",
            **facts,
        )
    kind = resolved.partition(":")[0]
    if kind != offered:
        return failed(
            name,
            f"runs would use {resolved}, torch's accelerator is {offered}",
            f"run.device={offered}:0",
            **facts,
        )
    return passed(name, f"{resolved} is torch's accelerator ({facts.get('name') or offered})", **facts)


def judge_clock(facts: Facts) -> list[Outcome]:
    """The host's clock against itself and the kernel's raw one, and the device's events against the host's clock."""
    step, backward, trials = (
        facts.get("smallest_step_ns"),
        facts.get("backward_steps"),
        facts.get("trials") or [],
    )
    raw = [trial["raw_s"] / trial["host_s"] for trial in trials if trial.get("raw_s") and trial.get("host_s")]
    drift = statistics.median(raw) - 1 if raw else None
    message = f"smallest step {step} ns, backward steps {backward}"
    message += f", {abs(drift):.2%} from the kernel's raw clock" if drift is not None else ""
    sound = backward == 0 and step is not None and step <= _COARSEST_STEP_NS
    sound = sound and (drift is None or abs(drift) <= _CLOCK_TOLERANCE_RATIO)
    host = (
        passed("host clock", message, **facts)
        if sound
        else failed(
            "host clock",
            message,
            "a virtual machine without a steady clock source: times cannot be trusted",
            **facts,
        )
    )
    return [host, _judge_events(trials)]


def _judge_events(trials: list[Facts]) -> Outcome:
    name = "device events"
    ratios = [
        trial["events_s"] / trial["host_s"]
        for trial in trials
        if trial.get("events_s") and trial.get("host_s")
    ]
    if not ratios:
        return not_possible(name, "the device has no events: it is the CPU, or torch records none")
    middle = statistics.median(ratios)
    message = f"the same work by events and by the host's clock: {middle:.3f} (median of {len(ratios)})"
    if abs(middle - 1) <= _CLOCK_TOLERANCE_RATIO:
        return passed(name, message, ratios=ratios)
    return failed(
        name, message, "send the bundle: times of this device by events are not the host's", ratios=ratios
    )


def judge_operators(facts: Facts) -> list[Outcome]:
    """Operators and FLOPs that the torch profiler counted."""
    found = dict(facts.get("operators") or {})
    message = ", ".join(
        f"{name} {found.get(name, 0)} of {count}" for name, count in EXPECTED_OPERATORS.items()
    )
    right = found == EXPECTED_OPERATORS
    counts = (
        passed("profiler operators", message)
        if right
        else failed("profiler operators", message, _SEND, **facts)
    )
    flops, expected = facts.get("product_flops"), EXPECTED_PRODUCT_FLOPS
    if flops is None:
        return [counts, not_possible("profiler FLOPs", "this torch counts no FLOPs of matrix products")]
    message = f"{units.flops(flops)} of {units.flops(expected)}"
    flop_check = (
        passed("profiler FLOPs", message)
        if flops == expected
        else failed("profiler FLOPs", message, _SEND, **facts)
    )
    return [counts, flop_check]


_SEND = "send the bundle: counts in reports of this machine may be wrong"


def judge_timeline(name: str, timeline: Timeline, *, kernels: str | None = None) -> list[Outcome]:
    """Ranges, and the kernels inside them, as our own reader sees a capture; ``kernels``: why there can be none."""
    ranges = Counter(timeline.names[index] for index in timeline.ranges.name.tolist())
    found = {label: ranges.get(label, 0) for label in EXPECTED_RANGES}
    message = ", ".join(f"{label} {found[label]} of {count}" for label, count in EXPECTED_RANGES.items())
    right = found == EXPECTED_RANGES
    outcome = passed(f"{name} ranges", message) if right else failed(f"{name} ranges", message, _SEND)
    outcome.facts = {"ranges": found, "warnings": list(timeline.warnings)}
    there = not_possible(f"{name} kernels", kernels) if kernels else _judge_kernels(name, timeline)
    return [outcome, there]


def _judge_kernels(name: str, timeline: Timeline) -> Outcome:
    ops, label = timeline.ops, f"{name} kernels"
    is_kernel = ops.kind == OpKind.KERNEL
    rows = ops.range[is_kernel].tolist()
    launched = int((ops.launch[is_kernel] >= 0).sum())
    inside = Counter(timeline.names[timeline.ranges.name[row]] for row in rows if row >= 0)
    sums, products = inside.get(SUM_RANGE, 0), inside.get(PRODUCT_RANGE, 0)
    facts = {"sums": sums, "products": products, "all": len(rows), "with_launch": launched}
    if not launched and len(rows) >= EXPECTED_SUM_KERNELS + LEAST_PRODUCT_KERNELS:
        message = f"{len(rows)} kernels are there, and the capture does not record which call launched them"
        return not_possible(label, message, **facts)
    message = f"{sums} kernels of {EXPECTED_SUM_KERNELS} sums, {products} of {LEAST_PRODUCT_KERNELS} products (at least)"
    right = sums == EXPECTED_SUM_KERNELS and products >= LEAST_PRODUCT_KERNELS
    return passed(label, message, **facts) if right else failed(label, message, _SEND, **facts)


def judge_graph_kernels(name: str, timeline: Timeline) -> Outcome:
    """Every node of a replayed graph must be a kernel of its round."""
    ops = timeline.ops
    rows = ops.range[ops.kind == OpKind.KERNEL].tolist()
    inside = sum(row >= 0 and timeline.names[timeline.ranges.name[row]] == ROUND_RANGE for row in rows)
    least = EXPECTED_SUM_KERNELS + LEAST_PRODUCT_KERNELS
    message = f"{inside} kernels of replayed graphs, at least {least} expected"
    facts = {"inside": inside, "all": len(rows)}
    return passed(name, message, **facts) if inside >= least else failed(name, message, _SEND, **facts)


def judge_engine(name: str, facts: Facts, eager: list[int] | None) -> Outcome:
    """Tokens must be those of ``generate()``, and every pass must have taken time."""
    times = [*facts["prefill_s"], *facts["decode_s"]]
    timed = bool(times) and all(value is not None and value > 0 for value in times)
    facts = {**facts, "same_as_eager": None if eager is None else facts["tokens"] == eager}
    if not timed:
        return failed(name, "a phase has no time", _SEND, **facts)
    decode_s = statistics.median(facts["decode_s"])
    message = (
        f"prefill {units.seconds(statistics.median(facts['prefill_s']))}, decode {units.seconds(decode_s)}, "
        f"{len(facts['tokens'])} tokens"
    )
    if facts["verified"] is None:
        return not_possible(name, f"{message}; they could not be compared with generate()", **facts)
    if facts["verified"]:
        return passed(name, f"{message}, the first match generate()", **facts)
    return failed(name, f"{message}, which differ from generate()", _SEND, **facts)


def judge_release(name: str, release: Facts | None) -> Outcome:
    """What an engine leaves on the device must be below the limit that stages check."""
    if release is None:
        return not_possible(name, "this device has no allocator to query")
    problem = release["problem"]
    message = "the device's memory is released within the limit" if problem is None else str(problem)
    return failed(name, message, _SEND, **release) if problem else passed(name, message, **release)


def judge_collective(ranks: Sequence[Facts]) -> Outcome:
    """Every rank must hold the sum of all ranks, in every element."""
    sums = [(one["low"], one["high"]) for one in ranks]
    backend = ranks[0]["backend"]
    message = f"{len(ranks)} of {RANKS} ranks by {backend}: {sums}, {EXPECTED_REDUCED} expected"
    right = len(ranks) == RANKS and set(sums) == {(EXPECTED_REDUCED, EXPECTED_REDUCED)}
    facts = {"backend": backend, "version": ranks[0].get("nccl")}
    return passed("collective", message, **facts) if right else failed("collective", message, _SEND, **facts)


def judge_memory(facts: Facts) -> Outcome:
    """A block that is given back must be gone."""
    before, held, after = (facts.get(f"{key}_bytes") for key in ("before", "held", "after"))
    block = float(facts["block_bytes"])
    if before is None or held is None or after is None:
        return not_possible("memory released", "this device does not report its memory in use", **facts)
    message = (
        f"{units.size(block)} taken: {units.size(held - before)} more in use, {units.size(max(0.0, after - before))} "
        "after giving it back"
    )
    if held - before < block * (1 - _RELEASED_RATIO):
        return failed(
            "memory released",
            message,
            "the memory a device reports does not follow what is allocated",
            **facts,
        )
    if after - before > block * _RELEASED_RATIO:
        return failed(
            "memory released", message, "a second program may find no room: run stages one at a time", **facts
        )
    return passed("memory released", message, **facts)


def judge_telemetry(facts: Facts) -> Outcome:
    """Which quantities are reported, and whether energy grows while there is work."""
    name = "telemetry"
    if "refused" in facts:
        return not_possible(name, str(facts["refused"]))
    first, second = facts["first"], facts["second"]
    reported = sorted(key for key, value in second.items() if value is not None)
    absent = dict(facts.get("absent") or {})
    message = f"{facts['reader']} tells {', '.join(reported) or 'nothing'}"
    if not reported:
        return not_possible(name, message, absent=absent)
    energy = [one.get("energy_j") for one in (first, second)]
    if None not in energy and energy[1] <= energy[0]:
        return failed(
            name,
            f"{message}; energy does not grow while the device works",
            _SEND,
            absent=absent,
            energy_j=energy,
        )
    return passed(name, message, absent=absent, reading=dict(second))


def judge_probe(hardware: Hardware) -> Outcome:
    """What was measured against the data sheet: never above it, not absurdly below."""
    name = "probe against catalogue"
    measured = {
        dtype: peak.dense / hardware.peak_flops_per_s[dtype].dense
        for dtype, peak in hardware.measured_peak_flops_per_s.items()
        if dtype in hardware.peak_flops_per_s
    }
    if hardware.bandwidth_bytes_per_s and hardware.measured_bandwidth_bytes_per_s:
        measured["bandwidth"] = hardware.measured_bandwidth_bytes_per_s / hardware.bandwidth_bytes_per_s
    facts: dict[str, Any] = {
        "device": hardware.name,
        "source": hardware.source,
        "under_load": hardware.measured_under_load,
        "measured_flops_per_s": {
            dtype: peak.dense for dtype, peak in hardware.measured_peak_flops_per_s.items()
        },
        "measured_bytes_per_s": hardware.measured_bandwidth_bytes_per_s,
    }
    if hardware.source not in ("catalogue", "user") or not measured:
        reached = ", ".join(
            [f"{dtype} {units.flops_per_s(rate)}" for dtype, rate in facts["measured_flops_per_s"].items()]
            + [f"memory {units.bytes_per_s(hardware.measured_bandwidth_bytes_per_s)}"]
        )
        return not_possible(
            name,
            f"no data sheet of {hardware.name or 'this device'} is in the catalogue; measured: {reached}",
            **facts,
        )
    message = ", ".join(f"{item} {ratio:.0%} of the data sheet" for item, ratio in measured.items())
    too_high = [item for item, ratio in measured.items() if ratio > _MOST_OF_SHEET_RATIO]
    too_low = [item for item, ratio in measured.items() if ratio < _LEAST_OF_SHEET_RATIO]
    if too_high:
        return failed(
            name,
            f"{message}: above it",
            "send the bundle: the catalogue or the measurement is wrong",
            ratios=measured,
            **facts,
        )
    if too_low:
        fix = "look for another program on the device, a power limit, throttling or another variant of it"
        return failed(name, f"{message}: far below it in {', '.join(too_low)}", fix, ratios=measured, **facts)
    return passed(name, message, ratios=measured, **facts)
