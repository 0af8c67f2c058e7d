"""A model over several ranks, on paper: what each holds, and what they say to one another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.model.limits import Bytes, Count


@dataclass(slots=True)
class Exchange:
    """Collectives of one kind in one pass of a phase, on paper."""

    phase: str
    name: Literal["all_reduce", "all_gather", "all_to_all"]
    calls: Count
    bytes: Bytes
    """Payload of one rank, all calls: the tensor that is summed, what every rank has in the end, what a rank sends."""
    link_bytes: Bytes
    """What goes over a rank's links in one direction at least: all-reduce the payload (a ring needs 2(n−1)/n of it, a switch
    that adds up needs it once), the others (n−1)/n of it."""
    follows: Literal["positions", "sequences"] = "positions"
    """What the payload grows with."""


@dataclass(slots=True)
class RankShare:
    """What one rank of a split model holds."""

    rank: Count
    params: Count
    weight_bytes: Bytes | None
    """``None`` where the sizes of a quantised checkpoint are not known."""
    kv_bytes_per_token: Bytes | None = None
    """Of all its layers, for one position of one sequence; ``None``: not known."""
    experts: Count | None = None
    """Whole experts of every layer; ``None`` where it has a part of each, or there are none."""


@dataclass(slots=True)
class Split:
    """The model over several ranks by the plan of its architecture, on paper."""

    kind: Literal["tensor", "tensor+expert"]
    """``tensor``: every layer is cut. ``tensor+expert``: the experts stay whole and are shared out, the rest is cut."""
    ranks: Count
    shares: list[RankShare] = field(default_factory=list)
    """By rank; rank 0 never has less than another."""
    replicated_bytes: Bytes | None = None
    """Weights that every rank has whole; part of each share."""
    read_bytes: dict[str, Bytes] = field(default_factory=dict)
    """Phase → weights that rank 0 reads in one pass at least."""
    exchanges: list[Exchange] = field(default_factory=list)
    element_bytes: Bytes | None = None
    """Size of one element that they exchange."""
    reason: str | None = None
    """Why it cannot be split so; nothing else is given then."""
