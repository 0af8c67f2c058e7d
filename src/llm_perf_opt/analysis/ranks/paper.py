"""The ranks of a run on paper: what each holds and sends, and how fast its device could be at best."""

from __future__ import annotations

from llm_perf_opt.analysis.roofline.demand import RankRatios
from llm_perf_opt.analysis.roofline.launches import launches_of
from llm_perf_opt.analysis.roofline.limits import Limits, floor_time, limits_for
from llm_perf_opt.model.static.split import Split
from llm_perf_opt.model.summary import Hardware, RankUse, Static, Summary

_PHASES = ("prefill", "decode")


def add_rank_shares(summary: Summary, ranks: int, hardware: Hardware | None) -> None:
    """Write into the rows of the ranks what the static model says of each; ``hardware`` is the device of one rank."""
    static = summary.static
    split = (
        next((s for s in static.splits if (s.kind, s.ranks) == ("tensor", ranks)), None) if static else None
    )
    if static is None or split is None:
        return
    if split.reason is not None:
        summary.notes.append(f"The model over {ranks} ranks is not known on paper: {split.reason}.")
        return
    known = {row.rank: row for row in summary.ranks}
    sent = {
        phase: sum(one.link_bytes for one in split.exchanges if one.phase == phase)
        for phase in _PHASES
        if phase in static.phases
    }
    floors = _floors(static, split, hardware, summary.workload.dtype, sent)
    for share in split.shares:
        row = known.get(share.rank)
        if row is None:
            row = RankUse(rank=share.rank)
            summary.ranks.append(row)
        row.weight_bytes, row.kv_bytes_per_token = share.weight_bytes, share.kv_bytes_per_token
        row.link_bytes = dict(sent)
        # The rank with the most to read is the slowest, and none is done before it.
        row.floor_s = dict(floors)
    summary.ranks.sort(key=lambda row: row.rank)


def _floors(
    static: Static, split: Split, hardware: Hardware | None, dtype: str | None, sent: dict[str, float]
) -> dict[str, float]:
    """Return phase → the least time of a pass on one rank's device."""
    if hardware is None:
        return {}
    limits = limits_for(hardware, dtype)
    ratios = RankRatios(static, split, split.ranks)
    found = {}
    for phase, link_bytes in sent.items():
        seconds = _floor(static, phase, limits, ratios, split.ranks, gpu=hardware.kind == "gpu")
        if seconds is not None:
            talk_s = link_bytes / hardware.link_bytes_per_s if hardware.link_bytes_per_s else 0.0
            found[phase] = max(seconds, talk_s)
    return found


def _floor(
    static: Static, phase: str, limits: Limits, ratios: RankRatios, ranks: int, *, gpu: bool
) -> float | None:
    facts = static.phases[phase]
    flops, weights = facts.least_flops, facts.least_weight_bytes
    if flops is None or weights is None or limits.peak is None or limits.bandwidth is None:
        return None
    moved = weights * ratios.read(phase) + (facts.least_kv_bytes or 0.0) * ratios.cache
    launches = launches_of(facts) if gpu else None
    return floor_time(flops / ranks, moved, limits.peak, limits.bandwidth, launches).seconds
