"""Pair the kernels of two captures by operation instead of name.

Libraries put tile sizes, pipeline stages, cluster shapes and the GPU's architecture into kernel names, so the same
matrix product has another name after a driver update or on another GPU. Names are compared in steps, each of which
forgets more: the full name; the function and its types without sizes and architecture; the function without types;
and last what is left of a family in a phase, taken together.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from llm_perf_opt.analysis.kernels.match import normalised
from llm_perf_opt.analysis.kernels.names import without_ending
from llm_perf_opt.compare.data import FamilyChange, KernelChange, MatchKind
from llm_perf_opt.summary import Kernel

_ARCHITECTURES = "pascal|maxwell|volta|turing|ampere|ada|hopper|blackwell|rubin|gfx\\d+\\w*|sm_?\\d+[af]?|cc_?\\d+|arch_?\\d+"
_ARCHITECTURE = re.compile(
    rf"(?<![a-z0-9])(?:{_ARCHITECTURES})(?![a-z0-9])|(?<=[a-z])sm\d+(?![a-z0-9])", re.I
)
_SIZES = re.compile(
    r"(?<![a-z0-9])(?:tile(?:size)?|warpgroup(?:size)?|warpsize|cluster|cta|stages?|ldg|align|splitk|sliced|bn|bm|bk|"
    r"g)?\d+(?:x\d+)*(?![a-z0-9])|(?<=[a-z])\d+x\d+(?:x\d+)*",
    re.I,
)
_MMA_SHAPE = re.compile(
    r"(?<![a-z0-9])[shigd]?(?:16816|1688|884|161616|8832|16832|168128|64x\d+x16)(?=gemm|_|$)", re.I
)
_MARKS = re.compile(
    r"(?<![a-z0-9])(?:off|kernel|execute|segment|k|cublas|\d+x|stages?|sliced|tensor|params|v\d+|t\d+|"
    r"coop[ab]?|[hv]|bz|2cta)(?![a-z0-9])",
    re.I,
)
_TYPE_WORDS = re.compile(
    r"(?<![a-z0-9])(?:nv_)?(?:bf16|bfloat16(?:_t)?|fp16|f16|half(?:_t|2)?|float16|fp32|f32|float(?:4|32)?|tf32|fp64|f64|"
    r"double|fp8|e4m3(?:fn)?|e5m2|float8_e\dm\d\w*|int8(?:_t)?|int4|u?int(?:32|64)?(?:_t)?|long|bool|char|"
    r"(?:bf16|f16|f32|e4m3){2,})(?![a-z0-9])|(?<![a-z0-9])[hsdcz](?=gemm|gemv)",
    re.I,
)
_HEAD_SIZE = re.compile(r"(?<![a-z0-9])d\d+(?![a-z0-9])", re.I)
_SEPARATORS = re.compile(r"[\s_]+")
_MATRIX_FAMILIES = ("gemm", "gemv", "conv")
_VALUES = frozenset({"true", "false", "void", "signed", "unsigned", "!"})
Key = tuple[str, ...]
_KernelKey = Callable[[Kernel], Key]


@functools.lru_cache(maxsize=65536)
def structure(name: str) -> str:
    """Return the function and types of a kernel name, without sizes, template values and architecture."""
    text = (
        word
        for word in normalised(_without_parameters(name))
        if not word.lstrip("-")[:1].isdigit() and word not in _VALUES
    )
    return _squeezed(" ".join(text), _ARCHITECTURE, _MMA_SHAPE, _SIZES, _MARKS)


@functools.lru_cache(maxsize=65536)
def typeless(name: str) -> str:
    """Return :func:`structure` without element types."""
    return _squeezed(structure(name).replace("_", " "), _TYPE_WORDS)


@functools.lru_cache(maxsize=65536)
def readable(short_name: str) -> str:
    """Return a short name without sizes and types: the operation that rules found in names of any library."""
    return _squeezed(short_name, _ARCHITECTURE, _MMA_SHAPE, _SIZES, _HEAD_SIZE, _MARKS, _TYPE_WORDS)


def _without_parameters(name: str) -> str:
    """Drop the trailing parameter list, which profilers print as ``(int, T2)``, in full, or not at all."""
    if not name.endswith(")"):
        return name
    depth = 0
    for place in range(len(name) - 1, 0, -1):
        depth += {")": 1, "(": -1}.get(name[place], 0)
        if depth == 0:
            return name[:place]
    return name


def _squeezed(text: str, *forget: re.Pattern[str]) -> str:
    text = text.replace("_", " ")
    for pattern in forget:
        text = pattern.sub(" ", text)
    return _SEPARATORS.sub("_", text.strip()).lower()


@dataclass(slots=True)
class _Group:
    """Kernels of both sides under one key."""

    a: list[Kernel] = field(default_factory=list)
    b: list[Kernel] = field(default_factory=list)


def compare_kernels(a: Sequence[Kernel], b: Sequence[Kernel]) -> list[KernelChange]:
    """Pair all kernels; the largest time on either side first."""
    phase = _phase_reader(a, b)
    steps: tuple[tuple[MatchKind, _KernelKey], ...] = (
        ("exact", lambda kernel: (kernel.name, phase(kernel))),
        ("renamed", lambda kernel: (structure(kernel.name) or kernel.name, kernel.family, phase(kernel))),
        ("retyped", lambda kernel: (typeless(kernel.name) or kernel.name, kernel.family, phase(kernel))),
        ("retyped", lambda kernel: (_operation(kernel), kernel.family, phase(kernel))),
        ("family", lambda kernel: (kernel.family, phase(kernel))),
    )
    rest_a, rest_b = list(a), list(b)
    changes: list[KernelChange] = []
    for kind, key in steps:
        for group in _grouped(rest_a, rest_b, key):
            if group.a and group.b and not (kind == "family" and group.a[0].family == "other"):
                changes.append(_change(kind, group, phase))
                taken = {id(kernel) for kernel in (*group.a, *group.b)}
                rest_a = [kernel for kernel in rest_a if id(kernel) not in taken]
                rest_b = [kernel for kernel in rest_b if id(kernel) not in taken]
    changes.extend(_change("only in A", _Group(a=[kernel]), phase) for kernel in rest_a)
    changes.extend(_change("only in B", _Group(b=[kernel]), phase) for kernel in rest_b)
    return sorted(changes, key=lambda c: (-max(c.a_s or 0.0, c.b_s or 0.0), c.label, c.phase or ""))


def _operation(kernel: Kernel) -> str:
    """Name the operation; short names of matrix kernels are not specific enough."""
    return kernel.name if kernel.family in _MATRIX_FAMILIES else readable(without_ending(kernel.short_name))


def _phase_reader(a: Sequence[Kernel], b: Sequence[Kernel]) -> Callable[[Kernel], str]:
    """Return the phase of kernels only if both captures have phases."""
    both = all(any(kernel.phase for kernel in side) for side in (a, b))
    return lambda kernel: (kernel.phase or "") if both else ""


def _grouped(a: Iterable[Kernel], b: Iterable[Kernel], key: _KernelKey) -> list[_Group]:
    groups: dict[Key, _Group] = {}
    for kernel in a:
        groups.setdefault(key(kernel), _Group()).a.append(kernel)
    for kernel in b:
        groups.setdefault(key(kernel), _Group()).b.append(kernel)
    return list(groups.values())


def _change(kind: MatchKind, group: _Group, phase: Callable[[Kernel], str]) -> KernelChange:
    everything = [*group.a, *group.b]
    largest = max(everything, key=lambda kernel: (kernel.total_s or 0.0, kernel.short_name))
    label = (
        f"{largest.family} ({len(group.a)} kernels ↔ {len(group.b)})"
        if kind == "family"
        else largest.short_name
    )
    a_s, b_s = _seconds(group.a), _seconds(group.b)
    a_launches, b_launches = _launches(group.a), _launches(group.b)
    return KernelChange(
        label=label,
        matched=kind,
        family=largest.family,
        phase=phase(largest) or None,
        a_names=list(dict.fromkeys(kernel.name for kernel in group.a)),
        b_names=list(dict.fromkeys(kernel.name for kernel in group.b)),
        a_s=a_s,
        b_s=b_s,
        ratio=_ratio(b_s, a_s),
        a_launches=a_launches,
        b_launches=b_launches,
        per_launch_ratio=_ratio(_ratio(b_s, b_launches), _ratio(a_s, a_launches)),
    )


def compare_families(a: Sequence[Kernel], b: Sequence[Kernel]) -> list[FamilyChange]:
    """Sum kernels by family and phase; the largest time on either side first."""
    phase = _phase_reader(a, b)
    all_a, all_b = _seconds(a), _seconds(b)
    rows = []
    for group in _grouped(a, b, lambda kernel: (kernel.family, phase(kernel))):
        some = (group.a or group.b)[0]
        a_s, b_s = _seconds(group.a), _seconds(group.b)
        rows.append(
            FamilyChange(
                family=some.family,
                phase=phase(some) or None,
                a_s=a_s,
                b_s=b_s,
                ratio=_ratio(b_s, a_s),
                a_launches=_launches(group.a),
                b_launches=_launches(group.b),
                a_share_ratio=_ratio(a_s, all_a),
                b_share_ratio=_ratio(b_s, all_b),
            )
        )
    return sorted(rows, key=lambda row: (-max(row.a_s or 0.0, row.b_s or 0.0), row.family, row.phase or ""))


def _seconds(kernels: Sequence[Kernel]) -> float | None:
    known = [kernel.total_s for kernel in kernels if kernel.total_s is not None]
    return sum(known) if known else None


def _launches(kernels: Sequence[Kernel]) -> int | None:
    known = [kernel.launches for kernel in kernels if kernel.launches is not None]
    return sum(known) if known else None


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator
