"""Run the enabled stages of one configuration in one run directory, and write down what happened."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core import layout
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.errors import ConfigError, LlmPerfError
from llm_perf_opt.core.files import atomic_write_json, atomic_write_text
from llm_perf_opt.core.logs import ROOT, run_log
from llm_perf_opt.core.progress import Progress
from llm_perf_opt.core.signals import held, interrupted_exit_code, raise_if_interrupted, settle_interruption
from llm_perf_opt.core.stage import Problem, StageResult
from llm_perf_opt.model.codec import save_json
from llm_perf_opt.process.runtime_env import prepare_process
from llm_perf_opt.runs.manifest import Manifest, StageRecord, new_manifest, record, write_manifest
from llm_perf_opt.runs.provenance import environment
from llm_perf_opt.stages.base import Stage, StageContext, enabled_stages

LOGGER = logging.getLogger("llm_perf_opt.run")

INTERRUPTED_EXIT = 130
FAILED_EXIT = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the command line needs to end with."""

    run_dir: Path
    manifest: Manifest
    exit_code: int


def check_stages(stages: Sequence[Stage], context: StageContext) -> dict[str, list[Problem]]:
    """Ask every enabled stage what would go wrong; a configuration error stops here, before any work."""
    problems = {stage.name: stage.check(context) for stage in stages}
    for found in problems.values():
        for problem in found:
            if problem.severity == "error":
                raise ConfigError(problem.message, hint=problem.fix, key=problem.key)
    return problems


def execute(
    config: AppConfig,
    artifacts: Artifacts,
    progress: Progress,
    *,
    command: list[str],
    overrides: tuple[str, ...],
    resolved_yaml: str,
) -> Outcome:
    """Run the pipeline; whatever happens, the manifest says so."""
    began = time.perf_counter()
    manifest = new_manifest(artifacts, command)
    manifest.facts = _facts(config)
    stages = enabled_stages(config)
    results: dict[str, StageResult] = {}
    context = StageContext(
        config=config, artifacts=artifacts, progress=progress, overrides=overrides, results=results
    )
    prepare_process()
    handler = run_log(artifacts.root)
    try:
        atomic_write_json(artifacts.path(layout.ENVIRONMENT), environment())
        atomic_write_text(artifacts.path(layout.CONFIG), resolved_yaml)
        problems = check_stages(stages, context)
        _write_hardware(config, artifacts, progress)
        manifest.stages = {stage.name: StageRecord(status="pending") for stage in stages}
        write_manifest(artifacts, manifest)
        with _interrupts_noted(manifest):
            for stage in stages:
                _run_stage(stage, problems[stage.name], context, manifest, results)
    except BaseException as error:
        # Before or between stages: without this the manifest of a run that died would say "ok".
        manifest.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        raise
    finally:
        with held():
            manifest.seconds = time.perf_counter() - began
            _settle(manifest)
            with contextlib.suppress(
                LlmPerfError
            ):  # a full disk was already reported by whatever hit it first
                _write_inputs(artifacts, results)
            with contextlib.suppress(LlmPerfError):
                write_manifest(artifacts, manifest)
            logging.getLogger(ROOT).removeHandler(handler)
            handler.close()
    return Outcome(run_dir=artifacts.root, manifest=manifest, exit_code=_exit_code(manifest))


