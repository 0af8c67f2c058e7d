"""Short names that tell kernels apart: two different kernels of one table never read the same."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from llm_perf_opt.analysis.kernels.match import normalised
from llm_perf_opt.model.summary import Kernel

APART = " · "
"""Between a short name and the words that tell it from another kernel's."""
_MOST_WORDS = 4


def name_apart(kernels: Sequence[Kernel]) -> None:
    """Add to short names that several kernels share what tells their full names apart."""
    by_short: dict[str, list[str]] = defaultdict(list)
    for kernel in kernels:
        by_short[kernel.short_name].append(kernel.name)
    endings = {short: told_apart(names) for short, names in by_short.items() if len(dict.fromkeys(names)) > 1}
    for kernel in kernels:
        ending = endings.get(kernel.short_name, {}).get(kernel.name)
        if ending:
            kernel.short_name = f"{kernel.short_name}{APART}{ending}"


def without_ending(short_name: str) -> str:
    """Return a short name as it was before it was told apart."""
    return short_name.partition(APART)[0]


def told_apart(names: Iterable[str]) -> dict[str, str]:
    """Return, for each full name, the fewest of its own words by which no two of them are equal."""
    words = {name: normalised(name) for name in dict.fromkeys(names)}
    shared = Counter(next(iter(words.values()), ()))
    for each in words.values():
        shared &= Counter(each)
    own = {name: _beyond(each, shared) for name, each in words.items()}
    for most in range(1, _MOST_WORDS + 1):
        found = {name: " ".join(each[:most]) for name, each in own.items()}
        if len(set(found.values())) == len(found):
            # One of them may have no word of its own: it keeps the plain name.
            return found
    return {name: f"{' '.join(each[:1])} #{_mark(name)}".strip() for name, each in own.items()}


def _beyond(words: Sequence[str], shared: Counter[str]) -> list[str]:
    """Return the words a name has more often than all names do, in order; where in the name decides for equal ones."""
    left = Counter(shared)
    own = []
    for word in words:
        if left[word] > 0:
            left[word] -= 1
        else:
            own.append(word)
    return own


def _mark(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:4]
