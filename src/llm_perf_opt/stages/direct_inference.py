"""Inference without a profiler: predictions to read, and timings nothing has disturbed."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.core import layout
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.stages.facts.collect import Part, collect
from llm_perf_opt.stages.facts.timings import timings_facts
from llm_perf_opt.workloads.outputs.config import (
    DEFAULT_PREDICTION_DIR,
    DEFAULT_VISUALIZATION_DIR,
    OutputConfig,
    PredictionOutput,
    check_output,
    resolve_output_dir,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llm_perf_opt.workloads.base import Sample, WorkloadConfig
    from llm_perf_opt.workloads.engine.results import WorkloadResult
    from llm_perf_opt.workloads.outputs.writer import OutputWriter

NAME = "direct_inference"
_NAMED = 3


@dataclass
class DirectInferenceConfig(StageConfig):
    """``pipeline.direct_inference.*``."""

    repeats: int = 1
    """Passes over the samples. The first gives the predictions; more of them only steady the timings."""
    output: OutputConfig = field(
        default_factory=lambda: OutputConfig(prediction=PredictionOutput(enable=True))
    )


class DirectInferenceStage(Stage):
    """Run the workload as it is, and keep what the model wrote."""

    name: ClassVar[str] = NAME
    order: ClassVar[int] = 25
    title: ClassVar[str] = "direct inference"
    config_type: ClassVar[type[StageConfig]] = DirectInferenceConfig

    def check(self, context: StageContext) -> list[Problem]:
        """Check the stage's own keys and that the data set is there."""
        from llm_perf_opt.workloads.setup import check_inputs

        config = context.stage_config(NAME, DirectInferenceConfig)
        if config.repeats < 1:
            key = f"pipeline.{NAME}.repeats"
            return [Problem("error", f"{key}={config.repeats} is out of range", "use at least 1", key)]
        check_output(config.output, NAME, context.config.model.adapter)
        check_inputs(context.config)
        return []

    def plan(self, context: StageContext) -> list[str]:
        """Say what would be run and which files it would leave."""
        config = context.stage_config(NAME, DirectInferenceConfig)
        folder = context.artifacts.root / NAME
        lines = [
            f"run {context.config.model.name} on {context.config.resolved_device}, "
            f"{config.repeats} pass(es), no profiler",
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
        from llm_perf_opt.workloads.datasets.inputs import inputs_document
        from llm_perf_opt.workloads.engine.results import write_timings
        from llm_perf_opt.workloads.outputs.writer import OutputWriter
        from llm_perf_opt.workloads.registry import load_dataset
        from llm_perf_opt.workloads.setup import workload_config

        config = context.stage_config(NAME, DirectInferenceConfig)
        workload = workload_config(context.config, repeats=config.repeats)
        dataset = load_dataset(workload.dataset)
        samples = list(dataset.samples())
        folder = context.artifacts.out_dir(NAME)
        with OutputWriter(config.output, NAME, folder, workload) as writer:
            pending = writer.pending(samples)
            if there := len(samples) - len(pending):
                context.progress.say(f"{there} of {len(samples)} predictions are there already")
            result = _infer(context, workload, pending, writer) if pending else None
            problems = [*dataset.problems(), *(result.problems if result else [])]
            files = writer.finish([_left_out(problems)] if problems else [])
        if result is not None:
            files.append(write_timings(folder / layout.TIMINGS, result))
        elif (folder / layout.TIMINGS).exists():
            files.append(folder / layout.TIMINGS)
        done = _stage_result(files, problems)
        done.inputs = inputs_document(_used(samples, pending, result), problems)
        return done

    def facts(self, run_dir: Path) -> Facts:
        """Read the timings."""
        timings = run_dir / NAME / layout.TIMINGS
        parts = [Part("timings", functools.partial(timings_facts, timings))] if timings.is_file() else []
        return collect(NAME, parts)


def _infer(
    context: StageContext,
    workload: WorkloadConfig,
    samples: Sequence[Sample],
    writer: OutputWriter,
) -> WorkloadResult:
    from llm_perf_opt.workloads.engine.driver import run_workload
    from llm_perf_opt.workloads.engine.engine import Engine

    with context.progress.task(f"building {workload.model.name}") as task:
        engine = Engine(workload)
        task.advance()
    info = engine.info()
    decode = functools.partial(engine.adapter.text, skip_special_tokens=True)
    writer.describe(weights=info.weights, dtype=info.dtype, decode=decode)
    try:
        return run_workload(workload, samples, on_result=writer, progress=context.progress, engine=engine)
    except KeyboardInterrupt:
        # What is there so far is worth looking at; the predictions themselves are on disk already.
        writer.finish(["Interrupted: these are the predictions made before."])
        raise


def _used(
    samples: Sequence[Sample], pending: Sequence[Sample], result: WorkloadResult | None
) -> list[Sample]:
    """Return the samples with an answer, from this run or an interrupted one, in their order."""
    waiting = {sample.id for sample in pending}
    answered = {answer.sample.id for answer in result.samples} if result is not None else set()
    return [sample for sample in samples if sample.id not in waiting or sample.id in answered]


def _left_out(problems: Sequence[str]) -> str:
    more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
    return f"{len(problems)} remarks about the data set: {'; '.join(problems[:_NAMED])}{more}"


def _stage_result(files: list[Path], problems: Sequence[str]) -> StageResult:
    if not problems:
        return StageResult("ok", artifacts=files)
    return StageResult("degraded", _left_out(problems), "see run.log for all of them", files)
