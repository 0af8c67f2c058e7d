"""Base class of stages: one step of the pipeline, found by its entry point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeVar, cast

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.progress import Progress
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult, stage_types

C = TypeVar("C", bound=StageConfig)


@dataclass(frozen=True, slots=True)
class StageContext:
    """Everything a stage may use."""

    config: AppConfig
    artifacts: Artifacts
    progress: Progress
    overrides: tuple[str, ...] = ()
    """The user's own Hydra overrides, to carry over to an inner workload."""
    results: Mapping[str, StageResult] = field(default_factory=dict)
    """Results of the stages that ran before."""

    def stage_config(self, name: str, kind: type[C]) -> C:
        """Return ``pipeline.<name>`` as its dataclass."""
        value = self.config.pipeline[name]
        if not isinstance(value, kind):
            raise TypeError(f"pipeline.{name} is {type(value).__name__}, not {kind.__name__}")
        return value


class Stage(ABC):
    """One step of the pipeline. It writes only under ``out_dir(name)`` and ``tmp_dir(name | 'workload')``."""

    name: ClassVar[str]
    order: ClassVar[int]
    """Place in the pipeline: static 10, torch profiler 20, direct inference 25, telemetry 27, nsys 30, ncu 40."""
    title: ClassVar[str]
    """A few words for progress and reports."""
    config_type: ClassVar[type[StageConfig]]
    for_own_program: ClassVar[bool] = False
    """Whether it works on the program of ``pipeline.workload.command``; with one, every other stage is skipped."""
    has_pages: ClassVar[bool] = False
    """Whether pages or tables next to the report are made from its facts: ``report`` then reads its files again."""

    @abstractmethod
    def check(self, context: StageContext) -> list[Problem]:
        """Return problems. Runs for every enabled stage before any work; cheap, writes nothing."""

    @abstractmethod
    def plan(self, context: StageContext) -> list[str]:
        """Return what would be run and written, one line each, with exact commands and files; writes nothing."""

    @abstractmethod
    def run(self, context: StageContext) -> StageResult:
        """Do the work. A raised error is recorded by the orchestrator and does not stop other stages."""

    def continues(self, context: StageContext) -> list[Path]:
        """Name the files of an unfinished earlier run in the same directory that ``run`` continues from; default: none.

        Everything else of an earlier run is moved aside before the stages start.
        """
        return []

    def facts(self, run_dir: Path) -> Facts:
        """Read the files of ``run`` below ``run_dir / name``: the only input of summary and report.

        Called after the run, also after a failed one, and again by ``report``; from files alone, without the
        configuration, torch or the machine. Unreadable files give a note.
        """
        return Facts(stage=self.name)


def all_stages() -> dict[str, Stage]:
    """Return an instance of every registered stage by name, in pipeline order."""
    return {name: cast("type[Stage]", kind)() for name, kind in stage_types().items()}


def enabled_stages(config: AppConfig) -> list[Stage]:
    """Return an instance of every stage that is switched on, in pipeline order."""
    return [stage for name, stage in all_stages().items() if config.pipeline[name].enable]
