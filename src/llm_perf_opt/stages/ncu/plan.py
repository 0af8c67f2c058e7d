"""From configuration, tool and nsys tables to a planned profiling run: metrics, kernels and cost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.ncu.launch_weights import phase_of_filter
from llm_perf_opt.core import units
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.phases import PHASES, REQUEST_PHASES
from llm_perf_opt.process.tools import nvidia_driver
from llm_perf_opt.stages.ncu.command import (
    CACHE_CONTROLS,
    CLOCK_CONTROLS,
    FILTER_MODES,
    NAME_BASES,
    REPLAY_MODES,
    TARGET_PROCESSES,
    accept_metrics,
    accept_sections,
    accept_set,
    estimated_passes,
    metric_list,
    nvtx_includes,
)
from llm_perf_opt.stages.ncu.probe import NcuCapabilities, device_metrics, known_metrics
from llm_perf_opt.stages.ncu.targets import (
    KernelTime,
    Target,
    kernel_filter,
    read_kernel_summary,
    select_targets,
)

if TYPE_CHECKING:
    from llm_perf_opt.stages.ncu.config import NcuConfig


# Results of the nsys stage by phase: the tables from which the kernels to profile are chosen.


AUTO = "auto"
"""As ``nvtx.include``: the phases that the nsys capture holds; without one, every phase there can be."""
Tables = Mapping[str, Sequence[KernelTime]]
"""Phase or captured label → its kernels; the label is empty where a capture does not tell."""


@dataclass(frozen=True, slots=True)
class Captured:
    """Results of nsys."""

    tables: Tables = field(default_factory=dict)
    ranges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Phase → names of the ranges it is made of, where an export tells."""
    is_large: bool = False
    """Whether loading the model once more for every phase takes long."""


@dataclass(frozen=True, slots=True)
class PhaseGroup:
    """The scope of one profiling run."""

    phase: str
    """Empty: everything in one run."""
    include: tuple[str, ...]
    tables: Tables = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_captured(folder: Path) -> Captured:
    """Read the kernels of the nsys stage by phase; empty if there are none.

    The exports have every kernel's phase; without them, the fallback is the tables of ``nsys stats``, one per captured label.
    """
    found = _of_exports(folder)
    if found.tables:
        return found
    tables: dict[str, list[KernelTime]] = {}
    whole = folder / "summary.csv"
    for path in sorted(folder.glob("summary.*.csv")):
        tables |= _read_table(path, path.name.removeprefix("summary.").removesuffix(".csv"))
    return Captured(tables or (_read_table(whole, "") if whole.is_file() else {}))


def _read_table(path: Path, label: str) -> dict[str, list[KernelTime]]:
    try:
        kernels = read_kernel_summary(path)
    except InputError:
        return {}  # another report of nsys stats, not kernels
    return {label: kernels} if kernels else {}


def _of_exports(folder: Path) -> Captured:
    """Return the kernels of each phase from the capture with the most time in it; empty without phases."""
    exports = sorted(folder.glob("run*.sqlite")) if folder.is_dir() else []
    best: dict[str, Sequence[KernelTime]] = {}
    ranges: dict[str, tuple[str, ...]] = {}
    for path in exports:
        try:
            own = _of_export(path)
        except InputError:
            continue  # the nsys stage has reported the problem; the tables of nsys stats may still exist
        for phase, kernels in own.tables.items():
            if _total(kernels) > _total(best.get(phase, ())):
                best[phase], ranges[phase] = kernels, own.ranges[phase]
    order = sorted(best, key=lambda phase: (_place(phase), phase))
    return Captured({phase: best[phase] for phase in order}, ranges)


