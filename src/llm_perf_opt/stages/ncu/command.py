"""Command lines of Nsight Compute. Pure: nothing is run, no file is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.ncu.metrics import NVPROF_NAMES
from llm_perf_opt.core.errors import ConfigError

DEFAULT_SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "SchedulerStats")
DEFAULT_METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__bytes.sum.per_second",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
    "sm__ops_path_tensor_src_fp16_dst_fp32.sum",
    "sm__ops_path_tensor_src_fp16_dst_fp16.sum",
    "sm__ops_path_tensor_src_fp16.sum",
    "sm__ops_path_tensor_src_fp8.sum",
    "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
    "launch__waves_per_multiprocessor",
    "launch__registers_per_thread",
)
"""Sections and metrics of the preset ``ncu.default``, for programs that have only the standard library."""

"""What the stand-alone script collects, and the least that a class and NVIDIA's verdict need."""
REPLAY_MODES = ("kernel", "application", "range", "app-range")
NAME_BASES = ("function", "demangled", "mangled")
FILTER_MODES = ("global", "per-gpu", "per-launch-config")
TARGET_PROCESSES = ("all", "application-only")
CLOCK_CONTROLS = ("base", "boost", "none")
CACHE_CONTROLS = ("all", "none")
_ALWAYS_KNOWN = (
    "launch__",
    "device__",
    "derived__",
    "profiler__",
    "nvlink__",
    "c2clink__",
    "numa__",
    "smsp__pcsamp",
)
"""Valid but not listed by ``--query-metrics``."""
_PREFIXES = ("regex:", "group:", "breakdown:", "pmsampling:")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcuOptions:
    """Metrics and kernels of one profiling run."""

    executable: str = "ncu"
    nvtx_include: str | Sequence[str] = ()
    """Ranges as a user writes them (see :func:`nvtx_include`); several are alternatives."""
    use_nvtx: bool = False
    """False: pass no NVTX flag at all."""
    kernel_regex: str | None = None
    kernel_name_base: str | None = None
    set_name: str | None = None
    sections: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    target_processes: str = "all"
    replay_mode: str | None = None
    filter_mode: str | None = None
    launch_skip: int | None = None
    launch_count: int | None = None
    clock_control: str | None = None
    cache_control: str | None = None
    force_overwrite: bool = True
    extra_args: Sequence[str] = ()

    def argv(
        self,
        out_base: Path | str,
        work_argv: Sequence[str],
        *,
        csv_log: Path | str | None = None,
        log_file: Path | str | None = None,
    ) -> list[str]:
        """Return the argument list of one profiling run over ``work_argv``.

        ``out_base``: the report without suffix. ``csv_log``: also print the raw page, in base units, to this file.
        ``log_file``: the tool's messages, separate from the program's output (not together with ``csv_log``).
        """
        argv = [self.executable, "--target-processes", self.target_processes]
        if self.use_nvtx:
            argv.append("--nvtx")
            for expression in nvtx_includes(self.nvtx_include):
                argv += ["--nvtx-include", expression]
        argv += ["--set", self.set_name] if self.set_name else []
        for section in self.sections:
            argv += ["--section", section]
        argv += ["--metrics", ",".join(self.metrics)] if self.metrics else []
        if self.kernel_regex:
            argv += ["--kernel-name-base", self.kernel_name_base] if self.kernel_name_base else []
            argv += ["--kernel-name", f"regex:{self.kernel_regex}"]
        argv += ["--replay-mode", self.replay_mode] if self.replay_mode else []
        argv += ["--filter-mode", self.filter_mode] if self.filter_mode else []
        argv += ["--launch-skip", str(self.launch_skip)] if self.launch_skip else []
        argv += ["--launch-count", str(self.launch_count)] if self.launch_count is not None else []
        argv += ["--clock-control", self.clock_control] if self.clock_control else []
        argv += ["--cache-control", self.cache_control] if self.cache_control else []
        if csv_log is not None:
            argv += ["--csv", "--page", "raw", "--print-units", "base", "--log-file", str(csv_log)]
        elif log_file is not None:
            argv += ["--log-file", str(log_file)]
        argv += ["--force-overwrite"] if self.force_overwrite else []
        return [*argv, "--export", str(out_base), *self.extra_args, *work_argv]


