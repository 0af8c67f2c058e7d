"""From raw counts to the static model of a run: conventions, bytes, the module tree. Pure arithmetic.

FLOPs are integers end to end, so that a sum over modules equals the total exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from llm_perf_opt.analysis.static.counts import (
    Conventions,
    ModelTree,
    ParamInfo,
    PhaseCount,
    ancestors,
    attention_flops_under,
    expected_distinct_experts,
    roll_up,
)
from llm_perf_opt.analysis.static.minimum import least_count
from llm_perf_opt.summary import (
    AttentionPart,
    Coverage,
    ExpertPart,
    KvPart,
    Params,
    Scaling,
    Static,
    StaticModule,
    StaticPhase,
)
from llm_perf_opt.summary.static import KvLayers, Minimum, ResidentRow, held_positions

OTHER = "other"
"""Component label of work outside every labelled module."""


def own_flops(count: PhaseCount, tree: ModelTree, conventions: Conventions, phase: str) -> dict[str, int]:
    """Return FLOPs of each module itself (children left out) under the conventions."""
    own = dict(count.own_flops)
    for use in count.attention:
        own[use.module] = own.get(use.module, 0) + attention_flops_under(use, conventions.causal)
    scale = _head_scale(count, conventions, phase)
    if tree.head is not None and scale is not None and tree.head in own:
        wanted, seen = scale
        own[tree.head] = own[tree.head] * wanted // seen
    if conventions.rotary == "per_layer" and phase != "vision" and tree.rotary_module is not None:
        added = 2 * tree.rotary_frequencies * count.positions * count.batch_size * len(count.cache)
        own[tree.rotary_module] = own.get(tree.rotary_module, 0) + added
    return own


def _head_scale(count: PhaseCount, conventions: Conventions, phase: str) -> tuple[int, int] | None:
    """Return (positions wanted, positions counted) of the output head in prefill, or ``None`` elsewhere."""
    if phase != "prefill" or not count.head_rows:
        return None
    wanted = count.batch_size * (count.positions if conventions.head_positions == "all" else 1)
    return wanted, count.head_rows


def own_weight_bytes(count: PhaseCount, tree: ModelTree) -> dict[str, float]:
    """Return bytes of parameters each module reads; a tied parameter belongs to its first whole reader."""
    params = {param.name: param for param in tree.params}
    own: dict[str, float] = {}
    for name, reader in count.params_read.items():
        param = params[name]
        # Reads outside any module's forward (a method called by itself) belong to the parameter's owner.
        module = param.module if param.experts or not reader else reader
        own[module] = own.get(module, 0) + param.nbytes * _share_read(param, count)
    for name, (module, _rows, nbytes) in count.rows_read.items():
        if name not in count.params_read:
            own[module] = own.get(module, 0) + nbytes
    return own


def _share_read(param: ParamInfo, count: PhaseCount) -> float:
    """Return the expected fraction of an expert tensor that a pass reads; 1 for everything else."""
    use = count.experts.get(param.module)
    if not param.experts or use is None:
        return 1.0
    return expected_distinct_experts(param.experts, use.top_k, use.tokens) / param.experts


def active_params(decode: PhaseCount, tree: ModelTree) -> int:
    """Parameters used by one token in decode: chosen experts only, embedding tables (a row) left out."""
    total = 0.0
    params = {param.name: param for param in tree.params}
    for name in decode.params_read:
        param = params[name]
        use = decode.experts.get(param.module)
        share = min(1.0, use.top_k / param.experts) if param.experts and use is not None else 1.0
        total += param.numel * share
    return round(total)


def _component_of(path: str, components: Mapping[str, str]) -> str:
    """Return the label of the innermost labelled module at or above ``path``."""
    labels = {module: label for label, module in components.items()}
    return next((labels[name] for name in ancestors(path) if name in labels), OTHER)


def _by_component(own: Mapping[str, float], components: Mapping[str, str]) -> dict[str, float]:
    result: dict[str, float] = {}
    for path, value in own.items():
        label = _component_of(path, components)
        result[label] = result.get(label, 0) + value
    return {label: value for label, value in result.items() if value}


def kv_bytes(count: PhaseCount) -> float:
    """Cache and state bytes read and written by one pass."""
    keys_and_values = sum(use.read_bytes + use.written_bytes for use in count.cache.values())
    return keys_and_values + count.state.traffic_bytes()


def kv_layers(count: PhaseCount, growing: Collection[str] = ()) -> list[KvLayers]:
    """Group layers by what they cache per position, and states by their size.

    ``growing`` names the states that take more room with every position; the others have their size from the start.
    """
    groups: dict[tuple[float, int | None], int] = {}
    for use in count.cache.values():
        if use.tokens:
            key = (use.written_bytes / (use.tokens * count.batch_size), use.window)
            groups[key] = groups.get(key, 0) + 1
    attention = [KvLayers(number, size, window) for (size, window), number in groups.items()]
    return attention + _state_layers(count, growing)


def _state_layers(count: PhaseCount, growing: Collection[str]) -> list[KvLayers]:
    groups: dict[tuple[float, float], int] = {}
    for place, size in count.state.after.items():
        each = size / count.batch_size
        key = (each / max(count.positions, 1), 0.0) if place in growing else (0.0, each)
        groups[key] = groups.get(key, 0) + 1
    return [KvLayers(number, per_token, None, fixed) for (per_token, fixed), number in groups.items()]


def growing_states(counts: Mapping[str, PhaseCount]) -> set[str]:
    """Return the states that grow with the context: seen in a decode step, or larger there than after the prompt."""
    prefill, decode = counts.get("prefill"), counts.get("decode")
    if decode is None:
        return set()
    held = prefill.state.after if prefill is not None else {}
    longer = {place for place, size in decode.state.before.items() if 0 < held.get(place, 0) < size}
    return longer | decode.state.grown()


def kv_resident_bytes(layers: list[KvLayers], context_tokens: int, batch_size: int) -> float:
    """Cache size with ``context_tokens`` positions per sequence; windowed layers keep what the next token can see."""
    return batch_size * sum(
        group.layers
        * (group.bytes_per_token * held_positions(context_tokens, group.window) + group.state_bytes)
        for group in layers
    )


def _phase_facts(count: PhaseCount, tree: ModelTree, conventions: Conventions, phase: str) -> StaticPhase:
    """Return what a phase computes and moves."""
    flops = sum(own_flops(count, tree, conventions, phase).values())
    weights = sum(own_weight_bytes(count, tree).values())
    activations = sum(_own_activations(count, tree, conventions, phase).values())
    cache = kv_bytes(count)
    moved = weights + activations + cache
    return StaticPhase(
        flops,
        weights,
        activations,
        cache,
        flops / moved if moved else None,
        count.positions,
        count.operators or None,
        count.products or None,
    )


def _own_activations(
    count: PhaseCount, tree: ModelTree, conventions: Conventions, phase: str
) -> dict[str, float]:
    """Return activation bytes of each module itself; the head's follow its positions."""
    own = dict(count.own_activation_bytes)
    scale = _head_scale(count, conventions, phase)
    if tree.head is not None and scale is not None and tree.head in own:
        own[tree.head] = own[tree.head] * scale[0] / scale[1]
    return own


