"""What a measurement of this machine's ceilings gave, and how two of them make a better one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from llm_perf_opt.hardware.contention.processor_load import UNDER_LOAD_RATIO
from llm_perf_opt.model.limits import Count, Rate, Share, SummedSeconds
from llm_perf_opt.model.summary import Hardware, Peak

SOURCE = "measured on this machine"
BANDWIDTH = "bandwidth"
OPERATOR = "operator"
MOST_TRIES = 5
"""A machine that is never quiet is not measured again for ever."""


@dataclass(slots=True)
class ProbeResult:
    """What was measured, and under which conditions."""

    device: str
    """``cpu`` or ``cuda:N``."""
    name: str
    threads: Count | None = None
    torch: str | None = None
    flops_per_s: dict[str, Rate] = field(default_factory=dict)
    """Data type → best rate of a large matrix product."""
    bandwidth_bytes_per_s: Rate | None = None
    operator_s: SummedSeconds | None = None
    """Shortest time of an operator on one element, called from Python."""
    conditions: dict[str, str] = field(default_factory=dict)
    """How each number was reached: matrix size, stream kind, instruction set."""
    notes: list[str] = field(default_factory=list)
    """What could not be measured, and why."""
    seconds: SummedSeconds | None = None
    cached: bool = False
    """Nothing was measured now."""
    measured_at: str | None = None
    """When the best of the rates was reached (ISO 8601 with time zone)."""
    under_load: bool | None = None
    """Whether other programs used the processor in every measurement that went in."""
    other_load_ratio: Share | None = None
    """Their share of the processor's time in the quietest of the measurements."""
    tries: Count = 1
    """Measurements that went in; of each rate the best counts."""
    settled: bool = False
    """Not measured again: one measurement was quiet, or there were enough of them."""

    @property
    def found(self) -> bool:
        """Whether anything was measured at all."""
        return bool(self.flops_per_s) or self.bandwidth_bytes_per_s is not None

    def has(self, item: str) -> bool:
        """Whether a quantity (a data type, or ``bandwidth``) was measured."""
        if item == OPERATOR:
            return self.operator_s is not None
        return self.bandwidth_bytes_per_s is not None if item == BANDWIDTH else item in self.flops_per_s

    def judge_load(self, *, busy_otherwise: bool | None) -> None:
        """Settle whether others disturbed the measurement; ``busy_otherwise`` counts where it cannot tell (a GPU)."""
        ratio = self.other_load_ratio
        self.under_load = busy_otherwise if ratio is None else ratio > UNDER_LOAD_RATIO
        self.settled = not self.under_load or self.tries >= MOST_TRIES

    def peaks(self) -> dict[str, Peak]:
        """Return the rates as peaks that say where they come from."""
        return {
            dtype: Peak(rate, self._source(dtype, "matrix product"))
            for dtype, rate in self.flops_per_s.items()
        }

    def bandwidth_source(self) -> str | None:
        """Say how the bandwidth was measured."""
        return None if self.bandwidth_bytes_per_s is None else self._source(BANDWIDTH, "streaming")

    def _source(self, item: str, otherwise: str) -> str:
        load = ", under load" if self.under_load else ""
        return f"{SOURCE} ({self.conditions.get(item, otherwise)}{load})"

    def describe(self, hardware: Hardware) -> None:
        """Put what was measured, when and how disturbed, into the limits of a run."""
        hardware.measured_peak_flops_per_s = self.peaks()
        hardware.measured_bandwidth_bytes_per_s = self.bandwidth_bytes_per_s
        if not self.found:
            return
        hardware.measured_at = self.measured_at
        hardware.measured_under_load = self.under_load
        hardware.measured_other_load_ratio = self.other_load_ratio
        hardware.measurements = self.tries
        hardware.measured_operator_s = self.operator_s


def best_of(kept: ProbeResult, new: ProbeResult) -> ProbeResult:
    """Join two measurements of the same machine: a ceiling is the best it was ever seen to do."""
    flops, conditions = dict(kept.flops_per_s), {**new.conditions, **kept.conditions}
    rose = False
    for dtype, rate in new.flops_per_s.items():
        if rate > flops.get(dtype, 0.0):
            flops[dtype], rose = rate, True
            conditions[dtype] = new.conditions.get(dtype, "")
    bandwidth = kept.bandwidth_bytes_per_s
    if new.bandwidth_bytes_per_s is not None and new.bandwidth_bytes_per_s > (bandwidth or 0.0):
        bandwidth, rose = new.bandwidth_bytes_per_s, True
        conditions[BANDWIDTH] = new.conditions.get(BANDWIDTH, "")
    costs = [cost for cost in (kept.operator_s, new.operator_s) if cost is not None]
    loads = [load for load in (kept.other_load_ratio, new.other_load_ratio) if load is not None]
    tries = kept.tries + new.tries
    under_load = (
        None if kept.under_load is new.under_load is None else bool(kept.under_load and new.under_load)
    )
    return replace(
        new,
        flops_per_s=flops,
        bandwidth_bytes_per_s=bandwidth,
        operator_s=min(costs, default=None),
        conditions=conditions,
        measured_at=new.measured_at if rose else kept.measured_at,
        under_load=under_load,
        other_load_ratio=min(loads, default=None),
        tries=tries,
        settled=under_load is not True or tries >= MOST_TRIES,
    )
