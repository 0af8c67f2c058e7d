"""One profiled launch, from raw metrics to checked quantities: SI values, work by precision, ceilings, violations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.ncu.metrics import QUANTITIES, find
from llm_perf_opt.captures.ncu.units import parse_unit, significant_step
from llm_perf_opt.core import units

if TYPE_CHECKING:
    from llm_perf_opt.captures.ncu.launches import NcuLaunch, NcuRule, Quantity


# Floating-point work of a launch, by precision, from whatever counters the capture carries.
#
# Counted are operations (a fused multiply-add is two). Vector units: ``add + mul + 2 × fma`` of the
# predicated-on thread instructions, as in NVIDIA's own roofline. Tensor cores: ``sm__ops_path_tensor_src_*``, which count
# operations directly. Precisions are not added up: they have different ceilings.


_VECTOR = {"fp32": "f", "fp64": "d", "fp16": "h"}
_TENSOR_ID = re.compile(
    r"(?:sm|smsp)__ops_path_tensor(?:_op_(?P<op>[a-z]+))?_src_(?P<src>[a-z0-9_]+?)(?:_dst_(?P<dst>[a-z0-9]+))?"
    r"(?:_sparsity_(?P<sparsity>on|off))?\.sum(?P<rest>\.per_cycle_elapsed|\.peak_sustained|)"
)
_TENSOR_LABEL = re.compile(
    r"Roofline.*/(?P<kind>DRAM Achieved Value|DRAM Roofline) \(Src:(?P<src>\w+)(?: Dst:(?P<dst>\w+))?"
    r"(?: Sparsity:(?P<sparsity>on|off))?\)/(?:Theoretical )?Tensor Operations"
)
_INTEGER = re.compile(r"int\d+")


@dataclass(frozen=True, slots=True)
class Work:
    """Operations of one precision."""

    precision: str
    """``fp32``, ``fp64``, ``fp16``, ``tensor_bf16``, ``tensor_fp16``, ``tensor_tf32``, …"""
    flops: float
    """Operations of the launch."""
    source: str
    """Counters it came from."""


@dataclass(frozen=True, slots=True)
class _TensorCount:
    source: str
    destination: str
    operation: str
    sparsity: str
    value: float


def measured_work(
    metrics: Mapping[str, Quantity], duration_s: float | None, frequency_hz: float | None
) -> list[Work]:
    """Return the work of every precision that was counted (zero included), largest first.

    Counters that exist only per cycle need the clock and the duration to become a number of operations.
    """
    cycles = duration_s * frequency_hz if duration_s and frequency_hz else None
    found = [work for precision in _VECTOR if (work := _vector_work(metrics, precision, cycles))]
    found += _tensor_work(metrics, cycles)
    return sorted(found, key=lambda work: (-work.flops, work.precision))


def peak_rates(metrics: Mapping[str, Quantity], frequency_hz: float | None) -> dict[str, float]:
    """Return the device's own ceilings (operations per second) that the capture carries, by precision."""
    if not frequency_hz:
        return {}
    peaks: dict[str, float] = {}
    for precision, letter in _VECTOR.items():
        name = f"sm__sass_thread_inst_executed_op_{letter}fma_pred_on.sum.peak_sustained"
        label = f"Theoretical Predicated-On {letter.upper()}FMA Thread Instructions Executed"
        value = _by_id_or_label(metrics, name, label)
        if value:
            peaks[precision] = 2 * value * frequency_hz
    for precision, counts in _tensor_counts(metrics, ".peak_sustained").items():
        dense = [count.value for count in counts if count.sparsity != "on" and count.value > 0]
        if dense:
            peaks[precision] = max(dense) * frequency_hz
    return peaks


