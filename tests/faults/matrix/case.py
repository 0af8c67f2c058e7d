"""One fault: how to make it, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

QUICK = (
    "model=llama_tiny",
    "infer.max_new_tokens=3",
    "infer.warmup_rounds=0",
    "run.repeats=1",
    "dataset.synthetic_count=1",
    "dataset.synthetic_tokens=8",
    "hardware.probe=false",
)
"""The smallest run there is."""
STATIC_ONLY = (*QUICK, "pipeline.torch_profiler.enable=false")

Arguments = Callable[[Path], list[str]]


@dataclass(frozen=True, slots=True)
class Case:
    """A fault."""

    group: str
    name: str
    arguments: Arguments
    """Make the fault's files in the folder; return the command line."""
    exit_code: int
    says: tuple[str, ...] = ()
    """Words that must stand in what is printed."""
    stages: Mapping[str, str] = field(default_factory=dict)
    """Stage → status in the manifest of ``<folder>/run``."""
    writes_nothing: bool = False
    """Nothing may be left in ``<folder>/run``: the fault was found before any work."""
    env: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False
    """Takes seconds, or needs a process of its own: on demand only."""
    check: Callable[[Path], None] | None = None

    @property
    def id(self) -> str:
        """Name in tables."""
        return f"{self.group}: {self.name}"


def fixed(*arguments: str) -> Arguments:
    """Return a command line that needs no files; ``{run}`` is the run directory, ``{folder}`` the case's folder."""

    def build(folder: Path) -> list[str]:
        return [
            part.replace("{run}", str(folder / "run")).replace("{folder}", str(folder)) for part in arguments
        ]

    return build


def run_with(*overrides: str) -> Arguments:
    """Return ``run`` of the smallest workload with these overrides."""
    return fixed("run", *QUICK, *overrides, "artifacts.runs_dir={run}")
