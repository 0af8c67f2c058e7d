"""The Hydra application behind the orchestrator: check first, then let Hydra start the job."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.config.compose import resolved_yaml, typed_config
from llm_perf_opt.config.hydra_bridge import compose
from llm_perf_opt.config.hydra_bridge.launch import job_settings, run_job
from llm_perf_opt.config.hydra_bridge.sweep import sweep_jobs
from llm_perf_opt.config.hydra_bridge.values import override
from llm_perf_opt.config.legacy import explicit_keys, note_config_name
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.artifacts import Artifacts, reserve_directory
from llm_perf_opt.core.console.command_line import print_error
from llm_perf_opt.core.console.logs import Verbosity, mask_other_logs
from llm_perf_opt.core.console.signals import interruption_first, raise_if_interrupted
from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.runs import old_places
from llm_perf_opt.runs.checks import check_names
from llm_perf_opt.runs.execute import execute
from llm_perf_opt.runs.lock import hold
from llm_perf_opt.runs.pipeline import check_stages, problems_of, stages_of
from llm_perf_opt.stages.base import Stage, StageContext

_RUN_DIRECTORY_KEYS = ("artifacts.runs_dir", "hydra.run.dir")
_MOST_CHECKED_JOBS = 256


@dataclass(slots=True)
class Prepared:
    """A configuration that passed every check, before anything was written."""

    config: AppConfig
    raw: compose.RawConfig
    run_dir: Path
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a user asked for beside the configuration."""

    overrides: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    """Recorded in the command of the manifest (``--config-dir DIR``), which then can be repeated."""
    as_json: bool = False
    verbosity: Verbosity = Verbosity.normal


def check_configuration(overrides: Sequence[str], *, config_dir: Path | None, config_name: str) -> Prepared:
    """Compose, and check keys, types, ranges and presets; neither the model nor the machine is looked at."""
    note_config_name(config_name)
    raw = compose.compose_raw(overrides, config_dir=config_dir, config_name=config_name)
    config = typed_config(raw, overrides, cwd=Path.cwd())
    return Prepared(config=config, raw=raw, run_dir=compose.run_directory(raw), overrides=tuple(overrides))


def prepare(overrides: Sequence[str], *, config_dir: Path | None, config_name: str) -> Prepared:
    """Compose and check everything, stages included; raises before anything is written."""
    prepared = check_configuration(overrides, config_dir=config_dir, config_name=config_name)
    config = prepared.config
    check_names(config)
    # Checks get a scratch root: they may ask where files would go, and must leave nothing behind.
    with tempfile.TemporaryDirectory(prefix="llm-perf-opt-check-") as scratch:
        check_stages(stages_of(config), _context(config, Path(scratch), prepared.overrides))
    return prepared


def check_sweep(overrides: Sequence[str], *, config_dir: Path | None, config_name: str) -> list[Prepared]:
    """Check every job of a sweep before the first one starts; each is given its own run directory."""
    return [
        prepare(job, config_dir=config_dir, config_name=config_name)
        for job in itertools.islice(sweep_jobs(overrides), _MOST_CHECKED_JOBS)
    ]


def sweep_directory(jobs: Sequence[Prepared], overrides: Sequence[str]) -> Path:
    """Return the directory of a sweep: ``hydra.sweep.dir``, or ``artifacts.runs_dir`` where only that is set."""
    keys = explicit_keys(overrides)
    own = {job.run_dir for job in jobs}
    if "hydra.sweep.dir" not in keys and keys.intersection(_RUN_DIRECTORY_KEYS) and len(own) == 1:
        return own.pop()
    return compose.sweep_directory(jobs[0].raw)


def reserve_sweep_directory(jobs: Sequence[Prepared], overrides: Sequence[str]) -> list[str]:
    """Make the directory of a sweep this process's own, unless the user named one."""
    wanted = sweep_directory(jobs, overrides)
    if not explicit_keys(overrides).intersection((*_RUN_DIRECTORY_KEYS, "hydra.sweep.dir")):
        wanted = reserve_directory(wanted)
    return [override("hydra.sweep.dir", str(wanted))]


def reserve_run_directory(prepared: Prepared, overrides: Sequence[str]) -> list[str]:
    """Make the run directory this process's own; two runs in one second get two directories."""
    if explicit_keys(overrides).intersection(_RUN_DIRECTORY_KEYS):
        directory = Artifacts.for_run(prepared.run_dir).root
    else:
        directory = reserve_directory(prepared.run_dir)
        old_places.lead_to(directory, prepared.config.pipeline)
    # Both, so that config.yaml says where the run is, whichever of them was given, and relative to what.
    return [override(key, str(directory)) for key in _RUN_DIRECTORY_KEYS]


