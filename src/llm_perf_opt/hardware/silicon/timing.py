"""What is answered: a time, how it was obtained, and from which table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

How = Literal["measured", "interpolated", "extrapolated", "roofline"]
"""``measured``: this very shape; ``interpolated``: between measured shapes; ``extrapolated``: beyond the outermost
measured shape by a stated factor at most, at its efficiency; ``roofline``: no table reaches it."""

RESTS_ON_TABLES: tuple[How, ...] = ("measured", "interpolated")


@dataclass(frozen=True, slots=True)
class Source:
    """The table an answer rests on."""

    framework: str
    """``vllm``, ``sglang``, ``trtllm``, ``nccl`` …: whose kernels were timed."""
    version: str
    table: str
    """Path below the data directory."""
    kernel: str = ""
    """The kernel as the table names it; of an interpolated time that of the nearest measured shape."""

    def words(self) -> str:
        """Return ``vllm 0.24.0, torch.nn.functional.linear``."""
        name = f"{self.framework} {self.version}"
        return f"{name}, {self.kernel}" if self.kernel else name


@dataclass(frozen=True, slots=True)
class TableTime:
    """The answer of one table."""

    seconds: float
    how: How
    source: Source


@dataclass(frozen=True, slots=True)
class Timing:
    """How long an operator takes on a device."""

    seconds: float
    """The expected time: of the framework asked for, else the median of all."""
    how: How
    source: Source | None
    """``None``: a roofline."""
    tables: tuple[TableTime, ...] = ()
    """The answers the time was taken from."""
    low_s: float | None = None
    """Nine in ten shapes that were left out of the tables and asked for lay between these; ``None``: nobody measured that."""
    high_s: float | None = None

    @property
    def rests_on_tables(self) -> bool:
        """Whether the time is a measurement or lies between measurements."""
        return self.how in RESTS_ON_TABLES
