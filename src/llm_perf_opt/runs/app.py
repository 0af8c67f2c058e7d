"""The Hydra application behind the orchestrator: check first, then let Hydra start the job."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.config.compose import (
    config_hash,
    current_config,
    digest,
    resolved_yaml,
    typed,
    typed_config,
)
from llm_perf_opt.config.hydra_bridge import compose
from llm_perf_opt.config.hydra_bridge.compose import SharedComposition
from llm_perf_opt.config.hydra_bridge.launch import JobSettings, job_settings, run_job
from llm_perf_opt.config.hydra_bridge.values import override
from llm_perf_opt.config.legacy import explicit_keys, note_config_name
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core import layout
from llm_perf_opt.core.artifacts import Artifacts, PlannedArtifacts, reserve_directory
from llm_perf_opt.core.console.command_line import print_error
from llm_perf_opt.core.console.logs import Verbosity, mask_other_logs
from llm_perf_opt.core.console.signals import interruption_first, raise_if_interrupted
from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.core.ranks import this_rank
from llm_perf_opt.runs import directory as runs_directory
from llm_perf_opt.runs.checks import check_names, check_stages, problems_of, ranks_of, stages_of
from llm_perf_opt.runs.execute import execute
from llm_perf_opt.runs.heartbeat import beating
from llm_perf_opt.runs.lock import hold
from llm_perf_opt.runs.manifest import SweepMark
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.workloads.setup import resolve_adapters

RUN_DIRECTORY_KEYS = ("artifacts.runs_dir", "hydra.run.dir")


@dataclass(slots=True)
class Prepared:
    """A configuration that passed every check, before anything was written."""

    config: AppConfig
    raw: compose.RawConfig
    run_dir: Path
    overrides: tuple[str, ...]
    config_hash: str


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run in addition to its configuration."""

    overrides: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    """Recorded in the command of the manifest (``--config-dir DIR``), which then can be repeated."""
    as_json: bool = False
    verbosity: Verbosity = Verbosity.normal
    silent: bool = False
    """Print no result: somebody else reports this run together with others."""


def check_configuration(
    overrides: Sequence[str],
    *,
    config_dir: Path | None,
    config_name: str,
    here: bool = True,
    shared: SharedComposition | None = None,
) -> Prepared:
    """Compose, and check keys, types, ranges and presets; model and machine are not checked."""
    note_config_name(config_name)
    raw = (
        shared.compose(overrides)
        if shared is not None
        else compose.compose_raw(overrides, config_dir=config_dir, config_name=config_name)
    )
    current = current_config(raw, overrides, cwd=Path.cwd())
    config = resolve_adapters(typed(current, here=here), here=here)
    return Prepared(
        config=config,
        raw=raw,
        run_dir=compose.run_directory(raw),
        overrides=tuple(overrides),
        config_hash=digest(current),
    )


def prepare(
    overrides: Sequence[str],
    *,
    config_dir: Path | None,
    config_name: str,
    here: bool = True,
    shared: SharedComposition | None = None,
) -> Prepared:
    """Compose and check everything, stages included; raises before anything is written.

    ``here``: whether it will run on this machine. For another one, what depends on the machine (device, model path,
    data, tools) is left to the run itself. ``shared``: composition state shared by the jobs of one sweep.
    """
    prepared = check_configuration(
        overrides, config_dir=config_dir, config_name=config_name, here=here, shared=shared
    )
    config = prepared.config
    check_names(config, here=here)
    # Checks get a scratch root: they may compute output paths, and must leave nothing behind.
    with tempfile.TemporaryDirectory(prefix="llm-perf-opt-check-") as scratch:
        context = _context(config, Artifacts.for_run(scratch), prepared.overrides)
        check_stages(stages_of(config), context, here=here)
    return prepared


def reserve_run_directory(prepared: Prepared, overrides: Sequence[str]) -> list[str]:
    """Reserve the run directory for this process; two runs in one second get two directories."""
    if explicit_keys(overrides).intersection(RUN_DIRECTORY_KEYS):
        directory = Artifacts.for_run(prepared.run_dir).root
    else:
        directory = reserve_directory(prepared.run_dir)
        prepared.run_dir = directory
        runs_directory.link_old_location(directory, prepared.config.pipeline)
    # Both, so that config.yaml records the run directory, whichever was given, and its base.
    return [override(key, str(directory)) for key in RUN_DIRECTORY_KEYS]


def launch(hydra_arguments: Sequence[str], options: RunOptions | None = None) -> int:
    """Pass control to Hydra, which composes again and calls the job in its run directory; return the exit code."""
    codes = [0]

    def job(raw: compose.RawConfig) -> None:
        codes.append(_run_job(raw, options or RunOptions()))

    raise_if_interrupted()
    with interruption_first():
        own_code = run_job(job, hydra_arguments)
    return max(codes) if own_code is None else own_code


