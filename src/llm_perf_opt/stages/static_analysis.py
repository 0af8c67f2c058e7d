"""Static analysis: FLOPs, bytes and memory of the model at this run's shapes, without weights.

Files, under ``<run>/static_analysis/``::

    static_compute.json     the static model (``summary.static``), shapes, totals, cross-checks, memory table
    static_run.json         the same at the shapes of the measured samples, where those are others

A page (``static_compute.md``) and plots are made from the first by the report, not here.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.analysis.static.conventions import Conventions
from llm_perf_opt.core import layout
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.stages.facts.collect import Part, collect
from llm_perf_opt.stages.facts.static import static_facts, static_page_facts

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import AppConfig, ModelConfig
    from llm_perf_opt.model.static import StaticDocument
    from llm_perf_opt.workloads.base import ModelAdapter
    from llm_perf_opt.workloads.counting.static_run import StaticCounter

LOGGER = logging.getLogger("llm_perf_opt.static")

NAME = "static_analysis"
MEASURING_STAGES = ("torch_profiler", "direct_inference")
"""Stages whose timings are divided by this stage's numbers."""
_KEY = f"pipeline.{NAME}"


class CausalKind(StrEnum):
    """How causal attention is counted."""

    full = "full"
    """The whole query × key rectangle, as counters and most kernels' headline numbers do."""
    halved = "halved"
    """Only the pairs a causal mask (or sliding window) leaves."""


class HeadKind(StrEnum):
    """On which prompt positions prefill runs the output head."""

    last = "last"
    """One position per sequence, as ``generate()`` does."""
    all = "all"
    """Every position, as DeepSeek-OCR's published code does."""


class RotaryKind(StrEnum):
    """Whether the rotary angle table counts as a matrix product."""

    as_run = "as_run"
    per_layer = "per_layer"
    """In every layer, as model code up to transformers 4.47 computes it."""


@dataclass
class StaticAnalysisConfig(StageConfig):
    """``pipeline.static_analysis.*``"""

    write_reports: bool = True
    """Make static_compute.md and plots from static_compute.json. false: only the numbers are kept."""
    use_analytic_fallback: bool = True
    """Use closed forms where the model cannot be counted, and check the count by them where it can.
    false: a phase that cannot be counted fails the stage, and nothing is cross-checked."""
    use_synthetic_inputs: bool = True
    """Count at configured shapes, without touching the data set. false: at the shapes of the run's samples;
    with several shapes the numbers are means over the batches."""
    causal: CausalKind = CausalKind.full
    head_positions: HeadKind = HeadKind.last
    rotary: RotaryKind = RotaryKind.as_run
    grid: list[int] | None = None
    """Tile grid [columns, rows] of a page (DeepSeek-OCR, modes with tiles); null: that of an A4 page."""
    text_tokens: int | None = None
    """Prompt positions besides the image; null: those of infer.prompt."""
    prompt_tokens: int | None = None
    """All prompt positions, image included; null: image and text positions together."""
    context_tokens: int | None = None
    """Cached positions at the counted decode step; null: the middle of the decode."""
    decode_tokens: int | None = None
    """Decode steps of a whole request; null: infer.max_new_tokens - 1 (prefill makes the first token)."""
    batch_size: int | None = None
    """Sequences per pass; null: infer.batch_size."""
    max_shapes: int = 16
    """Most distinct sample shapes that are counted; more are represented by the nearest prompt length."""

    def conventions(self) -> Conventions:
        """Return the counting conventions."""
        return Conventions(self.causal.value, self.head_positions.value, self.rotary.value)


_POSITIVE = ("text_tokens", "prompt_tokens", "context_tokens", "decode_tokens", "batch_size", "max_shapes")
_SHAPE_KEYS = ("grid", "text_tokens", "prompt_tokens", "context_tokens", "batch_size")


def find_contradictions(stage: StaticAnalysisConfig) -> list[Problem]:
    """Return values and combinations that cannot be meant; needs no model."""
    problems = []
    for name in _POSITIVE:
        value = getattr(stage, name)
        if value is not None and value < 1:
            problems.append(_wrong(name, f"{_KEY}.{name}={value} is below 1", "give a positive number"))
    if stage.grid is not None and (len(stage.grid) != 2 or any(side < 1 for side in stage.grid)):
        problems.append(
            _wrong(
                "grid", f"{_KEY}.grid={stage.grid} is not [columns, rows]", f"for example {_KEY}.grid=[2,3]"
            )
        )
    if stage.text_tokens is not None and stage.prompt_tokens is not None:
        problems.append(
            _wrong(
                "text_tokens",
                "text_tokens and prompt_tokens are both given",
                "prompt_tokens includes the text",
            )
        )
    given = [name for name in _SHAPE_KEYS if getattr(stage, name) is not None]
    if given and not stage.use_synthetic_inputs:
        keys = ", ".join(f"{_KEY}.{name}" for name in given)
        fix = f"leave them out, or set {_KEY}.use_synthetic_inputs=true"
        problems.append(
            _wrong(given[0], f"{keys} contradict use_synthetic_inputs=false (shapes of samples)", fix)
        )
    return problems


