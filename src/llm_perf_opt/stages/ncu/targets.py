"""Selection of kernels for Nsight Compute, and the filter that matches them all in one run."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.analysis.kernels.match import normalised
from llm_perf_opt.captures.ncu.launches import function_name
from llm_perf_opt.core.errors import InputError

_MAX_WORDS = 4
"""Words of the template arguments that a filter may need to tell kernels of one function apart."""
_MAX_FILTER_CHARACTERS = 60_000
"""Linux takes 128 KiB in one argument."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel in an nsys table."""

    name: str
    total_ns: float
    launches: int


@dataclass(slots=True)
class Target:
    """A kernel to profile."""

    name: str
    share_ratio: float
    """Of all kernel time of the phase it was chosen for (the largest, if chosen for several)."""
    launches: int
    phases: list[str] = field(default_factory=list)
    total_ns: float = 0.0
    """Of all launches that nsys captured."""


def read_kernel_summary(path: Path) -> list[KernelTime]:
    """Read ``nsys/summary.csv`` of any version; rows of one kernel (2022 splits by grid) are added up."""
    text = path.read_text(encoding="utf-8", errors="replace").lstrip("\ufeff")
    start = re.search(r'^"?Time ?\(%\)', text, re.MULTILINE)
    if start is None:
        raise InputError(
            f"{path} is no kernel summary of nsys", hint="run the nsys stage again", path=str(path)
        )
    totals: dict[str, list[float]] = {}
    for row in csv.DictReader(io.StringIO(text[start.start() :])):
        name, total = row.get("Name"), _parse_number(row.get("Total Time (ns)"))
        if not name or total is None:
            continue
        entry = totals.setdefault(name, [0.0, 0.0])
        entry[0] += total
        entry[1] += _parse_number(row.get("Instances")) or 0.0
    return sorted(
        (KernelTime(name, total, int(count)) for name, (total, count) in totals.items()),
        key=lambda kernel: (-kernel.total_ns, kernel.name),
    )


def _parse_number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def select_targets(
    tables: Mapping[str, Sequence[KernelTime]],
    *,
    top_n: int,
    until_share: float | None = None,
    per_phase: bool = False,
) -> list[Target]:
    """Return the kernels that take the most time, the most important first.

    ``tables``: phase → its kernels. ``per_phase``: the top of every phase, else of all phases combined.
    ``until_share``: stop once this share of the time is covered (``top_n`` still limits).
    """
    groups = tables if per_phase else {"": _merge_tables(tables.values())}
    found: dict[str, Target] = {}
    for phase, kernels in groups.items():
        total = sum(kernel.total_ns for kernel in kernels)
        covered = 0.0
        for kernel in sorted(kernels, key=lambda each: (-each.total_ns, each.name))[:top_n]:
            if total <= 0 or (until_share is not None and covered >= until_share):
                break
            share = kernel.total_ns / total
            covered += share
            target = found.setdefault(kernel.name, Target(kernel.name, 0.0, 0))
            target.share_ratio = max(target.share_ratio, share)
            target.launches += kernel.launches
            target.total_ns += kernel.total_ns
            target.phases += [phase] if phase else []
    return sorted(found.values(), key=lambda target: (-target.share_ratio, target.name))


def _merge_tables(tables: Iterable[Sequence[KernelTime]]) -> list[KernelTime]:
    totals: dict[str, tuple[float, int]] = {}
    for kernel in (kernel for table in tables for kernel in table):
        time, launches = totals.get(kernel.name, (0.0, 0))
        totals[kernel.name] = (time + kernel.total_ns, launches + kernel.launches)
    return [KernelTime(name, time, launches) for name, (time, launches) in totals.items()]


def kernel_filter(
    targets: Sequence[str], others: Sequence[str], *, name_base: str = "demangled"
) -> str | None:
    """Return one regular expression that matches all targets; ``None`` without targets.

    ``name_base=demangled``: the function and the fewest words of its template arguments that distinguish it from every other
    kernel of the run. ncu drops namespaces and casts from names, so whole names would not match.
    ``function``: bare function names, which also catch their other instances.
    """
    if not targets:
        return None
    if name_base == "function":
        functions = dict.fromkeys(function_name(name) for name in targets)
        return f"^({'|'.join(re.escape(name) for name in functions)})$"
    instances: dict[str, dict[str, tuple[str, ...]]] = {}
    for other in dict.fromkeys(others):
        instances.setdefault(function_name(other), {})[other] = normalised(other)
    patterns: dict[str, None] = {}
    characters = 1
    for name in targets:
        pattern = _pattern(name, instances.get(function_name(name), {}))
        if pattern not in patterns:
            patterns[pattern] = None
            characters += len(pattern) + 1
        if characters > _MAX_FILTER_CHARACTERS:
            return kernel_filter(targets, others, name_base="function")
    return f"({'|'.join(patterns)})"


_EDGE_BEFORE, _EDGE_AFTER = "(^|[^A-Za-z0-9_])", "($|[^A-Za-z0-9_])"


def _pattern(name: str, instances: Mapping[str, tuple[str, ...]]) -> str:
    """Match ``name`` among the instances of its function, given with the words of their names."""
    function = function_name(name)
    words = _distinguishing(name, [words for other, words in instances.items() if other != name])
    if not words:
        return f"{_EDGE_BEFORE}{re.escape(function)}{_EDGE_AFTER}"
    # A word may directly follow the bracket, or the mark that ended the previous word.
    inner = "".join(f"(.*[^A-Za-z0-9_])?{re.escape(word)}{_EDGE_AFTER}" for word in words)
    return f"{_EDGE_BEFORE}{re.escape(function)}<{inner}"


def _distinguishing(name: str, left: Sequence[tuple[str, ...]]) -> list[str]:
    """Choose words of ``name`` that, in this order, no other kernel has; fewer if that is not possible."""
    function = function_name(name)
    words = normalised(name)
    words = words[words.index(function) + 1 :] if function in words else words
    chosen: list[int] = []
    while left and len(chosen) < _MAX_WORDS:
        best = min(
            (index for index in range(len(words)) if index not in chosen and _is_word(words[index])),
            key=lambda index: (_count(words, sorted([*chosen, index]), left), -len(words[index]), index),
            default=None,
        )
        if best is None:
            break
        remaining = [
            rival for rival in left if _is_subsequence([words[at] for at in sorted([*chosen, best])], rival)
        ]
        if len(remaining) == len(left) and chosen:
            break
        chosen.append(best)
        left = remaining
    return [words[index] for index in sorted(chosen)]


def _is_word(word: str) -> bool:
    return re.fullmatch(r"\w+", word) is not None


def _count(words: Sequence[str], indices: Sequence[int], rivals: Iterable[tuple[str, ...]]) -> int:
    wanted = [words[index] for index in indices]
    return sum(_is_subsequence(wanted, rival) for rival in rivals)


def _is_subsequence(wanted: Sequence[str], words: Sequence[str]) -> bool:
    rest = iter(words)
    return all(word in rest for word in wanted)


def missing_targets(targets: Sequence[str], profiled: Iterable[str]) -> list[str]:
    """Return the targets without a profiled launch."""
    seen = {normalised(name) for name in profiled}
    bare = {words[0] for words in seen if len(words) == 1}
    return [name for name in targets if normalised(name) not in seen and function_name(name) not in bare]