def build_ncu_cmd(
    out_base: Path | str,
    work_argv: Sequence[str],
    *,
    nvtx_expr: str | Sequence[str] | None = None,
    csv_log: Path | str | None = None,
    log_file: Path | str | None = None,
    use_nvtx: bool = True,
    metrics: str | Sequence[str] | None = None,
    sections: Sequence[str] | None = None,
    target_processes: str | None = "all",
    **options: Any,
) -> list[str]:
    """Return :meth:`NcuOptions.argv` from plain keywords; ``options``: other fields of :class:`NcuOptions`."""
    chosen = NcuOptions(
        nvtx_include=nvtx_expr or (),
        use_nvtx=use_nvtx,
        metrics=tuple(metric_list(metrics)),
        sections=tuple(sections or ()),
        target_processes=target_processes or "all",
        **options,
    )
    return chosen.argv(out_base, work_argv, csv_log=csv_log, log_file=log_file)


def build_import_cmd(
    report: Path | str,
    *,
    page: str = "raw",
    section: str | None = None,
    print_details: str | None = None,
    executable: str = "ncu",
) -> list[str]:
    """Return the argument list that prints a report as CSV in base units."""
    argv = [executable, "--import", str(report), "--csv", "--page", page, "--print-units", "base"]
    argv += ["--section", section] if section else []
    return [*argv, "--print-details", print_details] if print_details else argv


def metric_list(metrics: str | Sequence[str] | None) -> list[str]:
    """Return metric names from a list or a comma-separated string; each once, in order."""
    parts = metrics.split(",") if isinstance(metrics, str) else list(metrics or ())
    return list(dict.fromkeys(text for part in parts if (text := str(part).strip())))


# --- NVTX ------------------------------------------------------------------------------------------------


def nvtx_includes(expressions: str | Sequence[str] | None) -> list[str]:
    """Convert the user's range filters to ncu filter expressions; several are alternatives."""
    if expressions is None:
        return []
    listed = re.split(r"(?<!\\),", expressions) if isinstance(expressions, str) else list(expressions)
    found = [nvtx_include(str(each).strip()) for each in listed if str(each).strip()]
    return list(dict.fromkeys(found))


def nvtx_include(expression: str) -> str:
    """Translate one range filter to ncu syntax.

    ncu takes ``decode*`` and ``decode`` silently and then profiles nothing: a push/pop range needs a
    slash, a pattern needs ``regex:``, and the domain comes first (nsys writes it last).
    ``decode`` → ``decode/``, ``decode*`` → ``regex:decode.*/``, ``decode@LLM`` → ``LLM@decode/``. What already
    is ncu's own syntax (has a slash or a bracket) stays, and so does anything after ``raw:``.
    """
    if expression.startswith("raw:"):
        return expression.removeprefix("raw:")
    if expression.startswith("regex:"):
        return expression if "/" in expression else f"{expression}/"
    if re.search(r"(?<!\\)[/\[\]]", expression):
        return expression
    name, at, domain = expression.rpartition("@")
    name, domain = (name, domain) if at else (domain, "")
    if "*" in name or "?" in name:
        pattern = re.sub(r"[.^$+(){}|\\]", lambda match: f"\\{match.group()}", name)
        pattern = pattern.replace("*", ".*").replace("?", ".")
        return f"regex:{domain}@{pattern}/" if domain and domain != "*" else f"regex:{pattern}/"
    return f"{domain}@{name}/" if domain and domain != "*" else f"{name}/"


# --- what this version supports -----------------------------------------------------------------------------


