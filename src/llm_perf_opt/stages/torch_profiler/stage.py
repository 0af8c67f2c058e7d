"""Timings without a profiler, then one representative pass under ``torch.profiler``: operators and a trace."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from llm_perf_opt.analysis.facts import TIMINGS, Facts
from llm_perf_opt.core import layout
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.core.layout import own_files
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.stages.facts import Part, collect, timings_facts
from llm_perf_opt.stages.torch_profiler.config import (
    NAME,
    TorchProfilerConfig,
    effective_config,
    out_of_range,
    representative_tokens,
    usable_activities,
    useless_activities,
)
from llm_perf_opt.stages.torch_profiler.facts import memory_facts, trace_facts
from llm_perf_opt.workloads.outputs.config import (
    DEFAULT_PREDICTION_DIR,
    DEFAULT_VISUALIZATION_DIR,
    OutputConfig,
    check_output,
    resolve_output_dir,
)

if TYPE_CHECKING:
    from llm_perf_opt.stages.torch_profiler.passes import Profile, ProfileOptions
    from llm_perf_opt.workloads.base import Batch, Sample
    from llm_perf_opt.workloads.engine.engine import Engine
    from llm_perf_opt.workloads.engine.results import WorkloadResult


class TorchProfilerStage(Stage):
    """Measure, then profile one representative pass."""

    name: ClassVar[str] = NAME
    order: ClassVar[int] = 20
    title: ClassVar[str] = "torch profiler"
    config_type: ClassVar[type[StageConfig]] = TorchProfilerConfig

    def check(self, context: StageContext) -> list[Problem]:
        """Check the stage's own keys, the data set, and whether the model fits into memory."""
        from llm_perf_opt.workloads.memory_estimate import memory_problems
        from llm_perf_opt.workloads.setup import check_inputs

        config = context.stage_config(NAME, TorchProfilerConfig)
        problems = [*out_of_range(config), *useless_activities(config, context.config)]
        if not problems:
            check_output(config.output, NAME, context.config.model.adapter)
            check_inputs(context.config)
        return [*problems, *memory_problems(context.config, NAME)]

    def plan(self, context: StageContext) -> list[str]:
        """Return what would be run and written."""
        from llm_perf_opt.workloads.setup import planned_passes, workload_config

        config = effective_config(context.stage_config(NAME, TorchProfilerConfig), context.config)
        workload = workload_config(context.config)
        folder = context.artifacts.root / NAME
        activities, _ = usable_activities(config, context.config)
        tokens = representative_tokens(config, context.config)
        lines = [
            f"run {workload.model.name} on {workload.device}: warm up, then {planned_passes(workload)} without a profiler",
            f"write {folder / layout.TIMINGS}",
            f"profile {config.active_passes} representative pass(es) of {tokens} new tokens with {', '.join(activities)} activity",
            f"write {folder / layout.PROFILE}",
        ]
        if config.export_trace:
            lines.append(f"write {folder / layout.TRACE}")
        if config.profile_memory:
            lines += [
                "run one more pass with the allocators watched",
                f"write {folder / layout.MEMORY_TRACE}",
            ]
        return lines + _planned_outputs(config.output, folder)

    def run(self, context: StageContext) -> StageResult:
        """Measure without the profiler, profile one pass, write timings, trace and operators."""
        from llm_perf_opt.workloads.measure import measure
        from llm_perf_opt.workloads.setup import workload_config

        workload = workload_config(context.config)
        folder = context.artifacts.out_dir(NAME)
        config = effective_config(context.stage_config(NAME, TorchProfilerConfig), context.config)
        measured = measure(workload, config.output, NAME, folder, progress=context.progress, verify=True)
        run, scratch = measured.engine_run(), context.artifacts.tmp_dir(NAME)
        profiled = _Profiling(context, config, run.engine, run.result, folder, scratch).run()
        measured.release(folder)
        return measured.stage_result(*profiled)

    def facts(self, run_dir: Path) -> Facts:
        """Read timings, trace and memory."""
        folder = run_dir / NAME
        names = (
            layout.TRACE,
            layout.TRACE.removesuffix(".gz"),
            layout.PROFILE,
        )  # last: no trace was kept
        sources = (
            (TIMINGS, [folder / layout.TIMINGS], timings_facts),
            ("torch trace", [folder / name for name in names], trace_facts),
            ("memory trace", [folder / layout.MEMORY_TRACE], memory_facts),
        )
        return collect(
            NAME,
            [
                Part(what, functools.partial(read, path))
                for what, paths, read in sources
                for path in own_files(run_dir, NAME, paths)[:1]
            ],
        )


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
    """Return the batch of median prompt length.

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
    notes: list[str] = field(default_factory=list)
    """What could not be recorded, and why."""

    def run(self) -> list[Path]:
        """Profile, then record memory; return the files."""
        from llm_perf_opt.stages.torch_profiler.passes import profile_pass

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
        from llm_perf_opt.stages.torch_profiler.passes import ProfileOptions, supported_activities

        config = self.config
        wanted, notes = usable_activities(config, self.context.config)
        activities, untraced = supported_activities(wanted)
        self.notes = [*notes, *untraced]
        for note in self.notes:
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
        from llm_perf_opt.stages.torch_profiler.passes import compress

        files = []
        document = self._document(profile, options, batch, samples)
        if self.config.export_trace:
            files.append(compress(profile.trace, self.folder / layout.TRACE))
        else:
            document["operators"] = self._operators(profile.trace)
        profile.trace.unlink()
        return [*files, atomic_write_json(self.folder / layout.PROFILE, document)]

    def _operators(self, trace: Path) -> list[dict[str, Any]]:
        """Read the operators of a trace that is not kept."""
        from llm_perf_opt.analysis.operators.table import operator_records
        from llm_perf_opt.analysis.timeline.attribution import attribute
        from llm_perf_opt.captures.kineto.reader import read_kineto

        with self.context.progress.task("reading the trace") as task:
            capture = read_kineto(trace)
            records = operator_records(
                capture.operators,
                capture.timeline,
                attribute(capture.timeline),
                rank_by=self.config.rank_by.value,
                limit=self.config.max_operators,
            )
            task.advance()
        return [asdict(record) for record in records]

    def _document(
        self, profile: Profile, options: ProfileOptions, batch: Batch, samples: list[Sample]
    ) -> dict[str, Any]:
        import torch

        return {
            "schema": 1,
            "torch": str(torch.__version__),
            "device": self.engine.device,
            "trace": layout.TRACE if self.config.export_trace else None,
            "options": {**asdict(options), "activities": list(options.activities)},
            "rank_by": self.config.rank_by.value,
            "max_operators": self.config.max_operators,
            "sample_ids": [sample.id for sample in samples],
            "prompt_tokens": batch.prompt_tokens,
            "new_tokens": profile.new_tokens,
            "profiled_s": profile.seconds,
            "notes": self.notes,
            "flops_by_operator": profile.flops_by_operator,
            "operators_by_shape": profile.operators_by_shape[: self.config.max_operators],
            "operators": [],
        }

    def _write_memory(self, batch: Batch, tokens: int, options: ProfileOptions) -> list[Path]:
        from llm_perf_opt.stages.torch_profiler.passes import compress, memory_pass

        with self.context.progress.task("watching memory over one more pass") as task:
            trace = memory_pass(self.engine, batch, tokens, options.activities, self.scratch)
            task.advance()
        packed = compress(trace, self.folder / layout.MEMORY_TRACE)
        trace.unlink()
        return [packed]
