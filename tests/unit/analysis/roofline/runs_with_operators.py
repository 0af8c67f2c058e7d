"""Summaries of runs whose operators are known by shape, and tables that know some devices."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.analysis.roofline.expected_times import Tables
from llm_perf_opt.hardware.silicon import Attention, Gemm, Operator, Source, Timing
from llm_perf_opt.hardware.silicon.tables import System
from llm_perf_opt.summary import Hardware, Peak, Static, StaticPhase, Summary, Workload
from tests.unit.analysis.roofline.test_expected import decoder as shapes
from tests.unit.analysis.roofline.test_what_if import decoder
from tests.unit.summaries import summary, timings

H100 = "NVIDIA H100 SXM5 80GB"
PEAKS = {
    "bfloat16": Peak(1e15, "a test"),
    "float32": Peak(6e13, "a test"),
    "int8": Peak(2e15, "a test"),
}


class HalfInEight:
    """Products and attention take 1 ms, small or eight-bit products half; nothing was measured in 32 bits; sums take 0.1 ms."""

    def time(self, operator: Operator, device: str, *, framework: str | None = None) -> Timing | None:
        if operator.dtype == "float32":
            return None
        seconds = {"bfloat16": 1e-3, "int8": 0.5e-3}.get(operator.dtype, 1e-3)
        seconds = seconds if isinstance(operator, Gemm | Attention) else 0.1e-3
        ranks = 1 if not isinstance(operator, Gemm) or operator.n * operator.k >= 64 * 64 else 2
        source = Source("vllm", "1.0", "table")
        return Timing(seconds / ranks, "measured", source)

    def system(self, device: str) -> System | None:
        return System("h100_sxm", (device,)) if "H100" in device else None


TABLES = Tables(HalfInEight(), "vllm")


def counted(batch: int = 1, operators: int = 40) -> Static:
    static = decoder(batch)
    assert static.scaling is not None
    static.operators = shapes()
    static.operators.batch_size = batch
    static.phases = {
        name: StaticPhase(
            phase.least_flops, phase.least_weight_bytes, None, 1e8, None, phase.tokens, operators, 20
        )
        for name, phase in static.phases.items()
    }
    return static


def run(
    device: str | None = H100,
    dtype: str = "bfloat16",
    batch: int = 1,
    *,
    ranks: int | None = None,
    tpot: float = 0.012,
    **fields: Any,
) -> Summary:
    """A run of 1,000 positions and 11 new tokens."""
    kind: Any = "cpu" if device is not None and "CPU" in device else "gpu"
    hardware = Hardware(device, kind, dict(PEAKS), 3e12, "catalogue")
    workload = Workload("m", "random", "M", "cuda:0" if kind == "gpu" else "cpu", dtype, batch, 3, 1000.0)
    workload.new_tokens, workload.ranks = 11.0, ranks
    timed = timings(prefill=0.02, ttft=0.02, tpot=tpot, decode=10 * tpot)
    base: dict[str, Any] = {"hardware": hardware, "workload": workload, "timings": timed}
    return summary(**{**base, "static": counted(batch), **fields})
