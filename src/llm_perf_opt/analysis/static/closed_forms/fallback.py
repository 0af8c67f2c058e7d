"""A static model, or single phases of one, from formulas alone."""

from __future__ import annotations

from llm_perf_opt.analysis.static.closed_forms.families import ClosedForm, Shapes
from llm_perf_opt.analysis.static.conventions import Conventions
from llm_perf_opt.model.static.document import KvLayers
from llm_perf_opt.model.summary import (
    Coverage,
    Params,
    Static,
    StaticModule,
    StaticPhase,
)


def closed_form_static(form: ClosedForm, conventions: Conventions) -> Static:
    """Return the frame of a static model without phases: parameters and conventions.

    Parameters are those of matrices; norms and biases are left out, and the conventions say so.
    """
    decoder = form.decoder
    head = 0 if decoder.tied else decoder.hidden * decoder.vocabulary
    components = {"language_model": decoder.params() - head, "lm_head": head}
    words = conventions.describe()
    words["params"] = "matrices only: norms and biases are left out of the closed form"
    words["activations"] = "not known to the closed form"
    return Static(
        params=Params(decoder.params(), decoder.active_params(), components),
        kv_bytes_per_token=None,
        phases={},
        modules=[StaticModule(name, form.family, 1, size, {}, name) for name, size in components.items()],
        coverage=Coverage(None, []),
        conventions=words,
    )


def with_closed_phase(
    static: Static,
    form: ClosedForm,
    phase: str,
    shapes: Shapes,
    conventions: Conventions,
    layers: list[KvLayers],
    element_bytes: float,
) -> None:
    """Add a phase by formula: FLOPs, weights and cache; activations stay unknown."""
    by_component = form.flops(phase, shapes, conventions)
    flops = sum(by_component.values())
    weights: float | None = None
    cache: float = 0
    tokens: float | None = None
    if phase != "vision":
        tokens = shapes.prompt_tokens if phase == "prefill" else 1
        weights = form.decoder.weights_read(int(tokens) * shapes.batch_size, element_bytes=element_bytes)
        cache = _cache_bytes(phase, shapes, layers)
        static.kv_bytes_per_token = sum(group.layers * group.bytes_per_token for group in layers)
    intensity = flops / (weights + cache) if weights is not None else None
    static.phases[phase] = StaticPhase(flops, weights, None, cache, intensity, tokens)
    for label, value in by_component.items():
        static.components.setdefault(label, {})[phase] = value
        for module in static.modules:
            if module.name == label and module.component == label:
                module.flops[phase] = value


def _cache_bytes(phase: str, shapes: Shapes, layers: list[KvLayers]) -> float:
    """Prefill writes every prompt position; a decode step reads what is kept and writes one position."""
    if phase == "prefill":
        per_sequence = sum(group.layers * group.bytes_per_token * shapes.prompt_tokens for group in layers)
    else:
        context = shapes.context_tokens
        per_sequence = sum(
            group.layers * group.bytes_per_token * (min(context, (group.window or context + 1) - 1) + 1)
            for group in layers
        )
    return shapes.batch_size * per_sequence
