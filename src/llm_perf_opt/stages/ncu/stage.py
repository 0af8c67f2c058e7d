"""Stage ``ncu``: hardware counters of the most important kernels, with Nsight Compute.

One run over the workload profiles the target kernels of a phase (the top of it in the nsys stage; without that, one run
and no kernel filter). It writes ``ncu/run.ncu-rep``, its pages as CSV (``raw.csv``, ``details.csv``,
``section_<name>.csv``), ``ncu/targets.csv``, ``ncu/cmd.txt`` (and ``cmd-rerun.txt`` when nothing matched the filter), and
the logs; with several phases, ``ncu/<phase>/`` has the files of each, and ``ncu/cmd.txt`` all commands.
Counters are read elsewhere.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.core.errors import ConfigError, LlmPerfError, ToolError
from llm_perf_opt.core.layout import own_files
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult
from llm_perf_opt.process import tools as checks
from llm_perf_opt.process.tools import counter_permission
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.stages.facts import Part, collect
from llm_perf_opt.stages.ncu.config import NcuConfig
from llm_perf_opt.stages.ncu.facts import ncu_facts
from llm_perf_opt.stages.ncu.plan import Captured, NcuPlan, config_errors, make_plans, read_captured
from llm_perf_opt.stages.ncu.probe import NcuCapabilities, assumed_ncu, ncu_version, probe_ncu
from llm_perf_opt.stages.ncu.profile_set import ProfileSet, plan_folder, remove_earlier
from llm_perf_opt.stages.ncu.run import REPORT, NcuRequest, page_commands
from llm_perf_opt.stages.workload import replay_lines, unsupported_device, workload
from llm_perf_opt.workloads.engine.memory import require_room

_NO_GPU_FIX = (
    "run on a machine with an NVIDIA GPU and its driver, or profile there and read the capture here: "
    "llm-perf-opt ingest --ncu DIR"
)


class NcuStage(Stage):
    """Profile kernels with Nsight Compute."""

    name: ClassVar[str] = "ncu"
    order: ClassVar[int] = 40
    title: ClassVar[str] = "Nsight Compute counters"
    config_type: ClassVar[type[StageConfig]] = NcuConfig
    has_pages: ClassVar[bool] = True
    for_own_program: ClassVar[bool] = True

    def check(self, context: StageContext) -> list[Problem]:
        """Check configuration, tool, GPU and permissions."""
        from llm_perf_opt.workloads.memory_estimate import memory_problems

        config = context.stage_config(self.name, NcuConfig)
        problems = [_as_problem(error) for error in config_errors(config)]
        if (unsupported := unsupported_device(self.name, context.config)) is not None:
            return [*problems, unsupported]
        executable = checks.find_tool("ncu", config.executable)
        if executable is None:
            missing = checks.missing_tool("ncu", config.executable)
            return [*problems, Problem("skip", missing.message, missing.hint or "")]
        try:
            ncu_version(executable)
        except ToolError as error:
            return [*problems, Problem("skip", error.message, error.hint or checks.install_hint("ncu"))]
        device, command = context.config.resolved_device, context.config.workload_command.command
        if not device.startswith("cuda") and not command:
            return [*problems, Problem("skip", "no CUDA device: ncu has no kernels to profile", _NO_GPU_FIX)]
        if (permission := counter_permission()).allowed is False:
            message = f"performance counters may not be read here: {permission.reason}"
            return [*problems, Problem("skip", message, permission.fix or "")]
        problems += memory_problems(context.config, self.name)
        if not problems:
            try:
                (plan,) = make_plans(config, probe_ncu(executable), Captured(), top_n=1)
                problems += [_degraded(warning) for warning in plan.warnings]
            except ConfigError as error:
                problems.append(_as_problem(error))
            except ToolError as error:
                problems.append(Problem("skip", error.message, error.hint or checks.install_hint("ncu")))
        return problems

    def plan(self, context: StageContext) -> list[str]:
        """Show the commands and files, also on a machine that cannot run them; the kernels depend on nsys."""
        context = _with_gpu(context)
        config = _settled(context, context.stage_config(self.name, NcuConfig))
        executable = checks.find_tool("ncu", config.executable)
        capabilities = probe_ncu(executable) if executable else assumed_ncu(config.executable)
        folder = context.artifacts.root / self.name
        lines: list[str] = []
        for plan in _plans(context, config, capabilities):
            own = plan_folder(folder, plan)
            request = _request(context, config, capabilities, plan, own)
            lines += [
                f"cost  {plan.cost}",
                f"run   {replay_lines(request.command())}",
                f"write {own / REPORT}",
                *(f"note  {note}" for note in plan.notes),
            ]
            if config.ncu_cli.export.csv:
                pages = page_commands(capabilities, own / REPORT, plan.export_sections)
                lines += [f"run   {replay_lines(command)}" for command in pages.values()]
                lines += [f"write {own / name}" for name in pages]
            lines += [f"write {own / 'cmd.txt'}"] if own != folder else []
        if _waits_for_nsys(context):
            lines.append(
                "note  nsys runs first; each captured phase then gets a separate run with its own top kernels"
            )
        return [*lines, f"write {folder / 'targets.csv'}", f"write {folder / 'cmd.txt'}"]

    def run(self, context: StageContext) -> StageResult:
        """Profile, once more without the kernel filter if nothing matched, then export."""
        config = context.stage_config(self.name, NcuConfig)
        for error in config_errors(config):
            raise error
        executable = checks.find_tool("ncu", config.executable)
        if executable is None:
            raise checks.missing_tool("ncu", config.executable)
        if not context.config.workload_command.command:
            require_room(context.config.resolved_device)
        config = _settled(context, config)
        capabilities = probe_ncu(executable)
        plans = _plans(context, config, capabilities)
        folder = context.artifacts.out_dir(self.name)
        remove_earlier(folder, force=config.ncu_cli.force_overwrite)
        runs = ProfileSet(
            capabilities=capabilities,
            folder=folder,
            progress=context.progress,
            plans=plans,
            export_csv=config.ncu_cli.export.csv,
        )
        for plan in plans:
            runs.add(plan, _request(context, config, capabilities, plan, plan_folder(folder, plan)))
        return runs.result()

    def facts(self, run_dir: Path) -> Facts:
        """Read the report, or the pages exported from it."""
        folder = run_dir / self.name
        captures = [*folder.rglob("*.ncu-rep"), *folder.rglob("*.csv")]
        own = own_files(run_dir, self.name, captures)
        if not own:
            return Facts(stage=self.name)
        if strange := sorted(path.name for path in {*captures} - {*own} if path.is_file()):
            # The folder is read as a whole: files of other runs cannot be distinguished inside it.
            note = f"Counters are not read: {', '.join(strange)} in {self.name}/ is not of this run; move it away."
            return Facts(stage=self.name, notes=[note])
        return collect(self.name, [Part("ncu capture", functools.partial(ncu_facts, folder))])


_LARGE_BYTES = 16e9
"""Weights from which loading them once more for every phase takes minutes."""
_NEARLY_FULL = 0.8
"""Share of the device's memory above which kernel replay may find no room to save what kernels write."""


