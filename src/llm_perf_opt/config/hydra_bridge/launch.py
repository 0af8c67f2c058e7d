"""The jobs of a ``--multirun``: which they are, who starts them, and handing them over."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import re
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from hydra.version import setbase
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from llm_perf_opt.config.hydra_bridge.compose import (
    VERSION_BASE,
    RawConfig,
    add_search_path,
    register_schema,
    sweep_subdirectory,
)
from llm_perf_opt.config.hydra_bridge.errors import explain
from llm_perf_opt.config.hydra_bridge.values import override
from llm_perf_opt.config.keys import CONF_DIR
from llm_perf_opt.config.legacy import translate_overrides
from llm_perf_opt.core.errors import ToolError

# Wait for every job of a sweep, also for those after one that left no result.
#
# Submitit and Ray raise for the first job that was cancelled or whose machine died, and Hydra's launchers then return at
# once: nobody would wait for the jobs that still run. Both ask one function for each result, so that function is replaced
# while a sweep is launched.


LOGGER = logging.getLogger("llm_perf_opt.sweep")
_ERROR_LINE = re.compile(r"^\w[\w.]*(?:Error|Exception)\b.*", re.MULTILINE)
"""The line of a traceback that says what was wrong."""
_MOST_LETTERS = 300


def reason_lost(result: object) -> str | None:
    """Say why a job left no result, in the engine's words; ``None``: it left one."""
    error = result._return_value if isinstance(result, JobReturn) else None
    if not isinstance(error, Exception):
        return None
    text = str(error)
    named = _ERROR_LINE.findall(text)
    reason = (
        named[-1]
        if named
        else next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    )
    return " ".join(reason.split())[:_MOST_LETTERS]


@contextlib.contextmanager
def _every_result(launcher: str) -> Iterator[None]:
    """Let a missing result be one for as long as the block runs; its manifest tells what became of the job."""
    patience: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if launcher in ("slurm", "submitit_local"):
        # The class's own method and the exceptions that mean "no result"; not those of a refused submission.
        errors = importlib.import_module("submitit.core.utils")
        kinds = (errors.UncompletedJobError, errors.FailedJobError)
        owner, name = importlib.import_module("submitit.core.core").Job, "results"
        patience = replaced(owner, name, lambda original: _patient(original, kinds, lambda failed: [failed]))
    elif launcher == "ray":
        errors = importlib.import_module("ray.exceptions")
        owner, name = importlib.import_module("ray"), "get"
        patience = replaced(
            owner, name, lambda original: _patient(original, (errors.RayError,), lambda failed: failed)
        )
    try:
        with patience:
            yield
    finally:
        if launcher == "ray":
            # What jobs print arrives by a thread of Ray's, also after the last result: not behind our own last words.
            importlib.import_module("ray").shutdown()


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Let an attribute be what ``wrap`` makes of it for as long as the block runs."""
    original, is_own = getattr(owner, name), name in vars(owner)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:  # its class has it
            delattr(owner, name)


def _patient(
    original: Callable[..., Any], kinds: tuple[type[Exception], ...], shaped: Callable[[JobReturn], Any]
) -> Callable[..., Any]:
    def result(*arguments: Any, **options: Any) -> Any:
        try:
            return original(*arguments, **options)
        except kinds as error:
            lost = JobReturn(_return_value=error, status=JobStatus.FAILED)
            LOGGER.warning("a job left no result: %s", reason_lost(lost))
            return shaped(lost)

    return result


_LAUNCHERS = {
    "BasicLauncher": "basic",
    "JoblibLauncher": "joblib",
    "LocalLauncher": "submitit_local",
    "SlurmLauncher": "slurm",
    "RayLauncher": "ray",
}
_REMOTE = frozenset({"slurm", "ray"})
_CONNECT_S = 5.0
_CHOOSING = frozenset({"OptunaSweeper"})
_MULTIRUN = "hydra.mode=MULTIRUN"
_NO_TRIALS = "No trials are completed"
"""Optuna's words, behind a plain ValueError, where every job failed."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Who starts the jobs of a sweep, and who chooses them."""

    launcher: str
    """``basic``, ``joblib``, ``submitit_local``, ``slurm``, ``ray``."""
    chooses: bool
    """Whether the sweeper chooses jobs by the results of earlier ones: then they are not known beforehand."""
    batch: int | None
    """Jobs handed over at a time (``hydra.sweeper.max_batch_size``); ``None``: all."""
    address: str | None = None
    """Of a Ray cluster: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``."""

    @property
    def is_remote(self) -> bool:
        """Whether jobs run on other machines than the one that submits them."""
        return self.launcher in _REMOTE

    def check_reachable(self) -> None:
        """Raise :class:`ToolError` if nothing listens at the address of a Ray cluster: Ray itself retries for more than a minute."""
        head = re.fullmatch(
            r"(?:ray://)?(?P<host>[^/\[\]]+|\[[^\[\]]+\]):(?P<port>\d{1,5})", self.address or ""
        )
        if head is None:
            return
        try:
            socket.create_connection((head["host"].strip("[]"), int(head["port"])), _CONNECT_S).close()
        except (OSError, OverflowError, UnicodeError) as error:
            raise ToolError(
                f"no Ray cluster answers at {self.address}: {error}",
                hint="start it (ray start --head), or correct hydra.launcher.ray.init.address",
            ) from error