def _vector_work(metrics: Mapping[str, Quantity], precision: str, cycles: float | None) -> Work | None:
    letter = _VECTOR[precision]
    weights = {f"{letter}add": 1, f"{letter}mul": 1, f"{letter}fma": 2}
    for unit in ("smsp", "sm"):
        names = {op: f"{unit}__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in weights}
        values = {op: _value(metrics, name) for op, name in names.items()}
        if None not in values.values():
            total = sum(weights[op] * value for op, value in values.items() if value is not None)
            return Work(precision, total, " + ".join(f"{weights[op]}×{name}" for op, name in names.items()))
    if cycles is None:
        return None
    per_cycle = {
        op: _by_id_or_label(
            metrics,
            f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed",
            f"Predicated-On {op.upper()} Thread Instructions Executed Per Cycle",
        )
        for op in weights
    }
    if None in per_cycle.values():
        return None
    rate = sum(weights[op] * value for op, value in per_cycle.items() if value is not None)
    return Work(precision, rate * cycles, f"{letter}add + {letter}mul + 2×{letter}fma per cycle × cycles")


def _tensor_work(metrics: Mapping[str, Quantity], cycles: float | None) -> list[Work]:
    work = []
    absolute = _tensor_counts(metrics, "")
    for precision, counts in absolute.items():
        work.append(Work(precision, _total(counts), "sm__ops_path_tensor_src_*.sum"))
    if cycles is not None:
        for precision, counts in _tensor_counts(metrics, ".per_cycle_elapsed").items():
            if precision not in absolute:
                work.append(
                    Work(precision, _total(counts) * cycles, "sm__ops_path_tensor_src_*.per_cycle × cycles")
                )
    return work


def _tensor_counts(metrics: Mapping[str, Quantity], suffix: str) -> dict[str, list[_TensorCount]]:
    """Collect tensor counters of one kind by precision; integer types are left out: they are not FLOPs."""
    found: dict[str, list[_TensorCount]] = {}
    for name in metrics:
        if "ops_path_tensor" not in name and "Tensor Operations" not in name:
            continue
        match = _TENSOR_ID.fullmatch(name)
        if match:
            if match.group("rest") != suffix:
                continue
            operation = match.group("op") or ""
        else:
            match = _TENSOR_LABEL.search(name)
            kind = {".per_cycle_elapsed": "DRAM Achieved Value", ".peak_sustained": "DRAM Roofline"}
            if not match or kind.get(suffix) != match.group("kind"):
                continue
            operation = ""
        value = metrics[name].value
        if value is None or _INTEGER.fullmatch(match.group("src")):
            continue
        count = _TensorCount(
            match.group("src"),
            match.group("dst") or "",
            operation,
            match.group("sparsity") or "",
            value,
        )
        found.setdefault(f"tensor_{count.source}", []).append(count)
    return found


def _total(counts: list[_TensorCount]) -> float:
    """Add up counters without counting a total and its parts twice.

    Totals and parts can be present together: ``src_fp16`` over all destinations, ``…_dst_fp32`` over sparsity
    on and off, and each of them over the instruction (``op_hmma``, ``op_hgmma``). The coarsest level counts.
    """
    destinations = {count.destination for count in counts}
    wanted = {""} if "" in destinations else destinations
    total = 0.0
    for destination in wanted:
        group = [count for count in counts if count.destination == destination]
        operations = {count.operation for count in group}
        for operation in {""} if "" in operations else operations:
            parts = [count for count in group if count.operation == operation]
            whole = [count.value for count in parts if not count.sparsity]
            total += whole[0] if whole else sum(count.value for count in parts)
    return total


def _value(metrics: Mapping[str, Quantity], name: str) -> float | None:
    return metrics[name].value if name in metrics else None


def _by_id_or_label(metrics: Mapping[str, Quantity], name: str, label: str) -> float | None:
    value = _value(metrics, name)
    if value is not None:
        return value
    found = (metrics[key].value for key in metrics if key.endswith(f"/{label}") and "Roofline" in key)
    return next((value for value in found if value is not None), None)


# Consistency checks: bytes ÷ time is bandwidth, time × clock is cycles, no share exceeds one.
#
# A capture whose units were lost, or that was assembled from different launches, fails them; numbers that
# depend on the failed side are then withheld.


_PASS_NOISE = 0.03
"""Counters of one launch come from several replays; a few percent between them are normal."""
_REFUSED = 1.5
"""Beyond this factor it is no noise: a unit, or the launch, is wrong."""
_MOST_OF_PEAK = 1.10
"""Shares of a sustained peak can exceed one a little: peaks are rounded, clocks drift."""
_SHARES = (
    "compute_ratio",
    "memory_ratio",
    "dram_ratio",
    "l2_ratio",
    "l1_ratio",
    "occupancy_ratio",
    "theoretical_occupancy_ratio",
    "l1_hit_ratio",
    "l2_hit_ratio",
)


@dataclass(frozen=True, slots=True)
class Violation:
    """An identity that does not hold."""

    text: str
    refused: frozenset[str]
    """Quantities that must not be used; empty when the deviation is only remarkable."""


def rounding_of(quantity: Quantity) -> float:
    """Return how far printing may have moved a value, relative to it (0 for exact and missing values)."""
    if not quantity.value:
        return 0.0
    return significant_step(quantity.raw) * parse_unit(quantity.raw_unit).factor / abs(quantity.value)


def check(values: Mapping[str, float], rounding: Mapping[str, float]) -> list[Violation]:
    """Return every identity that one launch violates; ``rounding`` is the relative print error by quantity."""
    found = [_bandwidth(values, rounding), _clock(values, rounding), _dram_share(values, rounding)]
    found += [
        Violation(f"{name} is {units.percent(values[name])}", frozenset({name}))
        for name in _SHARES
        if name in values and not 0 <= values[name] <= _MOST_OF_PEAK
    ]
    found.append(_occupancy(values, rounding))
    return [violation for violation in found if violation is not None]


def _compare(
    what: str, left: float, right: float, tolerance: float, refused: frozenset[str]
) -> Violation | None:
    """Compare two derivations of the same number; small deviations are noted, large ones reject the inputs."""
    if left == right:
        return None
    ratio = max(left, right) / min(left, right) if min(left, right) > 0 else float("inf")
    if ratio <= 1 + tolerance + _PASS_NOISE:
        return None
    return Violation(what, refused if ratio > _REFUSED + tolerance else frozenset())


def _bandwidth(values: Mapping[str, float], rounding: Mapping[str, float]) -> Violation | None:
    if not {"dram_bytes", "duration_s", "dram_bytes_per_s"} <= values.keys() or not values["duration_s"]:
        return None
    by_time = values["dram_bytes"] / values["duration_s"]
    reported = values["dram_bytes_per_s"]
    text = (
        f"DRAM bytes ÷ duration is {units.bytes_per_s(by_time)}, "
        f"the reported throughput {units.bytes_per_s(reported)}"
    )
    tolerance = sum(rounding.get(name, 0.0) for name in ("dram_bytes", "duration_s", "dram_bytes_per_s"))
    if max(by_time, reported) < 1e6:
        return None  # a few sectors in a launch of microseconds: nothing to compare
    return _compare(
        text, by_time, reported, tolerance, frozenset({"dram_bytes", "duration_s", "dram_bytes_per_s"})
    )


def _clock(values: Mapping[str, float], rounding: Mapping[str, float]) -> Violation | None:
    names = ("duration_s", "sm_frequency_hz", "elapsed_cycles")
    if not set(names) <= values.keys():
        return None
    cycles = values["duration_s"] * values["sm_frequency_hz"]
    reported = values["elapsed_cycles"]
    text = f"duration × SM clock is {units.count(cycles)} cycles, reported are {units.count(reported)}"
    # The clock ramps while a short kernel runs, so its average is only roughly cycles ÷ time.
    tolerance = 0.1 + sum(rounding.get(name, 0.0) for name in names)
    return _compare(text, cycles, reported, tolerance, frozenset({"duration_s"}))


def _dram_share(values: Mapping[str, float], rounding: Mapping[str, float]) -> Violation | None:
    """Bandwidth ÷ (bytes per cycle × clock) cannot exceed the reported share of peak.

    The share counts busy cycles, so it may well be higher (row changes, refresh).
    """
    names = ("dram_bytes_per_s", "dram_peak_bytes_per_cycle", "dram_frequency_hz", "dram_ratio")
    if not set(names) <= values.keys():
        return None
    peak = values["dram_peak_bytes_per_cycle"] * values["dram_frequency_hz"]
    if not peak:
        return None
    share = values["dram_bytes_per_s"] / peak
    if (
        share
        <= values["dram_ratio"] * (1 + _PASS_NOISE + sum(rounding.get(name, 0.0) for name in names)) + 0.01
    ):
        return None
    reported = units.percent(values["dram_ratio"])
    text = f"DRAM bandwidth is {units.percent(share)} of its peak, reported are {reported}"
    wrong = share > _REFUSED * values["dram_ratio"] + 0.01
    return Violation(text, frozenset({"dram_ratio", "dram_bytes_per_s"}) if wrong else frozenset())


def _occupancy(values: Mapping[str, float], rounding: Mapping[str, float]) -> Violation | None:
    if not {"occupancy_ratio", "theoretical_occupancy_ratio"} <= values.keys():
        return None
    achieved, possible = values["occupancy_ratio"], values["theoretical_occupancy_ratio"]
    if achieved <= possible * (1.02 + rounding.get("occupancy_ratio", 0.0)) + 0.002:
        return None
    text = f"achieved occupancy {units.percent(achieved)} exceeds the theoretical {units.percent(possible)}"
    return Violation(text, frozenset())


# What limits a kernel, from its counters, next to the verdict of NVIDIA's own rules.
#
# Classes: ``compute`` (arithmetic units), ``issue`` (the SM is busy issuing, but not with floating-point work, as
# in copy kernels), ``l1``, ``l2``, ``dram``, ``memory`` (a memory unit, which one is not recorded),
# ``underfilled`` (fewer blocks than the device holds at once), ``latency`` (nothing is busy), ``balanced``,
# ``unknown``.


BUSY = 0.60
"""From here on a unit limits the kernel; below it NVIDIA speaks of latency (its SpeedOfLight rule)."""
_CLOSE = 0.10
"""Compute and memory this close together, both busy, are balanced."""
_UNIT_NAMES = {"l1": "L1/TEX", "l2": "L2", "dram": "DRAM", "memory": "memory", "compute": "SM"}


@dataclass(frozen=True, slots=True)
class BoundVerdict:
    """Our class, with the comparison that decided it."""

    bound: str
    arithmetic: str
    evidence: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class VendorVerdict:
    """NVIDIA's SpeedOfLight verdict."""

    bound: str | None
    """In our words; ``None`` when its sentence is not known to us."""
    text: str
    """In its words."""


def classify(values: Mapping[str, float | None], has_arithmetic: bool | None) -> BoundVerdict:
    """Return what limits a kernel.

    ``has_arithmetic``: whether floating-point work was measured (``False``: measured and none, ``None``: not
    measured). A busy SM without any is never called compute-bound.
    """
    compute = values.get("compute_ratio")
    memory = _memory_units(values)
    if compute is None and not memory:
        return BoundVerdict("unknown", "neither compute nor memory throughput was collected")
    shares = {**({"compute": compute} if compute is not None else {}), **memory}
    evidence = [f"{_UNIT_NAMES[name]} {units.percent(share)} of peak" for name, share in shares.items()]
    evidence += _latency_evidence(values)
    unit, share = max(memory.items(), key=lambda item: item[1]) if memory else ("", 0.0)
    top = max(shares.values())
    summary = ", ".join(evidence[: len(shares)])
    if top < BUSY:
        return _not_busy(values, top, summary, evidence, complete=compute is not None and bool(memory))
    if compute is not None and memory and min(compute, share) >= BUSY and abs(compute - share) < _CLOSE:
        text = f"{summary}: SM and {_UNIT_NAMES[unit]} are both above {BUSY:.0%} and within {_CLOSE:.0%} of each other"
        return BoundVerdict("balanced", text, evidence)
    if compute is not None and compute >= share:
        bound = "issue" if has_arithmetic is False else "compute"
        why = (
            ""
            if bound == "compute"
            else "; no floating-point arithmetic was measured, so it is instruction issue"
        )
        return BoundVerdict(bound, f"{summary}: the SM is the busiest, above {BUSY:.0%}{why}", evidence)
    return BoundVerdict(unit, f"{summary}: {_UNIT_NAMES[unit]} is the busiest, above {BUSY:.0%}", evidence)


def _not_busy(
    values: Mapping[str, float | None], top: float, summary: str, evidence: list[str], *, complete: bool
) -> BoundVerdict:
    waves = values.get("waves")
    if waves is not None and waves < 1:
        text = f"the grid is {waves:.2f} waves, less than the device can run at once; busiest unit {units.percent(top)}"
        return BoundVerdict("underfilled", text, evidence)
    if not complete:
        return BoundVerdict("unknown", f"{summary}; the rest was not collected", evidence)
    return BoundVerdict("latency", f"{summary}: no unit reaches {BUSY:.0%}, the kernel waits", evidence)


def _memory_units(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return memory units normalised to the share of peak over the kernel's whole duration."""
    found = {name: values.get(f"{name}_ratio") for name in ("l2", "dram")}
    l1 = values.get("l1_elapsed_ratio")
    if l1 is None and values.get("l1_ratio") is not None:
        # ncu prints L1 relative to the cycles its SM was active; a mostly idle device would look busy.
        active, elapsed = values.get("sm_active_cycles"), values.get("elapsed_cycles")
        scale = min(1.0, active / elapsed) if active is not None and elapsed else 1.0
        l1 = (values.get("l1_ratio") or 0.0) * scale
    known = {name: share for name, share in {"l1": l1, **found}.items() if share is not None}
    total = values.get("memory_ratio")
    if total is not None and (not known or total > max(known.values()) + 0.05):
        known["memory"] = total
    return known


def _latency_evidence(values: Mapping[str, float | None]) -> list[str]:
    evidence = []
    waves = values.get("waves")
    if waves is not None:
        evidence.append(f"{waves:.2f} waves")
    for name, text in (
        ("occupancy_ratio", "achieved occupancy {}"),
        ("theoretical_occupancy_ratio", "theoretical occupancy {}"),
        ("issue_active_ratio", "an instruction issued in {} of cycles"),
    ):
        share = values.get(name)
        if share is not None:
            evidence.append(text.format(units.percent(share)))
    return evidence


_VENDOR_RULES = ("SOLBottleneck", "Bottleneck")
_VENDOR_CLASSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"grid is too small", re.I), "underfilled"),
    (re.compile(r"well-balanced|balanced: to", re.I), "balanced"),
    (re.compile(r"identify the (?P<unit>L1|L2|DRAM)", re.I), "unit"),
    (re.compile(r"analyzing (?P<unit>L1|L2|DRAM)", re.I), "unit"),
    (re.compile(r"memory is more heavily utilized", re.I), "memory"),
    (re.compile(r"compute is more heavily utilized", re.I), "compute"),
    (re.compile(r"low compute throughput and memory bandwidth|latency issues", re.I), "latency"),
    (re.compile(r"in the Compute Workload Analysis", re.I), "compute"),
    (re.compile(r"in the Memory Workload Analysis", re.I), "memory"),
)


