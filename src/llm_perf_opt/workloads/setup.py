"""From the whole configuration to the one workload that every stage runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llm_perf_opt.core import units
from llm_perf_opt.workloads.base import WorkloadConfig
from llm_perf_opt.workloads.repeats import LEAST_REPEATS, UntilNarrow

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig


def workload_config(
    config: AppConfig, *, repeats: int | None = None, max_new_tokens: int | None = None
) -> WorkloadConfig:
    """Return the workload of a run; ``run.mode=light`` means one repeat of one sample.

    ``repeats`` or ``run.repeats`` means exactly so many; without either, as many as the times need.
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
        nvtx_modules=config.run.nvtx_modules,
        until=until if passes is None else None,
    )


def planned_passes(workload: WorkloadConfig) -> str:
    """Say how often a workload will be measured."""
    if workload.until is None:
        return f"{workload.repeats} measured pass(es)"
    return (
        f"{workload.repeats} measured passes and more, until their 95 % interval is "
        f"{units.percent(workload.until.target_interval_ratio)} wide or {units.seconds(workload.until.max_measure_s)} "
        "are used"
    )


def check_inputs(config: AppConfig) -> None:
    """Look for the data set's files before any work starts; raise the error the run would meet. Writes nothing."""
    from llm_perf_opt.workloads.registry import dataset_class

    dataset = config.dataset
    kind = dataset_class(dataset.adapter)
    given = (dataset.root, dataset.subset_filelist, dataset.prompts, dataset.prompts_file)
    if all(value is None for value in given):
        return
    if kind.opens_quickly:
        kind(dataset)