@dataclass(frozen=True, slots=True)
class HandedJob:
    """One job as a launcher gets it."""

    overrides: Sequence[str]
    directory: str
    """Below the sweep's directory."""


@dataclass(frozen=True, slots=True)
class LostJob:
    """A job of which its engine has no result."""

    directory: str
    """Below the sweep's directory."""
    overrides: Sequence[str]
    reason: str
    """In the engine's words."""


def engine_of(raw: RawConfig) -> Engine:
    """Return who starts and who chooses the jobs of a composed configuration."""
    launcher = str(OmegaConf.select(raw, "hydra.launcher._target_")).rpartition(".")[2]
    sweeper = str(OmegaConf.select(raw, "hydra.sweeper._target_")).rpartition(".")[2]
    batch = OmegaConf.select(raw, "hydra.sweeper.max_batch_size", default=None)
    try:
        address = OmegaConf.select(raw, "hydra.launcher.ray.init.address", default=None)
    except OmegaConfBaseException as error:
        raise explain(error) from error
    return Engine(
        _LAUNCHERS.get(launcher, launcher),
        sweeper in _CHOOSING,
        int(batch) if batch is not None else None,
        str(address) if address is not None else None,
    )


def own_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split overrides into those of jobs and those of Hydra itself, which hold for the whole sweep."""
    hydra = [text for text in overrides if _key(text).startswith(("hydra.", "hydra/"))]
    return [text for text in overrides if text not in hydra], hydra


def sweep_jobs(overrides: Sequence[str]) -> Iterator[list[str]]:
    """Yield the overrides of each job; raises :class:`ConfigError` before the first where they cannot be parsed."""
    try:
        jobs = itertools.chain.from_iterable(BasicSweeper.split_arguments(_parsed(overrides), None))
    except HydraException as error:
        raise explain(error) from error
    return (list(job) for job in jobs)


def first_choice(overrides: Sequence[str]) -> list[str]:
    """Return one job out of those a sweeper may choose: the first or lowest value of everything it varies."""
    return [_first_value(parsed) for parsed in _parsed(overrides)]


def run_sweep(
    job: Callable[[RawConfig], object],
    jobs: Sequence[HandedJob] | None,
    overrides: Sequence[str],
    *,
    config_dir: Path | None,
    config_name: str,
    on_lost: Callable[[LostJob], None],
) -> None:
    """Hand jobs to the launcher, or, with ``None``, everything to a sweeper that chooses them.

    A job that leaves no result (cancelled, its machine gone) does not end the wait for the others: what became of
    each is in its own directory, if it got so far. Of those without a result ``on_lost`` is called as soon as it is known.
    """
    register_schema()
    add_search_path(config_dir)
    setbase(VERSION_BASE)
    GlobalHydra.instance().clear()
    try:
        hydra = Hydra.create_main_hydra2("llm_perf_opt", create_config_search_path(str(CONF_DIR)))
        master = hydra.compose_config(
            config_name=config_name,
            overrides=[*translate_overrides(overrides), _MULTIRUN],
            run_mode=RunMode.MULTIRUN,
            with_log_configuration=True,
        )
        context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(master))
        with _every_result(engine_of(master).launcher):
            if jobs is not None:
                _launch(context, job, master, jobs, on_lost)
            else:
                _choose(context, job, master, on_lost)
    except HydraException as error:
        raise explain(error) from error
    finally:
        GlobalHydra.instance().clear()


def _launch(
    context: HydraContext,
    job: Callable[[RawConfig], object],
    master: Any,
    jobs: Sequence[HandedJob],
    on_lost: Callable[[LostJob], None],
) -> None:
    launcher = Plugins.instance().instantiate_launcher(
        hydra_context=context, task_function=job, config=master
    )
    engine = engine_of(master)
    size = engine.batch or len(jobs)
    for first in range(0, len(jobs), size):
        handed = jobs[first : first + size]
        batch = [[*each.overrides, override("hydra.sweep.subdir", each.directory)] for each in handed]
        with _explained(engine.launcher):
            results = launcher.launch(batch, initial_job_idx=first)
        for each, result in zip(handed, results, strict=False):
            reason = reason_lost(result)
            if reason is not None:
                on_lost(LostJob(each.directory, each.overrides, reason))


def _choose(
    context: HydraContext,
    job: Callable[[RawConfig], object],
    master: Any,
    on_lost: Callable[[LostJob], None],
) -> None:
    plugins = Plugins.instance()

    def watched(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **options: _watch(make(**options), context, master, on_lost)

    # A sweeper makes its own launcher; what comes back to it says which jobs were lost.
    with replaced(plugins, "instantiate_launcher", watched):
        sweeper = plugins.instantiate_sweeper(hydra_context=context, task_function=job, config=master)
    try:
        with _explained(engine_of(master).launcher):
            sweeper.sweep(arguments=[str(text) for text in master.hydra.overrides.task])
    except ValueError as error:
        if _NO_TRIALS not in str(error):
            raise
        LOGGER.warning("no job has the objective, so there is no best one")


def _watch(launcher: Any, context: HydraContext, master: Any, on_lost: Callable[[LostJob], None]) -> Any:
    original = launcher.launch

    def launch(job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        results: Sequence[Any] = original(job_overrides, initial_job_idx=initial_job_idx)
        for number, (overrides, result) in enumerate(
            zip(job_overrides, results, strict=False), initial_job_idx
        ):
            reason = reason_lost(result)
            if reason is not None:
                composed = context.config_loader.load_sweep_config(master, list(overrides))
                on_lost(LostJob(sweep_subdirectory(composed, number), list(overrides), reason))
        return results

    launcher.launch = launch
    return launcher


class _explained:
    """Say in one sentence that an engine refused the jobs; which exceptions it has is the engine's own affair."""

    def __init__(self, launcher: str) -> None:
        self._launcher = launcher

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        package = (kind.__module__ if kind is not None else "").partition(".")[0]
        if isinstance(error, Exception) and package in ("submitit", "ray", "joblib", "optuna"):
            LOGGER.debug("the launcher failed", exc_info=error)
            text = " ".join(str(error).split()) or f"{type(error).__name__} without a message"
            raise ToolError(
                f"the launcher {self._launcher} failed: {text[:400]}",
                hint="jobs that ran are kept: see sweep.md, then run the same command with --resume",
            ) from error


