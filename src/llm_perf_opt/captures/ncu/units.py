"""Conversion of units and numbers of NVIDIA's tools to SI.

Nsight Compute scales each value on its own (``3.35 Mbyte`` next to ``0 byte``), and its unit names changed
over the years (``usecond`` and ``us``, ``cycle/second`` and ``hz``). Prefixes are decimal: 1 Kbyte is 1000
byte.
A number without its unit is never used.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from llm_perf_opt.core.limits import MOST_NUMBER, MOST_SUMMED_SECONDS

_PREFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "k": 1e3}
_SMALL_PREFIXES = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3}
_SECOND_NAMES = ("second", "seconds", "sec", "s")
_HERTZ_NAMES = ("hz", "Hz")
_LONGEST_NUMBER = 128
_NOT_AVAILABLE = frozenset({"", "n/a", "N/A", "na", "nan", "NaN", "None", "no data", "(nil)", "-"})


@dataclass(frozen=True, slots=True)
class Unit:
    """Factor and SI symbol of a unit."""

    factor: float
    """Multiply the number with this to get SI."""
    symbol: str
    """SI symbol: ``s``, ``B``, ``B/s``, ``Hz``, ``ratio``, ``inst/cycle``, … ; empty for plain counts."""


@functools.cache
def parse_unit(text: str) -> Unit:
    """Return factor and SI symbol of a unit; an unknown word is kept as a count of that word.

    ``Gbyte/s`` → 1e9 ``B/s``; ``us`` → 1e-6 ``s``; ``%`` → 0.01 ``ratio``; ``Ghz`` → 1e9 ``Hz``.
    """
    text = text.strip().strip("()[]").strip()
    if text in {"%", "pct", "percent"}:
        return Unit(0.01, "ratio")
    if not text:
        return Unit(1.0, "")
    above, slash, below = text.partition("/")
    top = _parse_part(above.strip())
    if not slash:
        return top
    bottom = _parse_part(below.strip())
    factor = top.factor / bottom.factor
    if top.symbol == "cycle" and bottom.symbol == "s":
        return Unit(factor, "Hz")
    return Unit(factor, f"{top.symbol or '1'}/{bottom.symbol}")


def _parse_part(word: str) -> Unit:
    if word in _HERTZ_NAMES:
        return Unit(1.0, "Hz")
    if word in _SECOND_NAMES:
        return Unit(1.0, "s")
    if word in {"byte", "bytes", "B"}:
        return Unit(1.0, "B")
    prefix, rest = word[:1], word[1:]
    if rest in _SECOND_NAMES and prefix in _SMALL_PREFIXES:
        return Unit(_SMALL_PREFIXES[prefix], "s")
    if prefix in _PREFIXES and rest in (*_HERTZ_NAMES, "byte", "bytes", "B", "hertz"):
        return Unit(_PREFIXES[prefix], "Hz" if rest.lower().startswith("h") else "B")
    # Counts scale too on some versions (``Kinst``, ``Mcycle``); no plain unit starts with a capital.
    if prefix in "KMGT" and rest and rest.islower() and rest.isalpha():
        return Unit(_PREFIXES[prefix], rest)
    return Unit(1.0, word)


_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_PLAIN_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_GROUPED_DOTS = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+(?:,\d*)?(?:[eE][+-]?\d+)?")
_GROUPED_MARKS = re.compile(r"[+-]?\d{1,3}(?:['’\u00a0\u202f ]\d{3})+(?:[.,]\d*)?")


def is_missing(text: str) -> bool:
    """Return whether a cell means "not measured" (``n/a`` is not 0)."""
    return text.strip() in _NOT_AVAILABLE


def in_si(number: float | None, unit: Unit) -> float | None:
    """Return a counter's value in SI; ``None`` if invalid: negative, infinite, too large."""
    if number is None:
        return None
    value = number * unit.factor
    return value if 0 <= value <= most_of(unit.symbol) else None


def most_of(symbol: str) -> float:
    """Return the largest value a counter of this SI unit can have: for example, a time cannot exceed the sum over all threads."""
    return MOST_SUMMED_SECONDS if symbol == "s" else MOST_NUMBER


def parse_number(text: str, *, decimal_comma: bool = False) -> float | None:
    """Return the number in a cell; ``None`` when it is missing or not a number at all.

    Thousands separators are accepted in both conventions; which one applies is a property of the whole
    file (:func:`uses_decimal_comma`), because ``1,234`` alone is ambiguous.
    """
    text = text.strip()
    if text in _NOT_AVAILABLE or len(text) > _LONGEST_NUMBER:
        return None
    if decimal_comma:
        return _parse_decimal_comma(text)
    try:
        value: float | None = float(text)
    except ValueError:
        value = _parse_grouped(text)
    return value if value is not None and math.isfinite(value) and "_" not in text else None


def _parse_grouped(text: str) -> float | None:
    if _GROUPED.fullmatch(text):
        return float(text.replace(",", ""))
    if _GROUPED_MARKS.fullmatch(text):
        return float(re.sub(r"['’\u00a0\u202f ]", "", text).replace(",", "."))
    return None


def _parse_decimal_comma(text: str) -> float | None:
    if _GROUPED_DOTS.fullmatch(text):
        return float(text.replace(".", "").replace(",", "."))
    if _PLAIN_COMMA.fullmatch(text):
        return float(text.replace(",", "."))
    if _GROUPED_MARKS.fullmatch(text):
        return float(re.sub(r"['’\u00a0\u202f ]", "", text).replace(",", "."))
    if re.fullmatch(r"[+-]?\d+", text):
        return float(text)
    return None


def shows_decimal_comma(text: str) -> bool:
    """Return whether this cell is valid only with a decimal comma (``23,42``, ``39.578,4``)."""
    text = text.strip()
    if _PLAIN_COMMA.fullmatch(text):
        return not _GROUPED.fullmatch(text)
    return "," in text and bool(_GROUPED_DOTS.fullmatch(text))


def shows_decimal_point(text: str) -> bool:
    """Return whether this cell is valid only with a decimal point (``23.42``, ``39,578.4``)."""
    text = text.strip()
    if re.fullmatch(r"[+-]?\d+\.\d*(?:[eE][+-]?\d+)?", text):
        return not _GROUPED_DOTS.fullmatch(text)
    return "." in text and "," in text and bool(_GROUPED.fullmatch(text))


def significant_step(text: str) -> float:
    """Return half a unit of the last printed digit: the possible rounding error."""
    mantissa = re.sub(r"[eE].*$", "", text.strip())
    exponent = re.search(r"[eE]([+-]?\d{1,4})$", text.strip())
    digits = len(mantissa.rpartition(".")[2]) if "." in mantissa else 0
    power = -digits + (int(exponent.group(1)) if exponent else 0)
    return float(0.5 * 10.0 ** max(-300, min(300, power)))
