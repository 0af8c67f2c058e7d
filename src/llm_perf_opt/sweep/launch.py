"""``run --multirun``: check all jobs, write the plan, start an engine, summarise the results from files."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_perf_opt.config.compose import config_hash
from llm_perf_opt.config.hydra_bridge import compose
from llm_perf_opt.config.hydra_bridge.compose import RawConfig
from llm_perf_opt.config.hydra_bridge.launch import HandedJob, JobSettings, LostJob, job_settings, run_sweep
from llm_perf_opt.config.hydra_bridge.stored_settings import missing_settings, refuse_executing
from llm_perf_opt.config.hydra_bridge.values import override
from llm_perf_opt.core import layout
from llm_perf_opt.core.artifacts import Artifacts, reserve_directory
from llm_perf_opt.core.console.command_line import defect, print_error
from llm_perf_opt.core.console.logs import Verbosity, console_logging, mask_other_logs
from llm_perf_opt.core.console.signals import (
    Interrupted,
    acknowledge_interruption,
    interrupted_exit_code,
    interruption_first,
    raise_if_interrupted,
    stop_signals,
)
from llm_perf_opt.core.errors import ConfigError, InputError, LlmPerfError
from llm_perf_opt.core.files import explain_os_errors
from llm_perf_opt.core.secrets import MASK, mask_arguments
from llm_perf_opt.core.units import timestamp
from llm_perf_opt.runs.app import Prepared, RunOptions, plan_of, print_plan, run_and_report
from llm_perf_opt.runs.directory import find_earlier
from llm_perf_opt.runs.heartbeat import new_heartbeat, own_manifest
from llm_perf_opt.runs.lock import hold
from llm_perf_opt.runs.manifest import SweepMark, is_reported, new_manifest, read_manifest, write_manifest
from llm_perf_opt.summary.codec import to_plain
from llm_perf_opt.sweep.collect import exit_code, read_sweep, write_sweep
from llm_perf_opt.sweep.data import Sweep, SweepJob
from llm_perf_opt.sweep.metrics import Objective, objective_values
from llm_perf_opt.sweep.plan import (
    CheckedSweep,
    PlannedJob,
    SweepPlan,
    check_sweep,
    new_plan,
    read_plan,
    write_plan,
)

# One job of a sweep, in whatever process and on whatever machine an engine runs it.
#
# Its outcome is recorded in its directory: an invalid configuration, a signal, a defect. It raises nothing, so
# that the engine continues with the others; only a signal to the client's own process ends the sweep.


LOGGER = logging.getLogger("llm_perf_opt.sweep")


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What every job of a sweep receives; sent to other processes."""

    sweep_id: str
    run: RunOptions
    objective: Sequence[Objective] = ()
    client: tuple[str, int] = field(default_factory=lambda: (socket.gethostname(), os.getpid()))
    """Host and process of the client: a signal to it ends the sweep, one to another process its job alone."""


def _run_sweep_job(raw: RawConfig, options: SweepOptions) -> list[float] | float | None:
    """Run one job; return its objective, for optimising sweepers."""
    in_client = (socket.gethostname(), os.getpid()) == options.client
    if not in_client:
        console_logging(options.run.verbosity)
    mask_other_logs()  # Hydra has just set them up
    settings = job_settings()
    artifacts = Artifacts.for_run(settings.run_directory)
    with stop_signals(take_over=not in_client):
        try:
            _run_locked(raw, settings, artifacts, options)
            if in_client and (code := interrupted_exit_code()) is not None:
                raise Interrupted(code - 128)  # already handled by the run; the sweep ends too
        except KeyboardInterrupt:
            acknowledge_interruption()
            if in_client:
                raise
        except LlmPerfError as error:
            print_error(error)
    return objective_values(artifacts.root, options.objective)


