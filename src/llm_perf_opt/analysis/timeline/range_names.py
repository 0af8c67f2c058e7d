"""Meaning of range names: phase and size of a step, component, module or operator."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.files import packaged_rows
from llm_perf_opt.core.phases import DECODE, MIXED, PREFILL

# Meaning of range names: phase and size of a step, component, module or operator.
#
# The rules are data (``range_rules.yaml``).


Role = Literal["phase", "component", "module", "operator", "none"]
_ROLES = ("phase", "component", "module", "operator", "none")


@dataclass(frozen=True, slots=True)
class StepSize:
    """Size of one engine step from its name; ``None``: not in the name."""

    prefill_requests: int | None = None
    prefill_tokens: int | None = None
    decode_requests: int | None = None
    decode_tokens: int | None = None
    requests: int | None = None
    """Of both kinds."""
    tokens: int | None = None
    """Of both kinds."""
    prefill_pairs: int | None = None
    """Query positions × cached positions, summed over the requests: what attention must compare."""
    decode_pairs: int | None = None

    @property
    def all_requests(self) -> int | None:
        """Requests of the step, of either kind."""
        if self.requests is not None:
            return self.requests
        known = [one for one in (self.prefill_requests, self.decode_requests) if one is not None]
        return sum(known) if known else None

    @property
    def all_tokens(self) -> int | None:
        """Positions the step computes."""
        if self.tokens is not None:
            return self.tokens
        return _of_both(
            (self.prefill_requests, self.prefill_tokens), (self.decode_requests, self.decode_tokens)
        )

    @property
    def all_pairs(self) -> int | None:
        """Pairs of positions attention compares."""
        return _of_both(
            (self.prefill_requests, self.prefill_pairs), (self.decode_requests, self.decode_pairs)
        )


def _of_both(*kinds: tuple[int | None, int | None]) -> int | None:
    """Add an amount over the kinds of requests; ``None`` where a kind has requests and its amount is not reported."""
    reported = [amount for requests, amount in kinds if requests or amount is not None]
    known = [amount for amount in reported if amount is not None]
    return sum(known) if known and len(known) == len(reported) else None


@dataclass(frozen=True, slots=True)
class RangeMeaning:
    """The meaning of one range name."""

    role: Role = "none"
    phase: str | None = None
    component: str | None = None
    module: str | None = None
    step: StepSize | None = None
    """Size of the step, where the name counts requests or tokens."""


@dataclass(frozen=True, slots=True)
class RangeRule:
    """One line of the rules."""

    pattern: re.Pattern[str]
    meaning: RangeMeaning
    tokens_per_request: int | None = None
    """Tokens each decoding request gets in such a step, where the name does not count them."""


_UNKNOWN_RANGE = RangeMeaning()


def parse_rules(rows: Sequence[Mapping[str, Any]]) -> tuple[RangeRule, ...]:
    """Turn rows of data into rules; errors name the row."""
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
        meaning = RangeMeaning(role, row.get("phase"), row.get("component"))
        rules.append(RangeRule(pattern, meaning, row.get("tokens_per_request")))
    return tuple(rules)


@lru_cache(maxsize=1)
def _default_rules() -> tuple[RangeRule, ...]:
    """Return the rules that ship with the package."""
    return parse_rules(packaged_rows("llm_perf_opt.analysis.timeline", "range_rules.yaml"))


def meaning_of(name: str, rules: Sequence[RangeRule] | None = None) -> RangeMeaning:
    """Return what a range name means; :data:`_UNKNOWN_RANGE` when no rule matches."""
    rules = _default_rules() if rules is None else rules
    for candidate in _without_domain(name):
        for rule in rules:
            match = rule.pattern.search(candidate)
            if match and rule.meaning.role == "phase":
                return _phase_meaning(rule, match)
            if match:
                module = match.groupdict().get("module") if rule.meaning.role == "module" else None
                return RangeMeaning(rule.meaning.role, rule.meaning.phase, rule.meaning.component, module)
    return _UNKNOWN_RANGE


_COUNTS = tuple(StepSize.__dataclass_fields__)
_LONGEST_COUNT = 15
"""Digits: a longer number is no count of anything."""


def _phase_meaning(rule: RangeRule, match: re.Match[str]) -> RangeMeaning:
    """Parse the step's size; if both kinds of requests are counted, the counts determine the phase."""
    found = match.groupdict()
    counts = {
        name: int(text)
        for name in _COUNTS
        if (text := found.get(name)) is not None and len(text) <= _LONGEST_COUNT
    }
    if not counts:
        return rule.meaning
    if rule.tokens_per_request is not None and "decode_requests" in counts:
        counts.setdefault("decode_tokens", rule.tokens_per_request * counts["decode_requests"])
    phase = rule.meaning.phase
    if "prefill_requests" in counts and "decode_requests" in counts:
        prefills, decodes = counts["prefill_requests"] > 0, counts["decode_requests"] > 0
        if not prefills and not decodes:
            return _UNKNOWN_RANGE
        phase = MIXED if prefills and decodes else PREFILL if prefills else DECODE
    return RangeMeaning("phase", phase, step=StepSize(**counts))


def _without_domain(name: str) -> tuple[str, ...]:
    """The name unchanged, then without an NVTX domain in front (``LLM:decode``, ``:decode``)."""
    head, colon, tail = name.partition(":")
    if colon and tail and not tail.startswith((":", " ")) and " " not in head:
        return (name, tail)
    return (name,)