def launch(hydra_arguments: Sequence[str], options: RunOptions | None = None) -> int:
    """Hand over to Hydra, which composes again and calls the job in its run directory; return the exit code."""
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
    # A job of a sweep is recorded as itself, without the lists of the sweep.
    overrides = options.overrides if settings.sweep_overrides is None else settings.sweep_overrides
    try:
        config = typed_config(raw, overrides, cwd=settings.original_directory)
        artifacts = Artifacts.for_run(settings.run_directory)
        yaml = resolved_yaml(raw, overrides, cwd=settings.original_directory)
        with hold(artifacts.root):
            try:
                with interruption_first():
                    return _run_and_report(
                        config, artifacts, overrides, yaml, options, settings.original_directory
                    )
            except KeyboardInterrupt:
                finish_interrupted(artifacts)
                raise
    except LlmPerfError as error:
        return print_error(error, as_json=options.as_json)


def _run_and_report(
    config: AppConfig,
    artifacts: Artifacts,
    overrides: tuple[str, ...],
    yaml: str,
    options: RunOptions,
    started_in: Path,
) -> int:
    from llm_perf_opt.core.console.progress import make_progress
    from llm_perf_opt.runs.finish import finish_run

    with make_progress(options.verbosity) as progress:
        outcome = execute(
            config,
            artifacts,
            progress,
            command=["llm-perf-opt", "run", *options.switches, *overrides],
            overrides=overrides,
            resolved_yaml=yaml,
            started_in=started_in,
        )
    quiet = options.verbosity is Verbosity.quiet
    return finish_run(outcome, quiet=quiet, as_json=options.as_json, sinks=config.run.sinks)


def show_plan(prepared: Prepared, *, as_json: bool) -> int:
    """Print what would run, with exact commands and files; nothing is written."""
    plan = _plan(prepared)
    if as_json:
        print(json.dumps(plan, indent=2))
    else:
        _print_plan(plan)
    return 0


def show_sweep_plan(jobs: Sequence[Prepared], overrides: Sequence[str], *, as_json: bool) -> int:
    """Print the plan of every job of a sweep; as JSON, one list."""
    directory = sweep_directory(jobs, overrides)
    for number, job in enumerate(jobs):
        job.run_dir = directory / compose.sweep_subdirectory(job.raw, number)
    plans = [_plan(job) for job in jobs]
    if as_json:
        print(json.dumps(plans, indent=2))
        return 0
    for number, (job, plan) in enumerate(zip(jobs, plans, strict=True)):
        print(f"{'' if number == 0 else chr(10)}job {number}: {' '.join(job.overrides)}")
        _print_plan(plan)
    return 0


def _plan(prepared: Prepared) -> dict[str, Any]:
    stages = []
    with tempfile.TemporaryDirectory(prefix="llm-perf-opt-plan-") as scratch:
        context = _context(prepared.config, Path(scratch), prepared.overrides)
        for stage in stages_of(prepared.config):
            problems = problems_of(stage, context)
            skipped = any(p.severity == "skip" for p in problems)
            stages.append(
                {
                    "stage": stage.name,
                    "title": stage.title,
                    "skipped": skipped,
                    "steps": [
                        line.replace(scratch, str(prepared.run_dir))
                        for line in _steps(stage, context, skipped=skipped)
                    ],
                    "problems": [
                        {"severity": p.severity, "message": p.message, "fix": p.fix} for p in problems
                    ],
                }
            )
    return {
        "run_dir": str(prepared.run_dir),
        "device": prepared.config.resolved_device,
        "stages": stages,
    }


def _steps(stage: Stage, context: StageContext, *, skipped: bool) -> list[str]:
    """Return what a stage would do; of one that is skipped here, what it would do where it can run."""
    try:
        return stage.plan(context)
    except LlmPerfError:
        if skipped:  # what is missing is said already
            return []
        raise


def _print_plan(plan: dict[str, Any]) -> None:
    print(f"run directory: {plan['run_dir']} (not created)\ndevice: {plan['device']}")
    for stage in plan["stages"]:
        print(f"\n{stage['stage']}: {stage['title']}{' - would be skipped here' if stage['skipped'] else ''}")
        for problem in stage["problems"]:
            print(f"  ! {problem['message']}\n    fix: {problem['fix']}")
        if stage["skipped"] and stage["steps"]:
            print("  where it can run it would:")
        for line in stage["steps"]:
            print(f"  {line}")


def _context(config: AppConfig, root: Path, overrides: tuple[str, ...]) -> StageContext:
    from llm_perf_opt.core.console.progress import LogProgress

    return StageContext(
        config=config, artifacts=Artifacts.for_run(root), progress=LogProgress(), overrides=overrides
    )
