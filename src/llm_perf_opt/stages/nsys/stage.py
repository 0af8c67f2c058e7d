"""Stage ``nsys``: a timeline of the workload, captured with Nsight Systems, exported and summarised.

It writes ``nsys/run.nsys-rep`` (``run.<label>.nsys-rep`` for several labels), the SQLite export of each, what
``nsys stats`` says as CSV, ``nsys/summary.csv`` (kernels, whatever the version calls that report),
``nsys/cmd.txt`` to run it again, and the logs. The timeline is read elsewhere.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.core.errors import ConfigError, LlmPerfError, ToolError
from llm_perf_opt.core.layout import own_files
from llm_perf_opt.core.ranks import Rank, this_rank
from llm_perf_opt.core.secrets import mask_arguments
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult
from llm_perf_opt.process import tools as checks
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.stages.facts import Part, collect
from llm_perf_opt.stages.nsys.capture_set import (
    CaptureSet,
    must_see_each_other,
    of_rank,
    range_end,
    rank_problems,
)
from llm_perf_opt.stages.nsys.command import build_export_cmd, check_extra_args, graph_trace, output_names
from llm_perf_opt.stages.nsys.config import NsysConfig, config_errors, labels_of, trace_of
from llm_perf_opt.stages.nsys.facts import nsys_facts
from llm_perf_opt.stages.nsys.probe import (
    SECRET_ARGUMENTS,
    SEES_ALL,
    can_isolate,
    isolates,
    nsys_version,
    parse_version,
    probe_nsys,
)
from llm_perf_opt.stages.nsys.run import (
    SUMMARY,
    CaptureRequest,
    earlier_outputs,
    remove_earlier_outputs,
    sqlite_of,
)
from llm_perf_opt.stages.workload import (
    Workload,
    program_problems,
    replay_lines,
    unsupported_device,
    workload,
)
from llm_perf_opt.workloads.engine.memory import require_room
from llm_perf_opt.workloads.engine.nvtx import PROFILER_RANGE, backend_name

LOGGER = logging.getLogger("llm_perf_opt.nsys")
_MIN_FREE_BYTES = 256 << 20
_PROFILER_API = "cudaProfilerApi"
_HOTKEY = "hotkey"


class NsysStage(Stage):
    """Capture with Nsight Systems."""

    name: ClassVar[str] = "nsys"
    order: ClassVar[int] = 30
    title: ClassVar[str] = "Nsight Systems capture"
    config_type: ClassVar[type[StageConfig]] = NsysConfig
    has_pages: ClassVar[bool] = True
    for_own_program: ClassVar[bool] = True

    def check(self, context: StageContext) -> list[Problem]:
        """Check configuration, tool, program, disk and permissions."""
        config = context.stage_config(self.name, NsysConfig)
        problems = [_as_problem(error) for error in config_errors(config)]
        if (unsupported := unsupported_device(self.name, context.config)) is not None:
            return [*problems, unsupported]
        executable = checks.find_tool("nsys", config.executable)
        if executable is None:
            missing = checks.missing_tool("nsys", config.executable)
            return [*problems, Problem("skip", missing.message, missing.hint or "")]
        try:
            version = parse_version(nsys_version(executable))
            if config.extra_args:
                check_extra_args(config.extra_args, probe_nsys(executable).flags)
        except ConfigError as error:
            return [*problems, _as_problem(error)]
        except ToolError as error:
            return [*problems, Problem("skip", error.message, error.hint or checks.install_hint("nsys"))]
        return [*problems, *_machine_problems(context, config, version)]

    def plan(self, context: StageContext) -> list[str]:
        """Show the exact commands and files."""
        config = context.stage_config(self.name, NsysConfig)
        found = checks.find_tool("nsys", config.executable)
        executable = str(found or "nsys")
        flags = probe_nsys(found).flags if found is not None else frozenset[str]()
        folder = context.artifacts.root / self.name
        lines: list[str] = []
        for request in _requests(context, config, executable, folder, flags):
            report = request.base.with_name(f"{request.base.name}.nsys-rep")
            export = build_export_cmd(report, sqlite_of(report), executable=executable)
            lines.append(f"run   {replay_lines(request.command())}")
            lines.append(f"run   {replay_lines(export)}")
            lines.append(f"write {report}")
            lines.append(f"write {sqlite_of(report)}")
        return [*lines, f"write {folder / SUMMARY}", f"write {folder / 'cmd.txt'}"]

    def run(self, context: StageContext) -> StageResult:
        """Capture each label, export, summarise; the result depends on the files."""
        config = context.stage_config(self.name, NsysConfig)
        for error in config_errors(config):
            raise error
        executable = checks.find_tool("nsys", config.executable)
        if executable is None:
            raise checks.missing_tool("nsys", config.executable)
        if not context.config.workload_command.command:
            require_room(context.config.resolved_device)
        folder = context.artifacts.out_dir(self.name)
        if earlier_outputs(folder) and not config.force_overwrite:
            raise _earlier_capture(folder)
        remove_earlier_outputs(folder)
        capabilities = probe_nsys(executable)
        requests = list(_requests(context, config, str(executable), folder, capabilities.flags))
        captures = CaptureSet(
            capabilities=capabilities,
            folder=folder,
            scratch=context.artifacts.tmp_dir(self.name),
            progress=context.progress,
            device=context.config.resolved_device,
            keep_streams=config.keep_qdstrm,
            total=len(requests),
        )
        for request in requests:
            if not request.isolate:
                LOGGER.warning(SEES_ALL)
            if mask_arguments(request.workload.argv) != list(request.workload.argv):
                LOGGER.warning(SECRET_ARGUMENTS)
            captures.add(request)
        return captures.result()

    def facts(self, run_dir: Path) -> Facts:
        """Read the exports, one per captured range; without one, the kernel table that ``nsys stats`` made."""
        folder = run_dir / self.name
        exports = sorted(folder.glob("run*.sqlite")) if folder.is_dir() else []
        files = own_files(run_dir, self.name, exports) or own_files(run_dir, self.name, [folder / SUMMARY])
        return collect(
            self.name, [Part("nsys capture", functools.partial(nsys_facts, path)) for path in files]
        )


def _requests(
    context: StageContext, config: NsysConfig, executable: str, folder: Path, flags: frozenset[str]
) -> list[CaptureRequest]:
    """One request per label; without gating, one for the whole run. ``flags``: options of this nsys; empty: not known.

    One of several ranks captures a separate program; those programs form their own group.
    """
    rank = _rank_of(context)
    gated = config.gating_nvtx and config.capture_range == "nvtx"
    labels = labels_of(config) if gated else []
    capture_range = config.capture_range if gated or config.capture_range != "nvtx" else "none"
    whole = CaptureRequest(
        executable=executable,
        base=folder / "run",
        workload=_watched_program(context, capture_range),
        capture_range=capture_range,
        capture_range_end=range_end(config, rank) if capture_range != "none" else None,
        trace=trace_of(config),
        sample=config.sample,
        cpuctxsw=config.cpuctxsw,
        cuda_graph_trace=graph_trace(config.cuda_graph_trace, flags, config.extra_args),
        domain_include=tuple(config.nvtx_domain_include),
        domain_exclude=tuple(config.nvtx_domain_exclude),
        extra_args=tuple(config.extra_args),
        isolate=isolates(config) and not must_see_each_other(rank, context.config.resolved_device),
        timeout_s=config.timeout_s or context.config.workload_command.timeout_s,
        max_bytes=config.max_bytes,
    )
    if not labels:
        return [of_rank(whole, rank)]
    names = output_names(labels)
    return [
        of_rank(
            replace(whole, label=label, base=folder / names[label], session=f"{whole.session}-{number}"), rank
        )
        for number, label in enumerate(labels)
    ]


def _rank_of(context: StageContext) -> Rank | None:
    """Return which of several ranks this is; a plan shows the first."""
    ranks = context.config.run.ranks
    return this_rank() or (Rank(0, ranks, 0) if ranks > 1 else None)


def _watched_program(context: StageContext, capture_range: str) -> Workload:
    """Return the program; the built-in one is configured to call the profiler API if that opens the capture."""
    program = workload(context.config, context.artifacts.root)
    if capture_range != _PROFILER_API or not program.built_in:
        return program
    return replace(program, env={**program.env, PROFILER_RANGE: "1"})


def _profiler_api_problems(context: StageContext, config: NsysConfig) -> list[Problem]:
    """Check the device: the built-in workload calls the profiler API on CUDA only, elsewhere the capture would never open."""
    own, device = context.config.workload_command.command, context.config.resolved_device
    if config.capture_range != _PROFILER_API or own or device.startswith("cuda"):
        return []
    return [
        Problem(
            "error",
            f"pipeline.nsys.capture_range={_PROFILER_API} waits for cudaProfilerStart, which the workload cannot call "
            f"on {device}: nsys would capture nothing",
            "use pipeline.nsys.capture_range=nvtx pipeline.nsys.nvtx_capture=decode, or none for the whole run",
            "pipeline.nsys.capture_range",
        )
    ]


def _hotkey_problems(context: StageContext, config: NsysConfig) -> list[Problem]:
    """Reject a hotkey for the built-in workload, which has no window; a user's own program may have one."""
    if config.capture_range != _HOTKEY or not config.gating_nvtx or context.config.workload_command.command:
        return []
    return [
        Problem(
            "error",
            f"pipeline.nsys.capture_range={_HOTKEY} waits for a key pressed in a window of the program, and the built-in "
            "workload has none: nsys would capture nothing",
            "use pipeline.nsys.capture_range=nvtx pipeline.nsys.nvtx_capture=decode, or none for the whole run",
            "pipeline.nsys.capture_range",
        )
    ]


