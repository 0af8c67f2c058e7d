"""``telemetry/telemetry.json``: what a device told of itself beside the measured passes, as it was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.model.codec import decode_file
from llm_perf_opt.model.limits import Bytes, Count, Rate, Ratio, SummedSeconds
from llm_perf_opt.model.summary import MemoryCounts

SCHEMA = 1
_HINT = "run the telemetry stage again"


@dataclass(slots=True)
class TelemetryColumns:
    """One entry per sample in every column; ``None``: not told."""

    time_s: list[float]
    """Since the first measured pass began; what is earlier is warm-up."""
    clock_hz: list[Ratio | None]
    power_w: list[Ratio | None]
    temperature_c: list[Ratio | None]
    energy_j: list[Ratio | None]
    """Since some moment: only differences mean something."""
    memory_bytes: list[Bytes | None]
    throttled: list[list[str] | None]


@dataclass(slots=True)
class PhasePeak:
    """The most memory of one phase."""

    peak_bytes: Bytes
    reserved_bytes: Bytes


@dataclass(slots=True)
class TelemetryDocument:
    """The whole file."""

    schema: int
    device: str
    """Of the run: ``cpu``, ``cuda:0``."""
    columns: TelemetryColumns
    span_s: SummedSeconds
    """Of the measured passes."""
    new_tokens: Count
    """Generated in them, all sequences of a batch."""
    samples: Count
    """Requests answered in them."""
    interval_s: SummedSeconds | None = None
    cost_s: SummedSeconds | None = None
    elapsed_s: SummedSeconds | None = None
    reader: str | None = None
    device_name: str | None = None
    clock_max_hz: Rate | None = None
    power_limit_w: Rate | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """Quantity → why it is not told; ``all``: nothing is."""
    memory: dict[str, PhasePeak] = field(default_factory=dict)
    memory_counts: MemoryCounts | None = None


def read_telemetry(path: Path) -> TelemetryDocument:
    """Read ``telemetry.json``; :class:`InputError` when it is not one."""
    document = decode_file(path, TelemetryDocument, hint=_HINT)
    columns = document.columns
    others = (
        columns.clock_hz,
        columns.power_w,
        columns.temperature_c,
        columns.energy_j,
        columns.memory_bytes,
        columns.throttled,
    )
    if any(len(column) != len(columns.time_s) for column in others):
        raise InputError(f"{path}: columns of different length", hint=_HINT)
    if any(later < earlier for earlier, later in zip(columns.time_s, columns.time_s[1:], strict=False)):
        raise InputError(f"{path}: time runs backwards", hint=_HINT)
    return document
