"""Run a workload: batches, warm-up, repeats; unreadable samples are reported and skipped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.core.errors import CheckpointError, InputError
from llm_perf_opt.summary.statistics import interval_ratio
from llm_perf_opt.workloads.base import Batch, Measuring, Sample, WorkloadConfig, pass_level, stop_reason
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.engine.nvtx import profiler_range
from llm_perf_opt.workloads.engine.results import BatchResult, PassResult, SampleResult, WorkloadResult
from llm_perf_opt.workloads.engine.tuning import tune
from llm_perf_opt.workloads.rank_group import agreed

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import InferConfig
    from llm_perf_opt.core.console.progress import Progress

LOGGER = logging.getLogger("llm_perf_opt")
_OnResult = Callable[[SampleResult], None]
_SPECULATION = "speculative decoding:"


def run_workload(
    workload: WorkloadConfig,
    samples: Sequence[Sample],
    *,
    on_result: _OnResult | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> WorkloadResult:
    """Run every sample ``workload.repeats`` times, or until the times are narrow (``workload.until``).

    ``on_result`` gets each answer immediately: those of the first repeat; the others are only timed.
    """
    progress = progress or LogProgress()
    if not samples:
        raise InputError(
            "the data set gave no samples",
            hint="check dataset.root, dataset.subset_filelist and dataset.sampling",
        )
    engine = engine or build_engine(workload, progress)
    run = _Run(engine, workload, on_result)
    groups = batches_of(engine, samples, workload.infer)
    _warn_of_short_batches(workload.infer.batch_size, len(samples))
    with progress.task("warm-up") as task:
        run.warm_up(groups)
        task.advance()
    total = workload.repeats * len(groups) if workload.until is None else None
    with profiler_range(), progress.task("measuring passes without a profiler", total=total) as task:
        began, levels, stopped = clock(), list[float](), None
        while stopped is None:
            for number, group in enumerate(groups):
                run.measure(number, group, first=not levels)
                task.advance(note=f"pass {len(levels) + 1}")
            run.require_samples()
            levels.append(pass_level([batch.repeats[-1].total_s() for batch in run.result.batches]))
            passed_s = clock() - began
            # Ranks have separate clocks, but must stop after the same pass.
            stopped = agreed(stop_reason(levels, passed_s, least=workload.repeats, until=workload.until))
    if engine.compilations is not None:
        run.result.compilations = engine.compilations.summary()
    run.result.measuring = Measuring(len(levels), stopped, interval_ratio(levels), passed_s)
    return run.result


def _warn_of_short_batches(wanted: int, samples: int) -> None:
    """Warn before measuring if there are too few samples for the batch size."""
    if samples % wanted:
        LOGGER.warning(
            "infer.batch_size=%d, but there are %d samples: %s (fix: give a multiple of %d samples, e.g. "
            "dataset.sampling.num_epochs, dataset.synthetic_count)",
            wanted,
            samples,
            f"batches of {samples} are run" if samples < wanted else f"the last batch has {samples % wanted}",
            wanted,
        )


def build_engine(workload: WorkloadConfig, progress: Progress) -> Engine:
    """Build the model of a workload, and log it: loading weights can take minutes."""
    with progress.task(f"building {workload.model.name}") as task:
        engine = Engine(workload)
        tune(engine)
        task.advance()
    return engine


class _Run:
    """The state of one run."""

    def __init__(self, engine: Engine, workload: WorkloadConfig, on_result: _OnResult | None) -> None:
        self._engine = engine
        self._wanted = workload.max_new_tokens
        self._on_result = on_result
        self._batches: dict[int, BatchResult] = {}
        self._passes = self._guided = 0
        self.result = WorkloadResult(engine.info(), [], [], workload.infer.batch_size)
        if self.result.info.weights == "random":
            self.result.notes.append("random weights: timings are real, the text is meaningless")
        self.result.notes.extend(engine.adapter.notes())

    def warm_up(self, groups: list[list[Sample]]) -> None:
        """Warm up on the first batch that is readable; with compiled or captured steps, on one batch of every shape."""
        warmed = False
        for group in self._one_of_each_shape(groups) if self._engine.settles_per_shape else groups:
            try:
                self.result.warmup_s += self._engine.warm_up(group)
            except InputError:
                self._leave_out_unreadable(group)
                if not group:
                    continue
                self.result.warmup_s += self._engine.warm_up(group)
            warmed = True
            if not self._engine.settles_per_shape:
                return
        if not warmed:
            self.require_samples()

    def _one_of_each_shape(self, groups: list[list[Sample]]) -> Iterator[list[Sample]]:
        """Yield a batch of every shape that is compiled or captured; samples that cannot be read are left out."""
        seen: set[tuple[object, ...]] = set()
        for group in groups:
            try:
                shape = self._engine.settled_shape(self._engine.prepare(group))
            except InputError:
                self._leave_out_unreadable(group)
                if not group:
                    continue
                shape = self._engine.settled_shape(self._engine.prepare(group))
            if shape not in seen:
                seen.add(shape)
                yield group

    def require_samples(self) -> None:
        """Stop when every sample was left out."""
        if self.result.samples:
            return
        raise InputError(
            f"none of the {len(self.result.problems)} samples can be used: {self.result.problems[0]}",
            hint="every sample must have a readable image or prompt; all problems are in the log",
            problems=list(self.result.problems),
        )

    def _leave_out_unreadable(self, group: list[Sample]) -> None:
        """Find the samples a batch failed on; samples are read one by one only for a failing batch."""
        group[:] = [sample for sample in group if self._can_read(sample)]

    def _can_read(self, sample: Sample) -> bool:
        try:
            self._engine.prepare([sample])
        except CheckpointError:
            raise  # leaving out samples would not help
        except InputError as error:
            message = f"{sample.id}: {error.message}"
            LOGGER.warning("left out: %s", message)
            self.result.problems.append(message)
            return False
        return True

    def measure(self, number: int, group: list[Sample], *, first: bool) -> None:
        """Run one batch once and keep the result."""
        if not group:
            return None
        try:
            batch, done = self._engine.run_sample(group)
        except InputError:
            if not first:
                raise
            before = len(group)
            self._leave_out_unreadable(group)
            if len(group) == before:
                raise
            return self.measure(number, group, first=True)
        if first and self._engine.proposer is not None:
            self._note_guesses(done)
        if first:
            self._batches[number] = self._describe(group, batch, done)
            self.result.batches.append(self._batches[number])
            self._record_answers(group, batch, done)
        self._batches[number].repeats.append(done.timings)
        return None

    def _describe(self, group: list[Sample], batch: Batch, done: PassResult) -> BatchResult:
        context = batch.prompt_tokens + done.new_tokens // 2
        shapes = self._engine.adapter.shapes(batch, context)
        limit = self._engine.new_token_limit(batch)
        if limit < self._wanted:
            self._note(
                f"{group[0].id}: answers end after {limit} of {self._wanted} tokens, where the model's context is full"
            )
        return BatchResult(
            list(batch.sample_ids),
            batch.prompt_tokens,
            batch.image_tokens,
            done.new_tokens,
            dict(batch.facts),
            shapes,
        )

    def _note_guesses(self, done: PassResult) -> None:
        self._passes, self._guided = self._passes + done.decode_passes, self._guided + done.new_tokens - 1
        self.result.notes = [note for note in self.result.notes if not note.startswith(_SPECULATION)]
        self._note(
            f"{_SPECULATION} {self._passes} forward passes gave {self._guided} tokens after the first; floors and FLOPs of decode "
            "count one pass per token"
        )

    def _note(self, text: str) -> None:
        if text not in self.result.notes:
            self.result.notes.append(text)

    def _record_answers(self, group: list[Sample], batch: Batch, done: PassResult) -> None:
        for place, (sample, ids) in enumerate(zip(group, done.token_ids, strict=True)):
            answer = SampleResult(
                sample=sample,
                token_ids=ids,
                text=self._engine.adapter.text(ids),
                prompt_tokens=_tokens_of_sequence(batch, "prompt_tokens", place, batch.prompt_tokens),
                image_tokens=_tokens_of_sequence(batch, "image_tokens", place, batch.image_tokens),
                batch_size=len(group),
                timings=done.timings,
                facts=_facts_of(batch, place),
            )
            self.result.samples.append(answer)
            if self._on_result is not None:
                self._on_result(answer)


def batches_of(engine: Engine, samples: Sequence[Sample], infer: InferConfig) -> list[list[Sample]]:
    """Return the batches of a run: in the order of the samples, or of their lengths (``infer.bucket_by_length``)."""
    if infer.bucket_by_length and infer.batch_size > 1:
        samples = sorted(samples, key=lambda sample: _prompt_length(engine, sample))
    return list(chunks(samples, infer.batch_size))


def _prompt_length(engine: Engine, sample: Sample) -> int:
    try:
        return engine.prepare([sample]).prompt_tokens
    except InputError:
        return 0  # skipped while measuring, with a reason


def chunks(samples: Sequence[Sample], size: int) -> Iterator[list[Sample]]:
    """Yield batches of at most ``size``."""
    for start in range(0, len(samples), size):
        yield list(samples[start : start + size])


def _tokens_of_sequence(batch: Batch, key: str, place: int, otherwise: int) -> int:
    """Return a fact of one sequence if the adapter has it per sequence."""
    listed = batch.facts.get(key)
    return (
        int(listed[place]) if isinstance(listed, list) and len(listed) == len(batch.sample_ids) else otherwise
    )


def _facts_of(batch: Batch, place: int) -> dict[str, object]:
    """Take one sequence's share of the batch's facts."""
    size = len(batch.sample_ids)
    return {
        key: value[place] if isinstance(value, list) and len(value) == size else value
        for key, value in batch.facts.items()
    }
