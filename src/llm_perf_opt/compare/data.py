"""A comparison of two sides as plain values: the JSON of ``llm-perf-opt compare``.

A is the base, B is what it is held against; every ratio is B ÷ A. ``None`` means "not known".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.analysis.origin import Difference, SideInfo
from llm_perf_opt.summary.statistics import Better

# What a comparison concludes: how much faster B is at equal work, why, and what only moved between devices.


_WorkBasis = Literal["tokens", "phases", "steps", "launches"]
"""What the work of both sides was counted in."""
CauseKind = Literal[
    "phase",
    "steps",
    "time per launch",
    "launches",
    "appeared",
    "vanished",
    "replaced",
    "fused",
    "unfused",
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

    basis: _WorkBasis | None
    """``None``: it cannot be determined, and ``text`` says why."""
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


SCHEMA_VERSION = "1.4"
"""1.2: ``sentence`` and ``conclusions``; ratios of captured times are at equal work. 1.3: ``expected``. 1.4: ``n_to_show``;
``tpot`` is decode time ÷ steps."""
Outcome = Literal[
    "better", "worse", "no difference shown", "not enough data", "not comparable", "only in A", "only in B"
]
GateStatus = Literal["passed", "regression", "undecided", "not enough data", "not comparable", "side failed"]
MatchKind = Literal["exact", "renamed", "retyped", "family", "only in A", "only in B"]


@dataclass(slots=True)
class MetricChange:
    """One metric of the whole side, with the statistics of its raw measurements where there are any."""

    name: str
    unit: str
    """``s``, ``1/s``, ``ratio`` or ``count``."""
    better: Better
    a: float | None
    """Mean over the samples of their medians."""
    b: float | None
    ratio: float | None
    """B ÷ A, of the two values."""
    low_ratio: float | None
    """Lower end of the interval of ``ratio``: the bootstrap interval over blocks, extended to ``ratio``."""
    high_ratio: float | None
    p_value: float | None
    """Two-sided exact rank test of "no change"."""
    blocks: Literal["rounds", "repeats", "samples"] | None
    """What was resampled and ranked; ``None``: too few measurements for either."""
    n: int
    """Blocks: pairs for ``rounds`` and ``samples``; repeats of the side that has fewer."""
    outcome: Outcome
    note: str | None = None
    n_to_show: int | None = None
    """Blocks per side that would show a change of 20 % in four of five cases, by the spread of these; ``None``: not known."""


@dataclass(slots=True)
class SampleChange:
    """One sample on both sides: medians of its repeats."""

    sample: str
    metric: str
    """``ttft``, ``tpot`` or ``total``, in seconds."""
    a_s: float
    b_s: float
    ratio: float


@dataclass(slots=True)
class Split:
    """The change of a whole by its causes, which add up to it."""

    whole: str
    """``wall_clock`` (of a sample) or ``kernel_time``."""
    a_s: float
    b_s: float
    """Kernel time: at A's work."""
    causes: list[Cause]


@dataclass(slots=True)
class PhaseChange:
    """One fact about a phase: a verdict, a share, a part of its budget."""

    phase: str
    what: str
    unit: str
    a: float | str | None
    b: float | str | None
    ratio: float | None = None


@dataclass(slots=True)
class ModuleChange:
    """One row of both ledgers."""

    module: str
    phase: str
    depth: int
    a_s: float | None
    b_s: float | None
    ratio: float | None
    source: str | None
    """Where both times come from; says so when the two sides were measured differently."""
    a_launches: int | None = None
    b_launches: int | None = None
    a_flops: float | None = None
    b_flops: float | None = None


@dataclass(slots=True)
class FamilyChange:
    """All kernels of one family and phase."""

    family: str
    phase: str | None
    a_s: float | None
    b_s: float | None
    ratio: float | None
    a_launches: int | None
    b_launches: int | None
    a_share_ratio: float | None = None
    """Of all kernel time of A: comparable even when the captures differ in length."""
    b_share_ratio: float | None = None


