"""Common typed table of Nsight Compute measurements, independent of page, version or file."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Quantity(NamedTuple):
    """One measured value with its unit resolved."""

    value: float | None
    """In SI (bytes, seconds, hertz, ratio instead of percent); ``None`` for ``n/a`` and for text."""
    unit: str
    """SI symbol, empty for plain counts and for text."""
    raw: str
    """What the file says."""
    raw_unit: str = ""
    """The file's own unit."""


class NcuRule(NamedTuple):
    """Result of an NVIDIA rule for a launch."""

    section: str
    name: str
    kind: str
    """``OPT`` (could be improved), ``INF``, ``WRN``, ``OK``, ``ERR``."""
    text: str
    speedup_ratio: float | None
    """Share of the run time NVIDIA estimates could be saved (its percentage ÷ 100); an upper bound."""
    speedup_scope: str | None
    """``global``: of the kernel's run time; ``local``: of one unit's efficiency only."""


Shape = tuple[int, int, int]


class NcuSettings(NamedTuple):
    """Measurement settings of ncu."""

    clock_control: str
    """``base``: clocks locked to base; ``none``: as the run has them."""
    cache_control: str
    """``all``: caches flushed before every replay; ``none``: as the launch before left them."""
    nvtx_include: tuple[str, ...] = ()
    """Ranges it was asked to profile in, in ncu's own words; empty: everywhere."""
    source: str = ""
    """File it was read from."""


class LaunchConfiguration(NamedTuple):
    """A kernel of the run with one grid and block, in one phase, from a timeline."""

    kernel: str
    """Name as nsys prints it."""
    phase: str | None
    grid: Shape
    block: Shape
    launches: int
    total_ns: int


@dataclass(slots=True)
class NcuLaunch:
    """One profiled kernel launch."""

    kernel: str
    """Name as ncu prints it (often without namespaces and casts)."""
    launch_id: str
    process_id: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    device: str | None
    compute_capability: str | None
    metrics: Mapping[str, Quantity]
    """Metric id, or ``section/label`` where the file gives only labels → value."""
    rules: list[NcuRule] = field(default_factory=list)
    device_name: str | None = None
    context: str | None = None
    stream: str | None = None
    ranges: tuple[str, ...] = ()
    """NVTX push/pop ranges around the launch, outermost first, when captured."""
    sources: tuple[str, ...] = ()
    """Files it was read from."""
    rank: int | None = None
    """Place in the nsys table, from a folder named ``kernel_<rank>_<md5>``."""
    nsys_name_md5: str | None = None
    """MD5 of the kernel's nsys name, from the same folder name: a sure key."""
    settings: NcuSettings | None = None
    """Clocks, caches and ranges it was measured with; ``None`` if unknown."""
    notes: list[str] = field(default_factory=list)
    """What was wrong or left out while reading."""

    @property
    def function(self) -> str:
        """Name without template arguments, parameters and return type."""
        return function_name(self.kernel)


@dataclass(slots=True)
class NcuCapture:
    """Everything read from one file or folder."""

    launches: list[NcuLaunch]
    source: str
    notes: list[str] = field(default_factory=list)
    """What the reader left out, and why."""
    messages: list[str] = field(default_factory=list)
    """The tool's own ``==WARNING==`` and ``==ERROR==`` lines."""


class RowMetrics(Mapping[str, Quantity]):
    """Metrics of one row of a wide table: columns are shared, values are built on demand.

    A thousand launches of three hundred metrics would otherwise be three hundred thousand objects.
    """

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: WideColumns, row: int) -> None:
        self._columns, self._row = columns, row

    def __getitem__(self, name: str) -> Quantity:
        columns = self._columns
        index = columns.index[name]
        symbol, raw_unit = columns.units[index]
        return Quantity(columns.values[index][self._row], symbol, columns.cells[index][self._row], raw_unit)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.index)

    def __len__(self) -> int:
        return len(self._columns.index)

    def __contains__(self, name: object) -> bool:
        return name in self._columns.index


@dataclass(slots=True)
class WideColumns:
    """Columns of a ``raw`` page, one list per metric, values already in SI."""

    index: dict[str, int]
    units: list[tuple[str, str]]
    """SI symbol and the file's unit."""
    values: list[Sequence[float | None]]
    cells: list[Sequence[str]]


_OPERATOR = re.compile(r"\boperator\s*(?:\(\)|<<=?|>>=?|->\*?|[<>=!+\-*/%&|^~]=?|\[\])")
_UNNAMED = re.compile(r"(?<![\w>])<unnamed>::|(?<=::)<unnamed>::|unnamed>::|\(anonymous namespace\)::")


@functools.lru_cache(maxsize=8192)
def function_name(kernel: str) -> str:
    """Return the bare function name of a demangled name: ``void ns::f<T>(int)`` → ``f``.

    The return type may itself have template arguments (``std::enable_if<…>::type kernel<…>(…)``), and ncu's
    own shortening leaves unbalanced brackets behind (``void unnamed>::Copy<…>(…)``).
    """
    text = _OPERATOR.sub("operator", _UNNAMED.sub("", kernel))
    depth = start = 0
    end: int | None = None
    for position, character in enumerate(text):
        if character in "<(":
            if depth == 0 and position > start and end is None:
                end = position
            if depth == 0 and character == "(" and position > start:
                break
            depth += 1
        elif character in ">)":
            depth = max(0, depth - 1)
        elif depth == 0 and (character.isspace() or character == ":"):
            start, end = position + 1, None
    return text[start:end].strip("*& ") or kernel.strip()


_DIMENSIONS = re.compile(r"\(?\s*(\d[\d,.']{0,20})\s*[,;x]\s*(\d{1,12})\s*[,;x]\s*(\d{1,12})\s*\)?", re.ASCII)


@functools.lru_cache(maxsize=4096)
def parse_dimensions(text: str | None) -> tuple[int, int, int] | None:
    """Read ``(152, 4, 1)``."""
    match = _DIMENSIONS.fullmatch(text.strip()) if text else None
    if not match:
        return None
    return int(re.sub(r"\D", "", match.group(1))), int(match.group(2)), int(match.group(3))
