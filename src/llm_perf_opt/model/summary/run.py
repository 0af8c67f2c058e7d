"""Which run this is, what became of its stages, and what they say in their own words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.model.limits import SummedSeconds

RunStatus = Literal["ok", "failed", "interrupted"]
StageStatus = Literal["ok", "skipped", "failed", "degraded"]


@dataclass(slots=True)
class RunInfo:
    """Which run this is."""

    id: str
    """Name of the run directory."""
    status: RunStatus
    """``failed`` when any stage failed."""
    started: str
    """ISO 8601 with time zone."""
    seconds: SummedSeconds | None
    """Wall-clock duration of the whole run."""
    command: list[str]
    """The command line, as a list of arguments."""


@dataclass(slots=True)
class StageInfo:
    """What became of one stage."""

    status: StageStatus
    """``skipped`` and ``degraded`` come with a reason; ``failed`` too."""
    reason: str | None = None
    """Why it is not ``ok``, and how to fix it."""
    seconds: SummedSeconds | None = None
    """How long it took."""
    artifacts: list[str] = field(default_factory=list)
    """Files it left, relative to the run directory."""


@dataclass(slots=True)
class SectionTable:
    """A table of a section; every cell is text, units in the column's name or in the cell."""

    columns: list[str]
    rows: list[list[str]]
    title: str = ""


@dataclass(slots=True)
class Section:
    """A part of the report that a stage brings along. Plain text: renderers escape it."""

    stage: str
    """Who says it."""
    title: str
    paragraphs: list[str] = field(default_factory=list)
    tables: list[SectionTable] = field(default_factory=list)
