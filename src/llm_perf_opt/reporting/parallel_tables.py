"""Tables about parallel work: devices, ranks, collectives, and owners of idle time."""

from __future__ import annotations

from llm_perf_opt.core import units
from llm_perf_opt.reporting.tables import Cell, Column, Row, Table, code, columns, num, simple, text
from llm_perf_opt.reporting.wording import phase_name, phase_rank
from llm_perf_opt.summary import Summary
from llm_perf_opt.summary.static import Split

_FLOOR_HELP = (
    "least time on its device: work, weights and cache, and its links where their bandwidth is known"
)
_LEAST_SHARE = 0.01
"""Parts below this share of their phase have no owner worth a line."""


def device_table(summary: Summary) -> Table:
    """Return one row per device: busy, idle, exposed communication."""
    rows = [
        [
            text(str(one.rank) if one.rank is not None else None),
            text(f"{one.device}{f' ({one.name})' if one.name else ''}"),
            num(one.span_s, units.seconds),
            num(one.busy_ratio, units.percent),
            num(one.idle_s, units.seconds),
            num(one.queued_s, units.seconds),
            num(one.communication_s, units.seconds),
            num(one.exposed_communication_s, units.seconds),
            num(one.copy_s, units.seconds),
            num(one.streams, units.count),
        ]
        for one in summary.devices
    ]
    header = [
        Column("rank"),
        Column("device"),
        Column(
            "span", True, "from its first to its last activity, without a backlog from before the capture"
        ),
        Column("busy", True, "union of all its activity ÷ span"),
        Column("idle", True, "nothing ran"),
        Column("of it queued", True, "nothing ran although work had been launched"),
        Column("communication", True, "a communication kernel ran"),
        Column("exposed", True, "only communication ran"),
        Column("copies alone", True),
        Column("streams", True),
    ]
    return simple(header, rows).without_empty_columns()


def rank_table(summary: Summary) -> Table:
    """Return one row per rank: its time, and its part in the waiting."""
    rows = [
        [
            text(str(one.rank)),
            num(one.span_s, units.seconds),
            num(one.busy_ratio, units.percent),
            num(one.compute_s, units.seconds),
            num(one.idle_s, units.seconds),
            num(one.exposed_communication_s, units.seconds),
            num(one.waits_s, units.seconds),
            num(one.last_in, units.count),
            num(one.causes_wait_s, units.seconds),
            code(one.source or ""),
        ]
        for one in summary.ranks
        if one.span_s is not None
    ]
    header = [
        Column("rank"),
        Column("span", True),
        Column("busy", True),
        Column("compute", True, "kernels other than communication ran"),
        Column("idle", True),
        Column("exposed communication", True),
        Column("waits", True, "in a collective that another rank had not entered yet"),
        Column("last in", True, "collectives it entered last"),
        Column("others wait for it", True, "mean over the other ranks"),
        Column("capture"),
    ]
    return simple(header, rows).without_empty_columns()


def static_rank_table(summary: Summary) -> Table:
    """Return one row per rank: values of the static model."""
    rows = [
        [
            text(str(one.rank)),
            num(one.weight_bytes, units.size),
            num(one.kv_bytes_per_token, units.size),
            num(one.link_bytes.get("prefill"), units.size),
            num(one.link_bytes.get("decode"), units.size),
            num(one.floor_s.get("prefill"), units.seconds),
            num(one.floor_s.get("decode"), units.seconds),
        ]
        for one in summary.ranks
        if one.weight_bytes is not None or one.link_bytes
    ]
    header = [
        Column("rank"),
        Column("weights", True, "that it holds"),
        Column("cache per token", True, "its part of keys and values, one sequence"),
        Column("over its links, prefill", True, "in one direction at least"),
        Column("over its links, step", True, "in one direction at least"),
        Column("prefill floor", True, _FLOOR_HELP),
        Column("step floor", True, _FLOOR_HELP),
    ]
    return simple(header, rows).without_empty_columns()


