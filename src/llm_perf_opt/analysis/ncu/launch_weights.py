"""What the profiled launches of a kernel represent in the run: which row, how many launches, and whether they are
valid.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.ncu.launch import LaunchFacts
from llm_perf_opt.analysis.timeline.range_names import meaning_of
from llm_perf_opt.captures.ncu.launches import LaunchConfiguration, Shape
from llm_perf_opt.core import units
from llm_perf_opt.summary import Kernel
from llm_perf_opt.summary.kernels import ProfiledLaunches

if TYPE_CHECKING:
    from llm_perf_opt.captures.ncu.launches import NcuLaunch


# In which phase a launch was profiled: from the ranges around it, else from the ranges ncu was configured to profile.


_PATTERN_TAIL = re.compile(r"(\.\*|\.\+|\*|\?|\$)+$")


def profiled_phase(launch: NcuLaunch) -> str | None:
    """Return the phase of a launch; ``None`` if unknown."""
    for name in reversed(launch.ranges):
        phase = meaning_of(name).phase
        if phase is not None:
            return phase
    if launch.ranges or launch.settings is None:
        return None
    # A page without ranges: all launches are inside ncu's filter, which may select one phase.
    phases = {phase_of_filter(expression) for expression in launch.settings.nvtx_include}
    return phases.pop() if len(phases) == 1 else None


def phase_of_filter(expression: str) -> str | None:
    """Return the phase a range filter of ncu selects: ``decode/``, ``regex:decode.*/``, ``LLM@prefill/``."""
    path = expression.removeprefix("regex:").rstrip("/]").removeprefix("[")
    name = re.split(r"(?<!\\)[/@]", path)[-1]
    return meaning_of(_PATTERN_TAIL.sub("", name).replace("\\", "")).phase


OFF_BY = 2.5
"""A profiled launch that lasts so many times the run's mean, or so many times less, is not like the run's. Base clocks
(on some devices less than half of boost) and flushed caches make launches about twice as long all by themselves."""
_ENOUGH_COVERED = 0.5
"""Share of a kernel's time that the profiled configurations must hold before they stand for all of it."""
Configuration = tuple[Shape, Shape]
RunRow = tuple[str, str | None]
"""(Kernel name, phase)."""


@dataclass(slots=True)
class RunLaunches:
    """Launches of the run by kernel, phase and configuration; empty without a timeline."""

    by_row: dict[RunRow, dict[Configuration, tuple[int, int]]] = field(default_factory=dict)
    """Row → configuration → launches and nanoseconds."""

    @classmethod
    def of(cls, found: Iterable[LaunchConfiguration]) -> RunLaunches:
        """Index configurations by the row of the kernel table they belong to."""
        rows: dict[RunRow, dict[Configuration, tuple[int, int]]] = defaultdict(dict)
        for each in found:
            own = rows[each.kernel, each.phase]
            before = own.get((each.grid, each.block), (0, 0))
            own[each.grid, each.block] = (before[0] + each.launches, before[1] + each.total_ns)
        return cls(dict(rows))

    def has(self, kernel: str, shapes: Iterable[Configuration]) -> bool:
        """Whether the run launches a kernel with one of these shapes, in any phase."""
        wanted = set(shapes)
        return any(name == kernel and wanted & own.keys() for (name, _), own in self.by_row.items())

    def of_row(self, row: Kernel) -> Mapping[Configuration, tuple[int, int]]:
        """Return the launches of one row."""
        return self.by_row.get((row.name, row.phase), {})


@dataclass(frozen=True, slots=True)
class Standing:
    """The launches whose counters describe a row, and how many launches of the run each represents."""

    parts: list[LaunchFacts]
    weights: list[float]
    profiled: ProfiledLaunches


def belongs(part: LaunchFacts, row: Kernel, phase: str | None, *, phased: bool) -> bool:
    """Whether a launch profiled in ``phase`` may describe a row: never one of another phase.

    ``phased``: the run has phases, so a row without one covers launches outside all of them.
    """
    if row.phase is None:
        return phase is None or not phased
    if phase is None:
        # Inside ranges that name no phase it is outside all of them; without any range it may be in every phase.
        return not part.launch.ranges
    return phase == row.phase


def standing_of(
    row: Kernel, parts: Sequence[LaunchFacts], run: RunLaunches, *, phased: bool = False
) -> Standing | None:
    """Return the launches that represent a row; ``None`` if none belongs to its phase."""
    own = [part for part in parts if belongs(part, row, profiled_phase(part.launch), phased=phased)]
    if not own:
        return None
    known = run.of_row(row)
    shaped = [part for part in own if part.launch.grid and part.launch.block]
    if known and len(shaped) == len(own):
        return _by_configuration(row, own, known, run)
    return _by_mean(row, own)


