"""Compare two sides: metrics with their statistics, phases, modules, kernel families and kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from llm_perf_opt.analysis.compare.conclusion.causes import find_causes, pair_samples
from llm_perf_opt.analysis.compare.conclusion.conclude import conclude
from llm_perf_opt.analysis.compare.conclusion.equal_work import put_rows_at_equal_work, series_at_work
from llm_perf_opt.analysis.compare.conclusion.work import Scaling, captured_work
from llm_perf_opt.analysis.compare.gate import Gate, apply_gates
from llm_perf_opt.analysis.compare.kernels import compare_families, compare_kernels
from llm_perf_opt.analysis.compare.metrics import METRICS, kind_of, measured_in_turns, side_series
from llm_perf_opt.analysis.compare.origin import Side, failed_sides, override_differences, overrides_of
from llm_perf_opt.analysis.compare.phases import compare_phases
from llm_perf_opt.analysis.compare.series import ALPHA, Evidence, Series, weigh
from llm_perf_opt.analysis.compare.sharing import discount_gates, shared_notes
from llm_perf_opt.model.comparison import (
    Comparison,
    Difference,
    Method,
    MetricChange,
    ModuleChange,
    Outcome,
    SideInfo,
)
from llm_perf_opt.model.summary import LedgerRow, Summary
from llm_perf_opt.model.versions import older_notes

CONFIDENCE = 0.95
RESAMPLES = 2000
SEED = 20240229


def default_method(seed: int = SEED, confidence: float = CONFIDENCE, resamples: int = RESAMPLES) -> Method:
    """Return how statistics are made unless told otherwise."""
    return Method(confidence_ratio=confidence, alpha=ALPHA, resamples=resamples, seed=seed)


def compare(a: Side, b: Side, gates: Sequence[Gate] = (), method: Method | None = None) -> Comparison:
    """Compare B with A."""
    method = method or default_method()
    in_turns = measured_in_turns(a.documents, b.documents)
    series_a, unlike_a = series_at_work(a, a, by_repeat=in_turns)
    series_b, unlike_b = series_at_work(b, a, by_repeat=in_turns)
    unlike = unlike_a | unlike_b
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
    result.phases, about_utilisation = compare_phases(a.first, b.first)
    result.modules = _modules(a.first.ledger, b.first.ledger)
    result.families = compare_families(a.first.kernels, b.first.kernels)
    result.kernels = compare_kernels(a.first.kernels, b.first.kernels)
    failed = failed_sides(a, b)
    work = captured_work(a.first, b.first, result.kernels)
    scaling = Scaling(work)
    raw_a, raw_b = (side_series(side.summaries, side.documents, by_repeat=in_turns) for side in (a, b))
    result.splits = find_causes(raw_a, raw_b, a.first, b.first, scaling)
    put_rows_at_equal_work(result, scaling)
    conclude(result, a.first, b.first, work, failed=failed)
    result.notes = [
        *failed,
        *shared_notes(a, b),
        *_notes(a, b, series_a, series_b, evidence),
        *about_utilisation,
    ]
    decided = apply_gates(list(gates), evidence, method, failed=" ".join(failed) or None, unlike=unlike)
    result.gates = discount_gates(decided, a, b, in_turns=in_turns)
    return result


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
    """What else is not the same: a change of these explains a change of time, or makes it meaningless."""
    pairs = [
        *((name.replace("_", " "), getattr(a.workload, name), getattr(b.workload, name)) for name in (
            "model", "architecture", "weights", "device", "dtype", "batch_size", "samples",
            "prompt_tokens", "image_tokens", "new_tokens",
        )),
        ("hardware", a.hardware.name, b.hardware.name),
        *(
            (f"{name} version", _version(a, name), _version(b, name))
            for name in ("python", "torch", "transformers", "cuda", "driver")
        ),
        ("parameters", _parameters(a), _parameters(b)),
    ]  # fmt: skip
    return [Difference(what, _text(x), _text(y)) for what, x, y in pairs if x != y]


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
