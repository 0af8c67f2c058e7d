"""Kernel families: what a kernel does, by its name. The rules are data (``kernel_families.yaml``)."""

from __future__ import annotations

import re
from functools import lru_cache

from llm_perf_opt.core.packaged import packaged_rows

OTHER = "other"
"""Family of names that no rule knows."""


@lru_cache(maxsize=1)
def family_rules() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the ordered rules that ship with the package."""
    return tuple(
        (row["family"], re.compile(row["pattern"], re.IGNORECASE))
        for row in packaged_rows("llm_perf_opt.analysis.kernels", "kernel_families.yaml")
    )


@lru_cache(maxsize=65536)
def family_of(name: str) -> str:
    """Return the family of a kernel by its full name; :data:`OTHER` when no rule knows it."""
    return next((family for family, pattern in family_rules() if pattern.search(name)), OTHER)