def _of_export(path: Path) -> Captured:
    from llm_perf_opt.analysis.timeline.attribution import NONE, attribute
    from llm_perf_opt.analysis.timeline.tables import kernel_rows
    from llm_perf_opt.captures.nsys.reader import read_nsys
    from llm_perf_opt.captures.timeline import Timeline

    timeline = read_nsys(path)
    if not isinstance(timeline, Timeline) or not len(timeline.ops):
        return Captured()
    attribution = attribute(timeline)
    found: dict[str, list[KernelTime]] = {}
    for row in kernel_rows(timeline, attribution):
        if row.phase is not None:
            found.setdefault(row.phase, []).append(KernelTime(row.name, float(row.total_ns), row.launches))
    ranges: dict[str, dict[str, None]] = {phase: {} for phase in found}
    for path_number, (parent, name) in enumerate(
        zip(attribution.paths.parent, attribution.paths.name, strict=True)
    ):
        phase = attribution.path_phase[path_number]
        outer = attribution.path_phase[parent] if parent != NONE else NONE
        if phase not in (NONE, outer) and attribution.phases[phase] in ranges:
            ranges[attribution.phases[phase]][timeline.names[name]] = None
    return Captured(found, {phase: tuple(names) for phase, names in ranges.items()})


def range_filters(names: Sequence[str]) -> tuple[str, ...]:
    """Return ncu's filters for push/pop ranges of these names; numbers in them may be any (``step 12``)."""
    return tuple(dict.fromkeys(_range_filter(name) for name in names))


def _range_filter(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_]+", name):
        return f"{name}/"
    # Special characters have various meanings in ncu and cannot all be escaped: match any character instead.
    return f"regex:{re.sub(r'[^A-Za-z0-9_ ]', '.', re.sub('[0-9]+', '0', name)).replace('0', '[0-9]+')}/"


def _total(kernels: Sequence[KernelTime]) -> float:
    return sum(kernel.total_ns for kernel in kernels)


def _place(phase: str) -> int:
    return PHASES.index(phase) if phase in PHASES else len(PHASES)


def phase_groups(
    include: str | Sequence[str] | None, captured: Captured, *, per_phase: bool | None
) -> list[PhaseGroup]:
    """Return the runs: one for each requested and captured phase, else one for all.

    A run of its own per phase, because ncu counts launches over the whole program: the first phase would use up those
    of a kernel that runs in a later one too.
    """
    tables = captured.tables
    labels = [label for label in tables if label]
    if include == AUTO:
        wanted = {label: range_filters(captured.ranges.get(label, (label,))) for label in labels}
        everywhere = tuple(nvtx_includes([f"{phase}*" for phase in REQUEST_PHASES]))
    else:
        everywhere = tuple(nvtx_includes(include))
        wanted = {
            label: matching
            for label in labels
            if (matching := tuple(each for each in everywhere if _selects(each, label)))
        }
    if not labels or (include != AUTO and not everywhere):
        return [PhaseGroup("", everywhere, tables)]
    if not wanted:
        note = (
            f"no phase of the nsys capture ({', '.join(labels)}) is what ncu_cli.nvtx.include names "
            f"({', '.join(everywhere)}): kernels are chosen from all phases together"
        )
        return [PhaseGroup("", everywhere, tables, (note,))]
    groups = [PhaseGroup(label, own, {label: tables[label]}) for label, own in wanted.items()]
    if len(groups) == 1:
        return [PhaseGroup("", groups[0].include, groups[0].tables)]
    if per_phase or (per_phase is None and not captured.is_large):
        return groups
    ranges = tuple(dict.fromkeys(each for group in groups for each in group.include))
    return [PhaseGroup("", ranges, {label: tables[label] for label in wanted})]


def _selects(expression: str, label: str) -> bool:
    """Whether a range filter of ncu selects the phase of a captured label."""
    phase = phase_of_filter(expression)
    return phase is not None and phase == (phase_of_filter(f"{label}/") or label)


_PER_CONFIGURATION = 2
"""Launches of each launch configuration: one may be a cold start."""
_WITHOUT_COUNTING = 20
"""Launches per target where ncu can only limit all together."""
_UNFILTERED = 200
_SET_SECTIONS = {
    "": ("SpeedOfLight", "Occupancy", "LaunchStats"),
    "roofline": ("SpeedOfLight", "SpeedOfLight_RooflineChart"),
    "detailed": ("SpeedOfLight", "SpeedOfLight_RooflineChart", "MemoryWorkloadAnalysis", "Occupancy"),
    "full": (
        "SpeedOfLight",
        "SpeedOfLight_RooflineChart",
        "MemoryWorkloadAnalysis",
        "Occupancy",
        "SchedulerStats",
    ),
}


