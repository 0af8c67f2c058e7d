"""Kernel families: what a kernel does, by its name. The rules are data (``kernel_families.yaml``)."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from llm_perf_opt.analysis.kernels.demangle import demangled
from llm_perf_opt.analysis.kernels.patterns import Alternatives, alternatives
from llm_perf_opt.core.packaged import packaged_rows

OTHER = "other"
"""Family of names that no rule knows."""


class FamilyRule(NamedTuple):
    """One line of the table: names in which the pattern is found are of this family."""

    family: str
    names: Alternatives
    kind: str | None = None
    """Which make of it, where the family has several that matter (attention)."""


@lru_cache(maxsize=1)
def family_rules() -> tuple[FamilyRule, ...]:
    """Return the ordered rules that ship with the package."""
    return tuple(
        FamilyRule(row["family"], alternatives(row["pattern"]), row.get("kind"))
        for row in packaged_rows("llm_perf_opt.analysis.kernels", "kernel_families.yaml")
    )


@lru_cache(maxsize=65536)
def rule_of(name: str) -> FamilyRule | None:
    """Return the rule that decides on a kernel, by its full name, mangled or not."""
    readable = demangled(name)
    lowered = readable.lower()
    return next((rule for rule in family_rules() if rule.names.found_in(readable, lowered)), None)


def family_of(name: str) -> str:
    """Return the family of a kernel by its full name; :data:`OTHER` when no rule knows it."""
    rule = rule_of(name)
    return OTHER if rule is None else rule.family
