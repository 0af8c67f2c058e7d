"""The same model on other devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.model.limits import Bytes, Count, PerSecond, Share, SummedSeconds


@dataclass(slots=True)
class WhatIf:
    """The same model elsewhere: floors no machine can beat, and times to expect."""

    device: str
    dtype: str
    batch_size: Count
    context_tokens: Count
    ttft_floor_s: SummedSeconds | None
    tpot_floor_s: SummedSeconds | None
    tokens_per_s: PerSecond | None
    """Upper bound over the batch (1/s)."""
    fits: bool | None
    """Whether weights and KV cache fit the device's memory."""
    note: str | None = None
    """What bounds a step there, and what it needs."""
    memory_bytes: Bytes | None = None
    """Size of the device's memory."""
    floor_term: Literal["compute", "memory", "launch", "communication"] | None = None
    """Which term sets the floor of a step (without one, that of the first token)."""
    launch_graph_s: SummedSeconds | None = None
    """Term of launching in the floor of a step: products and attention as nodes of a graph."""
    launch_eager_s: SummedSeconds | None = None
    """The same with every operator launched one by one, at a measured or typical cost: beside the floor, not in it."""
    prompt_tokens: Count | None = None
    """Positions of the prompt up to the first token."""
    tensor_parallel: Count = 1
    """Devices that share every layer among them."""
    link_bytes: Bytes | None = None
    """What each of several devices sends to the others in one decode step at least; ``None``: not known."""
    communication_s: SummedSeconds | None = None
    """Term of communication in the floor of a step: ``link_bytes`` ÷ the bandwidth of the links; ``None``: not known, and so
    not in the floor."""
    ttft_expected_s: SummedSeconds | None = None
    """Time to the first token as measured operators add up to it, launched as graphs."""
    tpot_expected_s: SummedSeconds | None = None
    """The same of a decode step."""
    ttft_expected_eager_s: SummedSeconds | None = None
    """The same launched one by one: the longer of the device's work and the launches."""
    tpot_expected_eager_s: SummedSeconds | None = None
    """The same of a decode step."""
    measured_share_ratio: Share | None = None
    """Share of the expected time of a step (without one, of the first token) that rests on measured shapes and those between
    them; the rest is extrapolated or a roofline at a stated share of the limits."""
    tokens_per_s_expected: PerSecond | None = None
    """Over the batch, at the expected time of a step (1/s)."""
    tokens_per_s_per_w: PerSecond | None = None
    """The same ÷ the power limit of the devices."""
    expected_source: str | None = None
    """Frameworks and versions whose kernels were measured."""
    ttft_expected_low_s: SummedSeconds | None = None
    """Ends of where the expected time may lie by the errors that interpolation, extrapolation and rooflines were measured to have
    (nine in ten shapes); how an engine schedules is not in them."""
    ttft_expected_high_s: SummedSeconds | None = None
    tpot_expected_low_s: SummedSeconds | None = None
    """The same of a decode step."""
    tpot_expected_high_s: SummedSeconds | None = None
    eager_host_s: SummedSeconds | None = None
    """What the host takes to launch one operator, behind ``…_eager_s``."""
    eager_host_source: str | None = None
    """``this run's own steps`` (which waited for the host), ``measured on this machine`` (a probe), or ``typical``."""
    eager_is_bound: bool | None = None
    """Whether ``…_eager_s`` are lower bounds: a model's own code takes longer than a launch by itself."""


@dataclass(slots=True)
class SiliconUse:
    """The measured operator tables that expected times rest on."""

    version: str | None
    """Of the package that holds them; ``None``: none were used."""
    framework: str | None = None
    """Whose kernels are taken first."""
    problems: list[str] = field(default_factory=list)
    """Tables and rows that were left out, and why."""
    reason: str | None = None
    """Why none were used: not installed, or switched off."""
