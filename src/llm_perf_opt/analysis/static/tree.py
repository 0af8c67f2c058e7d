"""The module tree for reading: equal layers folded into one line, sums kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.model.summary import StaticModule

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
        """Equal for subtrees that do the same: types, sizes and work of every module, names left out."""
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
    """Add a group's line and its children's; ``times`` multiplies what an enclosing fold stands for."""
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
            # A labelled module inside another one: its weights belong to the inner label alone.
            found[above.component] = found.get(above.component, 0.0) - module.weight_bytes.get(phase, 0.0)
    return {label: value for label, value in found.items() if value > 0}


def _parent_module(name: str, by_name: Mapping[str, StaticModule]) -> StaticModule | None:
    """Nearest listed module above, the unlabelled root left out."""
    while name:
        name = name.rpartition(".")[0]
        if name and name in by_name:
            return by_name[name]
    return None
