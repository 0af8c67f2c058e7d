"""``pipeline.torch_profiler.*``: the keys, and what they mean on this machine and in this mode."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from llm_perf_opt.core.stage import Problem, StageConfig
from llm_perf_opt.workloads.outputs.config import OutputConfig

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig

NAME = "torch_profiler"
PRIVATE = "privateuse1"
"""torch's name for the activity of a device from outside its source tree."""
_TRACED = ("cuda", "xpu", "mtia")
_UNTRACED = ("mps",)


class Activity(StrEnum):
    """What the profiler watches."""

    cpu = "cpu"
    cuda = "cuda"
    """The accelerator of the run, whatever its kind. Dropped, with a note, where there is none or torch cannot trace it."""
    accelerator = "accelerator"
    """The same, by its general name."""


class RankBy(StrEnum):
    """What operators are ranked by."""

    auto = "auto"
    """Self device time where the trace has a device, else self host time."""
    self_device = "self_device"
    total_device = "total_device"
    self_cpu = "self_cpu"
    total_cpu = "total_cpu"
    calls = "calls"


@dataclass
class TorchProfilerConfig(StageConfig):
    """``pipeline.torch_profiler.*``."""

    activities: list[Activity] = field(default_factory=lambda: [Activity.cpu, Activity.cuda])
    record_shapes: bool = False
    """Input shapes of every operator in the trace."""
    profile_memory: bool = False
    """A further pass with the allocators watched: ``memory.json``."""
    with_stack: bool = False
    """Python frames in the trace; large and slow."""
    with_flops: bool = False
    """torch's own FLOP count per operator, in ``profile.json``; records shapes too."""
    group_by_input_shape: bool = False
    """Operators grouped by input shapes, in ``profile.json``; records shapes too."""
    record_modules: bool = True
    """One annotation per module call in the trace, so that time can be traced to modules."""
    start_up_passes: int = 0
    """Short passes under the profiler that are thrown away first. Its own start-up is always kept out of the trace;
    these also warm what only runs under a profiler."""
    active_passes: int = 1
    """Profiled passes in the trace."""
    rep_max_new_tokens: int | None = None
    """Decode length of the profiled pass; null: ``run.representative_max_new_tokens``, else ``infer.max_new_tokens``."""
    export_trace: bool = True
    """Keep the trace for Perfetto. Without it only the operators remain, and no timeline or kernels."""
    rank_by: RankBy = RankBy.auto
    max_operators: int | None = 200
    """Operators of each phase that are kept; null: all."""
    output: OutputConfig = field(default_factory=OutputConfig)


def effective_config(config: TorchProfilerConfig, app: AppConfig) -> TorchProfilerConfig:
    """Return the stage's configuration with ``run.mode`` applied: ``light`` leaves out what is costly."""
    if app.run.mode.value != "light":
        return config
    return replace(
        config,
        record_shapes=False,
        with_stack=False,
        with_flops=False,
        group_by_input_shape=False,
        profile_memory=False,
        record_modules=False,
        active_passes=1,
    )


def usable_activities(config: TorchProfilerConfig, app: AppConfig) -> tuple[tuple[str, ...], list[str]]:
    """Return what can be recorded on the run's device, by torch's names, and a note on what cannot."""
    wanted = dict.fromkeys(activity.value for activity in config.activities)
    kind = app.resolved_device.partition(":")[0]
    names: dict[str, None] = {}
    notes = []
    for name in wanted:
        if name == Activity.cpu.value:
            names[name] = None
        elif kind == "cpu":
            notes.append(f"{name} activity is not recorded: the run is on {app.resolved_device}")
        elif kind in _UNTRACED:
            notes.append(f"{name} activity is not recorded: torch traces no kernels of {kind}")
        else:
            names[kind if kind in _TRACED else PRIVATE] = None
    return tuple(names), notes


def representative_tokens(config: TorchProfilerConfig, app: AppConfig) -> int:
    """Return the decode length of the profiled pass."""
    for value in (config.rep_max_new_tokens, app.run.representative_max_new_tokens):
        if value is not None:
            return value
    return app.infer.max_new_tokens


def out_of_range(config: TorchProfilerConfig) -> list[Problem]:
    """Return a problem for every number that is too small."""
    least = {"start_up_passes": 0, "active_passes": 1, "rep_max_new_tokens": 1, "max_operators": 1}
    found = []
    for name, minimum in least.items():
        value = getattr(config, name)
        if value is not None and value < minimum:
            key = f"pipeline.{NAME}.{name}"
            found.append(Problem("error", f"{key}={value} is out of range", f"use at least {minimum}", key))
    return found


def useless_activities(config: TorchProfilerConfig, app: AppConfig) -> list[Problem]:
    """Return a problem if nothing can be recorded."""
    kept, notes = usable_activities(config, app)
    if kept:
        return []
    key = f"pipeline.{NAME}.activities"
    why = notes[0] if notes else "the list is empty"
    return [Problem("error", f"{key} leaves nothing to record: {why}", f"use {key}=[cpu]", key)]
