"""Compare two sides: metrics with their statistics, phases, modules, kernel families and kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llm_perf_opt.analysis.metrics import (
    ALPHA,
    METRICS,
    SERVING_METRICS,
    SHOWN_CHANGE,
    Evidence,
    Series,
    kind_of,
    measured_in_turns,
    side_series,
    weigh,
)
from llm_perf_opt.analysis.origin import (
    Difference,
    Side,
    SideInfo,
    failed_sides,
    override_differences,
    overrides_of,
)
from llm_perf_opt.analysis.roofline.limits import Ceiling, limits_for
from llm_perf_opt.analysis.verdicts import shown_bound
from llm_perf_opt.compare.conclusion import conclude
from llm_perf_opt.compare.data import (
    Comparison,
    GateResult,
    Method,
    MetricChange,
    ModuleChange,
    Outcome,
    PhaseChange,
)
from llm_perf_opt.compare.gates import Gate, apply_gates
from llm_perf_opt.compare.kernels import compare_families, compare_kernels
from llm_perf_opt.compare.sentences import answer_at_equal_work, find_causes, pair_samples
from llm_perf_opt.compare.work import (
    CAPTURED_PART,
    Scaling,
    captured_work,
    put_rows_at_equal_work,
    series_at_work,
)
from llm_perf_opt.core import units
from llm_perf_opt.core.units import canonical_dtype
from llm_perf_opt.summary import Budget, Hardware, LedgerRow, Summary
from llm_perf_opt.summary.file import older_notes

# One ceiling for both sides: utilisation against two different ones compares the ceilings, not the runs.
#
# A ceiling that was measured while other work runs is too low and makes a slow run look well used. So where both sides ran on
# the same device, both are put against the better known ceiling: a data sheet before a measurement, and of two
# measurements the higher, because it was reached once. Where the devices differ there is no
# common ceiling, and the two shares are shown without a ratio.


@dataclass(frozen=True, slots=True)
class CommonCeiling:
    """A common ceiling for the utilisation of both sides."""

    scale_a: float = 1.0
    """Factor of A's own ratio: A's ceiling ÷ the common one."""
    scale_b: float = 1.0
    comparable: bool = True
    """False: there is no common ceiling, so no ratio of B to A."""
    note: str | None = None


def common_peak(a: Summary, b: Summary) -> CommonCeiling:
    """Return the common arithmetic ceiling, of MFU."""
    types = [canonical_dtype(side.workload.dtype or "unknown") for side in (a, b)]
    one, two = (limits_for(side.hardware, side.workload.dtype).peak for side in (a, b))
    if one is not None and two is not None and types[0] != types[1]:
        return CommonCeiling(
            comparable=False, note=f"MFU is not compared: {types[0]} and {types[1]} have different peaks."
        )
    return _common("MFU", a.hardware, b.hardware, one, two, units.flops_per_s)


def common_bandwidth(a: Summary, b: Summary) -> CommonCeiling:
    """Return the common memory ceiling, of MBU."""
    one, two = (limits_for(side.hardware, side.workload.dtype).bandwidth for side in (a, b))
    return _common("MBU", a.hardware, b.hardware, one, two, units.bytes_per_s)


def _common(
    what: str,
    a: Hardware,
    b: Hardware,
    one: Ceiling | None,
    two: Ceiling | None,
    shown: Callable[[float], str],
) -> CommonCeiling:
    if one is None or two is None or one.value == two.value:
        return CommonCeiling()
    if a.name is None or (a.name, a.kind) != (b.name, b.kind):
        return CommonCeiling(
            comparable=False,
            note=f"{what} is not compared: {a.name or 'the device of A'} and {b.name or 'the device of B'} have "
            "different ceilings.",
        )
    one_is_measured = (a.source == "probe") != (b.source == "probe")
    takes_a = b.source == "probe" if one_is_measured else one.value > two.value
    chosen, other, hardware = (one, two, b) if takes_a else (two, one, a)
    kept, left = ("A", "B") if takes_a else ("B", "A")
    load = ", measured while other programs used the processor" if hardware.measured_under_load else ""
    return CommonCeiling(
        one.value / chosen.value,
        two.value / chosen.value,
        note=f"{what} of both sides is against one ceiling, {kept}'s {shown(chosen.value)} ({chosen.name}); "
        f"the report of {left} is against {shown(other.value)}{load}.",
    )


# What limits each phase on either side, how much of the hardware it uses, and the breakdown of its captured time.


_PHASES = ("vision", "encode", "prefill", "ttft", "mixed", "decode", "total", "all")


@dataclass(frozen=True, slots=True)
class _Use:
    label: str
    field: str
    """Of :class:`~llm_perf_opt.summary.Utilisation`."""
    ceiling: CommonCeiling


def _compare_phases(a: Summary, b: Summary) -> tuple[list[PhaseChange], list[str]]:
    """Return a row per phase and quantity and notes on their utilisation."""
    uses = (
        _Use("MFU", "mfu_ratio", common_peak(a, b)),
        _Use("MBU", "mbu_ratio", common_bandwidth(a, b)),
        _Use("device busy", "device_busy_ratio", CommonCeiling()),
    )
    rows: list[PhaseChange] = []
    reported: set[str] = set()
    for phase in dict.fromkeys((*_PHASES, *a.budget, *b.budget)):
        one, two = shown_bound(a, phase), shown_bound(b, phase)
        if one is not None or two is not None:
            rows.append(PhaseChange(phase, "limited by", "", one, two))
        for use in uses:
            found = _utilisation(phase, use, a, b)
            rows.extend(found)
            reported |= {use.label for row in found if row.a is not None and row.b is not None}
        rows.extend(_budget_parts(phase, a, b))
    return rows, [use.ceiling.note for use in uses if use.ceiling.note is not None and use.label in reported]


def _utilisation(phase: str, use: _Use, a: Summary, b: Summary) -> list[PhaseChange]:
    one = _scaled(getattr(a.utilisation.get(phase), use.field, None), use.ceiling.scale_a)
    two = _scaled(getattr(b.utilisation.get(phase), use.field, None), use.ceiling.scale_b)
    rows = _row(phase, use.label, "ratio", one, two)
    if not use.ceiling.comparable:
        for row in rows:
            row.ratio = None
    return rows


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _budget_parts(phase: str, a: Summary, b: Summary) -> list[PhaseChange]:
    left, right = (_part_seconds(side.budget[phase]) if phase in side.budget else {} for side in (a, b))
    return [
        row
        for name in dict.fromkeys((*left, *right))
        for row in _row(phase, f"{CAPTURED_PART}{name}", "s", left.get(name), right.get(name))
    ]


def _part_seconds(budget: Budget) -> dict[str, float]:
    """Name → seconds; parts of one name differ in their owners only."""
    found: dict[str, float] = {}
    for part in budget.parts:
        found[part.name] = found.get(part.name, 0.0) + part.seconds
    return found


def _row(phase: str, what: str, unit: str, a: float | None, b: float | None) -> list[PhaseChange]:
    if not a and not b:
        return []
    return [PhaseChange(phase, what, unit, a, b, b / a if a and b is not None else None)]


# A side whose device was shared is slower than it would be alone: effect on a comparison.


_UNEQUAL_RATIO = 0.10
"""So much more of the device taken by others on one side than on the other, and the sides are not alike."""


def shared_notes(a: Side, b: Side) -> list[str]:
    """Return notes on sides that shared their device, and with what."""
    notes = []
    for side, name in ((a, "A"), (b, "B")):
        found = [shared for summary in side.summaries if (shared := _use(summary).get("shared"))]
        if found:
            runs = "" if len(side.summaries) == 1 else f" in {len(found)} of {len(side.summaries)} runs"
            notes.append(f"{name}: the device was shared{runs}: {found[0]}. Its times may be too long.")
    return notes


def discount_gates(gates: Sequence[GateResult], a: Side, b: Side, *, in_turns: bool) -> list[GateResult]:
    """Leave a gate undecided if its result may be caused by other users of one side's device.

    Sharing only slows down. So a regression of a B that was shared more is not significant, nor is a pass against
    an A that was shared more. Sides measured in turns were affected equally.
    """
    more = _taken(b) - _taken(a)
    if in_turns or len(a.summaries) > 1 or len(b.summaries) > 1 or abs(more) <= _UNEQUAL_RATIO:
        return list(gates)
    doubtful = "regression" if more > 0 else "passed"
    name = "B" if more > 0 else "A"
    return [
        replace(gate, status="undecided", reason=f"{gate.reason}; but the device of {name} was shared")
        if gate.status == doubtful
        else gate
        for gate in gates
    ]


def _taken(side: Side) -> float:
    """Return the share of the device used by others; all of it if the amount is unknown."""
    use = _use(side.first)
    ratio = use.get("others_ratio")
    if isinstance(ratio, int | float):
        return float(ratio)
    return 1.0 if use.get("shared") else 0.0


def _use(summary: Summary) -> Mapping[str, Any]:
    use = summary.environment.get("device_use")
    return use if isinstance(use, Mapping) else {}


CONFIDENCE = 0.95
_RESAMPLES = 2000
SEED = 20240229


def default_method(seed: int = SEED, confidence: float = CONFIDENCE, resamples: int = _RESAMPLES) -> Method:
    """Return the default statistics settings."""
    return Method(confidence_ratio=confidence, alpha=ALPHA, resamples=resamples, seed=seed)


def compare(a: Side, b: Side, gates: Sequence[Gate] = (), method: Method | None = None) -> Comparison:
    """Compare B with A."""
    method = method or default_method()
    in_turns = measured_in_turns(a.documents, b.documents)
    series_a, unlike_a = series_at_work(a, a, by_repeat=in_turns)
    series_b, unlike_b = series_at_work(b, a, by_repeat=in_turns)
    unlike = unlike_a | unlike_b | _loads_apart(series_a, series_b)
    names = _ordered({*series_a, *series_b})
    evidence = {
        name: weigh(series_a[name], series_b[name]) if name in series_a and name in series_b else None
        for name in names
    }
    result = Comparison(a=_info(a), b=_info(b), method=method)
    result.metrics = [
        _metric(name, evidence[name], series_a.get(name), series_b.get(name), method)
        if name not in unlike or evidence[name] is None
        else _not_comparable(name, series_a[name], series_b[name], unlike[name])
        for name in names
    ]
    result.samples = pair_samples(series_a, series_b)
    result.differences = [*override_differences(result.a, result.b), *_differences(a.first, b.first)]
    result.phases, about_utilisation = _compare_phases(a.first, b.first)
    result.modules = _modules(a.first.ledger, b.first.ledger)
    result.families = compare_families(a.first.kernels, b.first.kernels)
    result.kernels = compare_kernels(a.first.kernels, b.first.kernels)
    failed = failed_sides(a, b)
    work = captured_work(a.first, b.first, result.kernels)
    scaling = Scaling(work)
    raw_a, raw_b = (side_series(side.summaries, side.documents, by_repeat=in_turns) for side in (a, b))
    result.splits = find_causes(raw_a, raw_b, a.first, b.first, scaling)
    put_rows_at_equal_work(result, scaling)
    measured = answer_at_equal_work(raw_a, raw_b)
    conclude(
        result,
        a.first,
        b.first,
        work,
        failed=failed,
        answer=answer_at_equal_work(series_a, series_b),
        b_measured_s=measured.b_s if measured is not None else None,
    )
    result.notes = [
        *failed,
        *shared_notes(a, b),
        *_notes(a, b, series_a, series_b, evidence),
        *about_utilisation,
    ]
    decided = apply_gates(list(gates), evidence, method, failed=" ".join(failed) or None, unlike=unlike)
    result.gates = discount_gates(decided, a, b, in_turns=in_turns)
    return result


def _loads_apart(a: Mapping[str, Series], b: Mapping[str, Series]) -> dict[str, str]:
    """Metrics of a server that were measured at other loads on each side → why they are not compared."""
    found = {}
    for name in SERVING_METRICS:
        if name not in a or name not in b:
            continue
        left, right = ({load for run in side[name].runs for load in run} for side in (a, b))
        if not left & right:
            sides = (", ".join(sorted(loads)[:5]) for loads in (left, right))
            found[name] = "no load in common (A: {}; B: {})".format(*sides)
    return found


def _ordered(names: set[str]) -> list[str]:
    known = [name for name in METRICS if name in names]
    return [*known, *sorted(names - set(known))]


def _metric(
    name: str, evidence: Evidence | None, a: Series | None, b: Series | None, method: Method
) -> MetricChange:
    kind = kind_of(name)
    if evidence is None:
        outcome: Outcome = (
            "only in A" if a is not None and b is None else "only in B" if a is None else "not enough data"
        )
        return MetricChange(
            name, kind.unit, kind.better, _plain(a), _plain(b), None, None, None, None, None, 0, outcome
        )
    interval = evidence.interval(
        confidence=method.confidence_ratio, resamples=method.resamples, seed=method.seed
    )
    decidable = evidence.decidable(two_sided=True)
    p_value = min(1.0, 2 * min(evidence.p_above(0.0), evidence.p_below(0.0))) if decidable else None
    outcome = "not enough data"
    if interval is not None and p_value is not None:
        shown = p_value <= method.alpha and not interval.low <= 0.0 <= interval.high
        slower = interval.estimate > 0
        outcome = "no difference shown"
        if shown:
            outcome = "worse" if slower == (kind.better == "lower") else "better"
    return MetricChange(
        name=name,
        unit=kind.unit,
        better=kind.better,
        a=evidence.a,
        b=evidence.b,
        ratio=math.exp(interval.estimate) if interval is not None else evidence.b / evidence.a,
        low_ratio=math.exp(interval.low) if interval is not None else None,
        high_ratio=math.exp(interval.high) if interval is not None else None,
        p_value=p_value,
        blocks=evidence.kind,
        n=evidence.n,
        outcome=outcome,
        note=evidence.note,
        n_to_show=evidence.blocks_to_show(SHOWN_CHANGE),
    )


def _not_comparable(name: str, a: Series, b: Series, why: str) -> MetricChange:
    """Show both values, but no change: they are of different amounts of work."""
    kind = kind_of(name)
    return MetricChange(
        name,
        kind.unit,
        kind.better,
        _plain(a),
        _plain(b),
        None,
        None,
        None,
        None,
        None,
        0,
        "not comparable",
        why,
    )


def _plain(series: Series | None) -> float | None:
    """Mean of the runs' values, for a metric that only one side has (or that is zero on one)."""
    if series is None:
        return None
    values = [value for run in series.runs for values in run.values() for value in values]
    return math.fsum(values) / len(values) if values else None


