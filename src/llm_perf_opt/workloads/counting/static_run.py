"""Static analysis of an adapter's model at given shapes: count what can be counted, use formulas elsewhere.

>>> counter = StaticCounter(adapter, torch.bfloat16)                       # doctest: +SKIP
>>> document = counter.document(adapter.default_shapes(), decode_steps=100)  # doctest: +SKIP
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from llm_perf_opt.analysis.static.build import (
    add_totals,
    build_static,
    growing_states,
    kv_layers,
    kv_resident_bytes,
    own_flops,
    own_weight_bytes,
    resident_rows,
    sum_over_steps,
)
from llm_perf_opt.analysis.static.closed_forms import (
    ClosedForm,
    Shapes,
    closed_form_of,
    closed_form_static,
    views_of,
    with_closed_phase,
)
from llm_perf_opt.analysis.static.counts import Conventions, ModelTree, PhaseCount
from llm_perf_opt.analysis.static.minimum import least_count
from llm_perf_opt.analysis.static.operators import operator_shapes
from llm_perf_opt.analysis.static.quantised import (
    forget_weight_bytes,
    quantise,
    read_scheme,
    with_cache_dtype,
)
from llm_perf_opt.analysis.static.split import Counted, Kind, split_model
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.units import dtype_bytes
from llm_perf_opt.summary.static import (
    CrossCheck,
    KvLayers,
    Method,
    ShapesUsed,
    Split,
    StaticDocument,
    Totals,
)
from llm_perf_opt.workloads.models.weights import plans_of

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.summary import Static
    from llm_perf_opt.summary.static import Quantisation
    from llm_perf_opt.workloads.base import ModelAdapter, PhaseShapes


# Parts of a static document derived from the counts: totals, checks, memory, ranks, notes.


SPLITS = (2, 4, 8)
"""Numbers of ranks a model is split over in the static model, in addition to that of the run."""


def totals(
    static: Static,
    layers: list[KvLayers],
    shapes: PhaseShapes,
    *,
    phases: Collection[str],
    steps: int,
    step_flops: Callable[[int], int],
) -> Totals:
    """Add up a request of ``steps`` tokens; ``phases`` are those the model has."""

    def of(phase: str) -> float | None:
        """FLOPs of a phase; zero for a phase the model does not have, unknown for one that failed."""
        if phase in static.phases:
            return static.phases[phase].flops
        return None if phase in phases else 0

    first_token = add_totals(add_totals(of("vision"), of("encode")), of("prefill"))
    decode: float | None = None
    if "decode" in static.phases:
        decode = sum_over_steps(step_flops, shapes.prompt_tokens, steps)
    return Totals(
        vision_flops=static.phases["vision"].flops if "vision" in static.phases else None,
        encode_flops=static.phases["encode"].flops if "encode" in static.phases else None,
        prefill_flops=of("prefill"),
        prefill_including_vision_flops=first_token,
        decode_steps=steps,
        decode_flops=decode,
        request_flops=add_totals(first_token, decode),
        kv_prefill_bytes=kv_resident_bytes(layers, shapes.prompt_tokens, shapes.batch_size)
        if layers
        else None,
    )


def splits(
    adapter: ModelAdapter, model: torch.nn.Module | None, counted: Counted, ranks: Sequence[int]
) -> list[Split]:
    """Return the model over several ranks; nothing where its architecture has no plan."""
    plans = plans_of(model)
    if plans is None:
        return []
    kinds: tuple[Kind, ...] = ("tensor", "tensor+expert") if plans.expert else ("tensor",)
    return [
        Split(kind, number, reason=reason)
        if (reason := adapter.why_not_split(number)) is not None
        else split_model(counted, plans, number, kind)
        for kind in kinds
        for number in ranks
    ]


def cross_checks(
    static: Static, expected: Mapping[str, Mapping[str, int]], labels: Collection[str]
) -> list[CrossCheck]:
    """Compare the count with a closed form: ``expected`` is phase → component → FLOPs."""
    checks = []
    for phase, components in expected.items():
        for label, value in components.items():
            if label in labels:
                seen = static.components.get(label, {}).get(phase, 0)
                checks.append(CrossCheck(phase, label, seen, value, seen == value))
        whole = static.phases[phase].flops or 0
        total = sum(components.values())
        checks.append(CrossCheck(phase, "total", whole, total, whole == total))
    return checks


def _add_memory(
    document: StaticDocument,
    shapes: PhaseShapes,
    *,
    weights_bytes: float,
    activations_bytes: float,
    context_limit: int | None,
) -> None:
    """Add the required memory at these and other shapes; activations are those of the largest operator."""
    cache = kv_resident_bytes(document.kv_layers, shapes.context_tokens, shapes.batch_size)
    document.static.resident_bytes = {
        "weights": weights_bytes,
        "kv_cache": cache,
        "activations": activations_bytes,
        "total": weights_bytes + cache + activations_bytes,
    }
    document.resident = resident_rows(
        weights_bytes, document.kv_layers, activations_bytes / shapes.batch_size, context_limit=context_limit
    )


def _document_notes(document: StaticDocument, phases: Collection[str]) -> list[str]:
    """Return notes on unknown values and mismatches; ``phases`` are those the model has."""
    notes = []
    missing = [phase for phase in phases if phase not in document.static.phases]
    if missing:
        notes.append(f"not known at all: {', '.join(missing)}")
    for check in document.disagreements():
        difference = check.counted_flops - check.closed_form_flops
        notes.append(
            f"{check.phase} {check.component}: counted {check.counted_flops:.0f} FLOPs, closed form"
            f" {check.closed_form_flops:.0f} (difference {difference:+.0f}); the count is reported"
        )
    if document.static.coverage.unknown_ops:
        notes.append(
            "operators of unknown cost were found: " + ", ".join(document.static.coverage.unknown_ops)
        )
    return notes


def _describe_error(error: BaseException) -> str:
    """Return an error's type and first line, short enough for a note."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {line[:300]}"