def build_static(
    tree: ModelTree,
    counts: Mapping[str, PhaseCount],
    components: Mapping[str, str],
    conventions: Conventions,
) -> Static:
    """Assemble the static model from the counts of its phases."""
    flops = {phase: own_flops(count, tree, conventions, phase) for phase, count in counts.items()}
    by_component: dict[str, dict[str, float]] = {}
    for phase, own in flops.items():
        for label, value in _by_component(own, components).items():
            by_component.setdefault(label, {})[phase] = value
    cache_source = counts.get("prefill") or counts.get("decode")
    layers = kv_layers(cache_source, growing_states(counts)) if cache_source is not None else []
    decode = counts.get("decode")
    least = {phase: least_count(count, tree, conventions.causal) for phase, count in counts.items()}
    least_counts = {phase: found.count for phase, found in least.items()}
    active = active_params(least_counts["decode"], tree) if decode is not None else None
    as_run = active_params(decode, tree) if decode is not None else None
    phases = {phase: _phase_facts(count, tree, conventions, phase) for phase, count in counts.items()}
    for phase, found in least.items():
        if found.reasons:
            facts = _phase_facts(found.count, tree, conventions, phase)
            phases[phase].minimum = Minimum(
                facts.flops, facts.weight_bytes, facts.kv_bytes, list(found.reasons)
            )
    least_flops = {p: own_flops(count, tree, conventions, p) for p, count in least_counts.items()}
    return Static(
        params=Params(
            total=tree.total_params(),
            active_per_token=active,
            components=_params_by_component(tree, components),
            as_run_per_token=as_run if as_run != active else None,
        ),
        kv_bytes_per_token=sum(group.layers * group.bytes_per_token for group in layers) if layers else None,
        phases=phases,
        modules=module_rows(tree, counts, flops, components, conventions),
        coverage=coverage(counts, flops),
        conventions=conventions.describe(),
        components=by_component,
        scaling=_scaling_facts(tree, least_counts, conventions, least_flops, layers),
    )


