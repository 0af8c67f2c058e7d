"""One static model for several shapes: means over the batches of a run, the structure kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from llm_perf_opt.summary import AttentionPart, Coverage, Scaling, Static, StaticModule, StaticPhase
from llm_perf_opt.summary.static import Minimum, Split, StaticDocument, Totals

Weighted = Sequence[tuple[StaticDocument, int]]


def _mean(values: Iterable[tuple[float | None, int]]) -> float | None:
    """Weighted mean, always a float as the averaged fields are declared; unknown when any part is."""
    total, weight = 0.0, 0
    for value, times in values:
        if value is None:
            return None
        total += value * times
        weight += times
    return total / weight if weight else None


def _mean_maps(maps: Sequence[tuple[dict[str, float], int]]) -> dict[str, float]:
    """Mean of every key; a key that is absent counts as zero."""
    keys = dict.fromkeys(key for values, _ in maps for key in values)
    return {key: _mean((values.get(key, 0), times) for values, times in maps) or 0.0 for key in keys}


def mean_document(documents: Weighted) -> StaticDocument:
    """Average documents of one model at different shapes, weighted by how often each shape occurs."""
    if len(documents) == 1:
        return documents[0][0]
    first = documents[0][0]
    statics = [(document.static, times) for document, times in documents]
    return StaticDocument(
        static=_mean_static(statics),
        model=first.model,
        shapes=[shape for document, _ in documents for shape in document.shapes],
        totals=_mean_totals([(document.totals, times) for document, times in documents]),
        methods=first.methods,
        cross_checks=[check for document, _ in documents for check in document.cross_checks],
        kv_layers=first.kv_layers,
        resident=max((document.resident for document, _ in documents), key=_largest_total),
        notes=list(dict.fromkeys(note for document, _ in documents for note in document.notes)),
    )


def _largest_total(rows: Sequence[object]) -> float:
    return max((float(getattr(row, "total_bytes", 0)) for row in rows), default=0.0)


def _mean_totals(totals: Sequence[tuple[Totals, int]]) -> Totals:
    def mean(name: str) -> float | None:
        return _mean((getattr(total, name), times) for total, times in totals)

    return Totals(
        vision_flops=mean("vision_flops"),
        prefill_flops=mean("prefill_flops"),
        prefill_including_vision_flops=mean("prefill_including_vision_flops"),
        decode_steps=totals[0][0].decode_steps,
        decode_flops=mean("decode_flops"),
        request_flops=mean("request_flops"),
        kv_prefill_bytes=mean("kv_prefill_bytes"),
        encode_flops=mean("encode_flops"),
    )


def _mean_static(statics: Sequence[tuple[Static, int]]) -> Static:
    first = statics[0][0]
    labels = dict.fromkeys(label for static, _ in statics for label in static.components)
    ratios = [static.coverage.counted_ratio for static, _ in statics]
    known = [ratio for ratio in ratios if ratio is not None]
    operators = dict.fromkeys(name for static, _ in statics for name in static.coverage.uncounted_ops)
    unknown = dict.fromkeys(name for static, _ in statics for name in static.coverage.unknown_ops)
    return Static(
        params=first.params,
        kv_bytes_per_token=first.kv_bytes_per_token,
        phases={
            name: _mean_phase([(s.phases[name], times) for s, times in statics]) for name in first.phases
        },
        modules=_mean_modules(statics),
        coverage=Coverage(min(known) if len(known) == len(ratios) else None, list(operators), list(unknown)),
        conventions=first.conventions,
        components={
            label: _mean_maps([(static.components.get(label, {}), times) for static, times in statics])
            for label in labels
        },
        resident_bytes=max(
            (static.resident_bytes for static, _ in statics), key=lambda d: d.get("total", 0.0)
        ),
        scaling=_mean_scaling(statics),
        quantisation=first.quantisation,
        # Similar shapes are identified by name, so those of one batch represent all; they include their lengths.
        operators=first.operators,
        splits=_mean_splits(statics),
    )


def _mean_splits(statics: Sequence[tuple[Static, int]]) -> list[Split]:
    """Average what ranks read and exchange; what they hold is a property of the model."""
    return [
        replace(
            first,
            read_bytes=_mean_maps([(static.splits[place].read_bytes, times) for static, times in statics]),
            exchanges=[
                replace(
                    one,
                    bytes=_mean((s.splits[place].exchanges[n].bytes, times) for s, times in statics) or 0.0,
                    link_bytes=_mean((s.splits[place].exchanges[n].link_bytes, times) for s, times in statics)
                    or 0.0,
                )
                for n, one in enumerate(first.exchanges)
            ],
        )
        for place, first in enumerate(statics[0][0].splits)
    ]


def _mean_scaling(statics: Sequence[tuple[Static, int]]) -> Scaling | None:
    """Average what depends on the shapes; experts, cache layout and tables are properties of the model."""
    known = [(static.scaling, times) for static, times in statics if static.scaling is not None]
    if len(known) < len(statics):
        return None

    def mean(name: str) -> float:
        return _mean((getattr(scaling, name), times) for scaling, times in known) or 0.0

    parts = dict.fromkeys((part.phase, part.window) for scaling, _ in known for part in scaling.attention)
    attention = {
        (phase, window): _mean(
            (sum(p.flops for p in scaling.attention if (p.phase, p.window) == (phase, window)), times)
            for scaling, times in known
        )
        for phase, window in parts
    }
    return replace(
        known[0][0],
        batch_size=mean("batch_size"),
        prompt_tokens=mean("prompt_tokens"),
        context_tokens=mean("context_tokens"),
        attention=[
            AttentionPart(phase, flops or 0.0, window) for (phase, window), flops in attention.items()
        ],
        head_flops=_mean_maps([(scaling.head_flops, times) for scaling, times in known]),
    )


def _mean_phase(phases: Sequence[tuple[StaticPhase, int]]) -> StaticPhase:
    def mean(name: str) -> float | None:
        return _mean((getattr(phase, name), times) for phase, times in phases)

    flops, weights, cache = mean("flops"), mean("weight_bytes"), mean("kv_bytes")
    activations = mean("activation_bytes")
    moved = None if weights is None or cache is None else weights + cache + (activations or 0.0)
    intensity = flops / moved if flops is not None and moved else None
    first = phases[0][0]
    return StaticPhase(
        flops,
        weights,
        activations,
        cache,
        intensity,
        mean("tokens"),
        first.operators,
        first.products,
        _mean_minimum(phases),
    )


def _mean_minimum(phases: Sequence[tuple[StaticPhase, int]]) -> Minimum | None:
    """Average the least work; a shape without excess work contributes its actual work."""
    if all(phase.minimum is None for phase, _ in phases):
        return None
    reasons = dict.fromkeys(
        r for phase, _ in phases if phase.minimum is not None for r in phase.minimum.reasons
    )
    return Minimum(
        _mean((phase.least_flops, times) for phase, times in phases),
        _mean((phase.least_weight_bytes, times) for phase, times in phases),
        _mean((phase.least_kv_bytes, times) for phase, times in phases),
        list(reasons),
    )


def _mean_modules(statics: Sequence[tuple[Static, int]]) -> list[StaticModule]:
    tables = [({module.name: module for module in static.modules}, times) for static, times in statics]
    longest = max((static.modules for static, _ in statics), key=len)
    rows = []
    for row in longest:
        same = [(table[row.name], times) for table, times in tables if row.name in table]
        ratios = [module.counted_ratio for module, _ in same]
        known = [ratio for ratio in ratios if ratio is not None]
        rows.append(
            StaticModule(
                name=row.name,
                type=row.type,
                depth=row.depth,
                params=row.params,
                flops=_mean_maps([(module.flops, times) for module, times in same]),
                component=row.component,
                weight_bytes=_mean_maps([(module.weight_bytes, times) for module, times in same]),
                activation_bytes=_mean_maps([(module.activation_bytes, times) for module, times in same]),
                counted_ratio=min(known) if known else None,
                uncounted_ops=row.uncounted_ops,
            )
        )
    return rows
