"""What the pipeline knows of any stage: its configuration, what it found, what became of it, and where it is found.

A stage is one class, registered under the entry-point group ``llm_perf_opt.stages``; the built-in ones
register the same way. Importing a stage module must stay cheap: heavy libraries are imported in ``run``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, cast

from llm_perf_opt.core.errors import ConfigError, ToolError

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
    of_machine: bool = False
    """Whether another machine may not have it: a job that is submitted to one is checked again there."""


@dataclass(slots=True)
class StageResult:
    """What became of a stage."""

    status: Status
    reason: str | None = None
    fix: str | None = None
    artifacts: list[Path] = field(default_factory=list)
    exit_codes: dict[str, int | None] = field(default_factory=dict)
    """Command label → exit code of every process the stage started (``None``: ended by a signal or limit)."""
    inputs: dict[str, Any] | None = None
    """The samples the stage really used (``inputs.yaml``); ``None`` when it used none."""
    seconds: float | None = None
    """Filled in by the orchestrator."""
    error: str | None = None
    """Code of the expected error that ended it (``input``, ``tool``), filled in by the orchestrator."""


class RegisteredStage(Protocol):
    """What a registered class says of itself; configuration and the run directory need no more than that."""

    name: ClassVar[str]
    order: ClassVar[int]
    title: ClassVar[str]
    config_type: ClassVar[type[StageConfig]]


@functools.cache
def stage_types() -> dict[str, type[RegisteredStage]]:
    """Return every registered stage by name, in pipeline order."""
    found: dict[str, type[RegisteredStage]] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            kind = cast("type[RegisteredStage]", point.load())
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