@dataclass(slots=True)
class KernelChange:
    """Kernels of A and the kernels of B that do the same work."""

    label: str
    matched: MatchKind
    """``exact`` name; ``renamed``: same function with other tiles, template values or architecture; ``retyped``: also
    other element types; ``family``: what is left of a family in a phase, taken together."""
    family: str
    phase: str | None
    a_names: list[str]
    b_names: list[str]
    a_s: float | None
    b_s: float | None
    ratio: float | None
    a_launches: int | None
    b_launches: int | None
    per_launch_ratio: float | None
    """Mean time of a launch, B ÷ A: comparable even when the captures differ in length."""


@dataclass(slots=True)
class GateResult:
    """What a gate decided."""

    metric: str
    limit_ratio: float
    """Worst B ÷ A that is allowed."""
    status: GateStatus
    ratio: float | None
    low_ratio: float | None
    high_ratio: float | None
    p_value: float | None
    """One-sided rank test of "no worse than the limit"."""
    reason: str


@dataclass(slots=True)
class Method:
    """How the statistics were made, so that they can be made again."""

    confidence_ratio: float
    alpha: float
    resamples: int
    seed: int


@dataclass(slots=True)
class ExpectedMetric:
    """What tables predict of one metric, next to what was measured."""

    name: str
    """``ttft``, ``tpot`` or ``tokens_per_s``."""
    unit: str
    a: float
    """Expected of A."""
    b: float
    ratio: float
    """B ÷ A, expected."""
    measured_ratio: float | None = None
    """B ÷ A, measured; ``None``: it was not, or the sides are not comparable."""
    measured_low_ratio: float | None = None
    measured_high_ratio: float | None = None


@dataclass(slots=True)
class ExpectedChange:
    """What tables of measured operators predict of a change of data type, batch size, ranks or device."""

    changed: list[Difference]
    """What of these differs."""
    metrics: list[ExpectedMetric] = field(default_factory=list)
    """Empty where the tables do not reach."""
    by: Literal["measured operators", "roofline"] | None = None
    """``measured operators``: at least half of the step's work rests on tables on both sides; ``roofline``: less does."""
    measured_share_ratio: float | None = None
    """Share of a step's work that rests on measurements, the smaller of both sides."""
    source: str | None = None
    """Frameworks and versions of the tables."""
    launched: Literal["one by one", "steps as graphs", "as graphs"] | None = None
    """How the kernels of these times are started; ``steps as graphs``: those of passes before them one by one."""
    host_bound: bool = False
    """Whether launching takes longer than the work on both sides, so that the change hardly shows."""
    reason: str | None = None
    """Why nothing is predicted."""


@dataclass(slots=True)
class Comparison:
    """The root of ``comparison.json``."""

    a: SideInfo
    b: SideInfo
    method: Method
    schema_version: str = SCHEMA_VERSION
    common_overrides: list[str] = field(default_factory=list)
    """Settings that ``--run`` gave both sides."""
    sentence: str = ""
    """What the comparison concludes, in one sentence: that of the first of ``conclusions``."""
    conclusions: list[Conclusion] = field(default_factory=list)
    """The wall-clock first where both sides have one, then the captures."""
    notes: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    metrics: list[MetricChange] = field(default_factory=list)
    samples: list[SampleChange] = field(default_factory=list)
    """Samples that both sides measured."""
    splits: list[Split] = field(default_factory=list)
    """Where the change of a whole comes from, part by part."""
    phases: list[PhaseChange] = field(default_factory=list)
    modules: list[ModuleChange] = field(default_factory=list)
    families: list[FamilyChange] = field(default_factory=list)
    kernels: list[KernelChange] = field(default_factory=list)
    gates: list[GateResult] = field(default_factory=list)
    expected: ExpectedChange | None = None
    """``None``: the sides differ in neither data type, batch size, ranks nor device."""