def _parsed(overrides: Sequence[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(translate_overrides(overrides))
    except HydraException as error:
        raise explain(error) from error


def _first_value(parsed: Override) -> str:
    key = parsed.get_key_element()
    if not parsed.is_sweep_override():
        return f"{key}={parsed.get_value_element_as_str()}"
    if parsed.is_discrete_sweep():
        return f"{key}={next(iter(parsed.sweep_string_iterator()))}"
    interval: Any = parsed.value()
    return f"{key}={interval.start}"


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+~")


# Hand a job to Hydra, and tell what Hydra knows while the job runs.


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What Hydra decided for the job it runs now."""

    original_directory: Path
    run_directory: Path
    sweep_overrides: tuple[str, ...] | None
    """Those of this one job of a sweep; ``None`` outside of sweeps."""
    sweep_directory: Path
    """The one that holds the jobs of a sweep."""


class _Carried(BaseException):
    """Carries an error past Hydra, which would print a traceback of its own and end with 1."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def run_job(job: Callable[[RawConfig], None], arguments: Sequence[str]) -> int | None:
    """Let Hydra read its command line, compose, and call ``job`` in its run directory, once for each of a sweep.

    Returns the code that Hydra itself ends with (after ``--cfg``, after an error), ``None`` where it does not.
    Whatever the job raises, this raises.
    """

    def carried(raw: RawConfig) -> None:
        try:
            job(raw)
        except Exception as error:
            # Hydra prints and replaces what a job raises; every exception is carried through it and raised again below.
            raise _Carried(error) from error

    register_schema()
    previous = sys.argv
    sys.argv = ["llm-perf-opt", *arguments]  # hydra.main reads nothing else
    try:
        hydra.main(version_base=VERSION_BASE, config_path=str(CONF_DIR), config_name="config")(carried)()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else None
    except _Carried as failed:
        raise failed.error from failed.error.__cause__
    except HydraException as error:  # before it prints its own help, Hydra composes without a guard
        raise explain(error) from error
    finally:
        sys.argv = previous
    return None


def job_settings() -> JobSettings:
    """Return the settings of the job that runs now."""
    settings = HydraConfig.get()
    sweep = settings.mode is RunMode.MULTIRUN
    return JobSettings(
        original_directory=Path(settings.runtime.cwd),
        run_directory=Path(settings.runtime.output_dir),
        sweep_overrides=tuple(settings.overrides.task) if sweep else None,
        sweep_directory=Path(settings.runtime.cwd) / str(settings.sweep.dir),
    )