def split_table(summary: Summary) -> Table:
    """Return the static split of the model over ranks: one row per kind of split and number of ranks."""
    rows = [
        [
            text(one.kind),
            num(one.ranks, units.count),
            num(share.weight_bytes if share is not None else None, units.size),
            num(one.replicated_bytes, units.size),
            num(share.kv_bytes_per_token if share is not None else None, units.size),
            num(share.experts if share is not None else None, units.count),
            *(_exchange_cell(one, phase) for phase in ("prefill", "decode")),
            text(one.reason),
        ]
        for one in (summary.static.splits if summary.static is not None else [])
        for share in [one.shares[0] if one.shares else None]
    ]
    header = [
        Column(
            "split", help="tensor: every layer is cut; tensor+expert: experts stay whole and are shared out"
        ),
        Column("ranks", True),
        Column("weights per rank", True),
        Column("of it on all", True, "weights that every rank has whole"),
        Column("cache per token", True, "of one rank, one sequence"),
        Column("experts", True, "whole ones per layer and rank"),
        Column("collectives of a prefill"),
        Column("collectives of a step"),
        Column("not possible"),
    ]
    return simple(header, rows).without_empty_columns()


def _exchange_cell(split: Split, phase: str) -> Cell:
    parts = [
        f"{units.count(one.calls)} × {one.name}, {units.size(one.bytes)}"
        for one in split.exchanges
        if one.phase == phase
    ]
    return text("; ".join(parts) or None)


def collective_table(summary: Summary) -> Table:
    """Return one row per kind of collective."""
    talk = summary.communication
    rows = [
        [
            text(one.name),
            num(one.count, units.count),
            num(one.group_size, units.count),
            num(one.bytes, units.size),
            num(one.total_s, units.seconds),
            num(one.exposed_s, units.seconds),
            num(one.wait_s, units.seconds),
            num(one.algorithm_bytes_per_s, units.bytes_per_s),
            num(one.bus_bytes_per_s, units.bytes_per_s),
            text(str(one.last_rank) if one.last_rank is not None else None),
        ]
        for one in (talk.collectives if talk is not None else [])
    ]
    header = [
        Column("collective"),
        Column("calls", True),
        Column("ranks", True, "that take part"),
        Column("payload", True, "of one rank, all calls"),
        Column("time", True, "kernel time per device"),
        Column("exposed", True, "of it with nothing else running"),
        Column("waiting", True, "of it, for the last rank to enter"),
        Column("algorithm bandwidth", True, "payload ÷ time, waiting left out where ranks could be matched"),
        Column("bus bandwidth", True, "bytes on the links ÷ time (all-reduce: 2(n−1)/n × payload)"),
        Column("last rank"),
    ]
    return simple(header, rows).without_empty_columns()


def owner_table(summary: Summary) -> Table:
    """Return the owners of idle time of each phase, the longest first."""
    rows = []
    for phase in sorted(summary.budget, key=phase_rank):
        parts = [(part, part.owner) for part in summary.budget[phase].parts if part.owner is not None]
        rows += [
            [
                text(phase_name(phase)),
                text(part.name),
                num(part.seconds, units.seconds),
                num(part.share_ratio, units.percent),
                text(owner.what),
                code(owner.range or ""),
                num(owner.share_ratio, units.percent),
                text(owner.thread),
            ]
            for part, owner in sorted(parts, key=lambda pair: -pair[0].seconds)
            if part.share_ratio >= _LEAST_SHARE
        ]
    header = [
        *columns("phase", "part", "time#"),
        Column("of the span", True),
        Column("what the host did", help="the thread that launches the device's next work"),
        Column("in", help="innermost range, operator or Python function around most of it"),
        Column("of the part", True, "how much of the time looked at this owner has"),
        Column("thread"),
    ]
    return simple(header, rows).without_empty_columns()


def gap_table(summary: Summary) -> Table:
    """Return the longest stretches in which a device ran nothing; Python frames are folded."""
    rows = [
        Row(
            [
                num(one.seconds, units.seconds),
                num(one.start_s, units.seconds),
                text(str(one.rank) if one.rank is not None else None),
                text(str(one.device)),
                text(phase_name(one.phase) if one.phase else None),
                text(one.owner.what),
                code(one.owner.range or ""),
            ],
            key=str(place),
            details=[("Python frames", " → ".join(one.frames))] if one.frames else [],
        )
        for place, one in enumerate(summary.idle_gaps)
    ]
    header = [
        Column("idle for", True),
        Column("from", True, "since the first activity of the capture"),
        *columns("rank", "device", "phase"),
        Column("what the host did"),
        Column("in"),
    ]
    return Table(header, rows).without_empty_columns()