@dataclass(slots=True)
class NcuPlan:
    """One planned run."""

    nvtx_include: tuple[str, ...]
    kernel_regex: str | None
    targets: list[Target]
    set_name: str | None
    sections: tuple[str, ...]
    metrics: tuple[str, ...]
    filter_mode: str | None
    launch_count: int | None
    cost: str
    """Kernels × passes, for people."""
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was left out without a loss (counters of other chips), and a time limit that cannot be kept."""
    export_sections: tuple[str, ...] = ()
    phase: str = ""
    """The phase this run is of; empty: all that is profiled."""


def config_errors(config: NcuConfig) -> list[ConfigError]:
    """Return invalid values, each naming its key."""
    cli, errors = config.ncu_cli, []
    for key, value, allowed in (
        ("target_processes", cli.target_processes, TARGET_PROCESSES),
        ("replay_mode", cli.replay_mode, REPLAY_MODES),
        ("kernel_name_base", cli.kernel_name_base, NAME_BASES),
        ("filter_mode", cli.filter_mode, FILTER_MODES),
        ("clock_control", cli.clock_control, CLOCK_CONTROLS),
        ("cache_control", cli.cache_control, CACHE_CONTROLS),
    ):
        if value is not None and value not in allowed:
            errors.append(_error(f"ncu_cli.{key}", value, f"one of: {', '.join(allowed)}"))
    for key, number, least in (
        ("ncu_cli.launch_skip", cli.launch_skip, 0),
        ("ncu_cli.launch_count", cli.launch_count, 1),
        ("selection.top_n", config.selection.top_n, 1),
        ("timeout_s", config.timeout_s, 1e-9),
        ("max_bytes", config.max_bytes, 1),
    ):
        if number is not None and number < least:
            errors.append(_error(key, number, "a positive number, or null"))
    share = config.selection.until_share
    if share is not None and not 0 < share <= 1:
        errors.append(_error("selection.until_share", share, "a share between 0 and 1 (0.9)"))
    errors += _type_errors(config)
    return errors


def _type_errors(config: NcuConfig) -> list[ConfigError]:
    errors = []
    for key, value in (
        ("ncu_cli.metrics", config.ncu_cli.metrics),
        ("ncu_cli.nvtx.include", config.ncu_cli.nvtx.include),
    ):
        listed = isinstance(value, Sequence) and all(isinstance(part, str) for part in value)
        if value is not None and not isinstance(value, str) and not listed:
            errors.append(_error(key, value, "a list of names, a comma-separated string, or null"))
    ranges = config.ncu_cli.replay_mode in {"range", "app-range"}
    if config.gating_nvtx and ranges and not config.ncu_cli.nvtx.include:
        errors.append(_error("ncu_cli.nvtx.include", None, "a range: replay by range needs one"))
    return errors


def _error(key: str, value: object, hint: str) -> ConfigError:
    shown = "null" if value is None else value
    return ConfigError(
        f"pipeline.ncu.{key}={shown} cannot be used", hint=f"use {hint}", key=f"pipeline.ncu.{key}"
    )


def _include(config: NcuConfig) -> str | list[str] | None:
    value = config.ncu_cli.nvtx.include
    if not config.gating_nvtx or value is None:
        return None
    return value if isinstance(value, str) else [str(part) for part in value]


def make_plans(
    config: NcuConfig,
    capabilities: NcuCapabilities,
    captured: Captured,
    top_n: int,
    *,
    own_program: bool = False,
    limit_s: float | None = None,
) -> list[NcuPlan]:
    """Plan the runs: one for each requested phase that nsys captured, else one for all.

    ``limit_s``: time limit of one run; a plan that cannot keep it has a note.

    ``own_program``: the user's own program need not have the ranges of the built-in workload, so that without a
    capture ``include=auto`` profiles everywhere.
    """
    include = _include(config)
    if own_program and include == AUTO and not any(captured.tables):
        include = None
    groups = phase_groups(include, captured, per_phase=config.selection.per_phase)
    return [_make_plan(config, capabilities, group, top_n, limit_s) for group in groups]


def _make_plan(
    config: NcuConfig, capabilities: NcuCapabilities, group: PhaseGroup, top_n: int, limit_s: float | None
) -> NcuPlan:
    cli = config.ncu_cli
    wanted = metric_list(cli.metrics)
    sections = accept_sections(cli.sections, capabilities.sections)
    metrics = None
    if wanted:
        all_chips = partial(known_metrics, capabilities.executable, capabilities.default_chips)
        metrics = accept_metrics(wanted, _available_metrics(config, capabilities), all_chips)
    warnings = [*sections.warnings, *(metrics.warnings if metrics else []), *group.warnings]
    if cli.sections and not sections.names and not (metrics and metrics.names) and not cli.set:
        raise ConfigError(
            "none of pipeline.ncu.ncu_cli.sections exists in this ncu",
            hint="list them with: ncu --list-sections",
            key="pipeline.ncu.ncu_cli.sections",
        )
    merged = config.selection.per_phase is None and len(group.tables) > 1
    targets = _targets(config, group.tables, top_n, per_phase=merged)
    names = [kernel.name for table in group.tables.values() for kernel in table]
    regex = config.selection.kernel_regex or kernel_filter(
        [target.name for target in targets], names, name_base=cli.kernel_name_base
    )
    set_name = accept_set(cli.set, capabilities.sets)
    names_collected = tuple(metrics.names) if metrics else ()
    filter_mode, count = _launch_limits(
        config, capabilities, len(targets), regex, phases=len(group.tables) if merged else 1
    )
    passes = estimated_passes(set_name, sections.names, names_collected)
    cost = _cost_estimate(targets, passes, filter_mode, count, cli.replay_mode)
    notes = list(metrics.notes) if metrics else []
    forecast = None
    if cli.replay_mode in (None, "kernel") and not cli.launch_skip:
        forecast = make_forecast(targets, passes, filter_mode, count)
    if forecast is not None:
        cost += f": {forecast.text()}"
        if limit_s is not None and forecast.least_s > limit_s:
            notes.append(forecast.too_long(limit_s))
    for target in targets:
        target.phases = target.phases or [label for label in group.tables if label]
    return NcuPlan(
        nvtx_include=group.include if config.gating_nvtx else (),
        kernel_regex=regex,
        targets=targets,
        set_name=set_name,
        sections=tuple(sections.names),
        metrics=names_collected,
        filter_mode=filter_mode,
        launch_count=count,
        cost=f"{group.phase}: {cost}" if group.phase else cost,
        warnings=warnings,
        notes=notes,
        export_sections=_export_sections(set_name, sections.names, capabilities),
        phase=group.phase,
    )


def _available_metrics(config: NcuConfig, capabilities: NcuCapabilities) -> frozenset[str] | None:
    """Return the metrics of this machine's GPU, else of the preset's chips, else of any; ``None``: unknown."""
    own = device_metrics(capabilities.executable) if nvidia_driver() else frozenset()
    if own:
        return own
    chips = tuple(chip for chip in config.chips if chip in capabilities.chips)
    if config.chips and not chips:
        return None  # a chip newer than this ncu: its metrics are unknown
    return known_metrics(capabilities.executable, chips or capabilities.default_chips) or None


def _targets(config: NcuConfig, tables: Tables, top_n: int, *, per_phase: bool) -> list[Target]:
    if config.selection.kernel_regex:
        return []
    return select_targets(tables, top_n=top_n, until_share=config.selection.until_share, per_phase=per_phase)


def _export_sections(
    set_name: str | None, sections: Sequence[str], capabilities: NcuCapabilities
) -> tuple[str, ...]:
    """Return the sections that get a file of their own: those configured, and those of sets for the roofline."""
    added = _SET_SECTIONS.get(set_name or "", ()) if set_name or not sections else ()
    return tuple(dict.fromkeys([*sections, *(name for name in added if name in capabilities.sections)]))


def _launch_limits(
    config: NcuConfig, capabilities: NcuCapabilities, targets: int, regex: str | None, *, phases: int
) -> tuple[str | None, int | None]:
    """Limit the launches of a run: a workload launches its kernels thousands of times.

    ncu counts over the whole program, so a run of several ``phases`` has launches for each of them.
    """
    cli = config.ncu_cli
    if cli.filter_mode or cli.launch_count is not None:
        return cli.filter_mode, cli.launch_count
    if capabilities.per_launch_config:
        return "per-launch-config", _PER_CONFIGURATION * phases
    return None, targets * _WITHOUT_COUNTING if regex and targets else _UNFILTERED


@dataclass(frozen=True, slots=True)
class Forecast:
    """How much one run replays, by the launches and times that nsys captured."""

    least_launches: int
    """With one launch configuration per kernel: how many there are is not known before."""
    most_launches: int
    passes: int
    least_s: float
    """Kernel time of the fewest replays. Saving and restoring memory, and ncu itself, come on top."""

    def text(self) -> str:
        """Return launches, replays and the least time."""
        launches, replays = (
            f"{low:,}" if low == high else f"{low:,} to {high:,}"
            for low, high in (
                (self.least_launches, self.most_launches),
                (self.least_launches * self.passes, self.most_launches * self.passes),
            )
        )
        return (
            f"{launches} launches, {replays} replays, at least {units.seconds(self.least_s)} of kernel time; saving and "
            "restoring memory for each replay comes on top"
        )

    def too_long(self, limit_s: float) -> str:
        """Say that a time limit cannot be kept, and what would fit."""
        fitting = int(limit_s / self.least_s * self.passes)
        basic = estimated_passes("basic", (), ())
        preset = " with pipeline.ncu.ncu_cli.set=basic" if fitting >= basic else ""
        what = (
            f"collect less{preset} ({fitting} passes fit)"
            if fitting
            else "profile fewer kernels (run.top_n_kernels)"
        )
        return (
            f"the replays take at least {units.seconds(self.least_s)} of kernel time, more than the time limit of "
            f"{units.seconds(limit_s)}: {what}, or raise pipeline.ncu.timeout_s"
        )


def make_forecast(
    targets: Sequence[Target], passes: int, filter_mode: str | None, count: int | None
) -> Forecast | None:
    """Forecast one run of kernel replay; ``None`` where nsys captured no launches of the targets."""
    if not targets or any(target.launches < 1 or target.total_ns <= 0 for target in targets):
        return None
    every = sum(target.launches for target in targets)
    if filter_mode == "per-launch-config" and count is not None:
        least = {target.name: min(count, target.launches) for target in targets}
        least_s = sum(least[one.name] * one.total_ns / one.launches for one in targets) * passes / 1e9
        return Forecast(sum(least.values()), every, passes, least_s)
    profiled = every if count is None else min(count, every)
    # Which of them come first is not known: the shortest are the least.
    left, least_ns = profiled, 0.0
    for target in sorted(targets, key=lambda one: one.total_ns / one.launches):
        taken = min(left, target.launches)
        least_ns += taken * target.total_ns / target.launches
        left -= taken
    return Forecast(profiled, profiled, passes, least_ns * passes / 1e9)


def _cost_estimate(
    targets: list[Target],
    passes: int,
    filter_mode: str | None,
    count: int | None,
    replay_mode: str | None,
) -> str:
    what = f"{len(targets)} kernels" if targets else "all kernels (no filter)"
    covered = sum(target.share_ratio for target in targets)
    share = (
        f" ({min(1.0, covered):.0%} of kernel time)" if targets and not any(t.phases for t in targets) else ""
    )
    limit = ""
    if count is not None:
        limit = f", {count} launches" + (
            " of each configuration" if filter_mode == "per-launch-config" else " at most"
        )
    if replay_mode in ("application", "app-range"):
        return f"{what}{share}{limit}, in about {passes} runs of the program"
    return f"{what}{share}{limit}, each replayed about {passes} times, in one run of the program"
