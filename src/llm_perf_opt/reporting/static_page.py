"""``static_compute.md`` and its plots, from the static document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core import units
from llm_perf_opt.core.escape import md_text
from llm_perf_opt.core.phases import BEFORE_PREFILL, PREFILL
from llm_perf_opt.reporting.charts.bars import Segment, StackedRow, stacked_bars
from llm_perf_opt.reporting.charts.figures import bytes_chart, component_chart, memory_chart, phase_roofline
from llm_perf_opt.reporting.charts.svg import component_colours
from llm_perf_opt.reporting.markdown import table
from llm_perf_opt.summary import Hardware, Static, StaticModule
from llm_perf_opt.summary.static import StaticDocument

# The module tree for reading: equal layers folded into one line, sums kept.


_INDEX = re.compile(r"\d+")


@dataclass(slots=True)
class TreeRow:
    """One line of the folded tree."""

    label: str
    """Last part of the path; ``1-11 ×11`` or ``2, 5, 8, 11 ×4`` for folded layers."""
    path: str
    type: str
    depth: int
    times: int
    """How many equal modules the line stands for; the numbers are their sum."""
    params: int
    flops: dict[str, float]
    weight_bytes: dict[str, float]
    counted_ratio: float | None = None


@dataclass(slots=True)
class _Node:
    module: StaticModule
    children: list[_Node]

    def signature(self) -> tuple[object, ...]:
        """Return a key that is equal for identical subtrees: types, sizes and work of every module, without names."""
        module = self.module
        inner = tuple((child.module.name.rpartition(".")[2], child.signature()) for child in self.children)
        work = tuple(sorted(module.flops.items())), tuple(sorted(module.weight_bytes.items()))
        return (module.type, module.params, *work, inner)


def fold_tree(modules: Sequence[StaticModule]) -> list[TreeRow]:
    """Return the tree top-down with equal numbered siblings folded into one line each."""
    nodes = {module.name: _Node(module, []) for module in modules}
    roots: list[_Node] = []
    for name, node in nodes.items():
        parent = _parent(name, nodes)
        (roots if parent is None else nodes[parent].children).append(node)
    rows: list[TreeRow] = []
    for group in _groups(roots):
        _add(group, 0, 1, rows)
    return rows


def _parent(name: str, nodes: dict[str, _Node]) -> str | None:
    """Nearest listed module above; modules without work may be missing in between."""
    while name:
        name = name.rpartition(".")[0]
        if name in nodes:
            return name
    return None


def _groups(children: Sequence[_Node]) -> list[list[_Node]]:
    """Put equal numbered siblings together, in the order of their first member."""
    groups: dict[object, list[_Node]] = {}
    for child in children:
        numbered = _INDEX.fullmatch(child.module.name.rpartition(".")[2]) is not None
        groups.setdefault(child.signature() if numbered else child.module.name, []).append(child)
    return list(groups.values())


def _add(group: list[_Node], depth: int, times: int, rows: list[TreeRow]) -> None:
    """Add a group's line and its children's; ``times`` is the multiplicity of the enclosing fold."""
    first, module = group[0], group[0].module
    number = times * len(group)
    rows.append(
        TreeRow(
            label=_label(group),
            path=module.name,
            type=module.type,
            depth=depth,
            times=number,
            params=module.params * number,
            flops={phase: value * number for phase, value in module.flops.items()},
            weight_bytes={phase: value * number for phase, value in module.weight_bytes.items()},
            counted_ratio=module.counted_ratio,
        )
    )
    for inner in _groups(first.children):
        _add(inner, depth + 1, number, rows)


def _label(group: list[_Node]) -> str:
    names = [node.module.name.rpartition(".")[2] or "(model)" for node in group]
    if len(group) == 1:
        return names[0]
    runs: list[list[int]] = []
    for number in map(int, names):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = (f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"{', '.join(parts)} ×{len(group)}"


def weights_by_component(modules: Sequence[StaticModule], phase: str) -> dict[str, float]:
    """Return bytes of weights a phase reads, by component: each label's topmost modules, summed."""
    found: dict[str, float] = {}
    by_name = {module.name: module for module in modules}
    for module in modules:
        label = module.component
        above = _parent_module(module.name, by_name)
        if label is None or (above is not None and above.component == label):
            continue
        found[label] = found.get(label, 0.0) + module.weight_bytes.get(phase, 0.0)
        if above is not None and above.component is not None:
            # A labelled module inside another: its weights belong only to the inner label.
            found[above.component] = found.get(above.component, 0.0) - module.weight_bytes.get(phase, 0.0)
    return {label: value for label, value in found.items() if value > 0}


