"""Static analysis: FLOPs, bytes and memory of the model at this run's shapes, without weights.

Files, under ``<run>/static_analysis/``::

    static_compute.json     the static model (``summary.static``), shapes, totals, cross-checks, memory table
    static_run.json         the same at the shapes of the measured samples, where those are others

A page (``static_compute.md``) and plots are made from the first by the report, not here.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.core import layout
from llm_perf_opt.core.layout import own_files
from llm_perf_opt.core.ranks import this_rank
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.stages.facts import Part, collect
from llm_perf_opt.workloads.counting.shapes import NAME, StaticAnalysisConfig, find_contradictions

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import AppConfig, ModelConfig
    from llm_perf_opt.summary.static import StaticDocument
    from llm_perf_opt.workloads.base import ModelAdapter
    from llm_perf_opt.workloads.counting.static_run import StaticCounter


# Static documents as facts.


def static_facts(path: Path) -> Facts:
    """Return the static model of a document, and its model facts."""
    from llm_perf_opt.captures.documents import load_model_facts, load_static

    return Facts(sources={"static": (path,)}, static=load_static(path), model=load_model_facts(path))


def _static_page_facts(path: Path) -> Facts:
    """Return the whole document, to make its page from."""
    from llm_perf_opt.captures.documents import load_document

    return Facts(static_document=load_document(path))


LOGGER = logging.getLogger("llm_perf_opt.static")
_MEASURING_STAGES = ("torch_profiler", "direct_inference")
"""Stages whose timings are divided by this stage's numbers."""


class StaticAnalysisStage(Stage):
    """Counts the model on the meta device."""

    name: ClassVar[str] = NAME
    order: ClassVar[int] = 10
    title: ClassVar[str] = "static analysis"
    config_type: ClassVar[type[StageConfig]] = StaticAnalysisConfig
    has_pages: ClassVar[bool] = True

    def check(self, context: StageContext) -> list[Problem]:
        """Find contradictory keys."""
        return find_contradictions(context.stage_config(NAME, StaticAnalysisConfig))

    def plan(self, context: StageContext) -> list[str]:
        """Return what is counted and written."""
        config = context.stage_config(NAME, StaticAnalysisConfig)
        where = "configured shapes" if config.use_synthetic_inputs else "the shapes of the samples"
        root = context.artifacts.root
        lines = [f"count FLOPs and bytes of {context.config.model.name} at {where}, without weights"]
        names = (layout.STATIC, *((layout.STATIC_MD, "*.svg") if config.write_reports else ()))
        return [*lines, *(f"write {root / NAME / name}" for name in names)]

    def run(self, context: StageContext) -> StageResult:
        """Count, check, write."""
        config = context.stage_config(NAME, StaticAnalysisConfig)
        with context.progress.task("static analysis") as task:
            counter = _make_counter(context.config, config)
            document = analyse(context.config, config, counter)
            task.advance()
        files = [_write(context, config, document)]
        files += _write_at_run_shapes(context, config, counter)
        result = StageResult("ok", artifacts=files, inputs=_inputs(document))
        if (reason := _find_problem(document)) is not None:
            result.status, result.reason, result.fix = "degraded", reason, "see the notes of the document"
        return result

    def facts(self, run_dir: Path) -> Facts:
        """Read the static model at the shapes of the run, and the document its page is made from."""
        document = run_dir / NAME / layout.STATIC
        found = own_files(run_dir, NAME, [document.with_name(layout.STATIC_AT_RUN_SHAPES), document])
        if document not in found:
            return Facts(stage=NAME)
        parts = [
            Part("static model", functools.partial(static_facts, found[0])),
            Part("static document", functools.partial(_static_page_facts, document)),
        ]
        return collect(NAME, parts)


def _inputs(document: StaticDocument) -> dict[str, Any]:
    """Return the content of ``inputs.yaml`` if only shapes were used."""
    return {"count": 0, "shapes": [asdict(shapes) for shapes in document.shapes]}


def _find_problem(document: StaticDocument) -> str | None:
    """Return why the document is incomplete or inconsistent."""
    wrong = document.disagreements()
    if wrong:
        return (
            f"count and closed form disagree on {wrong[0].phase} {wrong[0].component}; the count is reported"
        )
    by_formula = [phase for phase, method in document.methods.items() if method != "counted"]
    if by_formula:
        return f"{', '.join(by_formula)} by closed form: {document.notes[0] if document.notes else 'not counted'}"
    missing = [note for note in document.notes if note.startswith("not known at all")]
    return "; ".join(missing) or None


def _write(context: StageContext, config: StaticAnalysisConfig, document: StaticDocument) -> Path:
    from llm_perf_opt.captures.documents import save_document

    document.has_page = config.write_reports
    return save_document(context.artifacts.out_dir(NAME) / layout.STATIC, document)