def _dtype_name(dtype: torch.dtype) -> str:
    """``bfloat16`` of ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


LOGGER = logging.getLogger("llm_perf_opt")
# Errors of model code on the meta device: reading values of tensors that have none, operators
# without a shape function, sizes a kernel rejects. Anything else is a bug and is raised.
_COUNT_ERRORS = (
    RuntimeError,
    NotImplementedError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    AssertionError,
)


class StaticCounter:
    """Counts one model at any number of shapes; the model is built once, without weights."""

    def __init__(
        self,
        adapter: ModelAdapter,
        dtype: torch.dtype,
        *,
        conventions: Conventions | None = None,
        use_closed_forms: bool = True,
        name: str | None = None,
        not_quantised: str | None = None,
        cache_dtype: str | None = None,
        ranks: Sequence[int] = SPLITS,
    ) -> None:
        """Build the model; ``not_quantised`` is the reason why the run does not use a quantised checkpoint's format.

        ``ranks``: numbers of ranks to split it over in the static model.
        """
        self.ranks = ranks
        self.adapter = adapter
        self.dtype = dtype
        self.conventions = conventions or Conventions()
        self.use_closed_forms = use_closed_forms
        self.name = name or adapter.name
        self.notes: list[str] = []
        self._model: torch.nn.Module | None = None
        self._tree: ModelTree | None = None
        self._counts: dict[tuple[str, str], PhaseCount] = {}
        self._not_quantised = not_quantised
        self._cache_dtype = cache_dtype
        self.quantisation: Quantisation | None = None
        self._unquantised: ModelTree | None = None
        self._build()
        self._quantise()
        self.closed_form, self._no_closed_form = self._find_closed_form()

    def _build(self) -> None:
        from llm_perf_opt.workloads.counting.counter import model_tree

        try:
            self._model = self.adapter.build("meta", self.dtype)
        except _COUNT_ERRORS as error:
            self._note_or_raise("the model cannot be built without weights", error)
            return
        self._tree = model_tree(self._model, self.adapter.components())

    def _quantise(self) -> None:
        """Set parameter sizes to those stored in a quantised checkpoint."""
        config = self.adapter.quantization_config()
        if config is None:
            return
        head = self._tree.head if self._tree is not None else None
        scheme = read_scheme(config, head=head, element_bytes=self.dtype.itemsize)
        if self._not_quantised is not None:
            self.notes.append(
                f"the checkpoint is quantised ({scheme.method}), this run is not: {self._not_quantised};"
                f" weights are counted in {_dtype_name(self.dtype)}"
            )
            return
        if self._tree is None:
            scheme = dataclasses.replace(
                scheme, reason="the model was not built, so its modules are not known"
            )
        self._cache_dtype = self._cache_dtype or scheme.cache_dtype
        tree = self._tree if self._tree is not None else ModelTree((), ())
        quantised, self.quantisation = quantise(tree, scheme)
        if self._tree is not None:
            self._unquantised, self._tree = tree, quantised
        if self.quantisation.reason is not None:
            self.notes.append(
                f"bytes of weights are not known, so there are no floors and no MBU: {self.quantisation.reason}"
            )

    def _unquantised_bytes(self, counts: Mapping[str, PhaseCount]) -> dict[str, float]:
        """Return what phases would read with unquantised weights; empty if they are unquantised."""
        tree = self._unquantised
        if tree is None:
            return {}
        least = {p: least_count(count, tree, self.conventions.causal).count for p, count in counts.items()}
        read = {phase: sum(own_weight_bytes(count, tree).values()) for phase, count in least.items()}
        return {**read, "all": tree.weight_bytes()}

    @property
    def _cached_element_bytes(self) -> float:
        size = dtype_bytes(self._cache_dtype) if self._cache_dtype is not None else None
        return size if size is not None else self.dtype.itemsize

    def _note_or_raise(self, what: str, error: Exception) -> None:
        reason = f"{what}: {_describe_error(error)}"
        if not self.use_closed_forms:
            raise InputError(
                reason,
                hint="use_analytic_fallback=true uses formulas where the architecture is known",
                key="pipeline.static_analysis.use_analytic_fallback",
            ) from error
        self.notes.append(reason)

    def _find_closed_form(self) -> tuple[ClosedForm | None, str | None]:
        if not self.use_closed_forms:
            return None, "switched off (use_analytic_fallback=false)"
        config = self._config()
        if config is None:
            return None, "the adapter offers no configuration to read dimensions from"
        try:
            return closed_form_of(config), None
        except InputError as error:
            return None, error.message

    def _config(self) -> Mapping[str, Any] | None:
        document = self.adapter.config_document()
        if document is not None:
            return document
        config: Any = getattr(self._model, "config", None)
        return cast("Mapping[str, Any]", config.to_dict()) if hasattr(config, "to_dict") else None

    @property
    def context_limit(self) -> int | None:
        """Maximum number of positions, if known."""
        limit = self.adapter.context_tokens
        if limit is None and self.closed_form is not None:
            limit = self.closed_form.decoder.context_limit
        return limit

    def count(self, phase: str, shapes: PhaseShapes) -> PhaseCount | None:
        """Count one phase, or return ``None`` and note why it cannot be counted."""
        key = (phase, repr(shapes))
        if key not in self._counts:
            counted = self._try_count(phase, shapes)
            if counted is None:
                return None
            self._counts[key] = counted
        return self._counts[key]

    def _try_count(self, phase: str, shapes: PhaseShapes) -> PhaseCount | None:
        from llm_perf_opt.workloads.counting.counter import count_adapter_phase

        if self._model is None or self._tree is None:
            return None
        try:
            return count_adapter_phase(self.adapter, self._model, self._tree, phase, shapes)
        except _COUNT_ERRORS as error:
            switched = self._switch_experts(error)
            if switched:
                return self._try_count(phase, shapes)
            self._note_or_raise(f"{phase} cannot be counted without weights", error)
            return None

    def _switch_experts(self, error: Exception) -> bool:
        """Count experts as batched products where the grouped kernel rejects the sizes; same FLOPs."""
        switch = getattr(self._model, "set_experts_implementation", None)
        has_experts = self._tree is not None and any(param.experts for param in self._tree.params)
        note = "experts were counted as batched products (same FLOPs)"
        if not callable(switch) or not has_experts or any(n.startswith(note) for n in self.notes):
            return False
        self.notes.append(
            f"{note}: the configured implementation cannot run without weights: {_describe_error(error)}"
        )
        switch("batched_mm")
        return True

    def document(
        self, shapes: PhaseShapes, *, decode_steps: int = 1, source: str = "configured"
    ) -> StaticDocument:
        """Return the static document at ``shapes``; ``decode_steps`` tokens follow the prompt."""
        counts: dict[str, PhaseCount] = {
            str(phase): count
            for phase in self.adapter.phases
            if (count := self.count(phase, shapes)) is not None
        }
        if self._cache_dtype is not None:
            counts = {
                phase: with_cache_dtype(count, self._cache_dtype, self.dtype.itemsize)
                for phase, count in counts.items()
            }
        methods: dict[str, Method] = dict.fromkeys(counts, "counted")
        missing = [str(phase) for phase in self.adapter.phases if phase not in counts]
        if not counts and self.closed_form is None:
            raise InputError(
                f"{self.name} can neither be counted nor computed: {'; '.join([*self.notes, str(self._no_closed_form)])}",
                hint="give the adapter static_calls that run on the meta device",
            )
        static, layers = self._static(counts)
        if self._tree is not None:
            static.operators = operator_shapes(self._tree, counts, self.conventions, shapes.context_tokens)
            cached, causal = static.kv_bytes_per_token, self.conventions.causal
            counted = Counted(self._tree, counts, cached, self.dtype.itemsize, causal)
            static.splits = splits(self.adapter, self._model, counted, self.ranks)
        if static.scaling is not None:
            # Windowed layers hold less than the context, so it cannot be derived from the count alone.
            static.scaling.context_tokens = shapes.context_tokens
            static.scaling.cache_element_bytes = self._cached_element_bytes
            static.scaling.unquantised_bytes = self._unquantised_bytes(counts)
        if self.closed_form is not None:
            for phase in missing:
                self._add_closed_form(self.closed_form, static, layers, phase, shapes)
                methods[phase] = "closed form"
        used = ShapesUsed(
            shapes.batch_size,
            shapes.prompt_tokens,
            shapes.image_tokens,
            shapes.context_tokens,
            decode_steps,
            dict(shapes.vision),
            source=source,
            encoder_tokens=shapes.encoder_tokens,
        )
        document = StaticDocument(
            static=static,
            model={"name": self.name, "architecture": self._architecture(), "dtype": _dtype_name(self.dtype)},
            shapes=[used],
            totals=totals(
                static,
                layers,
                shapes,
                phases=self.adapter.phases,
                steps=decode_steps,
                step_flops=self._step_flops(shapes, methods),
            ),
            methods=methods,
            cross_checks=self._cross_checks(static, shapes, counts),
            kv_layers=layers,
        )
        _add_memory(
            document,
            shapes,
            weights_bytes=self._tree.weight_bytes()
            if self._tree is not None
            else static.params.total * self.dtype.itemsize,
            activations_bytes=max((count.largest_operator_bytes for count in counts.values()), default=0),
            context_limit=self.context_limit,
        )
        static.quantisation = self.quantisation
        if self.quantisation is not None and self.quantisation.reason is not None:
            forget_weight_bytes(static)
            document.resident = []
        document.notes = self._document_notes(document)
        return document

    def _architecture(self) -> str | None:
        return (
            type(self._model).__name__
            if self._model is not None
            else (self.closed_form.family if self.closed_form is not None else None)
        )

    def _static(self, counts: dict[str, PhaseCount]) -> tuple[Static, list[KvLayers]]:
        if self._tree is None:
            form = self.closed_form
            if form is None or form.view_flops is not None:
                raise InputError(
                    f"no static model of {self.name}: {'; '.join(self.notes)}",
                    hint="correct model.arch; only text models have a complete closed form",
                )
            return closed_form_static(form, self.conventions), form.decoder.kv_layers(
                self._cached_element_bytes
            )
        static = build_static(self._tree, counts, self.adapter.components(), self.conventions)
        source = counts.get("prefill") or counts.get("decode")
        layers = kv_layers(source, growing_states(counts)) if source is not None else []
        if not layers and self.closed_form is not None:
            layers = self.closed_form.decoder.kv_layers(self._cached_element_bytes)
            static.kv_bytes_per_token = sum(group.layers * group.bytes_per_token for group in layers)
        return static, layers

    def _add_closed_form(
        self, form: ClosedForm, static: Static, layers: list[KvLayers], phase: str, shapes: PhaseShapes
    ) -> None:
        at = self._formula_shapes(shapes)
        with_closed_phase(static, form, phase, at, self.conventions, layers, self.dtype.itemsize)

    def _formula_shapes(self, shapes: PhaseShapes) -> Shapes:
        views = views_of(shapes.vision, shapes.batch_size)
        return Shapes(shapes.batch_size, shapes.prompt_tokens, shapes.context_tokens, views)

    def _step_flops(self, shapes: PhaseShapes, methods: Mapping[str, Method]) -> Callable[[int], int]:
        """Return FLOPs of a decode step as a function of the cached positions."""

        def counted(context: int) -> int:
            count = self.count("decode", dataclasses.replace(shapes, context_tokens=context))
            if count is None or self._tree is None:
                raise InputError(
                    f"decode at {context} cached positions cannot be counted: {'; '.join(self.notes)}"
                )
            return sum(own_flops(count, self._tree, self.conventions, "decode").values())

        def formula(context: int) -> int:
            if self.closed_form is None:
                raise InputError("decode has neither a count nor a closed form")
            at = self._formula_shapes(dataclasses.replace(shapes, context_tokens=context))
            return sum(self.closed_form.flops("decode", at, self.conventions).values())

        return counted if methods.get("decode") == "counted" else formula

    def _cross_checks(
        self, static: Static, shapes: PhaseShapes, counts: Mapping[str, PhaseCount]
    ) -> list[CrossCheck]:
        if self.closed_form is None:
            return []
        at, labels = self._formula_shapes(shapes), self.adapter.components()
        expected = {phase: self.closed_form.flops(phase, at, self.conventions) for phase in counts}
        return cross_checks(static, expected, labels)

    def _document_notes(self, document: StaticDocument) -> list[str]:
        notes = list(self.notes)
        if self.closed_form is None and self.use_closed_forms:
            notes.append(f"no cross-check by closed form: {self._no_closed_form}")
        notes += _document_notes(document, self.adapter.phases)
        return list(dict.fromkeys(notes))
