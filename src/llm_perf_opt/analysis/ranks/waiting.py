"""Who waits for whom: the collectives of several ranks, matched by kind and order.

Clocks of ranks may differ. A collective ends at about the same time on every rank that takes part, so the ends of the
collectives they share tell the difference, and the beginnings then tell who came last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from llm_perf_opt.analysis.rank_calls import RankCalls
from llm_perf_opt.analysis.timeline.communication import bus_factor
from llm_perf_opt.core import units
from llm_perf_opt.model.summary.parallel import Communication, RankUse
from llm_perf_opt.model.timeline import Int64

_TOGETHER_NS = 5_000
"""Ranks that enter a collective this close to one another did not wait."""
_SCATTERS = 5
"""A difference of clocks is this many times what the ends scatter; less may be chance."""
_STRAGGLER = 0.5
"""A rank that causes more than this share of the waiting (and more than its turn) holds the others up."""


def add_waiting(
    ranks: Sequence[RankCalls],
    rows: list[RankUse],
    communication: Communication,
    *,
    one_clock: bool = False,
    noisy_ends: bool = False,
) -> list[str]:
    """Match the collectives of the ranks and write down the waiting; say what could not be matched.

    ``noisy_ends``: a rank sees the end of a collective late when its cores are busy, so that clocks are aligned only where
    the ends lie apart by more than they scatter.
    """
    talking = [one for one in ranks if len(one.kind)]
    if len(talking) < 2:
        return []
    matched, left_out = _match(talking)
    notes = []
    if left_out:
        notes.append(
            f"{left_out} collective calls have no partner in the other ranks' captures and were left out of the waiting."
        )
    if not matched:
        return notes
    begin = np.stack([one.start_ns[[row[n] for row in matched]] for n, one in enumerate(talking)], axis=1)
    end = np.stack([one.end_ns[[row[n] for row in matched]] for n, one in enumerate(talking)], axis=1)
    kinds = [talking[0].kind[row[0]] for row in matched]
    apart = end - end[:, :1]
    shift = np.median(apart, axis=0).astype(np.int64) * (not one_clock)
    if noisy_ends:
        scatter = np.median(np.abs(apart - shift), axis=0)
        shift = np.where(np.abs(shift) > _SCATTERS * scatter, shift, 0)
    if int(np.abs(shift).max()) > 0:
        begin, end = begin - shift, end - shift
        worst = int(np.abs(shift).max())
        if worst > 1_000_000:
            notes.append(
                f"The clocks of the ranks differ by up to {units.seconds(worst / 1e9)}; they were aligned by the ends of "
                f"{len(kinds)} collectives."
            )
    last = begin.max(axis=1)
    waits = np.clip(np.minimum(last[:, None], end) - begin, 0, None)
    late = begin.argmax(axis=1)
    caused = np.where(waits.max(axis=1) > _TOGETHER_NS, waits.sum(axis=1), 0)
    numbers = [one.rank for one in talking]
    _fill_rows(rows, numbers, waits, late, caused)
    sizes = talking[0].bytes[[row[0] for row in matched]]
    _fill_collectives(communication, kinds, numbers, waits, end - begin, late, caused, sizes)
    return notes


def _match(ranks: Sequence[RankCalls]) -> tuple[list[tuple[int, ...]], int]:
    """Pair the n-th collective of every kind over all ranks; return rows of each, and how many have no partner."""
    places: list[dict[tuple[str, int], int]] = []
    for one in ranks:
        seen: Counter[str] = Counter()
        own: dict[tuple[str, int], int] = {}
        for row in np.argsort(one.start_ns, kind="stable").tolist():
            kind = one.kind[row]
            own[kind, seen[kind]] = row
            seen[kind] += 1
        places.append(own)
    common = set(places[0]).intersection(*places[1:])
    matched = [tuple(own[key] for own in places) for key in sorted(common, key=lambda key: places[0][key])]
    return matched, sum(len(own) for own in places) - len(matched) * len(places)


def _fill_rows(rows: list[RankUse], ranks: list[int], waits: Int64, late: Int64, caused: Int64) -> None:
    others = max(1, len(ranks) - 1)
    by_rank = {row.rank: row for row in rows}
    for column, rank in enumerate(ranks):
        mine = (late == column) & (caused > 0)
        row = by_rank[rank]
        row.waits_s = float(waits[:, column].sum()) / 1e9
        row.last_in = int(mine.sum())
        row.causes_wait_s = float(caused[mine].sum()) / others / 1e9


def _fill_collectives(
    communication: Communication,
    kinds: list[str],
    ranks: list[int],
    waits: Int64,
    lengths: Int64,
    late: Int64,
    caused: Int64,
    sizes: Int64,
) -> None:
    names = np.array(kinds)
    for one in communication.collectives:
        mine = names == one.name
        if not mine.any():
            continue
        one.wait_s = float(waits[mine].sum()) / len(ranks) / 1e9
        one.last_rank = _most_waited_for(late[mine], caused[mine], ranks)
        moving = float((lengths[mine] - waits[mine]).sum()) / len(ranks) / 1e9
        if one.bytes is not None and moving > 0 and (sizes[mine] >= 0).all():
            one.algorithm_bytes_per_s = float(sizes[mine].sum()) / moving
            if one.group_size is not None:
                one.bus_bytes_per_s = one.algorithm_bytes_per_s * bus_factor(one.name, one.group_size)
    communication.wait_s = float(waits.sum()) / len(ranks) / 1e9
    total = float(caused.sum())
    slowest = _most_waited_for(late, caused, ranks)
    if slowest is None or total <= 0:
        return
    share = float(caused[late == ranks.index(slowest)].sum()) / total
    if share > max(_STRAGGLER, 1.2 / len(ranks)):
        communication.straggler = slowest
        communication.straggler_share_ratio = share


def _most_waited_for(late: Int64, caused: Int64, ranks: list[int]) -> int | None:
    weight: Mapping[int, float] = {
        rank: float(caused[late == column].sum()) for column, rank in enumerate(ranks)
    }
    slowest = max(weight, key=lambda rank: (weight[rank], -rank))
    return slowest if weight[slowest] > 0 else None