@dataclass(slots=True)
class Accepted:
    """Accepted names, and notes on the others."""

    names: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was left out without a loss."""


def accept_metrics(
    metrics: Iterable[str],
    known: Collection[str] | None,
    of_other_chips: Callable[[], Collection[str]] = frozenset,
) -> Accepted:
    """Replace nvprof's names by their equivalents; drop metrics unknown to this ncu, and those of other chips.

    ``known``: base names of ``--query-metrics``; ``None`` if they could not be queried. ``of_other_chips``: those of all
    chips, asked for where something is missing. A preset for any GPU names the counters of each, so that one chip lacks
    another's is a note; a name that no chip has is a mistake.
    """
    result = Accepted()
    dropped = []
    for name in metrics:
        replacement = NVPROF_NAMES.get(name.removesuffix(".sum"))
        if replacement:
            result.names += replacement
            result.warnings.append(
                f"{name} is a metric of nvprof, not of ncu: {' + '.join(replacement)} instead"
            )
        elif known is None or _is_known(name, known):
            result.names.append(name)
        else:
            dropped.append(name)
    result.names = list(dict.fromkeys(result.names))
    elsewhere = of_other_chips() if dropped else frozenset()
    other, unknown = (
        [name for name in dropped if _is_known(name, elsewhere) is wanted] for wanted in (True, False)
    )
    if other:
        result.notes.append(f"metrics of other GPUs are left out: {', '.join(other)}")
    if unknown:
        result.warnings.append(f"unknown metrics are left out: {', '.join(unknown)}")
    return result


def _is_known(name: str, known: Collection[str]) -> bool:
    if name.startswith(("regex:", "group:")):
        return True
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.partition(".")[0] in known or name.startswith(_ALWAYS_KNOWN)


def accept_sections(sections: Iterable[str], known: Collection[str]) -> Accepted:
    """Drop sections this ncu does not have; ncu itself would not start."""
    result = Accepted()
    dropped = []
    for section in sections:
        if not known or section in known or section.startswith("regex:"):
            result.names.append(section)
        else:
            dropped.append(section)
    result.names = list(dict.fromkeys(result.names))
    if dropped:
        result.warnings.append(f"unknown sections are left out: {', '.join(dropped)}")
    return result


def accept_set(name: str | None, known: Collection[str]) -> str | None:
    """Return the set to pass; ``None``: ncu's default, which is called ``default`` or ``basic`` by version.

    A set it does not know makes ncu collect nothing, without an error, so it is rejected here.
    """
    if not name or name in {"default", "basic"}:
        return None
    if known and name not in known:
        raise ConfigError(
            f"this ncu has no set '{name}'",
            hint=f"sets: {', '.join(sorted(known))}",
            key="pipeline.ncu.ncu_cli.set",
        )
    return name


# --- cost ------------------------------------------------------------------------------------------------

SECTION_PASSES = {
    "SpeedOfLight": 6, "SpeedOfLight_RooflineChart": 3, "MemoryWorkloadAnalysis": 4, "Occupancy": 1,
    "SchedulerStats": 2, "LaunchStats": 0, "ComputeWorkloadAnalysis": 4, "WarpStateStats": 3,
    "InstructionStats": 3, "SourceCounters": 8, "MemoryWorkloadAnalysis_Chart": 3,
    "MemoryWorkloadAnalysis_Tables": 5, "SpeedOfLight_HierarchicalTensorRooflineChart": 8,
    "SpeedOfLight_HierarchicalSingleRooflineChart": 4, "SpeedOfLight_HierarchicalHalfRooflineChart": 4,
    "SpeedOfLight_HierarchicalDoubleRooflineChart": 4, "WorkloadDistribution": 3,
}  # fmt: skip
"""About how often a kernel is replayed for a section; it differs by chip and version."""
_SET_PASSES = {"basic": 9, "default": 9, "detailed": 25, "full": 40, "roofline": 25, "source": 8}
_METRICS_PER_PASS = 4


def estimated_passes(set_name: str | None, sections: Sequence[str], metrics: Sequence[str]) -> int:
    """Return the estimated number of replays of each profiled launch."""
    passes = _SET_PASSES.get(set_name, 20) if set_name else 0
    passes += sum(SECTION_PASSES.get(section, 4) for section in sections)
    if not set_name and not sections and not metrics:
        passes = _SET_PASSES["basic"]
    return max(1, passes + -(-len(metrics) // _METRICS_PER_PASS))
