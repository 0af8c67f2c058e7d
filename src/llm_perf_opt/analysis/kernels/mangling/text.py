"""The mangled text with a place in it, and the parts of which a readable name is put together."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass, replace

_BASE_36 = string.digits + string.ascii_uppercase
_MOST_DIGITS = 9
_LONGEST = 200_000
"""Characters of a readable name: a few mangled ones can stand for very many (substitutions of substitutions)."""


class NotMangled(ValueError):
    """The text is not a mangled name, or uses a part of the grammar that kernel names do not."""


@dataclass(frozen=True, slots=True)
class Part:
    """A type, name or value: what stands before the declared thing and what stands behind it."""

    left: str
    right: str = ""
    open: bool = False
    """A function or an array: a pointer to it needs brackets."""
    pack: tuple[Part, ...] | None = None
    """Arguments of a parameter pack; the other fields are empty then."""

    def __str__(self) -> str:
        if self.pack is not None:
            return ", ".join(str(one) for one in self.pack)
        return self.left + self.right


def over(part: Part, change: Callable[[Part], Part]) -> Part:
    """Change a part, or every argument of a pack."""
    if part.pack is None:
        return change(part)
    return Part("", pack=tuple(over(one, change) for one in part.pack))


def pointing(part: Part, mark: str) -> Part:
    """Return a pointer or reference to a part: ``void (*)(int)`` for functions, ``T*`` for the rest."""
    if not part.open:
        if mark in ("&", "&&") and part.left.endswith("&"):
            # References collapse: one of them is an lvalue reference, and so is the whole.
            kept = part.left.removesuffix("&&") if part.left.endswith("&&") and mark == "&" else part.left
            return replace(part, left=kept if kept is part.left else kept + "&")
        return replace(part, left=part.left + mark)
    if part.left.endswith(("*", "&")) and part.right.startswith(")"):
        return replace(part, left=part.left + mark)
    return Part(f"{part.left} ({mark}", f"){part.right}", open=True)


def joined(parts: list[Part]) -> str:
    """Return arguments with commas; empty packs leave nothing."""
    texts, length = [], 0
    for one in parts:
        text = str(one)
        length += len(text)
        if length > _LONGEST:
            raise NotMangled("the readable name would be too long")
        if text:
            texts.append(text)
    return ", ".join(texts)


def in_angles(parts: list[Part]) -> str:
    """Return template arguments; two closing brackets are kept apart, as the tools that write traces do."""
    inside = joined(parts)
    return f"<{inside} >" if inside.endswith(">") else f"<{inside}>"


class Cursor:
    """Reads a text from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def looks_at(self, *starts: str) -> bool:
        """Return whether the rest begins with one of these."""
        return self.text.startswith(starts, self.at)

    def take(self, start: str) -> bool:
        """Step over a beginning, where it is there."""
        if not self.text.startswith(start, self.at):
            return False
        self.at += len(start)
        return True

    def need(self, start: str) -> None:
        """Step over a beginning that has to be there."""
        if not self.take(start):
            raise NotMangled(f"{start!r} expected at {self.at}")

    def next(self, count: int = 1) -> str:
        """Take so many characters."""
        piece = self.text[self.at : self.at + count]
        if len(piece) < count:
            raise NotMangled("the name ends too early")
        self.at += count
        return piece

    def number(self) -> int:
        """Take a decimal number."""
        digits = self._span(string.digits)
        if not digits:
            raise NotMangled(f"a number expected at {self.at}")
        return int(digits)

    def sequence(self) -> int:
        """Take ``_``, ``0_``, ``1_``, … (base 36) as 0, 1, 2, …"""
        digits = self._span(_BASE_36)
        self.need("_")
        return int(digits, 36) + 1 if digits else 0

    def decimal_sequence(self) -> int:
        """Take ``_``, ``0_``, ``1_``, … (decimal) as 0, 1, 2, …"""
        digits = self._span(string.digits)
        self.need("_")
        return int(digits) + 1 if digits else 0

    def _span(self, letters: str) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in letters:
            self.at += 1
        if self.at - start > _MOST_DIGITS:
            raise NotMangled(f"an impossible number at {start}")
        return self.text[start : self.at]
