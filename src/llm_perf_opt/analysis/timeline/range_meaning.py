"""What range names mean: phase, component, module or operator. The rules are data (``range_rules.yaml``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.packaged import packaged_rows

Role = Literal["phase", "component", "module", "operator", "none"]
_ROLES = ("phase", "component", "module", "operator", "none")


@dataclass(frozen=True, slots=True)
class RangeMeaning:
    """What one range name says."""

    role: Role = "none"
    phase: str | None = None
    component: str | None = None
    module: str | None = None


@dataclass(frozen=True, slots=True)
class RangeRule:
    """One line of the rules."""

    pattern: re.Pattern[str]
    meaning: RangeMeaning


UNKNOWN_RANGE = RangeMeaning()


def parse_rules(rows: Sequence[Mapping[str, Any]]) -> tuple[RangeRule, ...]:
    """Turn rows of data into rules; a mistake names the row."""
    rules = []
    for number, row in enumerate(rows, 1):
        role = row.get("role")
        if role not in _ROLES or "pattern" not in row:
            raise ConfigError(
                f"range rule {number} needs a pattern and a role of {', '.join(_ROLES)}: {dict(row)}"
            )
        try:
            pattern = re.compile(str(row["pattern"]), re.IGNORECASE)
        except re.error as error:
            raise ConfigError(
                f"range rule {number} has a broken pattern {row['pattern']!r}: {error}"
            ) from error
        rules.append(RangeRule(pattern, RangeMeaning(role, row.get("phase"), row.get("component"))))
    return tuple(rules)


@lru_cache(maxsize=1)
def default_rules() -> tuple[RangeRule, ...]:
    """Return the rules that ship with the package."""
    return parse_rules(packaged_rows("llm_perf_opt.analysis.timeline", "range_rules.yaml"))


def meaning_of(name: str, rules: Sequence[RangeRule] | None = None) -> RangeMeaning:
    """Return what a range name means; :data:`UNKNOWN_RANGE` when no rule knows it."""
    rules = default_rules() if rules is None else rules
    for candidate in _without_domain(name):
        for rule in rules:
            match = rule.pattern.search(candidate)
            if match:
                module = match.groupdict().get("module") if rule.meaning.role == "module" else None
                return RangeMeaning(rule.meaning.role, rule.meaning.phase, rule.meaning.component, module)
    return UNKNOWN_RANGE


def _without_domain(name: str) -> tuple[str, ...]:
    """The name as it is, then without an NVTX domain in front (``LLM:decode``, ``:decode``)."""
    head, colon, tail = name.partition(":")
    if colon and tail and not tail.startswith((":", " ")) and " " not in head:
        return (name, tail)
    return (name,)
