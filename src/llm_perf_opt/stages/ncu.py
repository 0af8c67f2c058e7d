"""Stage ``ncu``: hardware counters of the kernels that matter, with Nsight Compute.

One run over the workload profiles all target kernels (the top of the nsys stage; without it, no kernel filter).
It writes ``ncu/run.ncu-rep``, its pages as CSV (``raw.csv``, ``details.csv``, ``section_<name>.csv``),
``ncu/targets.csv``, ``ncu/cmd.txt`` (and ``cmd-rerun.txt`` when nothing matched the filter), and the logs.
Reading the counters is not done here.
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.core.console.progress import Task
from llm_perf_opt.core.errors import ConfigError, LlmPerfError, ToolError
from llm_perf_opt.core.escape import csv_text
from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.core.ownership import own_files
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult
from llm_perf_opt.process import tools as checks
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.stages.facts.collect import Part, collect
from llm_perf_opt.stages.facts.ncu import ncu_facts
from llm_perf_opt.vendor.ncu.config import NcuConfig
from llm_perf_opt.vendor.ncu.diagnose import NcuFault
from llm_perf_opt.vendor.ncu.plan import NcuPlan, config_errors, make_plan, nsys_tables
from llm_perf_opt.vendor.ncu.probe import NcuCapabilities, assumed_ncu, ncu_version, probe_ncu
from llm_perf_opt.vendor.ncu.run import REPORT, NcuRequest, NcuRunResult, export_pages, page_commands, run_ncu
from llm_perf_opt.vendor.ncu.targets import Target, missing_targets
from llm_perf_opt.vendor.workload import replay_lines, workload

_NOTE_EVERY_S = 15.0
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
        """Look for what would go wrong: configuration, the tool, the GPU, permissions."""
        from llm_perf_opt.workloads.memory import memory_problems

        config = context.stage_config(self.name, NcuConfig)
        problems = [_as_problem(error) for error in config_errors(config)]
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
        problems += memory_problems(context.config, self.name)
        if not problems:
            try:
                plan = make_plan(config, probe_ncu(executable), {}, top_n=1)
                problems += [_degraded(warning) for warning in plan.warnings]
            except ConfigError as error:
                problems.append(_as_problem(error))
            except ToolError as error:
                problems.append(Problem("skip", error.message, error.hint or checks.install_hint("ncu")))
        return problems

    def plan(self, context: StageContext) -> list[str]:
        """Show the commands and files, on a machine that cannot run them too; the filter depends on nsys."""
        config = context.stage_config(self.name, NcuConfig)
        context = _with_gpu(context)
        executable = checks.find_tool("ncu", config.executable)
        capabilities = probe_ncu(executable) if executable else assumed_ncu(config.executable)
        folder = context.artifacts.root / self.name
        plan = make_plan(
            config, capabilities, nsys_tables(context.artifacts.root / "nsys"), _top_n(context, config)
        )
        request = _request(context, config, capabilities, plan, folder)
        lines = [f"cost  {plan.cost}", f"run   {replay_lines(request.command())}", f"write {folder / REPORT}"]
        if config.ncu_cli.export.csv:
            pages = page_commands(capabilities, folder / REPORT, plan.export_sections)
            lines += [f"run   {replay_lines(command)}" for command in pages.values()]
            lines += [f"write {folder / name}" for name in pages]
        return [*lines, f"write {folder / 'targets.csv'}", f"write {folder / 'cmd.txt'}"]

    def run(self, context: StageContext) -> StageResult:
        """Profile, once more without the kernel filter if nothing matched, then export."""
        config = context.stage_config(self.name, NcuConfig)
        for error in config_errors(config):
            raise error
        executable = checks.find_tool("ncu", config.executable)
        if executable is None:
            raise checks.missing_tool("ncu", config.executable)
        capabilities = probe_ncu(executable)
        plan = make_plan(
            config, capabilities, nsys_tables(context.artifacts.root / "nsys"), _top_n(context, config)
        )
        folder = context.artifacts.out_dir(self.name)
        return _Run(context, config, capabilities, plan, folder).result()

    def facts(self, run_dir: Path) -> Facts:
        """Read the report, or the pages exported from it."""
        folder = run_dir / self.name
        captures = [*folder.rglob("*.ncu-rep"), *folder.rglob("*.csv")]
        own = own_files(run_dir, self.name, captures)
        if not own:
            return Facts(stage=self.name)
        if strange := sorted(path.name for path in {*captures} - {*own} if path.is_file()):
            # The folder is read as a whole: what is not of this run cannot be told apart inside it.
            words = f"Counters are not read: {', '.join(strange)} in {self.name}/ is not of this run; move it away."
            return Facts(stage=self.name, notes=[words])
        return collect(self.name, [Part("ncu capture", functools.partial(ncu_facts, folder))])


class _Run:
    """One run of the stage."""

    def __init__(
        self,
        context: StageContext,
        config: NcuConfig,
        capabilities: NcuCapabilities,
        plan: NcuPlan,
        folder: Path,
    ) -> None:
        self._context, self._config, self._capabilities = context, config, capabilities
        self._plan, self._folder = plan, folder
        self._result = StageResult("ok")
        self._remarks = list(plan.warnings)
        self._fix: list[str] = []
        self._unreadable = False
        """Whether there is a report that nothing here can read."""

    def result(self) -> StageResult:
        """Run, rerun, export, judge."""
        self._remove_earlier()
        self._write_targets()
        self._context.progress.say(f"ncu: {self._plan.cost}")
        for warning in self._plan.warnings:
            self._context.progress.say(f"ncu: {warning}")
        request = _request(self._context, self._config, self._capabilities, self._plan, self._folder)
        profiled = self._profile(request, "cmd.txt")
        if profiled.fault and profiled.fault.kind == "no-kernels" and request.kernel_regex:
            self._remarks.append("no kernel matched the filter, so ncu ran again without it")
            profiled = self._profile(request.without_filter(), "cmd-rerun.txt")
        if profiled.report is not None:
            self._result.artifacts.insert(0, profiled.report)
            self._export(profiled.report, readable=profiled.kernels is not None)
            self._missing(profiled, rerun="-rerun" in profiled.process.argv[-1])
        self._judge(profiled.fault)
        return self._result

    def _profile(self, request: NcuRequest, record: str) -> NcuRunResult:
        header = f"# Nsight Compute {self._capabilities.version_text}. Run again with: sh {record}"
        command = replay_lines(request.command(), cwd=request.workload.cwd, env=request.workload.added_env)
        path = atomic_write_text(self._folder / record, f"{header}\n\n{command}\n")
        self._result.artifacts.append(path)
        with self._context.progress.task("ncu") as task:
            profiled = run_ncu(request, on_line=_follow_lines(task), on_tick=_follow_time(task))
        process = profiled.process
        self._result.exit_codes[request.name] = process.returncode
        logs = (request.log_file, process.stdout_path, process.stderr_path)
        self._result.artifacts += [log for log in logs if log is not None and log.is_file()]
        if profiled.passes:
            total = sum(profiled.passes)
            self._context.progress.say(f"ncu: {len(profiled.passes)} launches profiled in {total} passes")
        return profiled

    def _export(self, report: Path, *, readable: bool) -> None:
        """Export the pages; ``readable``: the report itself can be read, too (the ``ncu`` extra)."""
        if not self._config.ncu_cli.export.csv:
            return
        files, codes, problems = export_pages(
            self._capabilities,
            report,
            self._plan.export_sections,
            folder=self._folder,
            log_dir=self._folder / "logs",
        )
        self._result.artifacts += files
        self._result.exit_codes.update(codes)
        if problems:
            self._unreadable = not files and not readable
            self._remarks.append(f"pages that could not be exported: {'; '.join(problems)}")
            self._fix.append(f"export by hand: ncu --import {report} --csv --page raw --print-units base")

    def _missing(self, profiled: NcuRunResult, *, rerun: bool) -> None:
        if profiled.kernels is None or not self._plan.targets or rerun:
            return
        missing = missing_targets([target.name for target in self._plan.targets], profiled.kernels)
        if missing:
            self._remarks.append(
                f"{len(missing)} of {len(self._plan.targets)} target kernels were not profiled "
                f"(first: {missing[0][:120]})"
            )
            self._fix.append("raise pipeline.ncu.ncu_cli.launch_count, or widen the NVTX range")

    def _judge(self, fault: NcuFault | None) -> None:
        if fault is not None:
            self._remarks.insert(0, fault.message)
            self._fix.insert(0, fault.fix)
            self._result.status = fault.status
        elif self._remarks:
            self._result.status = "failed" if self._unreadable else "degraded"
        self._result.reason = "; ".join(self._remarks) or None
        self._result.fix = "; ".join(dict.fromkeys(self._fix)) or None

    def _write_targets(self) -> None:
        if not self._plan.targets:
            return
        path = atomic_write_text(self._folder / "targets.csv", targets_table(self._plan.targets))
        self._result.artifacts.append(path)

    def _remove_earlier(self) -> None:
        """Remove what an earlier run left: an old report must not pass for a new one."""
        earlier = [path for path in (self._folder / REPORT, self._folder / "cmd-rerun.txt") if path.exists()]
        earlier += [*self._folder.glob("section_*.csv"), *self._folder.glob("raw.csv")]
        if (self._folder / REPORT).exists() and not self._config.ncu_cli.force_overwrite:
            raise ConfigError(
                f"{self._folder / REPORT} exists and pipeline.ncu.ncu_cli.force_overwrite is false",
                hint="set it to true, or choose another artifacts.runs_dir",
                key="pipeline.ncu.ncu_cli.force_overwrite",
            )
        for path in earlier:
            path.unlink(missing_ok=True)


def targets_table(targets: list[Target]) -> str:
    """Return the targets as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["rank", "share_ratio", "launches", "phases", "name"])
    for rank, target in enumerate(targets, start=1):
        phases = " ".join(target.phases)
        writer.writerow([rank, f"{target.share_ratio:.6f}", target.launches, phases, csv_text(target.name)])
    return out.getvalue()


