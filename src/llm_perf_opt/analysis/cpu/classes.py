"""What an operator does, by its name. The rules are data (``operator_classes.yaml``)."""

from __future__ import annotations

import re
from functools import lru_cache

from llm_perf_opt.core.packaged import packaged_rows

UNKNOWN = "unknown"
"""Class of names that no rule knows."""
BOOKKEEPING = "bookkeeping"
"""Views and allocation: no work on elements."""
_JOINS = frozenset({"cat", "concat", "concatenate"})


@lru_cache(maxsize=1)
def class_rules() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the ordered rules that ship with the package."""
    return tuple(
        (row["class"], re.compile(row["pattern"]))
        for row in packaged_rows("llm_perf_opt.analysis.cpu", "operator_classes.yaml")
    )


@lru_cache(maxsize=65536)
def class_of(name: str) -> str:
    """Return what an operator does; :data:`UNKNOWN` when no rule knows it."""
    bare = bare_name(name)
    return next((kind for kind, pattern in class_rules() if pattern.search(bare)), UNKNOWN)


def bare_name(name: str) -> str:
    """Return a name without its namespace and the mark of working in place."""
    bare = name if " " in name else name.rsplit("::", 1)[-1]
    return bare if bare.startswith("__") else bare.removesuffix("_") or bare


def joins_tensors(name: str) -> bool:
    """Whether an operator makes one tensor of several: how a cache grows by copying."""
    return bare_name(name) in _JOINS
