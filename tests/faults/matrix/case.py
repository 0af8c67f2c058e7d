"""One fault: how to make it, and what must come of it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

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
NO_MODEL = (
    "pipeline.static_analysis.enable=false",
    "pipeline.torch_profiler.enable=false",
    "hardware.probe=false",
)
"""For runs about a program of their own."""

Arguments = Callable[[Path], list[str]]


@dataclass(frozen=True, slots=True)
class Running:
    """A case under way: its process and its folder."""

    process: subprocess.Popen[bytes]
    folder: Path


@dataclass(frozen=True, slots=True)
class Case:
    """A fault."""

    group: str
    name: str
    arguments: Arguments
    """Make the fault's files in the folder; return the command line."""
    exit_code: int | tuple[int, ...]
    """Several: the fault may come before or after something that decides it."""
    says: tuple[str, ...] = ()
    """Words that must stand in what is printed."""
    stages: Mapping[str, str] = field(default_factory=dict)
    """Stage → status in the manifest of ``<folder>/run``."""
    status: Literal["ok", "failed", "interrupted", "running"] | None = None
    """Of the run, in its manifest and (``running``: a killed run writes no more) in its summary."""
    writes_nothing: bool = False
    """Nothing may be left in ``<folder>/run``: the fault was found before any work."""
    env: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False
    """Takes seconds: on demand only."""
    check: Callable[[Path], None] | None = None
    around: Callable[[Path], contextlib.AbstractContextManager[object]] | None = None
    """What holds while the command runs (a lock, a mount), after its files were made."""
    during: Callable[[Running], None] | None = None
    """What is done to the running command (a signal)."""
    hook: str | None = None
    """Python that runs in the command's own process before it: a clock that jumps, a signal at a certain place."""

    @property
    def id(self) -> str:
        """Name in tables."""
        return f"{self.group}: {self.name}"

    @property
    def own_process(self) -> bool:
        """Whether the case needs a process of its own."""
        return self.slow or self.during is not None or self.hook is not None

    @property
    def exit_codes(self) -> tuple[int, ...]:
        """The exit codes that may be."""
        return self.exit_code if isinstance(self.exit_code, tuple) else (self.exit_code,)


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
