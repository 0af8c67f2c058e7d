"""Long lists of alternatives, searched fast: most are ruled out by a text that they need and a name does not have.

Python's engine tries every alternative at every letter. Kernel names have hundreds of letters and the tables hundreds
of alternatives, so each is looked at by itself: only where its longest plain text stands in the name is it searched
for, and only then is it compiled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

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
    """Take a regular expression apart; it has to be a valid one."""
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
    """Return the longest run of letters that every match has."""
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
