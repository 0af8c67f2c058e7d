"""What was timed without a tool attached, with what relates it to the work done."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_perf_opt.model.summary import SampleTimes, Stat, Timings, Workload


@dataclass(frozen=True, slots=True)
class SampleTotal:
    """What one sample took without a profiler."""

    new_tokens: int
    seconds: float


@dataclass(slots=True)
class WallClock:
    """Timings with what is needed to relate them to work done."""

    timings: Timings
    workload: Workload
    decode_steps: float | None
    """Model steps inside ``timings.decode_s``."""
    prefill_includes_vision: bool
    """Whether the measured prefill ran the vision tower."""
    device_name: str | None = None
    """Device, when the file names one."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Scalars about the measurement itself (padding, growth over tokens, first repeat)."""
    repeat_spread: dict[str, Stat] = field(default_factory=dict)
    """Phase → time of each repeat ÷ median of its sample."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the report must know about the measurement."""
    sample_totals: dict[str, SampleTotal] = field(default_factory=dict)
    """Sample → what it took, to tell how much a profiler slows the same work down."""
    samples: list[SampleTimes] = field(default_factory=list)
    """Every sample by itself; empty where the file has totals only."""
