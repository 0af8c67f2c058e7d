"""A target for latency: which priced rows meet it, and what rates a device needs for it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llm_perf_opt.core import units

if TYPE_CHECKING:
    from llm_perf_opt.summary import Static, WhatIf

_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_MOST_S = 3600.0
BATCH_SIZES = (1, 8, 32, 128)
TENSOR_PARALLEL = (1, 2, 4, 8)
"""What is priced for a target when the command line names nothing else."""
_Certainty = Literal["yes", "likely", "no", "not known"]
"""``yes``: the whole 90 % range is below the target; ``likely``: the expected time is."""


@dataclass(frozen=True, slots=True)
class Target:
    """The longest time to first token and per output token; ``None``: any."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_s is not None or self.tpot_s is not None

    def describe(self) -> str:
        """``TTFT ≤ 1.00 s and TPOT ≤ 20.0 ms``."""
        named = (("TTFT", self.ttft_s), ("TPOT", self.tpot_s))
        return " and ".join(f"{name} ≤ {units.seconds(value)}" for name, value in named if value is not None)


def parse_time(text: str) -> float:
    """Parse ``1s``, ``20ms`` or ``500us``; a number without a unit is rejected."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(us|µs|ms|s)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= _MOST_S:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a time with its unit: write 1s, 20ms or 500us (at most {units.seconds(_MOST_S)})"
        )
    return seconds


def meets(row: WhatIf, target: Target) -> _Certainty:
    """Return whether a row meets a target: by its expected times, or by what its floors exclude."""
    if row.fits is False:
        return "no"
    found = [
        _meets_one(row.ttft_floor_s, row.ttft_expected_s, row.ttft_expected_high_s, target.ttft_s),
        _meets_one(row.tpot_floor_s, row.tpot_expected_s, row.tpot_expected_high_s, target.tpot_s),
    ]
    order: tuple[_Certainty, ...] = ("no", "not known", "likely", "yes")
    return min((each for each in found if each is not None), key=order.index, default="not known")


def _meets_one(
    floor_s: float | None, expected_s: float | None, high_s: float | None, limit_s: float | None
) -> _Certainty | None:
    if limit_s is None:
        return None
    if expected_s is None:
        return "no" if floor_s is not None and floor_s > limit_s else "not known"
    if expected_s > limit_s:
        return "no"
    return "yes" if high_s is not None and high_s <= limit_s else "likely"


@dataclass(frozen=True, slots=True)
class Met:
    """One device, or several of them, with the batch sizes that meet the target."""

    device: str
    tensor_parallel: int
    dtype: str
    batch_sizes: list[int]
    largest: WhatIf
    """The row of the largest of these batch sizes."""
    certainty: _Certainty
    """Of that row."""


def devices_that_meet(rows: Sequence[WhatIf], target: Target) -> list[Met]:
    """Return devices that meet a target, the fewest devices first, then by throughput."""
    groups: dict[tuple[str, int, str, int, int | None], list[WhatIf]] = {}
    for row in rows:
        if meets(row, target) in ("yes", "likely"):
            key = (row.device, row.tensor_parallel, row.dtype, row.context_tokens, row.prompt_tokens)
            groups.setdefault(key, []).append(row)
    found = []
    for (device, ranks, dtype, _, _), group in groups.items():
        largest = max(group, key=lambda row: row.batch_size)
        sizes = sorted({row.batch_size for row in group})
        found.append(Met(device, ranks, dtype, sizes, largest, meets(largest, target)))
    return sorted(
        found, key=lambda each: (each.tensor_parallel, -(each.largest.tokens_per_s_expected or 0.0))
    )


def nearest(rows: Sequence[WhatIf], target: Target) -> WhatIf | None:
    """Return the row that misses the target by the least factor; ``None``: no row has expected times."""

    def factor(row: WhatIf) -> float:
        pairs = ((row.ttft_expected_s, target.ttft_s), (row.tpot_expected_s, target.tpot_s))
        known = [value / limit for value, limit in pairs if value is not None and limit is not None]
        return max(known, default=float("inf"))

    possible = [row for row in rows if row.fits is not False and factor(row) < float("inf")]
    return min(possible, key=factor, default=None)


@dataclass(frozen=True, slots=True)
class Needed:
    """The rates that one device must reach for a target, on the whole model, whatever the device."""

    dtype: str
    batch_size: int
    context_tokens: int
    prompt_tokens: int
    flops_per_s: float | None
    bytes_per_s: float | None
    resident_bytes: float
    """Weights and KV cache that it must hold."""


def needed_rates(static: Static, rows: Sequence[WhatIf], target: Target) -> list[Needed]:
    """Return the rates each point requires of one device that does all the work; several devices share it."""
    from llm_perf_opt.analysis.roofline.demand import Point, demand

    found = {}
    for row in rows:
        point = Point(row.dtype, row.batch_size, row.context_tokens, row.prompt_tokens or row.context_tokens)
        if point in found:
            continue
        demanded = demand(static, point)
        flops, moved = [], []
        if target.ttft_s is not None and demanded.first_token is not None:
            flops.append(sum(work for work, _ in demanded.first_token) / target.ttft_s)
            moved.append(sum(size for _, size in demanded.first_token) / target.ttft_s)
        if target.tpot_s is not None and demanded.step is not None:
            flops.append(demanded.step[0] / target.tpot_s)
            moved.append(demanded.step[1] / target.tpot_s)
        found[point] = Needed(
            point.dtype,
            point.batch_size,
            point.context_tokens,
            point.prompt_tokens,
            max(flops, default=None),
            max(moved, default=None),
            demanded.resident_bytes,
        )
    return list(found.values())