def _info(side: Side) -> SideInfo:
    first = side.first
    return SideInfo(
        name=side.name,
        paths=list(side.paths),
        model=first.workload.model,
        device=first.hardware.name or first.workload.device,
        dtype=first.workload.dtype,
        samples=first.workload.samples,
        runs=len(side.summaries),
        overrides=overrides_of(side),
        statuses=[summary.run.status for summary in side.summaries],
    )


def _differences(a: Summary, b: Summary) -> list[Difference]:
    """List other differences of the sides, which may explain a change of time or invalidate it."""
    pairs = [
        ("hardware", a.hardware.name, b.hardware.name),
        ("ranks", a.metrics.get("world_size"), b.metrics.get("world_size")),
        ("captured steps", a.metrics.get("profiler_steps"), b.metrics.get("profiler_steps")),
        ("graphs", _graphs(a), _graphs(b)),
        *((name.replace("_", " "), getattr(a.workload, name), getattr(b.workload, name)) for name in (
            "model", "architecture", "weights", "device", "dtype", "batch_size", "samples",
            "prompt_tokens", "image_tokens", "new_tokens",
        )),
        *(
            (f"{name} version", _version(a, name), _version(b, name))
            for name in ("python", "torch", "transformers", "cuda", "driver")
        ),
        ("parameters", _parameters(a), _parameters(b)),
    ]  # fmt: skip
    return [Difference(what, _text(x), _text(y)) for what, x, y in pairs if x != y]


