"""How far a prediction is from its reference: page-level normalised edit distance.

``edit_distance_ratio = Levenshtein(a, b) / max(len(a), len(b))`` over the normalised texts: 0 is equal, 1 is
nothing in common. Simpler than OmniDocBench's own score (which first matches blocks, and judges tables and
formulas by other metrics), and comparable between runs of this tool only.
"""

from __future__ import annotations

import html
import re
import unicodedata

_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_IMAGE = re.compile(r"!\[[^\[\]]{0,200}\]\([^()\n]{0,500}\)")
_HEADING = re.compile(r"^[ \t]{0,3}#{1,6}[ \t]+", re.MULTILINE)
_EMPHASIS = re.compile(r"\*\*|__")


def normalise(text: str) -> str:
    """Reduce a text to its words: no tags, heading marks, emphasis or images; NFKC; single blanks."""
    text = _IMAGE.sub(" ", text)
    text = html.unescape(_TAG.sub(" ", text))
    text = _EMPHASIS.sub("", _HEADING.sub("", text))
    return " ".join(unicodedata.normalize("NFKC", text).split())


def levenshtein(a: str, b: str) -> int:
    """Count the fewest insertions, deletions and substitutions that turn ``a`` into ``b``.

    Bit-parallel (Myers 1999, in Hyyrö's 2003 form for the edit distance): one column of the table is two big
    integers, so a page of 5,000 characters takes milliseconds without a compiled dependency.
    """
    if len(a) > len(b):
        a, b = b, a
    a, b = _without_common_ends(a, b)
    if not a:
        return len(b)
    positions: dict[str, int] = {}
    for index, character in enumerate(a):
        positions[character] = positions.get(character, 0) | (1 << index)
    all_ones = (1 << len(a)) - 1
    last = 1 << (len(a) - 1)
    plus, minus, distance = all_ones, 0, len(a)
    for character in b:
        match = positions.get(character, 0)
        diagonal = ((((match & plus) + plus) ^ plus) | match | minus) & all_ones
        grows = minus | (all_ones & ~(diagonal | plus))
        shrinks = plus & diagonal
        if grows & last:
            distance += 1
        elif shrinks & last:
            distance -= 1
        grows = ((grows << 1) | 1) & all_ones
        plus = ((shrinks << 1) | (all_ones & ~(diagonal | grows))) & all_ones
        minus = grows & diagonal
    return distance


def _without_common_ends(a: str, b: str) -> tuple[str, str]:
    start = 0
    while start < len(a) and a[start] == b[start]:
        start += 1
    end = 0
    while end < len(a) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    return a[start : len(a) - end], b[start : len(b) - end]


def edit_distance_ratio(prediction: str, reference: str) -> float:
    """Return the normalised distance of two texts after :func:`normalise`; two empty texts are equal."""
    left, right = normalise(prediction), normalise(reference)
    longest = max(len(left), len(right))
    return levenshtein(left, right) / longest if longest else 0.0
