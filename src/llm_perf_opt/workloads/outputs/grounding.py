"""Where the model says things are: ``<|ref|>LABEL<|/ref|><|det|>[[x1,y1,x2,y2], …]<|/det|>``.

Written for text nobody controls: a linear scan, numbers matched by pattern, nothing evaluated, no nesting
followed. Whatever is not of this form stays text and is counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

REF, REF_END, DET, DET_END = "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>"
COORDINATE_MAX = 999
"""Coordinates run from 0 to 999 on both sides, whatever the size of the page."""
_LONGEST_LABEL = 200

_NUMBER = r"\s{0,8}([-+]?\d{1,9}(?:\.\d{0,9})?)\s{0,8}"
_BOX = re.compile(rf"\[{_NUMBER},{_NUMBER},{_NUMBER},{_NUMBER}\]")
_LEFTOVER = re.compile(r"[^\[\],\s]")
_SPECIAL = re.compile(r"<\|/?[A-Za-z_][A-Za-z_ ]{0,30}\|>|<｜[^｜<>\n]{1,40}｜>|<image>")
_BLANK_LINES = re.compile(r"\n{3,}")


@dataclass(frozen=True, slots=True)
class Region:
    """One box of the model's output, in its own coordinates (0 to 999)."""

    label: str
    x1: float
    y1: float
    x2: float
    y2: float

    def pixels(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Return left, top, right, bottom on a page of this size: ordered, and clamped to it."""
        left, right = sorted(_scale(value, width) for value in (self.x1, self.x2))
        top, bottom = sorted(_scale(value, height) for value in (self.y1, self.y2))
        return left, top, right, bottom


@dataclass(frozen=True, slots=True)
class Grounding:
    """What the scan found."""

    regions: tuple[Region, ...]
    text: str
    """The output without the markup, special tokens kept."""
    malformed: int
    """Marked places whose boxes could not be read, wholly or in part."""


def _scale(value: float, side: int) -> int:
    return int(min(max(value, 0.0), COORDINATE_MAX) / COORDINATE_MAX * side)


def parse_grounding(text: str) -> Grounding:
    """Find the boxes in a model's output. Never fails; takes time linear in the text."""
    regions: list[Region] = []
    kept: list[str] = []
    malformed = 0
    position = 0
    while (found := _next_mark(text, position)) is not None:
        start, label, boxes, end = found
        kept.append(text[position:start])
        matches = list(_BOX.finditer(boxes))
        if not matches or _LEFTOVER.search(_BOX.sub("", boxes)):
            malformed += 1
        for match in matches:
            x1, y1, x2, y2 = (float(number) for number in match.groups())
            regions.append(Region(label, x1, y1, x2, y2))
        position = end
    kept.append(text[position:])
    return Grounding(tuple(regions), "".join(kept), malformed)


def _next_mark(text: str, position: int) -> tuple[int, str, str, int] | None:
    """Return start, label, box text and end of the next complete mark at or after ``position``."""
    while (det := text.find(DET, position)) >= 0:
        det_end = text.find(DET_END, det)
        if det_end < 0:
            return None
        inner = text.rfind(DET, det + len(DET), det_end)
        det = inner if inner >= 0 else det  # an unfinished one before: the last opening counts
        head = text[max(position, det - _LONGEST_LABEL - 32) : det].rstrip()
        ref = head.rfind(REF)
        if ref >= 0 and head.endswith(REF_END):
            label = head[ref + len(REF) : -len(REF_END)]
            start = max(position, det - _LONGEST_LABEL - 32) + ref
            return start, label.strip(), text[det + len(DET) : det_end], det_end + len(DET_END)
        position = det_end + len(DET_END)
    return None


def strip_special_tokens(text: str) -> str:
    """Remove control tokens (``<|…|>``, ``<｜…｜>``, ``<image>``); the text between them stays."""
    return _SPECIAL.sub("", text)


def clean_text(text: str) -> str:
    """Return the output for reading and scoring: no grounding marks, no special tokens, no gaps."""
    readable = strip_special_tokens(parse_grounding(text).text)
    lines = "\n".join(line.rstrip() for line in readable.splitlines())
    return _BLANK_LINES.sub("\n\n", lines).strip()