def _graphs(summary: Summary) -> str | None:
    """Whether kernels run behind graph launches; ``None`` if no capture shows it."""
    ratio = summary.metrics.get("graph_kernel_time_ratio")
    return None if ratio is None else "used" if ratio > 0 else "not used"


def _version(summary: Summary, name: str) -> Any:
    packages = summary.environment.get("packages")
    inside = packages.get(name) if isinstance(packages, Mapping) else None
    value = summary.environment.get(name, inside)
    return value if isinstance(value, str) else inside


def _parameters(summary: Summary) -> int | None:
    return summary.static.params.total if summary.static is not None else None


def _text(value: object) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
    return None if value is None else str(value)


def _modules(a: Sequence[LedgerRow], b: Sequence[LedgerRow]) -> list[ModuleChange]:
    """Pair ledger rows by module and phase, in the order of A's tree, then what only B has."""
    left = {(row.module, row.phase): row for row in a}
    right = {(row.module, row.phase): row for row in b}
    rows = []
    for key in dict.fromkeys((*left, *right)):
        one, two = left.get(key), right.get(key)
        some = one or two
        if some is None or not ((one and one.measured_s) or (two and two.measured_s) or some.depth <= 1):
            continue
        a_s, b_s = one.measured_s if one else None, two.measured_s if two else None
        sources = list(
            dict.fromkeys(row.measured_source for row in (one, two) if row and row.measured_source)
        )
        same = len(sources) < 2
        rows.append(
            ModuleChange(
                module=some.module,
                phase=some.phase,
                depth=some.depth,
                a_s=a_s,
                b_s=b_s,
                ratio=b_s / a_s if a_s and b_s is not None and same else None,
                source=" against ".join(sources) or None,
                a_launches=one.launches if one else None,
                b_launches=two.launches if two else None,
                a_flops=one.flops if one else None,
                b_flops=two.flops if two else None,
            )
        )
    return rows


