"""``run --multirun``: check all jobs, write the plan, hand over to an engine, tell from the files what came of it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_perf_opt.config.hydra_bridge import compose
from llm_perf_opt.config.hydra_bridge.sweep import HandedJob, LostJob, run_sweep
from llm_perf_opt.config.hydra_bridge.values import override
from llm_perf_opt.core.clock import now_text
from llm_perf_opt.core.console.logs import Verbosity
from llm_perf_opt.core.console.signals import interruption_first, raise_if_interrupted
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.files import explain_os_errors
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.core.run_directory.artifacts import reserve_directory
from llm_perf_opt.core.secrets import MASK
from llm_perf_opt.model.codec import to_plain
from llm_perf_opt.model.sweep import Sweep, SweepJob
from llm_perf_opt.runs.app import Prepared, RunOptions, plan_of, print_plan
from llm_perf_opt.runs.sweep.check import CheckedSweep, check_sweep
from llm_perf_opt.runs.sweep.job import SweepOptions, record_lost, run_sweep_job
from llm_perf_opt.runs.sweep.plan import PlannedJob, SweepPlan, new_plan, read_plan, write_plan
from llm_perf_opt.runs.sweep.report import exit_code, read_sweep, write_sweep

LOGGER = logging.getLogger("llm_perf_opt.sweep")


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
    """Run a sweep, or go on with one; return the exit code."""
    if command.resume_dir is not None:
        take_over_plan(command, command.resume_dir)
    if command.plan:
        return _show_plans(command)
    checked = check_sweep(command.overrides, config_dir=command.config_dir, config_name=command.config_name)
    if command.resume and not checked.named:
        raise ConfigError(
            "--resume needs the directory of the sweep to go on with",
            hint="llm-perf-opt run --resume=DIR, or name it as before: hydra.sweep.dir=DIR",
        )
    if command.resume and checked.engine.chooses:
        raise ConfigError(
            "--resume is for sweeps whose jobs are known beforehand; here a sweeper chooses them",
            hint="begin in another directory, and let the sweeper go on by its own store: "
            "hydra.sweeper.storage=sqlite:///FILE hydra.sweeper.study_name=NAME",
        )
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


def take_over_plan(command: SweepCommand, directory: Path) -> None:
    """Repeat the command of a sweep in its own directory; what is given besides is added to it."""
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
            f"--resume={directory} cannot repeat {key}: {layout.SWEEP_PLAN} holds {MASK} for its secret",
            hint=f"give it besides ({key}=VALUE), or the whole command with --resume and hydra.sweep.dir={directory}",
            key=key,
        )
    place = override("hydra.sweep.dir", str(directory))
    command.overrides = [
        *(text for text in kept if not text.startswith("hydra.sweep.dir=")),
        *command.overrides,
        place,
    ]
    command.switches = [*plan.switches, *command.switches]
    command.config_dir = command.config_dir or (Path(plan.config_dir) if plan.config_dir else None)
    if command.config_name == "config":
        command.config_name = plan.config_name


def _plan(command: SweepCommand, checked: CheckedSweep, directory: Path) -> SweepPlan:
    """Begin a plan, or go on with the one that is there; another sweep's is not overwritten."""
    there = read_plan(directory)
    if there is None:
        folder = str(command.config_dir) if command.config_dir is not None else None
        plan = new_plan(checked.engine.launcher, command.overrides, command.switches, checked.jobs)
        return replace(plan, config_dir=folder, config_name=command.config_name)
    if not command.resume:
        raise ConfigError(
            f"{directory} holds a sweep already (begun {there.created})",
            hint="go on with it: --resume; or choose another directory: hydra.sweep.dir=DIR",
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
    there.resumed.append(now_text())
    return there


def _varied(jobs: Sequence[PlannedJob]) -> dict[str, frozenset[str]]:
    """Return directory → what is special about its job: settings that not all jobs have."""
    common = frozenset.intersection(*(frozenset(job.overrides) for job in jobs)) if jobs else frozenset()
    return {job.directory: frozenset(job.overrides) - common for job in jobs}


def _to_do(plan: SweepPlan, directory: Path) -> list[PlannedJob]:
    """Return the jobs that are neither done with the same configuration nor running; say what is left alone."""
    found: dict[str, SweepJob] = {job.run_dir: job for job in read_sweep_if_any(directory)}
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


def read_sweep_if_any(directory: Path) -> list[SweepJob]:
    """Return the jobs that lie in a directory; none where there is no sweep yet."""
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
        return run_sweep_job(raw, options)

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
    """With ``--json``, standard output is for the one document: what jobs and launchers print goes to standard error."""
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
    from llm_perf_opt.reporting.sweep.markdown import sweep_console

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