def vendor_verdict(rules: Iterable[NcuRule]) -> VendorVerdict | None:
    """Return what NVIDIA's SpeedOfLight rule reported; ``None`` when the rule was not collected."""
    for rule in rules:
        if rule.name not in _VENDOR_RULES or not rule.text:
            continue
        for pattern, bound in _VENDOR_CLASSES:
            match = pattern.search(rule.text)
            if match:
                return VendorVerdict(match.group("unit").lower() if bound == "unit" else bound, rule.text)
        return VendorVerdict(None, rule.text)
    return None


_FULL_WAVES = re.compile(r"only ([\d.,]+) full waves")


def vendor_waves(rules: Iterable[NcuRule]) -> float | None:
    """Return the number of waves NVIDIA's rule mentions, when the launch statistics were not collected."""
    for rule in rules:
        match = _FULL_WAVES.search(rule.text)
        if match:
            return float(match.group(1).replace(",", "."))
    return None


def agreement(ours: BoundVerdict, vendor: VendorVerdict | None) -> str | None:
    """Return whether both verdicts agree: ``agrees``, ``partly: …`` or ``differs: …``; ``None`` without NVIDIA's."""
    if vendor is None:
        return None
    if vendor.bound is None:
        return "unclear: NVIDIA's verdict is of an unknown kind"
    if ours.bound == vendor.bound:
        return "agrees"
    if ours.bound == "unknown":
        return "unclear: the counters for our classification were not collected"
    memory = {"l1", "l2", "dram", "memory"}
    if ours.bound in memory and vendor.bound in memory:
        return f"partly: both say memory; this analysis says {ours.bound}, NVIDIA {vendor.bound}"
    if {ours.bound, vendor.bound} == {"issue", "compute"}:
        return "partly: both say the SM is busiest; this analysis finds no floating-point work in it"
    if {ours.bound, vendor.bound} == {"underfilled", "latency"}:
        return f"partly: nothing is busy; this analysis says {ours.bound}, NVIDIA {vendor.bound}"
    return f"differs: this analysis says {ours.bound}, NVIDIA {vendor.bound}"