def _scaling_facts(
    tree: ModelTree,
    counts: Mapping[str, PhaseCount],
    conventions: Conventions,
    flops: Mapping[str, Mapping[str, int]],
    layers: list[KvLayers],
) -> Scaling | None:
    """Return the facts needed for other batch sizes, contexts and data types; ``None`` without a language model."""
    prefill, decode = counts.get("prefill"), counts.get("decode")
    if prefill is None or decode is None:
        return None
    attention: dict[tuple[str, int | None], float] = {}
    for phase, count in (("prefill", prefill), ("decode", decode)):
        for use in count.attention:
            key = (phase, use.window)
            attention[key] = attention.get(key, 0) + attention_flops_under(use, conventions.causal)
    experts: dict[tuple[int, int], float] = {}
    for param in tree.params:
        chosen = decode.experts.get(param.module)
        if param.experts and chosen is not None:
            size = (param.experts, chosen.top_k)
            experts[size] = experts.get(size, 0) + param.nbytes
    tables = {param.name: param.nbytes for param in tree.params}
    looked_up = [name for name in decode.rows_read if name not in decode.params_read]
    row_bytes = sum(decode.rows_read[name][2] / max(decode.rows_read[name][1], 1) for name in looked_up)
    table_bytes = sum(tables[name] for name in looked_up)
    return Scaling(
        batch_size=decode.batch_size,
        prompt_tokens=prefill.positions,
        context_tokens=max((use.held - use.tokens for use in decode.cache.values()), default=0),
        element_bytes=tree.weight_bytes() / max(tree.total_params(), 1),
        attention=[AttentionPart(phase, value, window) for (phase, window), value in attention.items()],
        head_flops={
            phase: own[tree.head] for phase, own in flops.items() if tree.head and own.get(tree.head)
        },
        experts=[ExpertPart(size, number, top_k) for (number, top_k), size in experts.items()],
        kv=[KvPart(group.layers, group.bytes_per_token, group.window, group.state_bytes) for group in layers],
        embedding_bytes_per_token=row_bytes,
        embedding_rows=round(table_bytes / row_bytes) if row_bytes else None,
        causal_halved=conventions.causal == "halved",
        head_all_positions=conventions.head_positions == "all",
    )


def _params_by_component(tree: ModelTree, components: Mapping[str, str]) -> dict[str, int]:
    result: dict[str, int] = {}
    for param in tree.params:
        label = _component_of(param.module, components)
        result[label] = result.get(label, 0) + param.numel
    return result


def _small_by_module(counts: Mapping[str, PhaseCount]) -> dict[str, float]:
    own: dict[str, float] = {}
    for count in counts.values():
        for path, met in count.uncounted.items():
            own[path] = own.get(path, 0) + sum(met.values())
    return own


def coverage(counts: Mapping[str, PhaseCount], flops: Mapping[str, Mapping[str, int]]) -> Coverage:
    """Return how much of the arithmetic of all phases was counted, and what was not."""
    small: dict[str, int] = {}
    unknown: set[str] = set()
    for count in counts.values():
        for met in count.uncounted.values():
            for name, elements in met.items():
                small[name] = small.get(name, 0) + elements
        unknown |= {name for met in count.unknown.values() for name in met}
    counted = sum(sum(own.values()) for own in flops.values())
    estimated = sum(small.values())
    ratio = counted / (counted + estimated) if counted + estimated and not unknown else None
    ordered = sorted(small, key=lambda name: (-small[name], name))
    return Coverage(ratio, [*sorted(unknown), *ordered], sorted(unknown))


