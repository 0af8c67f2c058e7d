"""Kernel families: what a kernel does, by its name. The rules are data (``kernel_families.yaml``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

from llm_perf_opt.analysis.kernels.demangle import demangled
from llm_perf_opt.core.files import packaged_rows

# Fast search over long lists of alternatives: most are excluded because a text they require is not in the name.
#
# Python's engine tries every alternative at every character. Kernel names have hundreds of letters and the tables hundreds
# of alternatives, so each is handled separately: it is searched only if its longest literal text occurs in the name,
# and only then compiled.


_SHORTEST = 2
_FLAGS = re.IGNORECASE | re.ASCII
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Alternatives:
    """A regular expression, case ignored, as its alternatives."""

    pattern: str
    parts: tuple[tuple[str, str], ...]
    """The plain text that an alternative needs, in small letters (may be empty), and the alternative itself."""

    def found_in(self, name: str, lowered: str) -> bool:
        """Return whether the expression is found; ``lowered`` is the name in small letters."""
        return any(needed in lowered and _compiled(part).search(name) for needed, part in self.parts)


def alternatives(pattern: str) -> Alternatives:
    """Split a valid regular expression into its alternatives."""
    return Alternatives(pattern, tuple((_needed_text(part), part) for part in _split(pattern)))


@cache
def _compiled(part: str) -> re.Pattern[str]:
    return re.compile(part, _FLAGS)


def _split(pattern: str) -> list[str]:
    """Split at the bars that are in no bracket."""
    parts, start, at = [], 0, 0
    while at < len(pattern):
        if pattern[at] == "|":
            parts.append(pattern[start:at])
            start = at + 1
        at = _behind(pattern, at)
    return [*parts, pattern[start:]]


def _needed_text(part: str) -> str:
    """Return the longest literal text that every match contains."""
    runs, at = [""], 0
    while at < len(part):
        end = _behind(part, at)
        letter = part[at:end].removeprefix("\\")
        plain = len(letter) == 1 and (letter.isalnum() if end - at == 1 else not letter.isalnum())
        plain = plain or part[at:end] in ("_", ":", " ", "<", "-", "&", ",")
        repeat = part[end : end + 1]
        if plain and repeat not in ("?", "*", "{"):
            runs[-1] += letter
        else:
            runs.append("")
        if repeat in ("?", "*", "+", "{"):
            end = _behind(part, end)
            runs.append("")
        at = end
    longest = max(runs, key=len).lower()
    return longest if len(longest) >= _SHORTEST else ""


def _behind(pattern: str, at: int) -> int:
    """Return where the letter, the escape or the bracket at a place ends."""
    letter = pattern[at]
    if letter == "\\":
        return at + 2
    if letter not in _CLOSING:
        return at + 1
    closing, inside = _CLOSING[letter], at + 1
    while pattern[inside] != closing:
        inside = inside + 1 if letter == "[" and pattern[inside] != "\\" else _behind(pattern, inside)
    return inside + 1


OTHER = "other"
"""Family of names that no rule knows."""


class FamilyRule(NamedTuple):
    """One line of the table: names that match the pattern belong to this family."""

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
def _rule_of(name: str) -> FamilyRule | None:
    """Return the rule that decides on a kernel, by its full name, mangled or not."""
    readable = demangled(name)
    lowered = readable.lower()
    return next((rule for rule in family_rules() if rule.names.found_in(readable, lowered)), None)


def family_of(name: str) -> str:
    """Return the family of a kernel by its full name; :data:`OTHER` when no rule matches."""
    rule = _rule_of(name)
    return OTHER if rule is None else rule.family


# Matrix products with narrow loads, by their names: CUTLASS names contain the number of elements a thread loads at a time.


ALIGNED_BYTES = 16
"""The widest load of a thread, which kernels for aligned matrices use."""
_ALIGNMENT = re.compile(r"_align(?P<elements>[12])(?!\d)")
_PLAIN_CORES = re.compile(r"simt", re.IGNORECASE)
"""Kernels without matrix units load element by element whatever the alignment."""
_ELEMENT_BYTES = (
    (1, re.compile(r"_(s8|u8|i8|e4m3|e5m2)|_i\d+gemm")),
    (2, re.compile(r"bf16|f16|_h\d+gemm")),
    (8, re.compile(r"_d\d+gemm|f64")),
    (4, re.compile(r"tf32|_s\d+gemm|f32")),
)


def load_narrowing(name: str) -> float | None:
    """Return how much wider the loads of an aligned product would be; ``None`` if the name does not contain it."""
    match = _ALIGNMENT.search(name)
    if match is None or _PLAIN_CORES.search(name):
        return None
    size = next((size for size, pattern in _ELEMENT_BYTES if pattern.search(name)), None)
    if size is None or (wide := ALIGNED_BYTES / (size * int(match["elements"]))) <= 1:
        return None
    return wide


# Attention implementation of a kernel: flash 2, 3 or 4, cuDNN, FlashInfer, Composable Kernel, …


ATTENTION = "attention"
FLASH_2, FLASH_3, FLASH_4, CUDNN = "flash-2", "flash-3", "flash-4", "cudnn"


def attention_kind(name: str) -> str | None:
    """Return the implementation of a fused attention kernel; ``None`` for any other kernel.

    The implementations are those of ``kernel_families.yaml``; ``other`` is attention that no rule names. Eager
    attention has no kernel of its own: its softmax and matrix products are classified by their own names.
    """
    rule = _rule_of(name)
    return rule.kind if rule is not None and rule.family == ATTENTION else None