def _run_locked(raw: RawConfig, settings: JobSettings, artifacts: Artifacts, options: SweepOptions) -> None:
    from llm_perf_opt.runs.finish import finish_interrupted

    overrides = settings.sweep_overrides or ()
    directory = os.path.relpath(artifacts.root, Path(settings.sweep_directory).resolve())
    mark = SweepMark(options.sweep_id, directory)
    with hold(artifacts.root):
        if _is_done(artifacts.root, mark, raw, settings):
            LOGGER.info("%s is done already", artifacts.root)
            return
        try:
            with interruption_first():
                run_and_report(raw, settings, artifacts, overrides, options.run, mark)
        except KeyboardInterrupt:
            finish_interrupted(artifacts)
            raise
        except LlmPerfError as error:
            _record_failure(artifacts, overrides, options, mark, error)
            raise
        except Exception as error:
            # The isolation boundary between jobs: a defect in one must not affect the others.
            found = defect(error)
            _record_failure(artifacts, overrides, options, mark, found)
            raise found from error


def record_lost(
    sweep: Path, directory: str, overrides: Sequence[str], options: SweepOptions, reason: str
) -> None:
    """Write a manifest for a job that its engine lost before it wrote one: a node without the package, a cancelled wait."""
    if (sweep / directory / layout.MANIFEST).is_file():
        return
    with contextlib.suppress(LlmPerfError):  # another process holds it, or the directory is not writable
        artifacts = Artifacts.for_run(sweep / directory)
        with hold(artifacts.root):
            manifest = new_manifest(artifacts, ["llm-perf-opt", "run", *options.run.switches, *overrides])
            manifest.sweep = SweepMark(options.sweep_id, directory)
            manifest.status = "failed"
            manifest.reason = f"it did not begin where the engine put it: {reason}"
            write_manifest(artifacts, manifest)


def _is_done(root: Path, mark: SweepMark, raw: RawConfig, settings: JobSettings) -> bool:
    """Whether this job is already finished: a queue may hold it twice after the client was restarted."""
    with contextlib.suppress(InputError):
        found = read_manifest(root) if (root / layout.MANIFEST).is_file() else None
        if found is not None and found.status == "ok" and found.sweep == mark and is_reported(root):
            overrides = settings.sweep_overrides or ()
            return found.config_hash == config_hash(raw, overrides, cwd=settings.original_directory)
    return False


def _record_failure(
    artifacts: Artifacts,
    overrides: Sequence[str],
    options: SweepOptions,
    mark: SweepMark,
    error: LlmPerfError,
) -> None:
    """Write a manifest with the reason, also if the job failed before it had one."""
    with contextlib.suppress(LlmPerfError):  # unwritable directory: the error is in the engine's log
        manifest = own_manifest(artifacts.root)
        if manifest is None:
            earlier = find_earlier(artifacts.root)
            if earlier is not None:
                earlier.set_aside()
            manifest = new_manifest(artifacts, ["llm-perf-opt", "run", *options.run.switches, *overrides])
            manifest.heartbeat, manifest.sweep = new_heartbeat(), mark
        manifest.status = "failed"
        manifest.reason = manifest.reason or (
            f"{error.message} (fix: {error.hint})" if error.hint else error.message
        )
        write_manifest(artifacts, manifest)


@dataclass(slots=True)
class SweepCommand:
    """The command line of a sweep."""

    overrides: list[str] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    config_dir: Path | None = None
    config_name: str = "config"
    plan: bool = False
    as_json: bool = False
    verbosity: Verbosity = Verbosity.normal
    resume: bool = False
    resume_dir: Path | None = None


def run_command(command: SweepCommand) -> int:
    """Run a sweep, or resume one; return the exit code."""
    if command.resume_dir is not None:
        adopt_plan(command, command.resume_dir)
    if command.plan:
        return _show_plans(command)
    checked = check_sweep(command.overrides, config_dir=command.config_dir, config_name=command.config_name)
    if command.resume and not checked.named:
        raise ConfigError(
            "--resume needs the directory of the sweep",
            hint="llm-perf-opt run --resume=DIR, or name it as before: hydra.sweep.dir=DIR",
        )
    if command.resume and checked.engine.chooses:
        raise ConfigError(
            "--resume is for sweeps whose jobs are known beforehand; here a sweeper chooses them",
            hint="start in another directory, and let the sweeper resume from its storage: "
            "hydra.sweeper.storage=sqlite:///FILE hydra.sweeper.study_name=NAME",
        )
    checked.engine.check_reachable()
    directory = checked.directory if checked.named else reserve_directory(checked.directory)
    with explain_os_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    plan = _plan(command, checked, directory)
    todo = _to_do(plan, directory) if command.resume else list(plan.jobs)
    write_plan(directory, plan)
    try:
        if todo or checked.engine.chooses:
            with _output_for_people(as_json=command.as_json):
                _launch(command, checked, plan, directory, todo)
    finally:
        sweep = read_sweep(directory)
        page = write_sweep(sweep, directory)
    _print(command, sweep, page)
    return exit_code(sweep, finished=True)


