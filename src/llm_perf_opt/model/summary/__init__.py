"""``summary.json`` as types: the one machine-readable result of a run.

Values are SI with the unit in the name (``_s``, ``_bytes``, ``_flops``, ``_bytes_per_s``, ``_ratio``).
``None`` means "not known", and ``Summary.notes`` says why; zero means zero.
Every field is documented by the string below it, and ``docs/summary.md`` is generated from those.
"""

from __future__ import annotations

from llm_perf_opt.model.static.operators import OperatorShapes
from llm_perf_opt.model.static.static_model import (
    AttentionPart,
    Coverage,
    ExpertPart,
    KvPart,
    Params,
    Scaling,
    Static,
    StaticModule,
    StaticPhase,
)
from llm_perf_opt.model.static.work import Minimum, Quantisation
from llm_perf_opt.model.summary.cpu_work import CpuWork
from llm_perf_opt.model.summary.device_state import (
    EnergyUse,
    MemoryCounts,
    MemoryUse,
    Telemetry,
    TelemetrySeries,
)
from llm_perf_opt.model.summary.findings import Confidence, Finding
from llm_perf_opt.model.summary.hardware import Hardware, Peak
from llm_perf_opt.model.summary.kernels import Kernel, KernelFamily, Operator, VendorRule
from llm_perf_opt.model.summary.parallel import Communication, DeviceUse, IdleGap, IdleOwner, RankUse
from llm_perf_opt.model.summary.phases import (
    Bound,
    Budget,
    BudgetPart,
    CoverageSummary,
    LedgerRow,
    Prediction,
    Utilisation,
    Verdict,
)
from llm_perf_opt.model.summary.profiled import CounterConditions, ProfiledLaunches
from llm_perf_opt.model.summary.root import SCHEMA_VERSION, Summary
from llm_perf_opt.model.summary.run import RunInfo, RunStatus, Section, SectionTable, StageInfo, StageStatus
from llm_perf_opt.model.summary.target import KernelTarget
from llm_perf_opt.model.summary.timings import SampleTimes, Stat, Stopped, Timings
from llm_perf_opt.model.summary.what_if import SiliconUse, WhatIf
from llm_perf_opt.model.summary.workload import Compilations, Workload

# In the order of docs/summary.md, which is generated from it.
__all__ = [  # noqa: RUF022
    "SCHEMA_VERSION",
    "RunStatus",
    "StageStatus",
    "Bound",
    "Confidence",
    "MemoryCounts",
    "Stopped",
    "CpuWork",
    "OperatorShapes",
    "Communication",
    "DeviceUse",
    "IdleGap",
    "IdleOwner",
    "RankUse",
    "CounterConditions",
    "ProfiledLaunches",
    "KernelTarget",
    "Minimum",
    "Quantisation",
    "RunInfo",
    "Peak",
    "Hardware",
    "Compilations",
    "Workload",
    "StageInfo",
    "Stat",
    "Timings",
    "SampleTimes",
    "Params",
    "StaticPhase",
    "StaticModule",
    "Coverage",
    "AttentionPart",
    "ExpertPart",
    "KvPart",
    "Scaling",
    "Static",
    "Prediction",
    "Utilisation",
    "BudgetPart",
    "Budget",
    "Operator",
    "Kernel",
    "KernelFamily",
    "LedgerRow",
    "CoverageSummary",
    "Verdict",
    "Finding",
    "VendorRule",
    "WhatIf",
    "SiliconUse",
    "SectionTable",
    "Section",
    "MemoryUse",
    "EnergyUse",
    "TelemetrySeries",
    "Telemetry",
    "Summary",
]
