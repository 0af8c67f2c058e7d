"""Invalid rows of an export: a few are left out and reported; if most of a table is invalid, the export is damaged."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from llm_perf_opt.core.arrays import UNKNOWN, Int64
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.limits import LATEST_NS, MOST_BYTES, MOST_NS

# Whole columns of times against the limits of :mod:`llm_perf_opt.core.limits`.


def _plausible_times(
    start_ns: npt.NDArray[np.int64], end_ns: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_] | None:
    """Return which intervals are valid: after the start of their clock, of no or positive length, at most a week; ``None``: all."""
    if not len(start_ns):
        return None
    first, last = int(start_ns.min()), int(end_ns.max())
    length_min, length_max = _extremes(start_ns, end_ns)
    if first >= 0 and last <= LATEST_NS and length_min >= 0 and length_max <= MOST_NS:
        return None
    inside = (start_ns >= 0) & (start_ns <= LATEST_NS) & (end_ns >= start_ns) & (end_ns <= LATEST_NS)
    good: npt.NDArray[np.bool_] = inside & (np.where(inside, end_ns - start_ns, 0) <= MOST_NS)
    return good


def _extremes(start_ns: npt.NDArray[np.int64], end_ns: npt.NDArray[np.int64]) -> tuple[int, int]:
    length = end_ns - start_ns
    return int(length.min()), int(length.max())


_HINT = "export the report again: nsys export --type sqlite REPORT.nsys-rep"


@dataclass(slots=True)
class RowProblems:
    """What was left out of an export, by table."""

    name: str
    """File and schema, for messages."""
    left_out: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Table → rows left out, and all rows."""

    def possible(self, table: str, columns: dict[str, Int64]) -> dict[str, Int64]:
        """Return the rows whose ``start`` and ``end`` are valid; reject a table in which most are not."""
        start, end = columns["start"], columns["end"]
        good = _plausible_times(start, end)
        if good is None and _is_near(start, end):
            return columns
        good = np.ones(len(start), bool) if good is None else good
        if not _is_near(start[good], end[good]):
            # A time of zero among times since boot or of this century.
            middle = int(np.median(start[good]))
            good &= (start >= middle - MOST_NS // 2) & (end <= middle + MOST_NS // 2)
        bad = len(start) - int(good.sum())
        if 2 * bad > len(start):
            raise InputError(
                f"{self.name}: {table}: {bad} of {len(start)} rows have no start or end, end before they start, "
                "or have an impossible time",
                hint=_HINT,
            )
        self.left_out[table] = (bad, len(start))
        return {name: values[good] for name, values in columns.items()}

    def warnings(self) -> list[str]:
        """Describe what was left out."""
        return [
            f"{bad} of {rows} rows of {table} have an impossible time and were left out"
            for table, (bad, rows) in self.left_out.items()
        ]


def _is_near(start: Int64, end: Int64) -> bool:
    return not len(start) or int(end.max()) - int(start.min()) <= MOST_NS


def sizes(values: Int64) -> Int64:
    """Return sizes; invalid ones become unknown."""
    return _within(values, int(MOST_BYTES))


def device_ids(values: Int64) -> Int64:
    """Return device numbers; invalid ones become unknown."""
    return _within(values, 2**31 - 1)


def _within(values: Int64, largest: int) -> Int64:
    if not len(values) or (int(values.min()) >= UNKNOWN and int(values.max()) <= largest):
        return values
    return np.where((values >= 0) & (values <= largest), values, UNKNOWN)