def _parent_module(name: str, by_name: Mapping[str, StaticModule]) -> StaticModule | None:
    """Nearest listed module above, the unlabelled root left out."""
    while name:
        name = name.rpartition(".")[0]
        if name and name in by_name:
            return by_name[name]
    return None


_COMPONENTS_CHART = "flops_by_component.svg"
_COMPONENT_BYTES_CHART = "weights_by_component.svg"
_BYTES_CHART = "bytes_by_phase.svg"
_ROOFLINE_CHART = "roofline.svg"
_MEMORY_CHART = "memory_by_context.svg"
_KV_CHART = "kv_by_context.svg"
_Curves = dict[str, list[tuple[float, float]]]


def static_charts(document: StaticDocument, hardware: Hardware | None = None) -> dict[str, str]:
    """Return the plots as file name → SVG; the roofline needs a device with known limits."""
    static, dtype = document.static, document.model.get("dtype")
    charts = {
        _COMPONENTS_CHART: component_chart(static),
        _COMPONENT_BYTES_CHART: _weights_chart(static),
        _BYTES_CHART: bytes_chart(static),
    }
    if hardware is not None and dtype in hardware.peak_flops_per_s and hardware.bandwidth_bytes_per_s:
        title = f"Roofline by phase: {hardware.name or 'this device'}, {dtype}"
        charts[_ROOFLINE_CHART] = phase_roofline(static, hardware, dtype, {}, title=title)
    memory: _Curves = {}
    cache: _Curves = {}
    for row in document.resident:
        name = f"batch {row.batch_size}"
        memory.setdefault(name, []).append((row.context_tokens, row.total_bytes))
        cache.setdefault(name, []).append((row.context_tokens, row.kv_bytes))
    if memory:
        sizes = (
            {hardware.name or "device": hardware.memory_bytes} if hardware and hardware.memory_bytes else {}
        )
        charts[_MEMORY_CHART] = memory_chart(memory, sizes)
        charts[_KV_CHART] = memory_chart(cache, {}, "KV cache against context length")
    return charts


def _weights_chart(static: Static) -> str:
    """Draw the weights each phase reads, by component, from the top modules of each."""
    rows = []
    for phase in static.phases:
        parts = weights_by_component(static.modules, phase)
        rows.append(StackedRow(phase, [Segment(label, value) for label, value in parts.items()]))
    drawn = [row for row in rows if any(part.value for part in row.segments)]
    names = dict.fromkeys(part.name for row in rows for part in row.segments)
    colours = component_colours(
        [*static.components, *(name for name in names if name not in static.components)]
    )
    return stacked_bars("Weights read by component", drawn, formatter=units.size, colours=colours)


