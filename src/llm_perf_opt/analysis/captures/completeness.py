"""Whether a capture holds as many launches as the static model expects: a fraction of them is a capture that was cut."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Kernel, Static, StaticModule

FAR_FEWER = 0.5
"""Below this share of the expected launches a capture was cut. Fused projections (query, key and value in one, gate and
up in one) leave four launches of seven."""
_MATRIX = ("gemm", "gemv", "conv")
_MAYBE_MATRIX = ("moe", "triton", "other", "quantisation")
"""Families that may hold matrix products: counted as if they did, so that only a sure lack is told."""
_HIDES_LAUNCHES = "graph"
_WEIGHTED = re.compile(r"Linear|^Conv\d?d?$|Conv[123]d", re.IGNORECASE)
_EXPERT = re.compile(r"\.experts?\.\d+\b")


@dataclass(frozen=True, slots=True)
class Shortage:
    """A capture with far fewer matrix launches than the model needs."""

    phase: str | None
    """``None``: all phases together."""
    launches: int
    """Seen, at most."""
    expected: float
    text: str


def matrix_modules(static: Static, phase: str, component: str | None = None) -> int:
    """Count the modules that need a matrix launch of their own in every pass; of routed experts, which may be skipped
    or grouped, none."""
    return sum(_needs_launch(module, phase, component) for module in static.modules)


def _needs_launch(module: StaticModule, phase: str, component: str | None) -> bool:
    return (
        module.flops.get(phase, 0.0) > 0
        and (component is None or module.component == component)
        and _WEIGHTED.search(module.type) is not None
        and _EXPERT.search(module.name) is None
    )


def most_matrix_launches(kernels: Iterable[Kernel]) -> int | None:
    """Count the launches that may be matrix products; ``None`` where a graph hides launches, or none are counted."""
    rows = list(kernels)
    if not rows or any(row.family == _HIDES_LAUNCHES or row.launches is None for row in rows):
        return None
    return sum(row.launches or 0 for row in rows if row.family in (*_MATRIX, *_MAYBE_MATRIX))


def shortage(
    static: Static | None,
    kernels: Sequence[Kernel],
    phase: str | None,
    passes: Mapping[str, float],
    *,
    component: str | None = None,
) -> Shortage | None:
    """Compare the matrix launches of one phase (``None``: of all in ``passes``) with what the model needs.

    ``passes``: phase → how often the capture should hold it (decode: steps). ``None`` when nothing lacks, or when it
    cannot be told: no static model, no such modules, launches hidden in graphs.
    """
    rows = [row for row in kernels if phase is None or row.phase == phase]
    seen = most_matrix_launches(rows)
    if static is None or seen is None:
        return None
    wanted = {name: count for name, count in passes.items() if phase is None or name == phase}
    modules = {name: matrix_modules(static, name, component) for name in wanted}
    expected = sum(modules[name] * count for name, count in wanted.items())
    if not expected or seen >= FAR_FEWER * expected:
        return None
    needs = " + ".join(
        f"{modules[name]} modules × {units.number(count)} {'steps' if name == 'decode' else 'passes'} of {name}"
        for name, count in wanted.items()
        if modules[name]
    )
    of = f"{component} of {phase}" if component else phase or "the run"
    text = (
        f"The capture looks truncated: at most {seen:,} matrix launches of {of} are in it, the static model expects about "
        f"{expected:,.0f} ({needs}), {units.percent(seen / expected)} of them. Its times are of a part, and "
        "nothing is derived from them per token or per wall-clock."
    )
    return Shortage(phase, seen, expected, text)


def cut_pass(
    static: Static | None,
    kernels: Sequence[Kernel],
    phase: str,
    passes: float,
    *,
    component: str | None = None,
) -> Shortage | None:
    """Tell a capture that ends in the middle of a pass: fewer attention launches than expected, and no multiple of the
    layers. ``None`` without a static model, and where attention has no kernel of its own."""
    launches = [row.launches for row in kernels if row.phase == phase and row.family == "attention"]
    layers = attention_layers(static, phase, component) if static is not None else 0
    seen = sum(count or 0 for count in launches)
    if not layers or not seen or None in launches or seen >= layers * passes or seen % layers == 0:
        return None
    of = f"{component} of {phase}" if component else phase
    text = (
        f"The capture looks truncated: {seen:,} attention launches of {of} are in it, and the static model has {layers} layers "
        f"with attention ({layers * passes:,.0f} launches expected): it ends in the middle of a pass. Its times are of a "
        "part, and nothing is derived from them per token or per wall-clock."
    )
    return Shortage(phase, seen, layers * passes, text)


def attention_layers(static: Static, phase: str, component: str | None = None) -> int:
    """Count the layers with attention of their own."""
    return sum(
        "attention" in module.type.casefold()
        and module.flops.get(phase, 0.0) > 0
        and (component is None or module.component == component)
        for module in static.modules
    )
