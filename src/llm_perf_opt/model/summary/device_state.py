"""What a device told of itself while it worked: memory, clock, power, temperature, energy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.model.limits import Bytes, ChangedBytes, Count, Rate, Ratio, Share, SummedSeconds
from llm_perf_opt.model.summary.timings import Stat

MemoryCounts = Literal["allocator", "process"]


@dataclass(slots=True)
class MemoryUse:
    """Memory of one phase, and what the static model says it needs."""

    peak_bytes: ChangedBytes
    """The most in use at one time; of what, says ``counts``."""
    begin_bytes: ChangedBytes | None = None
    """In use when the phase began."""
    end_bytes: ChangedBytes | None = None
    """In use when the phase ended."""
    reserved_bytes: Bytes | None = None
    """The most that was held for it: an accelerator's allocator keeps more than is in use; on a CPU all memory of the
    process, Python and its libraries included."""
    predicted_bytes: Bytes | None = None
    """What the static model says: the sum of ``predicted``; ``None`` where ``peak_bytes`` counts something else."""
    predicted: dict[str, Bytes] = field(default_factory=dict)
    """``weights``, ``kv_cache`` and, where the phase's are known, ``activations`` (those of the largest operator)."""
    counts: MemoryCounts | None = None
    """``allocator``: all that the device's allocator holds; ``process``: what the process gained since before the model was
    built; ``None``: from the profiler, on a CPU what was allocated since the pass began."""


@dataclass(slots=True)
class EnergyUse:
    """Energy of the measured passes, in joules: prompt, answer and what lies between them."""

    per_token: Ratio | None = None
    """÷ generated tokens, all sequences of a batch."""
    per_sample: Ratio | None = None
    """÷ samples."""
    total: Ratio | None = None
    """From the begin of the first measured pass to the end of the last one."""
    source: str | None = None
    """``counter``: the meter's own; ``power``: power summed over time."""


@dataclass(slots=True)
class TelemetrySeries:
    """One quantity over time, thinned to a few hundred points."""

    name: str
    """``clock_hz``, ``power_w``, ``temperature_c``, ``memory_bytes``."""
    points: list[tuple[Ratio, Ratio | None]] = field(default_factory=list)
    """(Seconds since the first measured pass began, value); ``None``: not told at that moment."""


@dataclass(slots=True)
class Telemetry:
    """What the device told of itself during the measured passes; ``None``: it did not, and ``notes`` say why."""

    clock_hz: Stat | None = None
    """Clock of the compute units, over the samples."""
    power_w: Stat | None = None
    """Power of the device (a CPU: all its packages, whoever uses them), over the samples."""
    temperature_c: Stat | None = None
    """Temperature of the chip in °C, over the samples."""
    energy_j: EnergyUse = field(default_factory=EnergyUse)
    throttled: list[str] = field(default_factory=list)
    """Reasons for which the clock, or the processor time, was held down in at least one sample, the most frequent first."""
    throttled_ratio: dict[str, Share] | None = None
    """Reason → share of the samples; ``None``: the device does not tell reasons."""
    memory_bytes: Stat | None = None
    """Memory in use: of the whole device, on a CPU of the process."""
    clock_max_hz: Rate | None = None
    """The highest clock the device allows."""
    power_limit_w: Rate | None = None
    """The limit in force."""
    device: str | None = None
    """As the reader names it."""
    reader: str | None = None
    """``nvidia-ml``, ``amdsmi`` or ``linux`` (RAPL, cpufreq, thermal zones, /proc)."""
    samples: Count = 0
    """Samples inside the measured passes."""
    interval_s: SummedSeconds | None = None
    """Time between two samples, in the end."""
    span_s: SummedSeconds | None = None
    """From the begin of the first measured pass to the end of the last one."""
    cost_ratio: Ratio | None = None
    """Processor time of the sampling ÷ the time it went on."""
    series: list[TelemetrySeries] = field(default_factory=list)
