"""From the whole configuration to the one workload that every stage runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.config.schema import ModelConfig
from llm_perf_opt.core import units
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.workloads.base import LEAST_REPEATS, UntilNarrow, WorkloadConfig
from llm_perf_opt.workloads.devices import missing_compiler
from llm_perf_opt.workloads.models import loading
from llm_perf_opt.workloads.models.hub import hub_config, is_hub_id
from llm_perf_opt.workloads.models.model_types import (
    AUTO,
    DATASETS,
    HF_ADAPTERS,
    adapter_for,
    named_config,
    refuse_model_type,
)

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig


def workload_config(
    config: AppConfig, *, repeats: int | None = None, max_new_tokens: int | None = None
) -> WorkloadConfig:
    """Return the workload of a run; ``run.mode=light`` means one repeat of one sample.

    ``repeats`` or ``run.repeats`` is an exact number; without either, repeats continue until times are narrow.
    """
    dataset, passes = config.dataset, config.run.repeats if repeats is None else repeats
    if config.run.mode.value == "light":
        sampling = replace(dataset.sampling, num_epochs=1, num_samples_per_epoch=1)
        dataset, passes = replace(dataset, sampling=sampling), 1
    until = UntilNarrow(config.run.target_interval_ratio, config.run.max_measure_s)
    return WorkloadConfig(
        model=config.model,
        infer=config.infer,
        dataset=dataset,
        device=config.resolved_device,
        repeats=LEAST_REPEATS if passes is None else passes,
        max_new_tokens=config.infer.max_new_tokens if max_new_tokens is None else max_new_tokens,
        threads=config.run.threads,
        phase_threads=config.run.phase_threads,
        nvtx_modules=config.run.nvtx_modules,
        until=until if passes is None else None,
    )


def resolve_adapters(config: AppConfig, *, here: bool = True) -> AppConfig:
    """Replace ``model.adapter=auto`` by the adapter of the checkpoint, and likewise for the data set.

    :class:`ConfigError` has the reason if none fits; only ``config.json`` of the model is read. A run for
    another machine (not ``here``) is left as it is where the checkpoint is only there.
    """
    model, dataset = config.model, config.dataset
    if not here and model.path is not None and not Path(model.path).expanduser().exists():
        return config
    if model.adapter == AUTO and config.workload_command.command is None:
        found = adapter_for(_model_document(model))
        named = Path(model.path).name if model.path is not None and model.name == ModelConfig.name else ""
        model = replace(model, adapter=found, name=named or model.name)
    if dataset.adapter == AUTO:
        dataset = replace(dataset, adapter=DATASETS.get(model.adapter, "prompts"))
    return replace(config, model=model, dataset=dataset)


def _model_document(model: ModelConfig) -> dict[str, Any]:
    """Return the model's configuration file, updated by ``model.arch``."""
    document: dict[str, Any] = {}
    if model.path is not None:
        document = (
            hub_config(model.path, model.revision)
            if is_hub_id(model.path)
            else loading.read_json(loading.checkpoint_dir(model.path) / "config.json")
        )
    elif model.config_name is not None:
        document = dict(named_config(model.config_name))
    if not document and "model_type" not in model.arch:
        raise ConfigError(
            "no model given",
            hint="set model.path=CHECKPOINT, or model=CHECKPOINT for short",
            key="model.path",
        )
    return document | model.arch


def check_model_type(model: ModelConfig) -> None:
    """Reject a model that the chosen adapter cannot run, based on its configuration alone."""
    if model.adapter not in HF_ADAPTERS or model.trust_remote_code:
        return
    found = model.path is None or Path(model.path).expanduser().is_dir() or is_hub_id(model.path)
    if not found or not (model.path or model.config_name or "model_type" in model.arch):
        return
    document = _model_document(model)
    refuse_model_type(str(document.get("model_type")), model.adapter, is_decoder=document.get("is_decoder"))


def planned_passes(workload: WorkloadConfig) -> str:
    """Describe how often a workload will be measured."""
    if workload.until is None:
        return f"{workload.repeats} measured pass(es)"
    return (
        f"{workload.repeats} measured passes and more, until their 95 % interval is "
        f"{units.percent(workload.until.target_interval_ratio)} wide or {units.seconds(workload.until.max_measure_s)} "
        "are used"
    )


def _check_compiler(config: AppConfig) -> None:
    wanted = {"model.compile": config.model.compile, "model.compile_vision": config.model.compile_vision}
    for key in (key for key, is_set in wanted.items() if is_set):
        if (missing := missing_compiler(config.resolved_device)) is not None:
            raise ConfigError(
                f"{key}=true needs a compiler, and {missing} is not installed",
                hint=f"install it (on Debian: apt-get install g++), or use {key}=false",
                key=key,
            )


def check_inputs(config: AppConfig) -> None:
    """Look for a compiler and the data set's files before any work starts; raise the error that the run would raise."""
    from llm_perf_opt.workloads.registry import dataset_class

    _check_compiler(config)
    dataset = config.dataset
    kind = dataset_class(dataset.adapter)
    given = (dataset.root, dataset.subset_filelist, dataset.prompts, dataset.prompts_file)
    if all(value is None for value in given):
        return
    if kind.opens_quickly:
        kind(dataset)
