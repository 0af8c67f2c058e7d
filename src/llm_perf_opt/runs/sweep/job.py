"""One job of a sweep, in whatever process and on whatever machine an engine runs it.

What becomes of it is in its directory: a configuration that cannot run there, a signal, a defect. It raises nothing, so
that the engine goes on with the others; only a signal to the client's own process ends the sweep.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.config.compose import config_hash
from llm_perf_opt.config.hydra_bridge.compose import RawConfig
from llm_perf_opt.config.hydra_bridge.launch import JobSettings, job_settings
from llm_perf_opt.core.console.command_line import print_error
from llm_perf_opt.core.console.last_resort import defect
from llm_perf_opt.core.console.logs import console_logging, mask_other_logs
from llm_perf_opt.core.console.signals import (
    Interrupted,
    interrupted_exit_code,
    interruption_first,
    settle_interruption,
    stop_signals,
)
from llm_perf_opt.core.errors import InputError, LlmPerfError
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.core.run_directory.artifacts import Artifacts
from llm_perf_opt.runs.app import RunOptions, run_and_report
from llm_perf_opt.runs.directory.earlier import find_earlier
from llm_perf_opt.runs.directory.lock import hold
from llm_perf_opt.runs.records.heartbeat import new_heartbeat, own_manifest
from llm_perf_opt.runs.records.manifest import (
    SweepMark,
    is_reported,
    new_manifest,
    read_manifest,
    write_manifest,
)
from llm_perf_opt.runs.sweep.objective import Objective, objective_values

LOGGER = logging.getLogger("llm_perf_opt.sweep")


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What every job of a sweep is told; travels to other processes."""

    sweep_id: str
    run: RunOptions
    objective: Sequence[Objective] = ()
    client: tuple[str, int] = field(default_factory=lambda: (socket.gethostname(), os.getpid()))
    """Host and process of the client: a signal to it ends the sweep, one to another process its job alone."""


def run_sweep_job(raw: RawConfig, options: SweepOptions) -> list[float] | float | None:
    """Run one job; return its objective, for sweepers that choose by it."""
    in_client = (socket.gethostname(), os.getpid()) == options.client
    if not in_client:
        console_logging(options.run.verbosity)
    mask_other_logs()  # Hydra has just set them up
    settings = job_settings()
    artifacts = Artifacts.for_run(settings.run_directory)
    with stop_signals(take_over=not in_client):
        try:
            _run_held(raw, settings, artifacts, options)
            if in_client and (code := interrupted_exit_code()) is not None:
                raise Interrupted(code - 128)  # the run has dealt with it for itself; the sweep ends too
        except KeyboardInterrupt:
            settle_interruption()
            if in_client:
                raise
        except LlmPerfError as error:
            print_error(error)
    return objective_values(artifacts.root, options.objective)


def _run_held(raw: RawConfig, settings: JobSettings, artifacts: Artifacts, options: SweepOptions) -> None:
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
            # The isolation boundary between jobs: a defect in one must not cost the others their turn.
            found = defect(error)
            _record_failure(artifacts, overrides, options, mark, found)
            raise found from error


def record_lost(
    sweep: Path, directory: str, overrides: Sequence[str], options: SweepOptions, reason: str
) -> None:
    """Leave a manifest for a job that its engine lost before it wrote one: a node without the package, a cancelled wait."""
    if (sweep / directory / layout.MANIFEST).is_file():
        return
    with contextlib.suppress(LlmPerfError):  # another process is at it, or the directory takes no file
        artifacts = Artifacts.for_run(sweep / directory)
        with hold(artifacts.root):
            manifest = new_manifest(artifacts, ["llm-perf-opt", "run", *options.run.switches, *overrides])
            manifest.sweep = SweepMark(options.sweep_id, directory)
            manifest.status = "failed"
            manifest.reason = f"it did not begin where the engine put it: {reason}"
            write_manifest(artifacts, manifest)


def _is_done(root: Path, mark: SweepMark, raw: RawConfig, settings: JobSettings) -> bool:
    """Whether this very job is finished: a queue may hold it twice after the client died and went on."""
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
    """Leave a manifest that says why, also where the job failed before it had one."""
    with contextlib.suppress(
        LlmPerfError
    ):  # a directory that takes no manifest: the engine's log has the error
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
