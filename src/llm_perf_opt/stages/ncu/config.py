"""``pipeline.ncu.*`` as types; values come from ``conf/profiling/ncu/``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.core.stage import StageConfig


@dataclass
class NcuNvtxConfig:
    """``pipeline.ncu.ncu_cli.nvtx.*``"""

    include: Any = None
    """Ranges to profile in: auto (the phases that nsys captured; without a capture every phase, or everywhere for your
    own program), a name, a glob (``decode*``), ncu's own syntax, or a list of them. null: everywhere."""


@dataclass
class NcuExportConfig:
    """``pipeline.ncu.ncu_cli.export.*``"""

    csv: bool = True
    """Also write the report's pages as CSV."""


@dataclass
class NcuCliConfig:
    """``pipeline.ncu.ncu_cli.*``: what becomes of the command line."""

    target_processes: str = "all"
    """``--target-processes``: all or application-only."""
    nvtx: NcuNvtxConfig = field(default_factory=NcuNvtxConfig)
    set: str | None = None
    """``--set``: a set of sections; null: none besides ``sections`` (without those, ncu's default)."""
    metrics: Any = None
    """``--metrics``: a list, or a comma-separated string; null: those of the sections."""
    sections: list[str] = field(default_factory=list)
    """``--section``, each."""
    export: NcuExportConfig = field(default_factory=NcuExportConfig)
    replay_mode: str | None = None
    """``--replay-mode``: kernel, application, range, app-range; null: kernel (not passed), or application where the
    model fills 80 % of the device's memory and kernel replay has no room to save what kernels write."""
    kernel_name_base: str = "demangled"
    """``--kernel-name-base`` of the kernel filter: demangled (exact instances) or function (all of them)."""
    filter_mode: str | None = None
    """``--filter-mode``; null: per-launch-config where ncu has it (2023 and later)."""
    launch_skip: int | None = None
    """``--launch-skip``: matching launches to leave out first."""
    launch_count: int | None = None
    """``--launch-count``; null: two of each launch configuration, or a limit on all where ncu cannot do that."""
    clock_control: str | None = None
    """``--clock-control``: base, boost or none; null: not passed (ncu locks clocks to base)."""
    cache_control: str | None = None
    """``--cache-control``: all or none; null: not passed (ncu flushes caches before every replay)."""
    force_overwrite: bool = True
    """``--force-overwrite``: replace an earlier report of the same run directory."""
    extra_args: list[str] = field(default_factory=list)
    """Further options, as they are."""


@dataclass
class NcuSelectionConfig:
    """``pipeline.ncu.selection.*``: which kernels of the nsys stage are profiled."""

    top_n: int | None = None
    """Most kernels of a run; null: ``run.top_n_kernels``."""
    per_phase: bool | None = None
    """true: a run of its own for every phase, with the top kernels of that phase; false: one run, the top of all phases; null: a run
    for every phase, or one run with the top kernels of every phase where the weights take 16 GB or more and loading them again is slow."""
    until_share: float | None = None
    """Stop once this share of kernel time is covered (0.9)."""
    kernel_regex: str | None = None
    """Profile what matches this instead, whatever nsys saw."""


@dataclass
class NcuConfig(StageConfig):
    """``pipeline.ncu.*``: the Nsight Compute capture."""

    description: str = ""
    """What the preset is for."""
    gating_nvtx: bool = True
    """false: profile everywhere and pass no NVTX flag at all."""
    ncu_cli: NcuCliConfig = field(default_factory=NcuCliConfig)
    selection: NcuSelectionConfig = field(default_factory=NcuSelectionConfig)
    chips: list[str] = field(default_factory=list)
    """Chips whose metrics a preset is made for (``ga102``); empty: any that ncu knows."""
    executable: str | None = None
    """Which ncu; null: LLM_PERF_OPT_NCU, PATH, then the usual places."""
    timeout_s: float | None = None
    """Time limit of one run; null: pipeline.workload.timeout_s."""
    max_bytes: int | None = 20 << 30
    """Size limit on disk; null: none."""