def _wrong(name: str, message: str, fix: str) -> Problem:
    return Problem("error", message, fix, f"{_KEY}.{name}")


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
        """Say what is counted and written."""
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
            document = analyse(context.config, config)
            task.advance()
        files = [_write(context, config, document)]
        files += _write_at_run_shapes(context, config)
        reason = _what_is_wrong(document)
        if reason is not None:
            return StageResult(
                "degraded", reason=reason, fix="see the notes of the document", artifacts=files
            )
        return StageResult("ok", artifacts=files)

    def facts(self, run_dir: Path) -> Facts:
        """Read the static model at the shapes of the run, and the document its page is made from."""
        folder = run_dir / NAME
        document, at_run_shapes = folder / layout.STATIC, folder / layout.STATIC_AT_RUN_SHAPES
        if not document.is_file():
            return Facts(stage=NAME)
        chosen = at_run_shapes if at_run_shapes.is_file() else document
        parts = [
            Part("static model", functools.partial(static_facts, chosen)),
            Part("static document", functools.partial(static_page_facts, document)),
        ]
        return collect(NAME, parts)


def _what_is_wrong(document: StaticDocument) -> str | None:
    """Say what keeps the document from being complete and consistent."""
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
    from llm_perf_opt.ingest.static import save_document

    document.has_page = config.write_reports
    return save_document(context.artifacts.out_dir(NAME) / layout.STATIC, document)


def _write_at_run_shapes(context: StageContext, config: StaticAnalysisConfig) -> list[Path]:
    """Also count at the samples' shapes when they are measured: utilisation divides like by like."""
    from llm_perf_opt.core.errors import InputError
    from llm_perf_opt.ingest.static import save_document

    measured = any(
        name in context.config.pipeline and context.config.pipeline[name].enable for name in MEASURING_STAGES
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
            document = analyse(context.config, shapes_of_samples)
    except InputError as error:
        # The stage that measures these samples meets the same problem and reports it as its own.
        LOGGER.warning("no static count at the shapes of the samples: %s", error.message)
        return []
    return [save_document(context.artifacts.out_dir(NAME) / layout.STATIC_AT_RUN_SHAPES, document)]


def analyse(config: AppConfig, stage: StaticAnalysisConfig) -> StaticDocument:
    """Return the static document of a configuration: the stage without files, for use from Python."""
    from llm_perf_opt.analysis.static.mean import mean_document
    from llm_perf_opt.workloads.counting.shapes import check_context, configured_shapes, steps_within
    from llm_perf_opt.workloads.counting.static_run import StaticCounter
    from llm_perf_opt.workloads.registry import load_adapter

    infer = config.infer if stage.batch_size is None else replace(config.infer, batch_size=stage.batch_size)
    adapter = load_adapter(countable_model(config.model), infer)
    counter = StaticCounter(
        adapter,
        static_dtype(config),
        conventions=stage.conventions(),
        use_closed_forms=stage.use_analytic_fallback,
        name=config.model.name,
    )
    steps = stage.decode_tokens or max(1, infer.max_new_tokens - 1)
    if stage.use_synthetic_inputs:
        if stage.decode_tokens is None:
            prompt = configured_shapes(adapter, stage, steps).prompt_tokens
            steps = steps_within(steps, prompt, counter.context_limit)
        shapes = configured_shapes(adapter, stage, steps)
        check_context(shapes, steps, counter.context_limit)
        return counter.document(shapes, decode_steps=steps)
    return mean_document(_sample_documents(config, stage, adapter, counter, steps))


def countable_model(model: ModelConfig) -> ModelConfig:
    """Choose implementations that run on the meta device; FLOPs do not depend on them."""
    experts = "batched_mm" if model.experts_implementation == "batched_mm" else None
    attention = "eager" if model.attn_implementation == "eager" else None
    return replace(model, experts_implementation=experts, attn_implementation=attention, compile=False)


def static_dtype(config: AppConfig) -> torch.dtype:
    """Return the data type of the run; with nothing but static analysis, the usual one of accelerators."""
    from llm_perf_opt.config.schema import Dtype
    from llm_perf_opt.workloads.devices import resolve_dtype

    runs = any(stage.enable for name, stage in config.pipeline.items() if name != NAME)
    automatic = config.model.dtype is Dtype.auto
    return resolve_dtype(config.model.dtype, config.resolved_device if automatic and runs else "meta")


def _sample_documents(
    config: AppConfig, stage: StaticAnalysisConfig, adapter: ModelAdapter, counter: StaticCounter, steps: int
) -> list[tuple[StaticDocument, int]]:
    """Count at every distinct shape of the run's batches."""
    from llm_perf_opt.workloads.counting.sample_shapes import representative_shapes, sample_shapes
    from llm_perf_opt.workloads.counting.shapes import check_context, steps_within

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
