"""Many ranks in bounded memory: of most of them only the collectives are kept, once everything else was summed up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace

import numpy as np

from llm_perf_opt.analysis.facts import Capture, Facts
from llm_perf_opt.analysis.ranks.join import rank_of
from llm_perf_opt.analysis.ranks.names import rank_in_name
from llm_perf_opt.model.timeline import DeviceOps, HostCalls, Ranges, Timeline, no_spans

MOST_ROWS = 4_000_000
"""Operations and calls that are kept in full, over all ranks together; about 50 bytes each."""


def kept_in_bounds(found: Iterable[Facts], most_rows: int = MOST_ROWS) -> Iterator[Facts]:
    """Yield the facts of rank after rank; from ``most_rows`` on, captures of ranks keep only their collectives.

    The lowest rank stays whole: it stands for the others where single kernels are looked at. So does a capture that
    launches graphs, whose kernels may be named later by the recording of the graphs.
    """
    rows, lowest = 0, None
    for facts in found:
        for capture in facts.captures:
            rank = rank_of(capture, rank_in_name(capture.path))
            timeline = capture.found
            if rank is None or not isinstance(timeline, Timeline) or timeline.facts.get("graph_launches"):
                continue
            size = len(timeline.ops) + len(timeline.calls)
            is_lowest = lowest is None or rank <= lowest
            lowest = rank if lowest is None else min(rank, lowest)
            if rows + size > most_rows and not is_lowest:
                only_collectives(capture)
                facts.notes.append(
                    f"Rank {rank}: the captures hold more than {most_rows:,} operations and calls together, so there are no tables "
                    "of this rank alone; it is in all sums."
                )
            else:
                rows += size
        yield facts


def of_further_rank(facts: Facts) -> Facts:
    """Return what a rank beside the first adds: its captures and collectives. Timings and counts are of the same work.

    Tables of single launches are the first rank's; each one's own are in its directory.
    """
    for capture in facts.captures:
        capture.tables = False
    return Facts(
        stage=facts.stage,
        sources={kind: paths for kind, paths in facts.sources.items() if kind != "timings"},
        captures=facts.captures,
        host_collectives=facts.host_collectives,
    )


def only_collectives(capture: Capture) -> None:
    """Forget the rows of a capture that was summed up, except what tells when its collectives ran."""
    timeline, axis = capture.found, capture.facts.axis
    if not isinstance(timeline, Timeline) or axis is None:
        return
    # The first row is the origin of the rank's clock.
    rows = np.unique(np.append(axis.collectives.op[:], 0)) if len(timeline.ops) else axis.collectives.op
    collectives = replace(axis.collectives, op=np.searchsorted(rows, axis.collectives.op))
    kept = {one.name: getattr(timeline.ops, one.name)[rows] for one in fields(DeviceOps)}
    kept["launch"], kept["range"] = np.full_like(kept["launch"], -1), np.full_like(kept["range"], -1)
    none, no_names = np.empty(0, np.int64), np.empty(0, np.int32)
    capture.found = replace(
        timeline,
        ops=DeviceOps(**kept),
        calls=HostCalls(none, none, none, no_names),
        ranges=Ranges(none, none, none, no_names, no_names),
        operators=no_spans(),
        frames=no_spans(),
    )
    capture.facts = replace(capture.facts, axis=replace(axis, collectives=collectives))
    capture.attribution, capture.tables = None, False