def adopt_plan(command: SweepCommand, directory: Path) -> None:
    """Repeat the command of a sweep in its own directory; further arguments are added."""
    plan = read_plan(directory)
    if plan is None:
        raise InputError(
            f"{directory} holds no {layout.SWEEP_PLAN}",
            hint="give the directory of a sweep, or its whole command with --resume and hydra.sweep.dir=DIR",
            path=str(directory),
        )
    given = {text.partition("=")[0] for text in command.overrides}
    kept = [text for text in plan.overrides if text.partition("=")[0] not in given]
    masked = next((text for text in (*kept, *plan.switches) if MASK in text), None)
    if masked is not None:
        key = masked.partition("=")[0]
        raise ConfigError(
            f"--resume={directory} cannot repeat {key}, because {layout.SWEEP_PLAN} holds {MASK} for its secret",
            # A value in angle brackets is a placeholder, which masking leaves readable.
            hint=f"add {key}=<value>, or give the whole command with --resume and hydra.sweep.dir={directory}",
            key=key,
        )
    _refuse_stored_presets(command, plan, directory)
    missing = missing_settings(
        kept, command.overrides, config_dir=command.config_dir, config_name=command.config_name
    )
    source = directory / layout.SWEEP_PLAN
    refuse_executing(missing, kept, source=source, command=_resume_command(command, directory))
    place = override("hydra.sweep.dir", str(directory))
    command.overrides = [
        *(text for text in kept if not text.startswith("hydra.sweep.dir=")),
        *command.overrides,
        place,
    ]


def _resume_command(command: SweepCommand, directory: Path) -> list[str]:
    arguments = ["llm-perf-opt", "run", f"--resume={directory}"]
    return [*arguments, *command.switches, *mask_arguments(command.overrides)]


def _refuse_stored_presets(command: SweepCommand, plan: SweepPlan, directory: Path) -> None:
    """Reject presets that only the plan names: a file in another directory may set anything."""
    switches = []
    if plan.config_dir is not None and command.config_dir is None:
        switches += ["--config-dir", plan.config_dir]
    if plan.config_name not in ("config", command.config_name):
        switches += ["--config-name", plan.config_name]
    if switches:
        raise ConfigError(
            f"{directory / layout.SWEEP_PLAN} names presets ({switches[0]}), which are not taken over from a file",
            hint="if you trust them, repeat them: "
            + shlex.join([*_resume_command(command, directory), *switches]),
            path=str(directory),
        )


def _plan(command: SweepCommand, checked: CheckedSweep, directory: Path) -> SweepPlan:
    """Begin a plan, or resume the existing one; the plan of another sweep is not overwritten."""
    there = read_plan(directory)
    if there is None:
        folder = str(command.config_dir) if command.config_dir is not None else None
        plan = new_plan(checked.engine.launcher, command.overrides, command.switches, checked.jobs)
        return replace(plan, config_dir=folder, config_name=command.config_name)
    if not command.resume:
        raise ConfigError(
            f"{directory} already contains a sweep (started {there.created})",
            hint="resume it: --resume; or choose another directory: hydra.sweep.dir=DIR",
            key="hydra.sweep.dir",
            path=str(directory),
        )
    before, now = _varied(there.jobs), _varied(checked.jobs)
    if before and not any(now.get(name) == overrides for name, overrides in before.items()):
        raise ConfigError(
            f"the sweep in {directory} has other jobs than these: none of its {len(before)} is among them",
            hint="give the command it was begun with, or choose another directory: hydra.sweep.dir=DIR",
            key="hydra.sweep.dir",
            path=str(directory),
        )
    there.jobs, there.launcher = checked.jobs, checked.engine.launcher
    there.resumed.append(timestamp())
    return there