_BLOCK_LIMITS = (
    "block_limit_registers",
    "block_limit_shared_memory",
    "block_limit_warps",
    "block_limit_sm",
    "block_limit_barriers",
)
_FP32_LANES = {"6.0": 64, "7": 64, "8.0": 64}
"""FP32 results per SM and cycle where it is not 128 (CUDA C++ Programming Guide, arithmetic instructions)."""


@dataclass(slots=True)
class LaunchFacts:
    """All quantities of one launch."""

    launch: NcuLaunch
    values: dict[str, float]
    """Quantity (see ``ncu_metrics.QUANTITIES``) → SI value; what was not measured is absent."""
    work: list[Work]
    """Counted operations by precision, zeros included, largest first."""
    peak_flops_per_s: dict[str, float]
    """The device's own ceilings at this launch's clocks."""
    peak_bytes_per_s: float | None
    violations: list[Violation]
    notes: list[str] = field(default_factory=list)

    @property
    def refused(self) -> frozenset[str]:
        """Quantities that failed a check and must not be used."""
        return frozenset().union(*(violation.refused for violation in self.violations))

    def get(self, name: str) -> float | None:
        """Return a value that was measured and passed its checks."""
        return None if name in self.refused else self.values.get(name)


def analyse_launch(launch: NcuLaunch) -> LaunchFacts:
    """Resolve, complete and check the quantities of one launch."""
    values: dict[str, float] = {}
    rounding: dict[str, float] = {}
    for name in QUANTITIES:
        found = find(launch.metrics, name)
        if found is not None and found[1].value is not None:
            values[name] = found[1].value
            rounding[name] = rounding_of(found[1])
    notes = list(launch.notes)
    _complete_traffic(values, rounding, notes)
    frequency = values.get("roofline_frequency_hz") or values.get("sm_frequency_hz")
    duration = values.get("duration_s")
    _complete_waves(launch, values)
    violations = check(values, rounding)
    if launch.notes:
        violations.append(Violation("files of this launch contradict each other", frozenset()))
    bytes_per_cycle, clock = values.get("dram_peak_bytes_per_cycle"), values.get("dram_frequency_hz")
    return LaunchFacts(
        launch=launch,
        values=values,
        work=measured_work(launch.metrics, duration, frequency),
        peak_flops_per_s=peak_rates(launch.metrics, frequency),
        peak_bytes_per_s=bytes_per_cycle * clock if bytes_per_cycle and clock else None,
        violations=violations,
        notes=notes,
    )


