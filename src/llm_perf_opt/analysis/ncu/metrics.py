"""Mapping from Nsight Compute metrics and labels to quantities, and the look-up.

A quantity is found by metric id (``raw`` page, ``.ncu-rep``) or by ``section/label`` (``details`` page), in
the order given; the first that has a value in the expected unit is taken. Ids and labels are those of the
section files that ncu 2020 to 2025 ship.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_perf_opt.captures.ncu.launches import Quantity

_SOL = ("GPU Speed Of Light Throughput", "GPU Speed Of Light")
_MEMORY = "Memory Workload Analysis"
_OCCUPANCY = "Occupancy"
_LAUNCH = "Launch Statistics"
_SCHEDULER = "Scheduler Statistics"
_ROOFLINE = "Roofline"
"""A candidate that starts with this word and ``…/`` is any roofline section's label of that name."""


@dataclass(frozen=True, slots=True)
class Definition:
    """Where a quantity is found."""

    unit: str
    """SI unit the value must have; a metric in another unit is a different quantity."""
    names: tuple[str, ...]
    """Metric ids and ``section/label`` pairs, best first."""


def _sol(*labels: str) -> tuple[str, ...]:
    return tuple(f"{section}/{label}" for section in _SOL for label in labels)


def _roofline(*labels: str) -> tuple[str, ...]:
    return tuple(f"{_ROOFLINE}…/{label}" for label in labels)


