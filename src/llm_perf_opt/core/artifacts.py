"""The run directory: one root, one folder per stage, scratch under ``tmp/``.

::

    <run>/<stage>/          final artifacts of a stage
    <run>/tmp/<stage>/      its scratch; tmp/workload/ for the profiled program
    <run>/*.md, *.json      consolidated documents

Every path handed out is absolute, and directories are created only on request, so that a
disabled stage leaves nothing behind.
"""

from __future__ import annotations

import difflib
import logging
import os
from datetime import datetime
from pathlib import Path

from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.core.files import RUN_DIRECTORY, explain_os_errors, other_directory
from llm_perf_opt.core.stage import stage_types

LOGGER = logging.getLogger("llm_perf_opt.artifacts")


class Artifacts:
    """Provides absolute paths below one run directory."""

    def __init__(self, root: Path | str) -> None:
        self._root = Path()
        self.set_root(root)

    @classmethod
    def from_root(cls, root: Path | str) -> Artifacts:
        """Use a directory as the run directory, creating it."""
        return cls(root)

    @classmethod
    def for_run(cls, root: Path | str) -> Artifacts:
        """Same as :meth:`from_root`; a more descriptive name."""
        return cls(root)

    @property
    def root(self) -> Path:
        """The run directory, absolute."""
        return self._root

    def set_root(self, root: Path | str) -> None:
        """Resolve and create the run directory."""
        resolved = Path(root).expanduser().resolve()
        with explain_os_errors(resolved, elsewhere=RUN_DIRECTORY):
            resolved.mkdir(parents=True, exist_ok=True)
        self._root = resolved

    def out_dir(self, stage: str) -> Path:
        """Return (and create) the directory of a stage's final artifacts."""
        self._check(stage, (*stage_types(), layout.PROGRAM))
        return self._make_directory(self._root / stage)

    def tmp_dir(self, stage: str) -> Path:
        """Return (and create) the scratch directory of a stage, or of the inner ``workload``."""
        self._check(stage, (*stage_types(), layout.WORKLOAD))
        return self._make_directory(self._root / layout.SCRATCH / stage)

    def path(self, name: str) -> Path:
        """Return a path below the root, creating its parent; a path that leaves the root is an error."""
        meant = Path(os.path.normpath(self._root / name))
        if not meant.is_relative_to(self._root) or meant == self._root:
            raise ConfigError(
                f"'{name}' is not inside the run directory {self._root}",
                hint="give a relative path without '..'",
            )
        target = self._inside(meant).resolve()
        self._make_directory(target.parent)
        return target

    def relative(self, path: Path) -> str:
        """Show a path the way reports and the manifest do: relative to the root where it is below it."""
        path = Path(path)
        return str(path.relative_to(self._root)) if path.is_relative_to(self._root) else str(path)

    def files_below(self, stage: str) -> list[Path]:
        """Return every file in a stage's directory, sorted; empty without a directory."""
        folder = self._root / stage
        return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []

    @staticmethod
    def _check(stage: str, known: tuple[str, ...]) -> None:
        if stage not in known:
            near = difflib.get_close_matches(stage, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"stages: {', '.join(known)}"
            raise ConfigError(f"unknown stage '{stage}'", hint=hint, stage=stage)

    def _make_directory(self, directory: Path) -> Path:
        """Create a directory; reject one that a link leads out of the run directory."""
        self._inside(directory)
        with explain_os_errors(directory, elsewhere=RUN_DIRECTORY):
            directory.mkdir(parents=True, exist_ok=True)
        return directory

    def _inside(self, path: Path) -> Path:
        """Return the path; reject one that a link leads out of the run directory, which may be an attack."""
        if not path.resolve().is_relative_to(self._root):
            raise ToolError(
                f"{path} leads out of the run directory, and is not written through",
                hint=f"remove the link, or choose {other_directory(RUN_DIRECTORY)}",
                path=str(path),
            )
        return path


class PlannedArtifacts(Artifacts):
    """The paths of a run that is only planned: nothing is created."""

    def set_root(self, root: Path | str) -> None:
        """Resolve the run directory."""
        self._root = Path(root).expanduser().resolve()

    def _make_directory(self, directory: Path) -> Path:
        return directory


def create_stage2_root(base_dir: Path | str = "tmp/stage2") -> Artifacts:
    """Deprecated: make a time-stamped run directory below ``base_dir``."""
    LOGGER.warning("create_stage2_root() is deprecated: use Artifacts.for_run(root)")
    return Artifacts.for_run(reserve_directory(Path(base_dir) / datetime.now().strftime("%Y%m%d-%H%M%S")))


def reserve_directory(wanted: Path) -> Path:
    """Create ``wanted`` or, if it was just created by another process, the first free ``wanted-2``, ``wanted-3``, …"""
    wanted = wanted.expanduser().absolute()
    with explain_os_errors(wanted, elsewhere=RUN_DIRECTORY):
        wanted.parent.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            candidate = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
            try:
                candidate.mkdir()
            except FileExistsError:
                number += 1
            else:
                return candidate