def _with_gpu(context: StageContext) -> StageContext:
    """Return the run as it would be on a machine with a GPU."""
    if context.config.resolved_device.startswith("cuda"):
        return context
    return replace(context, config=replace(context.config, resolved_device="cuda:0"))


def _top_n(context: StageContext, config: NcuConfig) -> int:
    return config.selection.top_n or context.config.run.top_n_kernels


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
        force_overwrite=cli.force_overwrite,
        extra_args=tuple(cli.extra_args),
        timeout_s=config.timeout_s or context.config.workload_command.timeout_s,
        max_bytes=config.max_bytes,
    )


def _as_problem(error: LlmPerfError) -> Problem:
    return Problem("error", error.message, error.hint or "", error.data.get("key"))


def _degraded(warning: str) -> Problem:
    return Problem("degraded", warning, "choose a preset for this version and chip, or correct the names")


def _follow_lines(task: Task) -> Callable[[str], None]:
    """Show what ncu says; the program's own words are in the log."""

    def show(line: str) -> None:
        if line.startswith("==PROF== Profiling"):
            task.advance(1, note=line.removeprefix("==PROF== Profiling")[:80].strip())

    return show


def _follow_time(task: Task) -> Callable[[float], None]:
    """Say now and then that the run is still under way."""
    last = 0.0

    def show(elapsed: float) -> None:
        nonlocal last
        if elapsed - last >= _NOTE_EVERY_S:
            last = elapsed
            task.advance(0, note=f"{elapsed:.0f} s")

    return show
