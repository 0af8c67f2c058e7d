"""Floating-point work of a launch, by precision, from whatever counters the capture carries.

Counted are operations (a fused multiply-add is two). Vector units: ``add + mul + 2 × fma`` of the
predicated-on thread instructions, as in NVIDIA's own roofline. Tensor cores: ``sm__ops_path_tensor_src_*``, which count
operations directly. Precisions are not added up: they have different ceilings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_perf_opt.model.counters import Quantity

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