def _notes(
    a: Side,
    b: Side,
    series_a: Mapping[str, Series],
    series_b: Mapping[str, Series],
    evidence: Mapping[str, Evidence | None],
) -> list[str]:
    notes = []
    if len(a.summaries) != len(b.summaries):
        used = min(len(a.summaries), len(b.summaries))
        notes.append(
            f"A has {len(a.summaries)} runs and B {len(b.summaries)}: the first {used} of each are compared."
        )
    if any(e is not None and e.kind in ("repeats", "samples") for e in evidence.values()):
        notes.append(
            "One run per side: a machine that was slower during one of them looks like a change. "
            "`compare --run` measures both in turn."
        )
    notes.extend(_sample_notes(a, b))
    notes.extend(_tool_notes(a, b))
    notes.extend(sorted({e.note for e in evidence.values() if e is not None and e.note}))
    for side, name in ((a, "A"), (b, "B")):
        notes.extend(f"{name}: {note}" for note in older_notes(side.summaries))
        if all(document is None for document in side.documents) and side.first.timings.decode_s is not None:
            notes.append(
                f"{name} has no raw timings of repeats: its medians are compared without an interval."
            )
    if _tokens(a.first) != _tokens(b.first) and "decode" in series_a and "decode" in series_b:
        notes.append(
            "The sides generated different numbers of tokens: decode and total of B are at as many tokens as A's."
        )
    return notes


