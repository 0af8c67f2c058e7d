"""What a comparison concludes: how much faster B is at equal work, why, and what only moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

WorkBasis = Literal["tokens", "phases", "steps", "launches"]
"""What the work of both sides was counted in."""
CauseKind = Literal[
    "phase",
    "steps",
    "time per launch",
    "launches",
    "appeared",
    "vanished",
    "replaced",
    "overlap",
    "device",
    "communication",
    "copy",
    "idle",
    "many small",
]
Verdict = Literal["faster", "slower", "no change", "not shown", "undecided"]
"""``not shown``: the measurements do not tell the sides apart; ``undecided``: there is nothing to conclude from."""


@dataclass(slots=True)
class Cause:
    """A part of the change of a whole."""

    name: str
    a_s: float
    b_s: float
    """In a conclusion: at A's work."""
    change_s: float
    """What it adds (or, below zero, saves)."""
    share_ratio: float | None = None
    """``change_s`` ÷ the change of the whole: below zero for what works against it; ``None`` where the whole did not
    change."""
    kind: CauseKind | None = None
    phase: str | None = None
    text: str | None = None
    """The cause as a part of a sentence: what became of it."""


@dataclass(slots=True)
class Work:
    """How much work each side holds, and what it was counted in."""

    basis: WorkBasis | None
    """``None``: it cannot be told, and ``text`` says why."""
    unit: str
    """One of what: ``step``, ``decode step``, ``unit of work``, …"""
    a: float | None
    b: float | None
    ratio: float | None
    """B ÷ A; ``None`` where it is not known, or not the same in all phases."""
    text: str
    """How it was counted, and how the sides differ."""
    sure: bool = True
    """False: another count contradicts this one, so no gate is decided on it."""
    confirmed: bool = True
    """False: the kernels do not show that a unit is the same work on both sides."""
    uncertainty_ratio: float = 0.0
    """How far the count itself may be off: changes within it are not shown."""
    phases: dict[str, float] = field(default_factory=dict)
    """Phase → B ÷ A, where phases were counted by themselves."""


@dataclass(slots=True)
class DeviceChange:
    """One quantity of one device or rank."""

    where: str
    """``GPU 0``, ``rank 1 GPU 0``, ``rank 1``."""
    what: str
    """``compute``, ``communication``, ``exposed communication``, ``copy``, ``idle``, ``waiting for other ranks``."""
    a_s: float
    b_s: float
    """At A's work."""
    change_s: float


@dataclass(slots=True)
class MovedTime:
    """Time that left one device and came up on another: nothing was gained by it."""

    what: str
    source: str
    """The device it left."""
    target: str
    """The device it came up on."""
    left_s: float
    """What the source lost."""
    came_s: float
    """What the target got on top."""
    net_s: float
    """Change of the sum over all devices."""
    text: str


@dataclass(slots=True)
class Conclusion:
    """One whole on both sides, at equal work, and the causes of its change."""

    whole: Literal["wall_clock", "captured_time", "kernel_time"]
    verdict: Verdict
    sentence: str
    """What to know first."""
    work: Work
    a_s: float | None = None
    b_s: float | None = None
    """At A's work."""
    b_measured_s: float | None = None
    """As measured, with B's own work."""
    change_s: float | None = None
    """``b_s`` − ``a_s``: the causes and ``remainder_s`` add up to it."""
    ratio: float | None = None
    """B ÷ A at equal work."""
    causes: list[Cause] = field(default_factory=list)
    """The largest change first."""
    remainder_s: float | None = None
    """What no cause explains."""
    devices: list[DeviceChange] = field(default_factory=list)
    moved: list[MovedTime] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    """Further sentences: what to know besides."""