def _complete_traffic(values: dict[str, float], rounding: dict[str, float], notes: list[str]) -> None:
    """Find the DRAM traffic: counted in all, as read plus write, or bandwidth × duration."""
    read, write = values.get("dram_read_bytes"), values.get("dram_write_bytes")
    if "dram_total_bytes" in values:
        values["dram_bytes"], rounding["dram_bytes"] = (
            values["dram_total_bytes"],
            rounding["dram_total_bytes"],
        )
    elif read is not None and write is not None:
        values["dram_bytes"] = read + write
        errors = read * rounding["dram_read_bytes"] + write * rounding["dram_write_bytes"]
        rounding["dram_bytes"] = errors / (read + write) if read + write else 0.0
    elif "dram_bytes_per_s" in values and "duration_s" in values:
        values["dram_bytes"] = values["dram_bytes_per_s"] * values["duration_s"]
        rounding["dram_bytes"] = rounding["dram_bytes_per_s"] + rounding["duration_s"]
        notes.append("DRAM bytes are bandwidth × duration: the byte counters were not collected")


def _complete_waves(launch: NcuLaunch, values: dict[str, float]) -> None:
    """Find SM count and waves from the roofline's per-cycle peak and the occupancy limits, where not given."""
    if "sm_count" not in values:
        peak = peak_rates(launch.metrics, 1.0).get("fp32")
        if peak:
            values["sm_count"] = float(round(peak / 2 / _fp32_lanes(launch.compute_capability)))
    limits = [values[name] for name in _BLOCK_LIMITS if values.get(name, 0) > 0]
    if "waves" not in values and launch.grid and limits and values.get("sm_count"):
        x, y, z = launch.grid
        values["waves"] = x * y * z / (values["sm_count"] * min(limits))
    if "waves" not in values:
        waves = vendor_waves(launch.rules)
        if waves is not None:
            values["waves"] = waves


def _fp32_lanes(compute_capability: str | None) -> int:
    text = compute_capability or ""
    return _FP32_LANES.get(text) or _FP32_LANES.get(text.partition(".")[0], 128)