def _by_mean(row: Kernel, own: list[LaunchFacts]) -> Standing:
    """Without configurations: compare with the mean of all launches of the row."""
    ratio = None
    if row.total_s and row.launches:
        durations = [time for part in own if (time := part.get("duration_s")) is not None]
        ratio = sum(durations) / len(durations) / (row.total_s / row.launches) if durations else None
    profiled = ProfiledLaunches(
        launches=len(own),
        phase=_phase(own),
        representative=None if ratio is None else _fits(ratio),
        duration_ratio=ratio,
        remark=None if ratio is None or _fits(ratio) else _off_by(ratio, "the run's mean for this kernel"),
    )
    return Standing(own, [1.0] * len(own), profiled)


def _by_configuration(
    row: Kernel, own: list[LaunchFacts], known: Mapping[Configuration, tuple[int, int]], run: RunLaunches
) -> Standing | None:
    """Weigh every configuration by how often the run has it; leave out those that differ from the run's launches."""
    groups: dict[Configuration, list[LaunchFacts]] = defaultdict(list)
    for part in own:
        if part.launch.grid and part.launch.block:
            groups[part.launch.grid, part.launch.block].append(part)
    met = {shape: parts for shape, parts in groups.items() if shape in known}
    if not met:
        if _phase(own) is None and run.has(row.name, groups):
            return None  # the phase is unknown, and the shapes indicate another one
        return Standing(own, [1.0] * len(own), _never_launched(own, groups, len(known)))
    ratios = {shape: _ratio(parts, known[shape]) for shape, parts in met.items()}
    fitting = {shape: parts for shape, parts in met.items() if _fits(ratios[shape])}
    used = fitting or met
    total = sum(time for _, time in known.values())
    covered = sum(known[shape][1] for shape in used) / total if total else None
    parts = [part for group in used.values() for part in group]
    weights = [known[shape][0] / len(group) for shape, group in used.items() for _ in group]
    ratio = _joined_ratio(used, known)
    representative = bool(fitting) and (covered is None or covered >= _ENOUGH_COVERED)
    remark: str | None = None
    if not fitting and ratio is not None:
        remark = _off_by(ratio, "the run's mean for this kernel with the same grid and block")
    elif not representative:
        remark = (
            f"the profiled grids and blocks account for {units.percent(covered)} of this kernel's time in the run "
            f"({len(used)} of {len(known)} configurations)"
        )
    profiled = ProfiledLaunches(
        launches=len(parts),
        phase=_phase(own),
        representative=representative,
        duration_ratio=ratio,
        configurations=len(known),
        profiled_configurations=len(used),
        covered_ratio=covered,
        remark=remark,
    )
    return Standing(parts, weights, profiled)


def _never_launched(
    own: Sequence[LaunchFacts], groups: Iterable[Configuration], configurations: int
) -> ProfiledLaunches:
    return ProfiledLaunches(
        launches=len(own),
        phase=_phase(own),
        representative=False,
        configurations=configurations,
        profiled_configurations=0,
        covered_ratio=0.0,
        remark=f"the run never launches it with the profiled grid and block ({_shapes(groups)})",
    )


def _ratio(parts: Sequence[LaunchFacts], run: tuple[int, int]) -> float | None:
    durations = [time for part in parts if (time := part.get("duration_s")) is not None]
    launches, total_ns = run
    if not durations or not launches or not total_ns:
        return None
    return sum(durations) / len(durations) / (total_ns / launches / 1e9)


def _joined_ratio(
    used: Mapping[Configuration, Sequence[LaunchFacts]], known: Mapping[Configuration, tuple[int, int]]
) -> float | None:
    """Return Σ time represented by the profiled launches ÷ Σ time of the run's launches."""
    seen = [
        (ratio * known[shape][1], known[shape][1])
        for shape, parts in used.items()
        if (ratio := _ratio(parts, known[shape])) is not None
    ]
    time = sum(run for _, run in seen)
    return sum(profiled for profiled, _ in seen) / time if time else None


def _fits(ratio: float | None) -> bool:
    return ratio is None or 1 / OFF_BY <= ratio <= OFF_BY


def _off_by(ratio: float, than: str) -> str:
    return f"the profiled launch lasts {units.number(ratio)} × {than} (representative: {1 / OFF_BY:g} to {OFF_BY:g} ×)"


def _phase(parts: Iterable[LaunchFacts]) -> str | None:
    phases = {profiled_phase(part.launch) for part in parts}
    return phases.pop() if len(phases) == 1 else None


def _shapes(groups: Iterable[Configuration]) -> str:
    shown = [f"grid {_shape(grid)}, block {_shape(block)}" for grid, block in groups]
    return "; ".join(shown[:2]) + ("; …" if len(shown) > 2 else "")


def _shape(shape: Shape) -> str:
    return " × ".join(str(size) for size in shape)