def _run_stage(
    stage: Stage,
    problems: list[Problem],
    context: StageContext,
    manifest: Manifest,
    results: dict[str, StageResult],
) -> None:
    """Run one stage in isolation: its failure is recorded and the next stage still gets its turn."""
    raise_if_interrupted()
    skip = next((p for p in problems if p.severity == "skip"), None)
    if skip is not None:
        LOGGER.warning("%s: skipped: %s (fix: %s)", stage.title, skip.message, skip.fix)
        results[stage.name] = StageResult(status="skipped", reason=skip.message, fix=skip.fix, seconds=0.0)
        manifest.stages[stage.name] = record(context.artifacts, results[stage.name])
        write_manifest(context.artifacts, manifest)
        return
    manifest.stages[stage.name] = StageRecord(status="running")
    write_manifest(context.artifacts, manifest)
    began = time.perf_counter()
    try:
        result = stage.run(context)
        raise_if_interrupted()  # a library may have swallowed it
        _apply_degradations(result, problems)
    except LlmPerfError as error:
        LOGGER.error("%s failed: %s", stage.title, error)
        result = StageResult(status="failed", reason=error.message, fix=error.hint)
    except Exception as error:
        # The isolation boundary: one stage's bug must not cost the others their results. It is logged whole.
        LOGGER.exception("%s failed", stage.title)
        result = StageResult(
            status="failed",
            reason=f"{type(error).__name__}: {error}",
            fix="see run.log for the traceback; this looks like a defect, please report it",
        )
    except KeyboardInterrupt:
        settle_interruption()
        manifest.stages[stage.name] = StageRecord(
            status="failed",
            reason="interrupted",
            fix="run the same command again",
            seconds=time.perf_counter() - began,
            artifacts=_files_below(context.artifacts, stage.name),
        )
        raise
    result.seconds = time.perf_counter() - began
    results[stage.name] = result
    manifest.stages[stage.name] = record(context.artifacts, result)
    write_manifest(context.artifacts, manifest)
    LOGGER.info(
        "%s: %s in %.1f s%s",
        stage.title,
        result.status,
        result.seconds,
        f" ({result.reason})" if result.reason else "",
    )


def _write_hardware(config: AppConfig, artifacts: Artifacts, progress: Progress) -> None:
    """Settle the limits utilisation is measured against, so that a report needs neither torch nor this machine."""
    from llm_perf_opt.hardware.resolve import resolve_hardware

    with progress.task(
        "measuring this machine's limits" if config.hardware.probe else "looking up the hardware"
    ):
        hardware = resolve_hardware(
            config.resolved_device,
            chosen=config.hardware.device,
            catalogue_file=config.hardware.catalogue,
            allow_probe=config.hardware.probe,
            threads=config.run.threads,
            dtype=str(config.model.dtype),
        )
    save_json(artifacts.path(layout.HARDWARE), hardware)


def _write_inputs(artifacts: Artifacts, results: Mapping[str, StageResult]) -> None:
    """Put the samples that were really used at the root, as the first stage that used any tells them."""
    document = next((result.inputs for result in results.values() if result.inputs is not None), None)
    if document is not None:
        text = yaml.safe_dump(document, allow_unicode=True, sort_keys=False, width=110)
        atomic_write_text(artifacts.path(layout.INPUTS), text)


def _apply_degradations(result: StageResult, problems: list[Problem]) -> None:
    degraded = [p for p in problems if p.severity == "degraded"]
    if degraded and result.status == "ok":
        result.status = "degraded"
        result.reason = "; ".join(p.message for p in degraded)
        result.fix = degraded[0].fix


def _files_below(artifacts: Artifacts, stage: str) -> list[str]:
    folder = artifacts.root / stage
    return (
        sorted(artifacts.relative(path) for path in folder.rglob("*") if path.is_file())
        if folder.is_dir()
        else []
    )


@contextlib.contextmanager
def _interrupts_noted(manifest: Manifest) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        settle_interruption()
        manifest.status = "interrupted"
        LOGGER.error("interrupted: the report covers what was done before")


def _settle(manifest: Manifest) -> None:
    for entry in manifest.stages.values():
        if entry.status in ("pending", "running"):
            entry.status, entry.reason = "skipped", "the run ended before this stage"
            entry.fix = "run the same command again"
    if manifest.status == "running":
        failed = any(entry.status == "failed" for entry in manifest.stages.values())
        manifest.status = "failed" if failed else "ok"


def _exit_code(manifest: Manifest) -> int:
    return {"interrupted": interrupted_exit_code() or INTERRUPTED_EXIT, "failed": FAILED_EXIT}.get(
        manifest.status, 0
    )


def _facts(config: AppConfig) -> dict[str, object]:
    return {
        "model": config.model.name,
        "adapter": config.model.adapter,
        "device": config.resolved_device,
        "dtype": str(config.model.dtype),
        "batch_size": config.infer.batch_size,
        "mode": str(config.run.mode),
        "hardware_device": config.hardware.device,
        "hardware_catalogue": config.hardware.catalogue,
        "hardware_probe": config.hardware.probe,
        "top_n_kernels": config.run.top_n_kernels,
    }
