"""Timings without a profiler, then one representative pass under ``torch.profiler``: operators and a trace."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from llm_perf_opt.core.artifacts import PROFILE_NAME
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.vendor.torch.config import (
    NAME,
    Activity,
    TorchProfilerConfig,
    effective_config,
    out_of_range,
    representative_tokens,
    usable_activities,
    useless_activities,
)
from llm_perf_opt.workloads.engine.results import TIMINGS_NAME
from llm_perf_opt.workloads.outputs.config import (
    DEFAULT_PREDICTION_DIR,
    DEFAULT_VISUALIZATION_DIR,
    OutputConfig,
    check_output,
    resolve_output_dir,
)

if TYPE_CHECKING:
    from llm_perf_opt.ingest.kineto.reader import KinetoCapture
    from llm_perf_opt.vendor.torch.passes import Profile, ProfileOptions
    from llm_perf_opt.workloads.base import Batch, Sample
    from llm_perf_opt.workloads.engine.engine import Engine
    from llm_perf_opt.workloads.engine.results import WorkloadResult

TRACE_NAME = "trace.json.gz"
MEMORY_NAME = "memory.json"
INPUTS_NAME = "inputs.json"


class TorchProfilerStage(Stage):
    """Measure, then profile one representative pass."""

    name: ClassVar[str] = NAME
    order: ClassVar[int] = 20
    title: ClassVar[str] = "torch profiler"
    config_type: ClassVar[type[StageConfig]] = TorchProfilerConfig

    def check(self, context: StageContext) -> list[Problem]:
        """Check the stage's own keys and that the data set is there."""
        from llm_perf_opt.workloads.setup import check_inputs

        config = context.stage_config(NAME, TorchProfilerConfig)
        problems = [*out_of_range(config), *useless_activities(config, context.config)]
        if not problems:
            check_output(config.output, NAME, context.config.model.adapter)
            check_inputs(context.config)
        return problems

    def plan(self, context: StageContext) -> list[str]:
        """Say what would be run and which files it would leave."""
        from llm_perf_opt.workloads.setup import workload_config

        config = effective_config(context.stage_config(NAME, TorchProfilerConfig), context.config)
        workload = workload_config(context.config)
        folder = context.artifacts.root / NAME
        activities, _ = usable_activities(config, context.config)
        tokens = representative_tokens(config, context.config)
        lines = [
            f"run {workload.model.name} on {workload.device}: warm up, then {workload.repeats} measured pass(es) without a profiler",
            f"write {folder / TIMINGS_NAME}",
            f"profile {config.active_passes} representative pass(es) of {tokens} new tokens with {', '.join(activities)} activity",
            f"write {folder / PROFILE_NAME}",
        ]
        if config.export_trace:
            lines.append(f"write {folder / TRACE_NAME}")
        if config.profile_memory:
            lines += ["run one more pass with the allocators watched", f"write {folder / MEMORY_NAME}"]
        return lines + _planned_outputs(config.output, folder)

    def run(self, context: StageContext) -> StageResult:
        """Measure without the profiler, profile one pass, write timings, trace and operators."""
        from llm_perf_opt.workloads.measure import measure
        from llm_perf_opt.workloads.setup import workload_config

        workload = workload_config(context.config)
        folder = context.artifacts.out_dir(NAME)
        config = effective_config(context.stage_config(NAME, TorchProfilerConfig), context.config)
        measured = measure(workload, config.output, NAME, folder, progress=context.progress)
        scratch = context.artifacts.tmp_dir(NAME)
        atomic_write_json(scratch / INPUTS_NAME, measured.inputs())
        run = measured.engine_run()
        profiled = _Profiling(context, config, run.engine, run.result, folder, scratch).run()
        return measured.stage_result(*profiled)


def _planned_outputs(output: OutputConfig, folder: Path) -> list[str]:
    lines = []
    if output.prediction.enable:
        where = resolve_output_dir(output.prediction.save_dir, DEFAULT_PREDICTION_DIR, folder)
        lines.append(f"write {where / 'predictions.jsonl'}")
    if output.visualization.enable:
        where = resolve_output_dir(output.visualization.save_dir, DEFAULT_VISUALIZATION_DIR, folder)
        lines += [f"write {where / 'predictions.md'}", f"write {where / 'predictions.html'}"]
    return lines