def _varied(jobs: Sequence[PlannedJob]) -> dict[str, frozenset[str]]:
    """Return directory → settings of its job that differ between jobs."""
    common = frozenset.intersection(*(frozenset(job.overrides) for job in jobs)) if jobs else frozenset()
    return {job.directory: frozenset(job.overrides) - common for job in jobs}


def _to_do(plan: SweepPlan, directory: Path) -> list[PlannedJob]:
    """Return the jobs that are neither done with the same configuration nor running; log those that are skipped."""
    found: dict[str, SweepJob] = {job.run_dir: job for job in _read_sweep_if_any(directory)}
    todo, running = [], []
    for job in plan.jobs:
        there = found.get(job.directory)
        if there is not None and there.status == "running":
            running.append(there)
        elif there is None or there.status != "ok" or there.config_hash != job.config_hash:
            todo.append(job)
    kept = len(plan.jobs) - len(todo) - len(running)
    LOGGER.info("%d of %d jobs are done and kept, %d are run now", kept, len(plan.jobs), len(todo))
    for alive in running:
        LOGGER.warning("job %d is left alone: %s", alive.number, alive.reason)
    return todo


def _read_sweep_if_any(directory: Path) -> list[SweepJob]:
    """Return the jobs in a directory; none if there is no sweep yet."""
    try:
        return read_sweep(directory).jobs
    except InputError:
        return []


def _launch(
    command: SweepCommand,
    checked: CheckedSweep,
    plan: SweepPlan,
    directory: Path,
    todo: Sequence[PlannedJob],
) -> None:
    quiet = Verbosity.quiet if command.as_json else command.verbosity
    options = SweepOptions(
        sweep_id=plan.id,
        run=RunOptions(switches=tuple(command.switches), verbosity=quiet),
        objective=tuple(checked.objective),
    )

    def job(raw: compose.RawConfig) -> list[float] | float | None:
        return _run_sweep_job(raw, options)

    handed = None if checked.engine.chooses else [HandedJob(each.overrides, each.directory) for each in todo]
    shown = "a sweeper chooses the jobs" if handed is None else f"{len(handed)} jobs"
    LOGGER.info("sweep: %s, started by %s, in %s", shown, checked.engine.launcher, directory)
    raise_if_interrupted()

    def record(lost: LostJob) -> None:
        record_lost(directory, lost.directory, lost.overrides, options, lost.reason)

    with interruption_first():
        run_sweep(
            job,
            handed,
            [*command.overrides, override("hydra.sweep.dir", str(directory))],
            config_dir=command.config_dir,
            config_name=command.config_name,
            on_lost=record,
        )


@contextlib.contextmanager
def _output_for_people(*, as_json: bool) -> Iterator[None]:
    """With ``--json``, redirect output of jobs and launchers to standard error, so that standard output has only the document."""
    if not as_json:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _print(command: SweepCommand, sweep: Sweep, page: Path) -> None:
    from llm_perf_opt.sweep.page import sweep_console

    if command.as_json:
        print(json.dumps(to_plain(sweep)))
    elif command.verbosity is Verbosity.quiet:
        print(page)
    else:
        print(sweep_console(sweep, page))


def _show_plans(command: SweepCommand) -> int:
    """Print the plan of every job; as JSON, one list. Nothing is written."""
    prepared: list[Prepared] = []
    checked = check_sweep(
        command.overrides,
        config_dir=command.config_dir,
        config_name=command.config_name,
        each=prepared.append,
    )
    plans = [plan_of(replace(job, run_dir=checked.directory / job.run_dir)) for job in prepared]
    if command.as_json:
        print(json.dumps(plans, indent=2))
        return 0
    for number, (job, plan) in enumerate(zip(prepared, plans, strict=True)):
        print(f"{'' if number == 0 else chr(10)}job {number}: {' '.join(job.overrides)}")
        print_plan(plan)
    return 0