def _tokens(summary: Summary) -> float | None:
    return summary.workload.new_tokens


def _tool_notes(a: Side, b: Side) -> list[str]:
    """Return notes on terms that differ between load tools."""
    serving = [side.first.serving for side in (a, b)]
    tools = [{one.tool for one in held.load if one.tool} if held is not None else set() for held in serving]
    if not tools[0] or not tools[1] or tools[0] == tools[1]:
        return []
    named = (", ".join(sorted(names)) for names in tools)
    definitions = {
        tool: text for held in serving if held is not None for tool, text in held.definitions.items()
    }
    return [
        "The sides were measured by different load tools (A: {}; B: {}); compare TTFT, TPOT and E2E, not what only one of them "
        "defines. ITL cannot be compared.".format(*named),
        *(f"{tool}: {text}" for tool, text in definitions.items()),
    ]


def _sample_notes(a: Side, b: Side) -> list[str]:
    left, right = _sample_ids(a), _sample_ids(b)
    if not left or not right or not left & right:
        return []
    notes = []
    for missing, name in ((left - right, "A"), (right - left, "B")):
        if missing:
            shown = ", ".join(sorted(missing)[:5]) + (" …" if len(missing) > 5 else "")
            notes.append(f"Only in {name}, and left out: {len(missing)} samples ({shown}).")
    return notes


def _sample_ids(side: Side) -> set[str]:
    documents = [document for document in side.documents if document]
    return {str(sample["id"]) for document in documents for sample in document.get("samples", ())}