def representative_batch(result: WorkloadResult) -> list[Sample]:
    """Return the batch in the middle by prompt length: neither the shortest nor the longest page.

    Deterministic, unlike a choice by measured time, so that two runs profile the same request.
    """
    order = sorted(range(len(result.batches)), key=lambda place: (result.batches[place].prompt_tokens, place))
    chosen = result.batches[order[(len(order) - 1) // 2]]
    by_id = {answer.sample.id: answer.sample for answer in result.samples}
    return [by_id[name] for name in chosen.ids]


# --- profiling -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Profiling:
    """The part of the stage that runs under the profiler."""

    context: StageContext
    config: TorchProfilerConfig
    engine: Engine
    measured: WorkloadResult
    folder: Path
    scratch: Path

    def run(self) -> list[Path]:
        """Profile, then watch memory; return the files."""
        from llm_perf_opt.vendor.torch.passes import profile_pass

        samples = representative_batch(self.measured)
        batch = self.engine.prepare(samples)
        tokens = representative_tokens(self.config, self.context.config)
        options = self._options()
        with self.context.progress.task("profiling one representative pass") as task:
            profile = profile_pass(self.engine, batch, tokens, options, self.scratch)
            task.advance()
        files = self._write_profile(profile, options, batch, samples)
        if self.config.profile_memory:
            files += self._write_memory(batch, tokens, options)
        return files

    def _options(self) -> ProfileOptions:
        from llm_perf_opt.vendor.torch.passes import ProfileOptions

        config = self.config
        activities, notes = usable_activities(config, self.context.config)
        for note in notes:
            self.context.progress.say(note)
        return ProfileOptions(
            activities,
            config.record_shapes,
            config.with_stack,
            config.with_flops,
            config.group_by_input_shape,
            config.record_modules,
            config.start_up_passes,
            config.active_passes,
        )

    def _write_profile(
        self, profile: Profile, options: ProfileOptions, batch: Batch, samples: list[Sample]
    ) -> list[Path]:
        from llm_perf_opt.ingest.kineto.reader import read_kineto
        from llm_perf_opt.vendor.torch.passes import compress

        with self.context.progress.task("reading the trace") as task:
            document = self._document(read_kineto(profile.trace), profile, options, batch, samples)
            task.advance()
        files = []
        if self.config.export_trace:
            files.append(compress(profile.trace, self.folder / TRACE_NAME))
        profile.trace.unlink()
        return [*files, atomic_write_json(self.folder / PROFILE_NAME, document)]

    def _document(
        self,
        capture: KinetoCapture,
        profile: Profile,
        options: ProfileOptions,
        batch: Batch,
        samples: list[Sample],
    ) -> dict[str, Any]:
        import torch

        from llm_perf_opt.analysis.operators import operator_records
        from llm_perf_opt.analysis.timeline.attribution import attribute

        records = operator_records(
            capture.operators,
            capture.timeline,
            attribute(capture.timeline),
            rank_by=self.config.rank_by.value,
            limit=self.config.max_operators,
        )
        return {
            "schema": 1,
            "torch": str(torch.__version__),
            "trace": TRACE_NAME if self.config.export_trace else None,
            "options": {**asdict(options), "activities": list(options.activities)},
            "rank_by": self.config.rank_by.value,
            "max_operators": self.config.max_operators,
            "sample_ids": [sample.id for sample in samples],
            "prompt_tokens": batch.prompt_tokens,
            "new_tokens": profile.new_tokens,
            "profiled_s": profile.seconds,
            "notes": self._notes(capture, options),
            "flops_by_operator": profile.flops_by_operator,
            "operators_by_shape": profile.operators_by_shape[: self.config.max_operators],
            "operators": [asdict(record) for record in records],
        }

    def _notes(self, capture: KinetoCapture, options: ProfileOptions) -> list[str]:
        notes = usable_activities(self.config, self.context.config)[1]
        # Without CUDA activity, what a trace lacks of it is no news.
        return [*notes, *capture.timeline.warnings] if Activity.cuda.value in options.activities else notes

    def _write_memory(self, batch: Batch, tokens: int, options: ProfileOptions) -> list[Path]:
        from llm_perf_opt.analysis.memory import memory_document
        from llm_perf_opt.analysis.timeline.attribution import attribute
        from llm_perf_opt.ingest.kineto.reader import read_kineto
        from llm_perf_opt.vendor.torch.passes import memory_pass

        with self.context.progress.task("watching memory over one more pass") as task:
            trace = memory_pass(self.engine, batch, tokens, options.activities, self.scratch)
            task.advance()
        capture = read_kineto(trace)
        document = memory_document(capture, attribute(capture.timeline), self.engine.device)
        trace.unlink()
        return [] if document is None else [atomic_write_json(self.folder / MEMORY_NAME, document)]