def _write_at_run_shapes(
    context: StageContext, config: StaticAnalysisConfig, counter: StaticCounter
) -> list[Path]:
    """Also count at the samples' shapes when they are measured: utilisation needs work and time of the same shapes."""
    from llm_perf_opt.captures.documents import save_document
    from llm_perf_opt.core.errors import InputError

    measured = any(
        name in context.config.pipeline and context.config.pipeline[name].enable for name in _MEASURING_STAGES
    )
    if not measured or not config.use_synthetic_inputs:
        return []
    shapes_of_samples = replace(
        config,
        use_synthetic_inputs=False,
        grid=None,
        text_tokens=None,
        prompt_tokens=None,
        context_tokens=None,
        batch_size=None,
    )
    try:
        with context.progress.task("static analysis at the shapes of the samples"):
            # Model and counts are reused, unless the batch differs.
            same = config.batch_size is None
            document = analyse(context.config, shapes_of_samples, counter if same else None)
    except InputError as error:
        # The stage that measures these samples reports the same problem itself.
        LOGGER.warning("no static count at the shapes of the samples: %s", error.message)
        return []
    return [save_document(context.artifacts.out_dir(NAME) / layout.STATIC_AT_RUN_SHAPES, document)]


def _make_counter(config: AppConfig, stage: StaticAnalysisConfig) -> StaticCounter:
    """Build the model of a configuration without weights, ready to be counted at any shapes."""
    from llm_perf_opt.workloads.counting.static_run import SPLITS, StaticCounter
    from llm_perf_opt.workloads.models.model_types import reason_not_quantised
    from llm_perf_opt.workloads.registry import load_adapter

    measured = any(name in config.pipeline and config.pipeline[name].enable for name in _MEASURING_STAGES)
    infer = config.infer if stage.batch_size is None else replace(config.infer, batch_size=stage.batch_size)
    return StaticCounter(
        load_adapter(_countable_model(config.model), infer),
        _static_dtype(config),
        conventions=stage.conventions(),
        use_closed_forms=stage.use_analytic_fallback,
        name=config.model.name,
        not_quantised=reason_not_quantised(config.model, config.resolved_device, measured=measured),
        cache_dtype=cached.value
        if (cached := stage.cache_dtype or config.model.cache_dtype) is not None
        else None,
        ranks=sorted({*SPLITS, *([own] if (own := _ranks(config)) > 1 else [])}),
    )


def _ranks(config: AppConfig) -> int:
    """Return how many ranks the run has."""
    rank = this_rank()
    return rank.size if rank is not None else config.run.ranks


def analyse(
    config: AppConfig, stage: StaticAnalysisConfig, counter: StaticCounter | None = None
) -> StaticDocument:
    """Return the static document of a configuration: the stage without files, for use from Python.

    ``counter`` is an existing result of :func:`_make_counter` for the same configuration.
    """
    from llm_perf_opt.analysis.static.mean import mean_document
    from llm_perf_opt.workloads.counting.shapes import check_context, configured_shapes, steps_within

    counter = counter or _make_counter(config, stage)
    adapter = counter.adapter
    steps = stage.decode_tokens or max(1, config.infer.max_new_tokens - 1)
    if stage.use_synthetic_inputs:
        if stage.decode_tokens is None:
            prompt = configured_shapes(adapter, stage, steps).prompt_tokens
            steps = steps_within(steps, prompt, counter.context_limit)
        shapes = configured_shapes(adapter, stage, steps)
        check_context(shapes, steps, counter.context_limit)
        return counter.document(shapes, decode_steps=steps)
    return mean_document(_sample_documents(config, stage, adapter, counter, steps))


def _countable_model(model: ModelConfig) -> ModelConfig:
    """Choose implementations that run on the meta device; FLOPs do not depend on them."""
    experts = "batched_mm" if model.experts_implementation == "batched_mm" else None
    attention = "eager" if model.attn_implementation == "eager" else None
    return replace(model, experts_implementation=experts, attn_implementation=attention, compile=False)


def _static_dtype(config: AppConfig) -> torch.dtype:
    """Return the data type of the run; with static analysis only, the usual one of accelerators."""
    from llm_perf_opt.config.schema import Dtype
    from llm_perf_opt.workloads.devices import resolve_dtype

    runs = any(stage.enable for name, stage in config.pipeline.items() if name != NAME)
    automatic = config.model.dtype is Dtype.auto
    return resolve_dtype(config.model.dtype, config.resolved_device if automatic and runs else "meta")


def _sample_documents(
    config: AppConfig, stage: StaticAnalysisConfig, adapter: ModelAdapter, counter: StaticCounter, steps: int
) -> list[tuple[StaticDocument, int]]:
    """Count at every distinct shape of the run's batches."""
    from llm_perf_opt.workloads.counting.shapes import (
        check_context,
        representative_shapes,
        sample_shapes,
        steps_within,
    )

    limit = counter.context_limit
    found, problems = sample_shapes(config, adapter, steps)
    chosen, note = representative_shapes(found, stage.max_shapes)
    documents = []
    for sample, times in chosen:
        taken = steps if stage.decode_tokens else steps_within(steps, sample.prompt_tokens, limit)
        shapes = replace(sample, context_tokens=sample.prompt_tokens + (taken - 1) // 2)
        check_context(shapes, taken, limit)
        document = counter.document(shapes, decode_steps=taken, source="samples")
        document.shapes[0].weight = times
        document.notes += [*([note] if note else []), *problems]
        documents.append((document, times))
    return documents
