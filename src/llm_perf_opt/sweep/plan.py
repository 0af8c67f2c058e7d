"""``sweep_plan.json``: the jobs of a sweep, written before the first of them starts.

It allows detecting jobs that never started, and resuming with ``--resume``. The outcome of the jobs is not in
it: that is in their own directories.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.config.hydra_bridge import compose
from llm_perf_opt.config.hydra_bridge.compose import SharedComposition
from llm_perf_opt.config.hydra_bridge.launch import Engine, engine_of, first_choice, own_overrides, sweep_jobs
from llm_perf_opt.config.legacy import explicit_keys
from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.core.secrets import mask_tree
from llm_perf_opt.core.units import timestamp
from llm_perf_opt.process.environment import missing_variables
from llm_perf_opt.runs.app import RUN_DIRECTORY_KEYS, Prepared, prepare
from llm_perf_opt.summary.codec import decode_file, to_plain
from llm_perf_opt.sweep.metrics import checked_objective


@dataclass(slots=True)
class PlannedJob:
    """One job."""

    number: int
    directory: str
    """Below the sweep's."""
    overrides: list[str]
    config_hash: str | None = None


@dataclass(slots=True)
class SweepPlan:
    """All jobs, and the command that asked for them."""

    id: str
    created: str
    launcher: str
    overrides: list[str]
    """The user's own, lists of values included."""
    switches: list[str] = field(default_factory=list)
    """``--config-dir DIR`` and the like."""
    config_dir: str | None = None
    config_name: str = "config"
    jobs: list[PlannedJob] = field(default_factory=list)
    """Empty: a sweeper chose them as it went."""
    resumed: list[str] = field(default_factory=list)
    """When it was gone on with (ISO 8601)."""

    @property
    def command(self) -> list[str]:
        """The command line that began it."""
        return ["llm-perf-opt", "run", "--multirun", *self.switches, *self.overrides]


def new_plan(launcher: str, overrides: list[str], switches: list[str], jobs: list[PlannedJob]) -> SweepPlan:
    """Begin a plan with a new id."""
    return SweepPlan(uuid.uuid4().hex, timestamp(), launcher, overrides, switches, jobs=jobs)


def write_plan(directory: Path, plan: SweepPlan) -> Path:
    """Write the plan; what looks like a secret is masked."""
    return atomic_write_json(directory / layout.SWEEP_PLAN, mask_tree(to_plain(plan)))


def read_plan(directory: Path) -> SweepPlan | None:
    """Read the plan of a directory; ``None``: it has none."""
    path = directory / layout.SWEEP_PLAN
    return decode_file(path, SweepPlan, hint="remove the damaged file") if path.is_file() else None


# Every job of a sweep is checked before the first one starts.


LOGGER = logging.getLogger("llm_perf_opt.sweep")
_PROGRESS_EVERY = 100


@dataclass(slots=True)
class CheckedSweep:
    """A sweep whose jobs have all passed the checks possible on this machine."""

    engine: Engine
    jobs: list[PlannedJob]
    """Empty: a sweeper chooses them as it goes."""
    directory: Path
    named: bool
    """Whether the user named the directory; else it carries the time of day."""
    objective: list[str]


def check_sweep(
    overrides: Sequence[str],
    *,
    config_dir: Path | None,
    config_name: str,
    each: Callable[[Prepared], None] | None = None,
) -> CheckedSweep:
    """Compose and check all jobs; nothing is written. ``each`` is called with every checked job."""
    own, hydra = own_overrides(overrides)
    first = _prepare_first(own, hydra, config_dir=config_dir, config_name=config_name)
    engine = engine_of(first.raw)
    params = [] if engine.chooses else compose.sweeper_params(first.raw)
    jobs: list[PlannedJob] = []
    directories: set[Path] = set()
    names: dict[str, int] = {}
    shared = SharedComposition(config_dir=config_dir, config_name=config_name)
    for number, one in enumerate(_jobs(engine, [*params, *own])):
        prepared = prepare(
            [*one, *hydra],
            config_dir=config_dir,
            config_name=config_name,
            here=not engine.is_remote,
            shared=shared,
        )
        _refuse_variables(prepared)
        name = compose.sweep_subdirectory(prepared.raw, number)
        if name in names:
            raise ConfigError(
                f"jobs {names[name]} and {number} would write into one directory, {name}",
                hint="leave hydra.sweep.subdir out, or put hydra.job.num into it",
                key="hydra.sweep.subdir",
            )
        names[name] = number
        directories.add(prepared.run_dir)
        jobs.append(PlannedJob(number, name, one, prepared.config_hash))
        if each is not None:
            prepared.run_dir = Path(name)
            each(prepared)
        if (number + 1) % _PROGRESS_EVERY == 0:
            LOGGER.info("%d jobs are checked", number + 1)
    keys = explicit_keys(overrides)
    directory = compose.sweep_directory(first.raw)
    if "hydra.sweep.dir" not in keys and keys.intersection(RUN_DIRECTORY_KEYS) and len(directories) == 1:
        directory = directories.pop()
    return CheckedSweep(
        engine,
        [] if engine.chooses else jobs,
        directory,
        bool(keys.intersection((*RUN_DIRECTORY_KEYS, "hydra.sweep.dir"))),
        checked_objective(first.config.sweep.objective),
    )


def _refuse_variables(prepared: Prepared) -> None:
    """Reject environment variables: jobs of a sweep may share a process."""
    if missing_variables(prepared.config.run.env):
        raise ConfigError(
            "run.env cannot be set by a sweep: its jobs may share one process",
            hint="set the variables in the shell, or start the runs one by one",
            key="run.env",
        )


def _prepare_first(
    own: Sequence[str], hydra: Sequence[str], *, config_dir: Path | None, config_name: str
) -> Prepared:
    """Compose one job, to determine the engine that starts them all; checked as if for another machine."""
    return prepare([*first_choice(own), *hydra], config_dir=config_dir, config_name=config_name, here=False)


def _jobs(engine: Engine, overrides: Sequence[str]) -> Iterator[list[str]]:
    return iter([first_choice(overrides)]) if engine.chooses else sweep_jobs(overrides)
