"""Run the enabled stages of one configuration in one run directory, and record what happened."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core import layout
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.logs import ROOT, run_log
from llm_perf_opt.core.console.progress import Progress
from llm_perf_opt.core.console.signals import (
    acknowledge_interruption,
    defer_signals,
    interrupted_exit_code,
    interruption_first,
    raise_if_interrupted,
)
from llm_perf_opt.core.errors import InputError, LlmPerfError
from llm_perf_opt.core.files import atomic_write_json, atomic_write_text
from llm_perf_opt.core.stage import Problem, StageResult
from llm_perf_opt.process.environment import prepare_process
from llm_perf_opt.runs.checks import check_stages, stages_of
from llm_perf_opt.runs.directory import Earlier, find_earlier
from llm_perf_opt.runs.heartbeat import new_heartbeat
from llm_perf_opt.runs.lease import device_lease
from llm_perf_opt.runs.manifest import (
    Manifest,
    StageRecord,
    SweepMark,
    list_files,
    new_manifest,
    record,
    write_manifest,
)
from llm_perf_opt.runs.provenance import environment, write_inputs
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.stages.workload import program_name
from llm_perf_opt.summary.codec import save_json
from llm_perf_opt.workloads.rank_group import apply_process_settings, in_group, leave_group

LOGGER = logging.getLogger("llm_perf_opt.run")
INTERRUPTED_EXIT = 130
FAILED_EXIT = 1
_ENDED_BY_SIGNAL = (128 + signal.SIGTERM, 128 + signal.SIGHUP)
"""How :mod:`llm_perf_opt.process.launch` ends a caller that handles no signals itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for the command line."""

    run_dir: Path
    manifest: Manifest
    exit_code: int


def execute(
    config: AppConfig,
    artifacts: Artifacts,
    progress: Progress,
    *,
    command: list[str],
    overrides: tuple[str, ...],
    resolved_yaml: str,
    config_hash: str | None = None,
    sweep: SweepMark | None = None,
    started_in: Path | None = None,
) -> Outcome:
    """Run the pipeline; every outcome is recorded in the manifest.

    The caller holds the lock of the run directory (``runs.directory.lock``) and its heartbeat until the report is written.

    ``started_in``: the user's directory, whose repository commit is recorded; by default the working directory.
    """
    began = time.perf_counter()
    device_note = _confirm_device(config)
    stages = stages_of(config)
    results: dict[str, StageResult] = {}
    context = StageContext(
        config=config, artifacts=artifacts, progress=progress, overrides=overrides, results=results
    )
    problems = check_stages(stages, context)
    earlier = _set_aside_earlier(stages, context)
    manifest = new_manifest(artifacts, command)
    manifest.facts = _facts(config)
    manifest.config_hash, manifest.sweep = config_hash, sweep
    manifest.heartbeat = new_heartbeat()
    prepare_process()
    apply_process_settings(config.run)
    handler: logging.Handler | None = None
    try:
        with defer_signals():  # a signal must not leave a log without the manifest that explains it
            handler = run_log(artifacts.root)
            _note(manifest, device_note, earlier.note() if earlier is not None else None)
            list_files(artifacts, manifest)
            write_manifest(artifacts, manifest)  # first step: from here on the directory belongs to this run
        atomic_write_json(artifacts.path(layout.ENVIRONMENT), environment(started_in))
        atomic_write_text(artifacts.path(layout.CONFIG), resolved_yaml)
        manifest.stages = {stage.name: StageRecord(status="pending") for stage in stages}
        with _interrupts_noted(manifest), device_lease(config, artifacts, manifest):
            _write_hardware(config, artifacts, progress)
            write_manifest(artifacts, manifest)
            for stage in stages:
                _run_stage(stage, problems[stage.name], context, manifest, results)
                if results[stage.name].status == "failed" and in_group():
                    # If this rank failed, the others wait for it; at its next collective they would mismatch.
                    leave_group()
                    break
    except BaseException as error:
        # Before or between stages: otherwise the manifest of a run that died would have the state "ok".
        manifest.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        manifest.reason = manifest.reason or (
            "interrupted before the first stage" if manifest.status == "interrupted" else str(error)
        )
        raise
    finally:
        with defer_signals():
            manifest.seconds = time.perf_counter() - began
            _finalise_status(manifest)
            with contextlib.suppress(LlmPerfError):  # a full disk was already reported at its first failure
                write_manifest(artifacts, manifest)
                write_inputs(config, artifacts, manifest, results)
            with contextlib.suppress(LlmPerfError):
                list_files(artifacts, manifest)
                write_manifest(artifacts, manifest)
            if handler is not None:
                logging.getLogger(ROOT).removeHandler(handler)
                handler.close()
    return Outcome(run_dir=artifacts.root, manifest=manifest, exit_code=_exit_code(manifest, results))


def _note(manifest: Manifest, *notes: str | None) -> None:
    for note in notes:
        if note is not None:
            manifest.notes.append(note)
            LOGGER.warning("%s", note)


def _confirm_device(config: AppConfig) -> str | None:
    """Confirm the device with torch before any stage is checked; return notes on it."""
    from llm_perf_opt.workloads.devices import confirm_device

    if config.workload_command.command:
        return None  # the user's own program chooses its device
    confirmed = confirm_device(config.run.device, config.resolved_device)
    config.resolved_device = confirmed.name
    return confirmed.note


def _set_aside_earlier(stages: Sequence[Stage], context: StageContext) -> Earlier | None:
    """Move aside files of an earlier run, except those that a stage of this run continues to use."""
    earlier = find_earlier(context.artifacts.root, [stage.name for stage in stages])
    if earlier is not None:
        files = {stage.name: stage.continues(context) for stage in stages if earlier.unfinished(stage.name)}
        earlier.set_aside([path for paths in files.values() for path in paths])
    return earlier


def _run_stage(
    stage: Stage,
    problems: list[Problem],
    context: StageContext,
    manifest: Manifest,
    results: dict[str, StageResult],
) -> None:
    """Run one stage in isolation: its failure is recorded and the next stage still runs."""
    raise_if_interrupted()
    skip = next((p for p in problems if p.severity == "skip"), None)
    if skip is not None:
        LOGGER.warning("%s: skipped: %s (fix: %s)", stage.title, skip.message, skip.fix)
        results[stage.name] = StageResult(status="skipped", reason=skip.message, fix=skip.fix, seconds=0.0)
        manifest.stages[stage.name] = record(context.artifacts, stage.name, results[stage.name])
        write_manifest(context.artifacts, manifest)
        return
    manifest.stages[stage.name] = StageRecord(status="running")
    write_manifest(context.artifacts, manifest)
    began = time.perf_counter()
    directory = _identity(context.artifacts.root)
    try:
        with interruption_first():
            result = stage.run(context)
        raise_if_interrupted()  # a library may have swallowed it
        _apply_degradations(result, problems)
        if result.status == "failed":
            LOGGER.error(
                "%s failed: %s%s", stage.title, result.reason, f"\n  fix: {result.fix}" if result.fix else ""
            )
    except LlmPerfError as error:
        LOGGER.error("%s failed: %s", stage.title, error)
        result = StageResult(status="failed", reason=error.message, fix=error.hint, error=error.code)
    except Exception as error:
        # The isolation boundary: one stage's bug must not lose the results of others. The log has the traceback.
        LOGGER.error("%s failed: %s: %s", stage.title, type(error).__name__, error)
        LOGGER.debug("%s failed", stage.title, exc_info=True)
        result = StageResult(
            status="failed",
            reason=f"{type(error).__name__}: {error}",
            fix="see run.log for the traceback; this looks like a defect, please report it",
        )
    except SystemExit as leaving:
        if leaving.code in _ENDED_BY_SIGNAL:
            raise
        # A library called exit; otherwise the run would end silently with its code.
        LOGGER.error("%s failed: it called sys.exit(%r)", stage.title, leaving.code)
        result = StageResult(
            status="failed",
            reason=f"the workload called sys.exit({leaving.code!r}) in the middle of the stage",
            fix="see what it printed before; a model or a plug-in must raise an exception instead",
        )
    except KeyboardInterrupt:
        acknowledge_interruption()
        manifest.stages[stage.name] = StageRecord(
            status="failed",
            reason="interrupted",
            fix="run the same command again",
            seconds=time.perf_counter() - began,
            artifacts=[
                context.artifacts.relative(path) for path in context.artifacts.files_below(stage.name)
            ],
        )
        raise
    if result.status == "failed" and _identity(context.artifacts.root) != directory:
        # Later failures are due to missing files.
        result.reason = f"the run directory was removed or replaced while the stage ran ({result.reason})"
        result.fix = "run again in a directory that no other program cleans up: artifacts.runs_dir=DIR"
    result.seconds = time.perf_counter() - began
    results[stage.name] = result
    manifest.stages[stage.name] = record(context.artifacts, stage.name, result)
    write_manifest(context.artifacts, manifest)
    LOGGER.info(
        "%s: %s in %.1f s%s",
        stage.title,
        result.status,
        result.seconds,
        f" ({result.reason})" if result.reason else "",
    )


def _identity(root: Path) -> tuple[int, int] | None:
    """Return what distinguishes a run directory from another of the same name; ``None`` without its manifest."""
    try:
        found = root.lstat()
        (root / layout.MANIFEST).lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _write_hardware(config: AppConfig, artifacts: Artifacts, progress: Progress) -> None:
    """Record the hardware limits, so that a report needs neither torch nor this machine."""
    from llm_perf_opt.hardware.resolve import resolve_hardware

    # Measured ceilings are for counted work, and the user's own program is not counted.
    probe = config.hardware.probe and not config.workload_command.command
    with progress.task("measuring this machine's limits" if probe else "looking up the hardware"):
        hardware = resolve_hardware(
            config.resolved_device,
            chosen=config.hardware.device,
            catalogue_file=config.hardware.catalogue,
            allow_probe=probe,
            threads=config.run.threads,
            dtype=str(config.model.dtype),
        )
    save_json(artifacts.path(layout.HARDWARE), hardware)


def _apply_degradations(result: StageResult, problems: list[Problem]) -> None:
    degraded = [p for p in problems if p.severity == "degraded"]
    if degraded and result.status == "ok":
        result.status = "degraded"
        result.reason = "; ".join(p.message for p in degraded)
        result.fix = degraded[0].fix


@contextlib.contextmanager
def _interrupts_noted(manifest: Manifest) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as asked:
        acknowledge_interruption()
        manifest.status = "interrupted"
        manifest.reason = f"interrupted by {asked}" if str(asked) else "interrupted"
        LOGGER.error("interrupted: the report covers what was done before")


def _finalise_status(manifest: Manifest) -> None:
    for entry in manifest.stages.values():
        if entry.status in ("pending", "running"):
            entry.status, entry.reason = "skipped", "the run ended before this stage"
            entry.fix = "run the same command again"
    if manifest.status == "running":
        failed = any(entry.status == "failed" for entry in manifest.stages.values())
        manifest.status = "failed" if failed else "ok"


def _exit_code(manifest: Manifest, results: Mapping[str, StageResult]) -> int:
    failed = [result.error for result in results.values() if result.status == "failed"]
    if manifest.status == "failed" and failed and all(error == InputError.code for error in failed):
        return InputError.exit_code  # the only failure is a checkpoint or a data set that cannot be used
    return {"interrupted": interrupted_exit_code() or INTERRUPTED_EXIT, "failed": FAILED_EXIT}.get(
        manifest.status, 0
    )


def _facts(config: AppConfig) -> dict[str, object]:
    hardware = {
        "hardware_device": config.hardware.device,
        "hardware_catalogue": config.hardware.catalogue,
        "hardware_silicon": config.hardware.silicon.value,
        "hardware_probe": config.hardware.probe,
        "top_n_kernels": config.run.top_n_kernels,
    }
    if config.workload_command.command:
        return {"model": program_name(config), "program": list(config.workload_command.command), **hardware}
    return {
        "model": config.model.name,
        "adapter": config.model.adapter,
        "device": config.resolved_device,
        "dtype": str(config.model.dtype),
        "batch_size": config.infer.batch_size,
        "mode": str(config.run.mode),
        **hardware,
    }
