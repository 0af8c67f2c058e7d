"""What a stage is, and how stages are found.

A stage is one class, registered under the entry-point group ``llm_perf_opt.stages``; the built-in ones
register the same way. Importing a stage module must stay cheap: heavy libraries are imported in ``run``.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar, cast

from llm_perf_opt.errors import ConfigError, ToolError

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig
    from llm_perf_opt.profiling.artifacts import Artifacts
    from llm_perf_opt.progress import Progress

ENTRY_POINT_GROUP = "llm_perf_opt.stages"

Severity = Literal["error", "skip", "degraded"]
Status = Literal["ok", "skipped", "failed", "degraded"]


@dataclass
class StageConfig:
    """Configuration every stage has; a stage's own dataclass derives from it."""

    enable: bool = False
    """Whether the stage runs."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something ``check`` found before any work started."""

    severity: Severity
    """``error`` stops the run (exit 2), ``skip`` leaves the stage out, ``degraded`` runs it with less."""
    message: str
    fix: str
    key: str | None = None
    """Configuration key at fault, if any."""


@dataclass(slots=True)
class StageResult:
    """What became of a stage."""

    status: Status
    reason: str | None = None
    fix: str | None = None
    artifacts: list[Path] = field(default_factory=list)
    exit_codes: dict[str, int | None] = field(default_factory=dict)
    """Command label → exit code of every process the stage started (``None``: ended by a signal or limit)."""
    seconds: float | None = None
    """Filled in by the orchestrator."""


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
    """Place in the pipeline: static 10, torch profiler 20, direct inference 25, nsys 30, ncu 40."""
    title: ClassVar[str]
    """A few words for progress and reports."""
    config_type: ClassVar[type[StageConfig]]

    @abstractmethod
    def check(self, context: StageContext) -> list[Problem]:
        """Find what would go wrong. Runs for every enabled stage before any work; cheap, writes nothing."""

    @abstractmethod
    def plan(self, context: StageContext) -> list[str]:
        """Say what would be run and written, one line each, with exact commands and files; writes nothing."""

    @abstractmethod
    def run(self, context: StageContext) -> StageResult:
        """Do the work. A raised error is recorded by the orchestrator and does not stop other stages."""


@functools.cache
def stage_types() -> dict[str, type[Stage]]:
    """Return every registered stage by name, in pipeline order."""
    found: dict[str, type[Stage]] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            kind = cast("type[Stage]", point.load())
        except (ImportError, AttributeError) as error:
            package = point.dist.name if point.dist is not None else "an installed package"
            raise ToolError(
                f"the stage '{point.name}' of {package} cannot be loaded: {error}",
                hint=f"update or uninstall {package}",
            ) from error
        if kind.name != point.name:
            raise ConfigError(
                f"stage entry point '{point.name}' loads a class named '{kind.name}'",
                hint="use the same name for both",
            )
        found[point.name] = kind
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


def enabled_stages(config: AppConfig, names: Iterable[str] | None = None) -> list[Stage]:
    """Return an instance of every stage that is switched on, in pipeline order."""
    wanted = set(names) if names is not None else None
    return [
        kind()
        for name, kind in stage_types().items()
        if config.pipeline[name].enable and (wanted is None or name in wanted)
    ]