def module_rows(
    tree: ModelTree,
    counts: Mapping[str, PhaseCount],
    flops: Mapping[str, Mapping[str, int]],
    components: Mapping[str, str],
    conventions: Conventions,
) -> list[StaticModule]:
    """Return the module tree, leaving out modules without parameters and work."""
    total_flops = {phase: roll_up(dict(own)) for phase, own in flops.items()}
    weights = {phase: roll_up(own_weight_bytes(count, tree)) for phase, count in counts.items()}
    activations = {p: roll_up(_own_activations(count, tree, conventions, p)) for p, count in counts.items()}
    own_params: dict[str, float] = {}
    for param in tree.params:
        own_params[param.module] = own_params.get(param.module, 0) + param.numel
    params = roll_up(own_params)
    small = roll_up(_small_by_module(counts))
    unknown = {path for count in counts.values() for path in count.unknown}
    unknown_above = {name for path in unknown for name in ancestors(path)}
    rows = []
    for module in tree.modules:
        name = module.name
        done = {phase: total[name] for phase, total in total_flops.items() if total.get(name)}
        if not done and not params.get(name):
            continue
        counted = sum(done.values())
        ratio = counted / (counted + small.get(name, 0)) if counted and name not in unknown_above else None
        rows.append(
            StaticModule(
                name=name,
                type=module.type,
                depth=name.count(".") + 1 if name else 0,
                params=int(params.get(name, 0)),
                flops=done,
                component=_component_of(name, components) if name else None,
                weight_bytes={p: total[name] for p, total in weights.items() if total.get(name)},
                activation_bytes={p: total[name] for p, total in activations.items() if total.get(name)},
                counted_ratio=ratio,
                uncounted_ops=_own_uncounted(name, counts),
            )
        )
    return rows


def _own_uncounted(path: str, counts: Mapping[str, PhaseCount]) -> list[str]:
    names = {name for count in counts.values() for name in count.uncounted.get(path, {})}
    return sorted(names | {name for count in counts.values() for name in count.unknown.get(path, {})})


def sum_over_steps(step: Callable[[int], int], first: int, steps: int) -> int:
    """Sum ``step(first) + … + step(first + steps - 1)`` with few evaluations, exactly.

    Work per step grows with the context at most affinely between the points where a sliding window fills,
    and never faster later: a concave function whose midpoint lies on its chord is a straight line there.
    """
    if steps <= 0:
        return 0
    last = first + steps - 1
    if steps <= 2:
        return step(first) if steps == 1 else step(first) + step(last)
    middle = (first + last) // 2
    low, centre, high = step(first), step(middle), step(last)
    if (centre - low) * (last - middle) == (high - centre) * (middle - first):
        return steps * (low + high) // 2
    return sum_over_steps(step, first, middle - first + 1) + sum_over_steps(step, middle + 1, last - middle)


# Memory required at each context and batch size.


_CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_BATCHES = (1, 8, 32)


def resident_rows(
    weights_bytes: float,
    layers: Sequence[KvLayers],
    activation_bytes_per_sequence: float,
    *,
    context_limit: int | None,
    batch_sizes: Sequence[int] = _BATCHES,
) -> list[ResidentRow]:
    """Tabulate memory against context and batch, up to the model's context limit."""
    contexts = [c for c in _CONTEXTS if context_limit is None or c < context_limit]
    if context_limit is not None:
        contexts.append(context_limit)
    rows = []
    for batch in batch_sizes:
        for context in contexts:
            cache = kv_resident_bytes(list(layers), context, batch)
            activations = activation_bytes_per_sequence * batch
            total = weights_bytes + cache + activations
            rows.append(ResidentRow(context, batch, weights_bytes, cache, activations, total))
    return rows


def add_totals(left: float | None, right: float | None) -> float | None:
    """Add two totals; an unknown part makes the sum unknown."""
    return None if left is None or right is None else left + right
