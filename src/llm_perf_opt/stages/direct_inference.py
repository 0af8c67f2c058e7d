"""Inference without a profiler: predictions to read, and undisturbed timings."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from llm_perf_opt.analysis.facts import TIMINGS, Facts
from llm_perf_opt.core import layout
from llm_perf_opt.core.layout import own_files
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.stages.facts import Part, collect, timings_facts
from llm_perf_opt.workloads.outputs.config import (
    DEFAULT_PREDICTION_DIR,
    DEFAULT_VISUALIZATION_DIR,
    OutputConfig,
    PredictionOutput,
    check_output,
    resolve_output_dir,
)

NAME = "direct_inference"


@dataclass
class DirectInferenceConfig(StageConfig):
    """``pipeline.direct_inference.*``."""

    repeats: int | None = 1
    """Passes over the samples. The first gives the predictions; more of them only steady the timings. null: as
    ``run.repeats`` says."""
    output: OutputConfig = field(
        default_factory=lambda: OutputConfig(prediction=PredictionOutput(enable=True))
    )


class DirectInferenceStage(Stage):
    """Run the workload without a tool, and keep the model's output."""

    name: ClassVar[str] = NAME
    order: ClassVar[int] = 25
    title: ClassVar[str] = "direct inference"
    config_type: ClassVar[type[StageConfig]] = DirectInferenceConfig

    def check(self, context: StageContext) -> list[Problem]:
        """Check the stage's own keys, the data set, and whether the model fits into memory."""
        from llm_perf_opt.workloads.memory_estimate import memory_problems
        from llm_perf_opt.workloads.setup import check_inputs

        config = context.stage_config(NAME, DirectInferenceConfig)
        if config.repeats is not None and config.repeats < 1:
            key = f"pipeline.{NAME}.repeats"
            return [Problem("error", f"{key}={config.repeats} is out of range", "use at least 1", key)]
        check_output(config.output, NAME, context.config.model.adapter)
        check_inputs(context.config)
        return memory_problems(context.config, NAME)

    def plan(self, context: StageContext) -> list[str]:
        """Return what would be run and written."""
        from llm_perf_opt.workloads.setup import planned_passes, workload_config

        config = context.stage_config(NAME, DirectInferenceConfig)
        folder = context.artifacts.root / NAME
        lines = [
            f"run {context.config.model.name} on {context.config.resolved_device}, "
            f"{planned_passes(workload_config(context.config, repeats=config.repeats))}, no profiler",
            f"write {folder / layout.TIMINGS}",
        ]
        prediction, shown = config.output.prediction, config.output.visualization
        if prediction.enable:
            where = resolve_output_dir(prediction.save_dir, DEFAULT_PREDICTION_DIR, folder)
            lines.append(f"write {where / 'predictions.jsonl'}")
        if shown.enable:
            where = resolve_output_dir(shown.save_dir, DEFAULT_VISUALIZATION_DIR, folder)
            lines += [f"write {where / 'predictions.md'}", f"write {where / 'predictions.html'}"]
        return lines

    def run(self, context: StageContext) -> StageResult:
        """Run the samples that have no prediction yet; write predictions, timings and gallery."""
        from llm_perf_opt.workloads.measure import measure
        from llm_perf_opt.workloads.setup import workload_config

        config = context.stage_config(NAME, DirectInferenceConfig)
        workload = workload_config(context.config, repeats=config.repeats)
        folder = context.artifacts.out_dir(NAME)
        measured = measure(
            workload, config.output, NAME, folder, progress=context.progress, resume=True, verify=True
        )
        measured.release(folder)
        return measured.stage_result()

    def continues(self, context: StageContext) -> list[Path]:
        """Keep the predictions of an interrupted run, whose samples are not run again."""
        from llm_perf_opt.workloads.outputs.writer import FILE_NAME

        prediction = context.stage_config(NAME, DirectInferenceConfig).output.prediction
        if not prediction.enable:
            return []
        folder = context.artifacts.root / NAME
        return [resolve_output_dir(prediction.save_dir, DEFAULT_PREDICTION_DIR, folder) / FILE_NAME]

    def facts(self, run_dir: Path) -> Facts:
        """Read the timings."""
        found = own_files(run_dir, NAME, [run_dir / NAME / layout.TIMINGS])
        return collect(NAME, [Part(TIMINGS, functools.partial(timings_facts, path)) for path in found])
