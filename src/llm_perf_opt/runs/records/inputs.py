"""``inputs.yaml``: what a run worked on. Every run has one, whichever stages it had."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import yaml

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.core.run_directory.artifacts import Artifacts
from llm_perf_opt.core.secrets import mask_arguments
from llm_perf_opt.core.stage import StageResult
from llm_perf_opt.runs.records.manifest import Manifest
from llm_perf_opt.vendor.workload import program_name, workload

LOGGER = logging.getLogger("llm_perf_opt.run")

_NO_SAMPLES = frozenset({"static_analysis"})
"""Stages that may work on configured shapes; all others run the samples of the data set."""


def write_inputs(
    config: AppConfig, artifacts: Artifacts, manifest: Manifest, results: Mapping[str, StageResult]
) -> None:
    """Write the samples that were used, as the stages tell them; else those the configuration gives."""
    if not manifest.stages:
        return  # the run ended before its first stage: nothing was used
    told = [result.inputs for result in results.values() if result.inputs is not None]
    document = next((each for each in told if each.get("samples")), None)
    if document is None and config.workload_command.command:
        document = next(iter(told), None) or _program(config, artifacts)
    if document is None and any(name not in _NO_SAMPLES for name in manifest.stages):
        document = _configured(config, manifest)
    document = document or next(iter(told), None) or _configured(config, manifest)
    text = yaml.safe_dump(document, allow_unicode=True, sort_keys=False, width=110)
    atomic_write_text(artifacts.path(layout.INPUTS), text)


def _program(config: AppConfig, artifacts: Artifacts) -> dict[str, Any]:
    program = workload(config, artifacts.root)
    return {
        "program": {
            "name": program_name(config),
            "argv": mask_arguments(program.argv),
            "cwd": str(program.cwd),
        }
    }


def _configured(config: AppConfig, manifest: Manifest) -> dict[str, Any]:
    """Return the samples the data set gives by the configuration: those the captured workload runs."""
    from llm_perf_opt.workloads.datasets.inputs import inputs_document
    from llm_perf_opt.workloads.registry import load_dataset
    from llm_perf_opt.workloads.setup import workload_config

    try:
        dataset = load_dataset(workload_config(config).dataset)
        samples = list(dataset.samples())
        document = inputs_document(samples, list(dataset.problems()))
    except LlmPerfError as error:
        LOGGER.warning("the samples of the run cannot be listed: %s", error.message)
        return {"count": None, "left_out": [error.message], "samples": []}
    except Exception as error:
        # A plug-in's data set may raise anything; the run's results must not be lost over the list of its samples.
        LOGGER.warning("the samples of the run cannot be listed: %s: %s", type(error).__name__, error)
        LOGGER.debug("the samples of the run cannot be listed", exc_info=True)
        return {"count": None, "left_out": [f"{type(error).__name__}: {error}"], "samples": []}
    _really_run(config, manifest, len(samples))
    return {"source": "the configuration: no stage told which samples it used", **document}


def _really_run(config: AppConfig, manifest: Manifest, samples: int) -> None:
    """Correct the batch size that reports show where the data cannot fill a batch."""
    wanted = config.infer.batch_size
    if samples and samples % wanted:
        mean = samples / math.ceil(samples / wanted)
        manifest.facts["batch_size"] = mean
        manifest.notes.append(
            f"infer.batch_size={wanted}, but the data set gives {samples} samples: the mean batch is {mean:g}."
        )