def render_static_report(document: StaticDocument, *, charts: Sequence[str] = ()) -> str:
    """Return the report as Markdown; ``charts`` are files next to it."""
    name = md_text(document.model.get("name") or "model")
    parts = [
        f"# Static analysis: {name}",
        _intro(document),
        *_notes(document),
        "## Work per phase",
        _phases(document),
        _totals(document),
        *_images(charts, _COMPONENTS_CHART, _COMPONENT_BYTES_CHART, _BYTES_CHART, _ROOFLINE_CHART),
        "## Conventions",
        _conventions(document),
        "## Parameters and components",
        _components(document),
        "## Memory",
        _memory(document),
        *_images(charts, _MEMORY_CHART, _KV_CHART),
        "## Coverage",
        _coverage(document),
        "## Cross-check by closed form",
        _cross_checks(document),
        "## Module tree",
        _tree(document),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A Markdown table; ``align`` has one of ``l`` or ``r`` per column."""
    align = align or "l" + "r" * (len(header) - 1)
    return table(header, rows, numbers=[place for place, side in enumerate(align) if side == "r"]).rstrip(
        "\n"
    )


def _images(charts: Sequence[str], *names: str) -> list[str]:
    return [f"![{name.removesuffix('.svg').replace('_', ' ')}]({name})" for name in names if name in charts]


def _intro(document: StaticDocument) -> str:
    model, first = document.model, document.shapes[0]
    methods = ", ".join(f"{phase}: {method}" for phase, method in document.methods.items())
    lines = [
        f"Architecture {md_text(model.get('architecture'))}, {md_text(model.get('dtype'))} weights and activations,"
        f" no weights loaded. How: {methods}.",
        "",
        _table(
            (
                "shapes",
                "batch",
                "prompt",
                "of it image",
                "cached at decode step",
                "decode steps",
                "images",
                "encoder",
            ),
            [
                (
                    f"{shape.source}{f' ×{shape.weight}' if shape.weight > 1 else ''}",
                    str(shape.batch_size),
                    str(shape.prompt_tokens),
                    str(shape.image_tokens),
                    str(shape.context_tokens),
                    str(shape.decode_tokens),
                    _images_of(shape.vision),
                    str(shape.encoder_tokens or units.MISSING),
                )
                for shape in document.shapes
            ],
            "lrrrrrlr",
        ),
    ]
    if len(document.shapes) > 1:
        lines += ["", f"The numbers are means over the batches of all {len(document.shapes)} shapes."]
    elif first.source == "configured":
        lines += ["", "Configured shapes: the data set was not read."]
    return "\n".join(lines)


def _images_of(vision: dict[str, object]) -> str:
    if not vision:
        return units.MISSING
    if isinstance(inputs := vision.get("inputs"), dict):
        return md_text("; ".join(f"{name} {_size_of(entry)}" for name, entry in inputs.items()))
    grid = vision.get("grid")
    tiles = f", tiles {grid[0]} × {grid[1]} of {vision.get('tile_size')}" if isinstance(grid, list) else ""
    return md_text(f"{vision.get('mode')}: global {vision.get('base_size')}{tiles}")


def _size_of(entry: object) -> str:
    """Describe the shape or the values of one processed input."""
    if not isinstance(entry, dict):
        return units.MISSING
    shape = entry.get("shape")
    return " × ".join(map(str, shape)) if isinstance(shape, list) else str(entry.get("values"))


def _notes(document: StaticDocument) -> list[str]:
    return ["\n".join(f"> **Note.** {md_text(note)}" for note in document.notes)] if document.notes else []


def _format_count(value: float | None) -> str:
    """A count to the last digit, in groups of three."""
    return units.MISSING if value is None else f"{value:,.0f}".replace(",", "\u202f")


def _phases(document: StaticDocument) -> str:
    rows = [
        (
            name,
            units.flops(phase.flops),
            _format_count(phase.flops),
            units.size(phase.weight_bytes),
            units.size(phase.activation_bytes),
            units.size(phase.kv_bytes),
            units.number(phase.intensity),
        )
        for name, phase in document.static.phases.items()
    ]
    header = ("phase", "FLOPs", "exactly", "weights read", "activations", "KV cache", "FLOP per byte")
    text = "Decode is one step; activations are unfused operator inputs and outputs."
    return "\n\n".join([_table(header, rows), text, *_minimum(document), *_stored(document)])


def _minimum(document: StaticDocument) -> list[str]:
    """Describe which phases do more than the minimum work."""
    lines = [
        f"- {md_text(name)}: {units.flops(phase.minimum.flops)} and {units.size(phase.minimum.weight_bytes)} of weights would do"
        f" ({md_text('; '.join(phase.minimum.reasons))})"
        for name, phase in document.static.phases.items()
        if phase.minimum is not None
    ]
    return (
        ["The code does more than the model needs; floors rest on the least:\n\n" + "\n".join(lines)]
        if lines
        else []
    )


def _stored(document: StaticDocument) -> list[str]:
    """Describe how a quantised checkpoint stores its weights."""
    found = document.static.quantisation
    if found is None or found.dtype is None:
        return []
    return [
        f"Weights as stored ({md_text(found.method)}, {md_text(found.dtype)}): {_format_count(found.params)} parameters in"
        f" {_format_count(found.modules)} modules take {units.size(found.weight_bytes)}, "
        f"{units.number(found.bytes_per_param)} bytes each with scales and zero points."
    ]


def _before_decode(document: StaticDocument) -> str:
    """Name the phases up to the first token."""
    named = [phase for phase in (*BEFORE_PREFILL, PREFILL) if phase in document.static.phases]
    return " + ".join(named) or PREFILL


def _totals(document: StaticDocument) -> str:
    totals = document.totals
    rows = [
        (
            f"up to the first token ({_before_decode(document)})",
            _format_count(totals.prefill_including_vision_flops),
        ),
        (f"decode, {totals.decode_steps} steps", _format_count(totals.decode_flops)),
        ("whole request", _format_count(totals.request_flops)),
        ("KV cache after the prompt (bytes)", _format_count(totals.kv_prefill_bytes)),
        ("KV cache per position and sequence (bytes)", _format_count(document.static.kv_bytes_per_token)),
    ]
    return _table(("total of a request", "FLOPs"), rows)


def _conventions(document: StaticDocument) -> str:
    return "\n".join(
        f"- **{md_text(key)}**: {md_text(text)}" for key, text in document.static.conventions.items()
    )


def _components(document: StaticDocument) -> str:
    static = document.static
    phases = list(static.phases)
    labels = list(dict.fromkeys([*static.components, *static.params.components]))
    rows = []
    for label in labels:
        cells = [label, _format_count(static.params.components.get(label))]
        for phase in phases:
            value = static.components.get(label, {}).get(phase)
            whole = static.phases[phase].flops
            share = units.percent(value / whole) if value and whole else units.MISSING
            cells += [units.flops(value), share]
        rows.append(cells)
    active = _format_count(static.params.active_per_token)
    header = ["component", "parameters", *(title for phase in phases for title in (phase, "share"))]
    intro = (
        f"{_format_count(static.params.total)} parameters, {active} of them used by one token in decode.\n\n"
    )
    return intro + _table(header, rows)


def _memory(document: StaticDocument) -> str:
    resident = document.static.resident_bytes
    now = ", ".join(f"{name.replace('_', ' ')} {units.size(value)}" for name, value in resident.items())
    batches = list(dict.fromkeys(row.batch_size for row in document.resident))
    contexts = list(dict.fromkeys(row.context_tokens for row in document.resident))
    totals = {(row.context_tokens, row.batch_size): row for row in document.resident}
    rows = [
        [_format_count(context)]
        + [
            f"{units.size(totals[context, batch].total_bytes)} (KV {units.size(totals[context, batch].kv_bytes)})"
            for batch in batches
        ]
        for context in contexts
    ]
    drawn = _table(["context", *(f"batch {batch}" for batch in batches)], rows) if rows else ""
    text = f"At these shapes: {now}. Activations are estimated by the largest single operator."
    return f"{text}\n\n{drawn}"


def _coverage(document: StaticDocument) -> str:
    coverage = document.static.coverage
    if coverage.counted_ratio is None and not coverage.uncounted_ops:
        return "Not counted: the closed form covers matrix products and attention only."
    lines = [f"Counted: {units.percent(coverage.counted_ratio)} of the arithmetic."]
    if coverage.unknown_ops:
        lines.append(f"Of unknown cost: {md_text(', '.join(coverage.unknown_ops))}.")
    if coverage.uncounted_ops:
        lines.append(f"Without a formula, the largest first: {md_text(', '.join(coverage.uncounted_ops))}.")
    return "\n".join(lines)


def _cross_checks(document: StaticDocument) -> str:
    if not document.cross_checks:
        return "None: see the notes, or `use_analytic_fallback=false`."
    rows = [
        (
            f"{check.phase} {check.component}",
            _format_count(check.counted_flops),
            _format_count(check.closed_form_flops),
            "equal"
            if check.agrees
            else f"**differs by {_format_count(check.counted_flops - check.closed_form_flops)}**",
        )
        for check in document.cross_checks
    ]
    return _table(("what", "counted", "closed form", ""), rows, "lrrl")


def _tree(document: StaticDocument) -> str:
    phases = list(document.static.phases)
    small = document.static.params.total / 1000
    lines = [row for row in fold_tree(document.static.modules) if row.flops or row.params >= small]
    header = ("module", "type", "parameters", *phases, "counted")
    drawn = _table(header, [_tree_line(row, phases) for row in lines], "ll" + "r" * (len(phases) + 2))
    return (
        "Equal layers are folded; a line shows their sum. Left out: modules without counted work that hold less"
        f" than a thousandth of the parameters.\n\n{drawn}"
    )


def _tree_line(row: TreeRow, phases: Sequence[str]) -> list[str]:
    indent = "&emsp;" * row.depth
    work = [units.flops(row.flops[phase]) if row.flops.get(phase) else units.MISSING for phase in phases]
    return [
        f"{indent}{md_text(row.label)}",
        md_text(row.type),
        units.count(row.params) if row.params else units.MISSING,
        *work,
        units.percent(row.counted_ratio),
    ]