_ELAPSED = "avg.pct_of_peak_sustained_elapsed"
QUANTITIES: dict[str, Definition] = {
    "duration_s": Definition(
        "s", ("gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration.max", *_sol("Duration"))
    ),
    "elapsed_cycles": Definition(
        "cycle", ("gpc__cycles_elapsed.max", "sm__cycles_elapsed.max", *_sol("Elapsed Cycles"))
    ),
    "sm_active_cycles": Definition("cycle", ("sm__cycles_active.avg", *_sol("SM Active Cycles"))),
    "sm_frequency_hz": Definition(
        "Hz",
        (
            "gpc__cycles_elapsed.avg.per_second",
            "smsp__cycles_elapsed.avg.per_second",
            *_sol("SM Frequency"),
        ),
    ),
    # Counters "per cycle elapsed" are per cycle of the SM clock domain, which is not quite the one above.
    "roofline_frequency_hz": Definition(
        "Hz",
        (
            "smsp__cycles_elapsed.avg.per_second",
            "sm__cycles_elapsed.avg.per_second",
            *_roofline("SM Frequency"),
        ),
    ),
    "dram_frequency_hz": Definition(
        "Hz",
        ("dram__cycles_elapsed.avg.per_second", *_sol("DRAM Frequency"), *_roofline("DRAM Frequency")),
    ),
    "dram_peak_bytes_per_cycle": Definition(
        "B/cycle", ("dram__bytes.sum.peak_sustained", *_roofline("Theoretical DRAM Bytes Accessible"))
    ),
    "compute_ratio": Definition(
        "ratio",
        (
            f"sm__throughput.{_ELAPSED}",
            *_sol("Compute (SM) Throughput", "Compute (SM) [%]", "SOL SM", "SM [%]"),
        ),
    ),
    "memory_ratio": Definition(
        "ratio",
        (
            f"gpu__compute_memory_throughput.{_ELAPSED}",
            *_sol("Memory Throughput", "Memory [%]", "SOL Memory"),
        ),
    ),
    "dram_ratio": Definition(
        "ratio",
        (
            f"gpu__dram_throughput.{_ELAPSED}",
            f"dram__throughput.{_ELAPSED}",
            *_sol("DRAM Throughput", "SOL DRAM"),
        ),
    ),
    "l2_ratio": Definition(
        "ratio", (f"lts__throughput.{_ELAPSED}", *_sol("L2 Cache Throughput", "SOL L2 Cache"))
    ),
    "l1_ratio": Definition(
        "ratio",
        (
            "l1tex__throughput.avg.pct_of_peak_sustained_active",
            *_sol("L1/TEX Cache Throughput", "SOL L1/TEX Cache"),
        ),
    ),
    "l1_elapsed_ratio": Definition("ratio", (f"l1tex__throughput.{_ELAPSED}",)),
    "l1_hit_ratio": Definition("ratio", ("l1tex__t_sector_hit_rate.pct", f"{_MEMORY}/L1/TEX Hit Rate")),
    "l2_hit_ratio": Definition("ratio", ("lts__t_sector_hit_rate.pct", f"{_MEMORY}/L2 Hit Rate")),
    "dram_read_bytes": Definition("B", ("dram__bytes_read.sum",)),
    "dram_write_bytes": Definition("B", ("dram__bytes_write.sum",)),
    "dram_total_bytes": Definition("B", ("dram__bytes.sum",)),
    "dram_bytes_per_s": Definition(
        "B/s",
        ("dram__bytes.sum.per_second", f"{_MEMORY}/Memory Throughput", *_roofline("DRAM Bandwidth")),
    ),
    "l2_bytes": Definition("B", ("lts__t_bytes.sum",)),
    "l1_bytes": Definition("B", ("l1tex__t_bytes.sum",)),
    "occupancy_ratio": Definition(
        "ratio",
        (
            "sm__warps_active.avg.pct_of_peak_sustained_active",
            f"{_OCCUPANCY}/Achieved Occupancy",
            f"{_LAUNCH}/Achieved Occupancy",
        ),
    ),
    "theoretical_occupancy_ratio": Definition(
        "ratio", ("sm__maximum_warps_per_active_cycle_pct", f"{_OCCUPANCY}/Theoretical Occupancy")
    ),
    "waves": Definition(
        "", ("launch__waves_per_multiprocessor", f"{_LAUNCH}/Waves Per SM", *_sol("Waves Per SM"))
    ),
    "sm_count": Definition(
        "", ("device__attribute_multiprocessor_count", "launch__sm_count", f"{_LAUNCH}/# SMs")
    ),
    "registers_per_thread": Definition(
        "register/thread", ("launch__registers_per_thread", f"{_LAUNCH}/Registers Per Thread")
    ),
    "block_limit_registers": Definition(
        "block", ("launch__occupancy_limit_registers", f"{_OCCUPANCY}/Block Limit Registers")
    ),
    "block_limit_shared_memory": Definition(
        "block", ("launch__occupancy_limit_shared_mem", f"{_OCCUPANCY}/Block Limit Shared Mem")
    ),
    "block_limit_warps": Definition(
        "block", ("launch__occupancy_limit_warps", f"{_OCCUPANCY}/Block Limit Warps")
    ),
    "block_limit_sm": Definition("block", ("launch__occupancy_limit_blocks", f"{_OCCUPANCY}/Block Limit SM")),
    "block_limit_barriers": Definition(
        "block", ("launch__occupancy_limit_barriers", f"{_OCCUPANCY}/Block Limit Barriers")
    ),
    "issue_active_ratio": Definition(
        "ratio",
        ("smsp__issue_active.avg.pct_of_peak_sustained_active", f"{_SCHEDULER}/One or More Eligible"),
    ),
    "eligible_warps": Definition(
        "warp", ("smsp__warps_eligible.avg.per_cycle_active", f"{_SCHEDULER}/Eligible Warps Per Scheduler")
    ),
    "tensor_pipe_ratio": Definition("ratio", (f"sm__pipe_tensor_cycles_active.{_ELAPSED}",)),
}
NVPROF_NAMES: dict[str, tuple[str, ...]] = {
    # nvprof's names; ncu accepts them silently and collects nothing.
    "flop_count_hp": tuple(
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("hadd", "hmul", "hfma")
    ),
    "flop_count_sp": tuple(
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("fadd", "fmul", "ffma")
    ),
    "flop_count_dp": tuple(
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("dadd", "dmul", "dfma")
    ),
    "flop_count_sp_add": ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",),
    "flop_count_sp_mul": ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",),
    "flop_count_sp_fma": ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",),
    "flop_count_dp_add": ("smsp__sass_thread_inst_executed_op_dadd_pred_on.sum",),
    "flop_count_dp_mul": ("smsp__sass_thread_inst_executed_op_dmul_pred_on.sum",),
    "flop_count_dp_fma": ("smsp__sass_thread_inst_executed_op_dfma_pred_on.sum",),
    "achieved_occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "sm_efficiency": ("smsp__cycles_active.avg.pct_of_peak_sustained_elapsed",),
    "ipc": ("smsp__inst_executed.avg.per_cycle_active",),
    "dram_read_bytes": ("dram__bytes_read.sum",),
    "dram_write_bytes": ("dram__bytes_write.sum",),
    "dram_read_throughput": ("dram__bytes_read.sum.per_second",),
    "dram_write_throughput": ("dram__bytes_write.sum.per_second",),
    "dram_utilization": ("dram__throughput.avg.pct_of_peak_sustained_elapsed",),
    "l2_tex_hit_rate": ("lts__t_sector_hit_rate.pct",),
    "tex_cache_hit_rate": ("l1tex__t_sector_hit_rate.pct",),
    "inst_executed": ("smsp__inst_executed.sum",),
    "elapsed_cycles_sm": ("sm__cycles_elapsed.sum",),
}
"""nvprof metric → what it meant, in ncu's names (Nsight Compute CLI guide, "nvprof Metric Comparison")."""


def find(metrics: Mapping[str, Quantity], quantity: str) -> tuple[str, Quantity] | None:
    """Return the metric that gives a quantity, with its name; ``None`` when the capture has none."""
    definition = QUANTITIES[quantity]
    for name, value in candidates(metrics, definition.names):
        if value.value is not None and _same_unit(value.unit, definition.unit):
            return name, value
    return None


def candidates(metrics: Mapping[str, Quantity], names: Iterable[str]) -> Iterator[tuple[str, Quantity]]:
    """Yield the metrics that are present, in the order of ``names``."""
    for name in names:
        prefix, mark, label = name.partition("…/")
        if not mark:
            if name in metrics:
                yield name, metrics[name]
            continue
        for key in metrics:
            if key.endswith(f"/{label}") and prefix in key:
                yield key, metrics[key]


def _same_unit(found: str, wanted: str) -> bool:
    """Compare units; counts are counts whatever unit word is used (``block``, ``inst`` or nothing)."""
    measured = {"s", "B", "B/s", "Hz", "ratio", "B/cycle"}
    return found == wanted or not (found in measured or wanted in measured)