def _run_job(raw: compose.RawConfig, options: RunOptions) -> int:
    from llm_perf_opt.runs.finish import finish_interrupted

    mask_other_logs()  # Hydra has just set them up
    settings = job_settings()
    try:
        artifacts = Artifacts.for_run(settings.run_directory)
        with hold(artifacts.root):
            try:
                with interruption_first():
                    return run_and_report(raw, settings, artifacts, options.overrides, options)
            except KeyboardInterrupt:
                finish_interrupted(artifacts)
                raise
    except LlmPerfError as error:
        return print_error(error, as_json=options.as_json)


def run_and_report(
    raw: compose.RawConfig,
    settings: JobSettings,
    artifacts: Artifacts,
    overrides: tuple[str, ...],
    options: RunOptions,
    sweep: SweepMark | None = None,
) -> int:
    """Run one composed configuration in a locked directory, and report it; return the exit code."""
    from llm_perf_opt.core.console.progress import make_progress
    from llm_perf_opt.runs.finish import finish_run

    here = settings.original_directory
    config = resolve_adapters(typed_config(raw, overrides, cwd=here))
    if config.run.ranks > 1 and this_rank() is None:
        from llm_perf_opt.runs.ranks import RankJob, run_ranks

        return run_ranks(
            RankJob(
                ranks=config.run.ranks,
                threads=config.run.threads,
                overrides=overrides,
                switches=options.switches,
                directory=here,
                config_hash=config_hash(raw, overrides, cwd=here),
                sweep=sweep,
                sinks=tuple(config.run.sinks),
            ),
            config,
            artifacts,
            verbosity=options.verbosity,
            as_json=options.as_json,
        )
    with beating(artifacts):  # includes the report: a run killed there is not finished
        with make_progress(options.verbosity) as progress:
            outcome = execute(
                config,
                artifacts,
                progress,
                command=["llm-perf-opt", "run", *options.switches, *overrides],
                overrides=overrides,
                resolved_yaml=resolved_yaml(raw, overrides, cwd=here),
                config_hash=config_hash(raw, overrides, cwd=here),
                sweep=sweep,
                started_in=here,
            )
        return finish_run(
            outcome,
            quiet=options.verbosity is Verbosity.quiet,
            as_json=options.as_json,
            sinks=() if options.silent else config.run.sinks,
            silent=options.silent,
        )


def show_plan(prepared: Prepared, *, as_json: bool) -> int:
    """Print what would run, with exact commands and files; nothing is written."""
    plan = plan_of(prepared)
    if as_json:
        print(json.dumps(plan, indent=2))
    else:
        print_plan(plan)
    return 0


def plan_of(prepared: Prepared) -> dict[str, Any]:
    """Return what a run would do."""
    stages = []
    # The real directory, so that commands are quoted for it; nothing in it is created.
    context = _context(prepared.config, PlannedArtifacts(prepared.run_dir), prepared.overrides)
    with tempfile.TemporaryDirectory(prefix="llm-perf-opt-plan-") as scratch:
        checked = _context(prepared.config, Artifacts.for_run(scratch), prepared.overrides)
        for stage in stages_of(prepared.config):
            problems = problems_of(stage, checked)
            skipped = any(p.severity == "skip" for p in problems)
            stages.append(
                {
                    "stage": stage.name,
                    "title": stage.title,
                    "skipped": skipped,
                    "steps": _steps(stage, context, skipped=skipped),
                    "problems": [
                        {"severity": p.severity, "message": p.message, "fix": p.fix} for p in problems
                    ],
                }
            )
    return {
        "run_dir": str(prepared.run_dir),
        "device": prepared.config.resolved_device,
        "ranks": ranks_of(prepared.config),
        "stages": stages,
    }


def _steps(stage: Stage, context: StageContext, *, skipped: bool) -> list[str]:
    """Return what a stage would do; if this machine cannot run it, what it would do on another."""
    if context.config.workload_command.command and not stage.for_own_program:
        return []
    try:
        return stage.plan(context)
    except LlmPerfError:
        if skipped:  # missing parts are already reported
            return []
        raise


def print_plan(plan: dict[str, Any]) -> None:
    """Print a plan for terminals; files of the run are shown relative to its directory."""
    inside = f"write {plan['run_dir']}/"
    print(f"run directory: {plan['run_dir']} (not created)\ndevice: {plan['device']}")
    if plan["ranks"] > 1:
        print(f"ranks: {plan['ranks']}, each in {layout.RANKS}/<rank>/ of the run directory")
    for stage in plan["stages"]:
        print(f"\n{stage['stage']}: {stage['title']}{' (skipped)' if stage['skipped'] else ''}")
        for problem in stage["problems"]:
            print(f"  ! {problem['message']}\n    fix: {problem['fix']}")
        if stage["skipped"] and stage["steps"]:
            print("  on a machine that supports it:")
        for line in stage["steps"]:
            print(f"  {line.replace(inside, 'write ', 1)}")


def _context(config: AppConfig, artifacts: Artifacts, overrides: tuple[str, ...]) -> StageContext:
    from llm_perf_opt.core.console.progress import LogProgress

    return StageContext(config=config, artifacts=artifacts, progress=LogProgress(), overrides=overrides)
