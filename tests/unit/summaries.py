"""Summaries with one problem each, for the tests of verdicts and findings."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.summary import (
    Bound,
    Budget,
    BudgetPart,
    Coverage,
    Hardware,
    Kernel,
    Operator,
    Params,
    Peak,
    RunInfo,
    Stat,
    Static,
    StaticModule,
    StaticPhase,
    Summary,
    Timings,
    Verdict,
    Workload,
)
from llm_perf_opt.summary.statistics import describe


def summary(**fields: Any) -> Summary:
    gpu = Hardware("GPU", "gpu", {}, None, "none")
    base: dict[str, Any] = {
        "run": RunInfo("run", "ok", "2026-01-01T00:00:00+00:00", 1.0, []),
        "environment": {},
        "hardware": gpu,
        "workload": Workload(),
    }
    return Summary(**{**base, **fields})


def one(value: float) -> Stat:
    stat = describe([value])
    assert stat is not None
    return stat


def timings(**seconds: float) -> Timings:
    """``timings(prefill=0.2, decode=1.0)``; ttft is vision + prefill."""
    values = {f"{name}_s": one(value) for name, value in seconds.items()}
    if "prefill" in seconds and "ttft" not in seconds:
        values["ttft_s"] = one(seconds["prefill"] + seconds.get("vision", 0.0))
    return Timings(**values, source="timings.json")


def budget(span_s: float = 1.0, **shares: float) -> Budget:
    return Budget(span_s, [BudgetPart(n, span_s * share, share) for n, share in shares.items()], "run.sqlite")


def kernel(
    name: str, family: str, total_s: float | None, *, phase: str | None = None, **fields: Any
) -> Kernel:
    return Kernel(name, name, family, phase, None, fields.pop("launches", 10), total_s, None, **fields)


def operator(name: str, calls: int, self_cpu_s: float = 0.0, phase: str = "decode") -> Operator:
    return Operator(name, calls, self_cpu_s, self_cpu_s, None, None, phase)


def verdict(bound: Bound) -> Verdict:
    return Verdict(bound, "kernels run for 20 % of it", ["timeline: run.sqlite"])


def cpu(**peaks: float) -> Hardware:
    return Hardware("CPU", "cpu", {n: Peak(v, "measured") for n, v in peaks.items()}, 1e10, "probe")


def gpu(**peaks: float) -> Hardware:
    return Hardware("GPU", "gpu", {n: Peak(v, "data sheet") for n, v in peaks.items()}, 1e12, "catalogue")


def static(modules: list[StaticModule] | None = None, **phases: StaticPhase) -> Static:
    return Static(Params(10, 10, {}), None, phases, modules or [], Coverage(1.0, []), {})