def _machine_problems(context: StageContext, config: NsysConfig, version: tuple[int, ...]) -> list[Problem]:
    from llm_perf_opt.workloads.memory_estimate import memory_problems

    problems = []
    folder = context.artifacts.root / "nsys"
    if not config.force_overwrite and earlier_outputs(folder):
        problems.append(_as_problem(_earlier_capture(folder)))
    problems += [*program_problems(context.config), *_profiler_api_problems(context, config)]
    problems += rank_problems(config, _rank_of(context), context.config.resolved_device)
    problems += _hotkey_problems(context, config)
    problems += [*_range_problems(context, config), *memory_problems(context.config, "nsys")]
    if config.isolate and not can_isolate():
        problems.append(
            Problem(
                "error",
                "pipeline.nsys.isolate=true, but this machine gives no process-id namespace to this user",
                "run as root, allow user namespaces (sysctl kernel.unprivileged_userns_clone=1), or set it to null",
                "pipeline.nsys.isolate",
                of_machine=True,
            )
        )
    samples = (config.sample, config.cpuctxsw) != ("none", "none")
    if samples and version[:2] == (2022, 4):
        problems.append(
            Problem(
                "degraded",
                "nsys 2022.4 often hangs with CPU sampling or context-switch trace",
                "set pipeline.nsys.sample=none pipeline.nsys.cpuctxsw=none, or use a newer nsys",
                "pipeline.nsys.sample",
            )
        )
    paranoid = checks.perf_event_paranoid()
    if samples and paranoid is not None and paranoid > 2:
        problems.append(
            Problem(
                "degraded",
                f"the kernel forbids CPU sampling (perf_event_paranoid is {paranoid})",
                "as root: sysctl kernel.perf_event_paranoid=2, or pipeline.nsys.sample=none",
                "pipeline.nsys.sample",
            )
        )
    free = checks.free_bytes(folder)
    if free < _MIN_FREE_BYTES:
        problems.append(
            Problem(
                "degraded",
                f"only {free >> 20} MiB are free for the capture in {context.artifacts.root}",
                "free some space or choose another artifacts.runs_dir",
                "artifacts.runs_dir",
            )
        )
    return problems


def _range_problems(context: StageContext, config: NsysConfig) -> list[Problem]:
    """Check for an NVTX library, without which the built-in workload has no ranges (CUDA builds of torch include one)."""
    on_gpu = context.config.resolved_device != "cpu"
    if context.config.workload_command.command or on_gpu or backend_name() is not None:
        return []
    gated = config.gating_nvtx and config.capture_range == "nvtx"
    return [
        Problem(
            "error" if gated else "degraded",
            "no NVTX library is installed, so the workload cannot name its phases for nsys",
            "pip install nvidia-nvtx",
            "pipeline.nsys.nvtx_capture" if gated else None,
            of_machine=True,
        )
    ]


def _earlier_capture(folder: Path) -> ConfigError:
    return ConfigError(
        f"{folder} contains an earlier capture and pipeline.nsys.force_overwrite is false",
        hint="set pipeline.nsys.force_overwrite=true, or choose another artifacts.runs_dir",
        key="pipeline.nsys.force_overwrite",
    )


def _as_problem(error: LlmPerfError) -> Problem:
    return Problem("error", error.message, error.hint or "", error.data.get("key"))