def _settled(context: StageContext, config: NcuConfig) -> NcuConfig:
    """Return the configuration with the replay mode that the memory allows, unless one is chosen."""
    from llm_perf_opt.workloads.memory_estimate import available_bytes, loaded_need

    if config.ncu_cli.replay_mode is not None:
        return config
    need = loaded_need(context.config)
    available = available_bytes(context.config.resolved_device)
    if need is None or available is None or need.total < _NEARLY_FULL * available:
        return config
    return replace(config, ncu_cli=replace(config.ncu_cli, replay_mode="application"))


def _is_large(context: StageContext) -> bool:
    from llm_perf_opt.workloads.memory_estimate import loaded_need

    need = loaded_need(context.config)
    return need is not None and need.weights >= _LARGE_BYTES


def _plans(context: StageContext, config: NcuConfig, capabilities: NcuCapabilities) -> list[NcuPlan]:
    captured = replace(read_captured(context.artifacts.root / "nsys"), is_large=_is_large(context))
    return make_plans(
        config,
        capabilities,
        captured,
        config.selection.top_n or context.config.run.top_n_kernels,
        own_program=bool(context.config.workload_command.command),
        limit_s=_limit_s(context, config),
    )


def _limit_s(context: StageContext, config: NcuConfig) -> float | None:
    return config.timeout_s or context.config.workload_command.timeout_s


def _waits_for_nsys(context: StageContext) -> bool:
    """Whether nsys has yet to run, so that a plan cannot name the kernels."""
    nsys = context.config.pipeline.get("nsys")
    return nsys is not None and nsys.enable and not read_captured(context.artifacts.root / "nsys").tables


def _with_gpu(context: StageContext) -> StageContext:
    """Return the run as it would be on a machine with a GPU."""
    if context.config.resolved_device.startswith("cuda"):
        return context
    return replace(context, config=replace(context.config, resolved_device="cuda:0"))


def _request(
    context: StageContext, config: NcuConfig, capabilities: NcuCapabilities, plan: NcuPlan, folder: Path
) -> NcuRequest:
    cli = config.ncu_cli
    return NcuRequest(
        executable=capabilities.executable,
        folder=folder,
        workload=workload(context.config, context.artifacts.root),
        nvtx_include=plan.nvtx_include,
        use_nvtx=config.gating_nvtx,
        kernel_regex=plan.kernel_regex,
        kernel_name_base=cli.kernel_name_base,
        set_name=plan.set_name,
        sections=plan.sections,
        metrics=plan.metrics,
        target_processes=cli.target_processes,
        replay_mode=cli.replay_mode,
        filter_mode=plan.filter_mode,
        launch_skip=cli.launch_skip,
        launch_count=plan.launch_count,
        clock_control=cli.clock_control,
        cache_control=cli.cache_control,
        force_overwrite=cli.force_overwrite,
        extra_args=tuple(cli.extra_args),
        timeout_s=_limit_s(context, config),
        max_bytes=config.max_bytes,
        name=f"ncu-{folder.name}" if plan.phase else "ncu",
    )


def _as_problem(error: LlmPerfError) -> Problem:
    return Problem("error", error.message, error.hint or "", error.data.get("key"))


def _degraded(warning: str) -> Problem:
    return Problem("degraded", warning, "choose a preset for this version and chip, or correct the names")
