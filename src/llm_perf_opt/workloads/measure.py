"""The measurement: data set, model, answers, timings. Used by every caller that measures.

It is above engine, data sets and outputs because it combines them; none of them imports it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.config.schema import CacheKind
from llm_perf_opt.core import collect_garbage_as_usual, layout
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.core.stage import StageResult
from llm_perf_opt.workloads.base import Sample, WorkloadConfig
from llm_perf_opt.workloads.datasets.sampling import inputs_document
from llm_perf_opt.workloads.engine.driver import build_engine, run_workload
from llm_perf_opt.workloads.engine.results import WorkloadResult, write_timings
from llm_perf_opt.workloads.engine.verify import SWITCHED_OFF, verify_tokens
from llm_perf_opt.workloads.outputs.writer import OutputWriter
from llm_perf_opt.workloads.registry import load_dataset

if TYPE_CHECKING:
    from llm_perf_opt.core.console.progress import Progress
    from llm_perf_opt.workloads.engine.engine import Engine
    from llm_perf_opt.workloads.outputs.config import OutputConfig

LOGGER = logging.getLogger("llm_perf_opt")
_NAMED_REMARKS = 3
Around = Callable[["Engine"], contextlib.AbstractContextManager[None]]


@dataclass(slots=True)
class EngineRun:
    """An engine, still loaded, and what it measured."""

    engine: Engine
    result: WorkloadResult


@dataclass(slots=True)
class Measurement:
    """Result of measuring a workload, and its files."""

    run: EngineRun | None
    """``None``: every sample had its prediction already."""
    samples: list[Sample]
    """Those with an answer, from this run or an interrupted one, in the data set's order."""
    problems: list[str]
    """Remarks about the data set and samples that were left out."""
    files: list[Path]
    not_released: str | None = None
    """Why the model's memory is not all given back."""

    def engine_run(self) -> EngineRun:
        """Return engine and result; only a resumed measurement may have none."""
        if self.run is None:
            raise RuntimeError("nothing was measured: every sample had its prediction already")
        return self.run

    def inputs(self) -> dict[str, Any]:
        """Return the samples for ``inputs.yaml``."""
        return inputs_document(self.samples, self.problems)

    def release(self, folder: Path) -> None:
        """Release the model's memory and record the result; later stages load the model again."""
        if self.run is None:
            return
        release = self.run.engine.release()
        if release is None:
            return
        self.files.append(atomic_write_json(folder / layout.RELEASE, release.to_dict()))
        self.not_released = release.problem()
        if self.not_released is not None:
            LOGGER.warning("%s", self.not_released)

    def stage_result(self, *further: Path) -> StageResult:
        """Return the result of a stage that measured: degraded if there are remarks on the data set or the memory."""
        files = [*self.files, *further]
        result = StageResult("ok", artifacts=files, inputs=self.inputs())
        if self.problems:
            result.status, result.reason = "degraded", remarks(self.problems)
            result.fix = "see run.log for all of them"
        if self.run is not None and self.run.result.tokens_verified is False:
            result.status = "degraded"
            result.reason = "; ".join(
                filter(None, [result.reason, "its tokens differ from those of generate() (see the notes)"])
            )
            static = self.run.engine.workload.model.cache is CacheKind.static
            result.fix = (
                "use model.cache=dynamic" if static else "check model and checkpoint before using the timings"
            )
        if self.not_released is not None:
            result.status = "degraded"
            result.reason = "; ".join(filter(None, [result.reason, self.not_released]))
            result.fix = result.fix or "capture with nsys and ncu in a run of its own"
        return result


def measure(
    workload: WorkloadConfig,
    output: OutputConfig,
    stage: str,
    folder: Path,
    *,
    progress: Progress,
    resume: bool = False,
    around: Around | None = None,
    verify: bool = False,
) -> Measurement:
    """Run a workload over its data set; write timings, predictions and gallery of ``stage`` into ``folder``.

    With ``resume``, samples that have a prediction of an interrupted run are not run again; ``around`` is entered with the
    engine before warm-up and left after the last pass. With ``verify``, the first tokens are checked once everything is
    measured; under a profiler this is left to the parent process.
    """
    collect_garbage_as_usual()
    dataset = load_dataset(workload.dataset)
    samples = list(dataset.samples())
    with OutputWriter(output, stage, folder, workload) as writer:
        pending = writer.pending(samples) if resume else samples
        if there := len(samples) - len(pending):
            progress.say(f"{there} of {len(samples)} predictions are there already")
        run = None
        if pending or not resume:
            run = run_engine(workload, pending, progress=progress, writer=writer, around=around)
        if run is not None and verify:
            check_tokens(run, workload, progress)
        problems = [*dataset.problems(), *(run.result.problems if run is not None else [])]
        timings = folder / layout.TIMINGS
        if run is not None:
            write_timings(timings, run.result)
        files = [timings] if timings.exists() else []
        files += writer.finish([remarks(problems)] if problems else [])
    return Measurement(run, _answered(samples, pending, run), problems, files)


def run_engine(
    workload: WorkloadConfig,
    samples: Sequence[Sample],
    *,
    progress: Progress,
    writer: OutputWriter | None = None,
    around: Around | None = None,
) -> EngineRun:
    """Build the model, warm up and measure; ``writer`` gets every answer immediately."""
    engine = build_engine(workload, progress)
    watching = around(engine) if around is not None else contextlib.nullcontext()
    if writer is None:
        with watching:
            return EngineRun(engine, run_workload(workload, samples, progress=progress, engine=engine))
    info = engine.info()
    decode = functools.partial(engine.adapter.text, skip_special_tokens=True)
    writer.describe(weights=info.weights, dtype=info.dtype, decode=decode)
    try:
        with watching:
            result = run_workload(workload, samples, on_result=writer, progress=progress, engine=engine)
    except KeyboardInterrupt:
        # Show the partial results; the predictions are already on disk.
        writer.finish(["Interrupted: these are the predictions made before."])
        raise
    return EngineRun(engine, result)


def check_tokens(run: EngineRun, workload: WorkloadConfig, progress: Progress) -> None:
    """Compare the first batch's first tokens with ``generate()``, unless switched off; the outcome is in the result."""
    found = SWITCHED_OFF
    if workload.infer.verify_tokens:
        first = run.result.samples[: len(run.result.batches[0].ids)]
        with progress.task("comparing tokens with generate()") as task:
            found = verify_tokens(
                run.engine, [answer.sample for answer in first], [answer.token_ids for answer in first]
            )
            task.advance()
    run.result.tokens_verified = found.verified
    run.result.notes.append(found.note)
    if found.verified is False:
        LOGGER.warning("%s", found.note)


def remarks(problems: Sequence[str]) -> str:
    """Describe in one sentence what was left out: how many, and the first of them by name."""
    more = f"; and {len(problems) - _NAMED_REMARKS} more" if len(problems) > _NAMED_REMARKS else ""
    return f"{len(problems)} remarks about the data set: {'; '.join(problems[:_NAMED_REMARKS])}{more}"


def _answered(samples: Sequence[Sample], pending: Sequence[Sample], run: EngineRun | None) -> list[Sample]:
    """Return the samples with an answer, from this run or an interrupted one, in their order."""
    waiting = {sample.id for sample in pending}
    answered = {answer.sample.id for answer in run.result.samples} if run is not None else set()
    return [sample for sample in samples if sample.id not in waiting or sample.id in answered]
