"""A run directory that holds an earlier run: its files are moved aside, never read or mixed.

Our files are the documents at the root (:data:`layout.ROOT_FILES`), the folders of stages, their scratch, and what the
earlier manifest lists besides. They go to ``<run>/earlier-<start of that run>/``, which is then a run directory of its own. Other
files at the root are not moved.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from llm_perf_opt.core import layout
from llm_perf_opt.core.artifacts import reserve_directory
from llm_perf_opt.core.errors import ConfigError, InputError, ToolError
from llm_perf_opt.core.files import (
    RUN_DIRECTORY,
    atomic_write_text,
    explain_os_errors,
    is_there,
    other_directory,
    read_document,
)
from llm_perf_opt.core.stage import StageConfig, stage_types
from llm_perf_opt.runs.lock import hold
from llm_perf_opt.runs.manifest import Manifest, read_manifest

_UNFINISHED = ("running", "failed")
_SOME_TIME = "undated"


@dataclass(slots=True)
class Earlier:
    """An earlier run in a directory."""

    root: Path
    manifest: Manifest | None
    """``None``: there is none that can be read (the output of ``ingest``, or a damaged file)."""
    moved_to: Path | None = None
    continued: list[Path] = field(default_factory=list)

    def unfinished(self, stage: str) -> bool:
        """Whether a stage of that run started and did not finish."""
        record = self.manifest.stages.get(stage) if self.manifest is not None else None
        return record is not None and record.status in _UNFINISHED

    def set_aside(self, continued: Collection[Path] = ()) -> None:
        """Move everything of that run to a separate folder, except files that this run continues to use."""
        self.continued = sorted(path for path in continued if path.is_file())
        target = reserve_directory(self.root / f"{layout.EARLIER}{self._when()}")
        for path in self._items():
            with explain_os_errors(path):
                _move(path, target / path.relative_to(self.root), self.continued)
        self.moved_to = target

    def note(self) -> str:
        """Describe what was done, for the log and the report."""
        model = self.manifest.facts.get("model") if self.manifest is not None else None
        status = f", status {self.manifest.status}" if self.manifest is not None else ""
        what = f"an earlier run ({model or 'model not known'}{status})"
        where = self.moved_to.name if self.moved_to is not None else "another folder"
        text = f"This directory contained {what}: its files were moved to {where}/, and none of them is in this report"
        if self.continued:
            names = ", ".join(str(path.relative_to(self.root)) for path in self.continued)
            text += f", except what it had finished of {names}, which this run continues"
        return f"{text}."

    def _when(self) -> str:
        """Return the start of that run as directory names have it."""
        began: datetime | None = None
        if self.manifest is not None:
            with contextlib.suppress(ValueError):
                began = datetime.fromisoformat(self.manifest.started)
        if began is None:
            path = next(self.root / name for name in _MARKS if (self.root / name).exists())
            with contextlib.suppress(ValueError, OverflowError, OSError):  # an invalid year
                began = datetime.fromtimestamp(path.stat().st_mtime)
        return began.strftime("%Y%m%d-%H%M%S") if began is not None else _SOME_TIME

    def _items(self) -> list[Path]:
        """Return the files of that run, the manifest last, so that an interrupted move is detected."""
        named = self.manifest.stages if self.manifest is not None else {}
        known = (layout.PROGRAM, layout.RANKS, *stage_types(), *named)
        folders = [name for name in dict.fromkeys(known) if _is_plain(name)]
        items = [self.root / name for name in folders]
        # Not the whole of tmp/: if a run directory is also a working directory, other runs are in it.
        items += [self.root / layout.SCRATCH / name for name in (*folders, layout.WORKLOAD)]
        items += self._listed_elsewhere(folders)
        items += [self.root / name for name in layout.ROOT_FILES]
        return [path for path in items if path.is_symlink() or path.exists()]

    def _listed_elsewhere(self, folders: Sequence[str]) -> list[Path]:
        """Return listed files outside of the stages' folders (a ``save_dir`` inside the run directory)."""
        if self.manifest is None:
            return []
        listed = [name for record in self.manifest.stages.values() for name in record.artifacts]
        found = []
        for name in dict.fromkeys((*listed, *self.manifest.files)):
            path = Path(name)
            inside = not path.is_absolute() and ".." not in path.parts and len(path.parts) > 1
            if inside and path.parts[0] not in folders and (self.root / path).is_file():
                found.append(self.root / path)
        return found


_MARKS = (layout.MANIFEST, layout.SUMMARY)
"""A directory with one of these holds a run, or what ``ingest`` made."""


def find_earlier(root: Path, stages: Sequence[str] = ()) -> Earlier | None:
    """Look for an earlier run; a stage's folder that no run wrote is rejected, because it would be mistaken for ours.

    ``stages``: those of this run, besides the registered ones.
    """
    if any((root / name).exists() for name in _MARKS):
        manifest = None
        with contextlib.suppress(InputError):
            manifest = read_manifest(root)
        return Earlier(root, manifest)
    known = dict.fromkeys((*stages, layout.RANKS, *stage_types()))
    strange = [name for name in known if _has_content(root / name)]
    if strange:
        raise ConfigError(
            f"{root} holds {', '.join(f'{name}/' for name in strange)}, which belongs to no listed run",
            hint=f"move these folders away, or choose {other_directory(RUN_DIRECTORY)}",
            key="artifacts.runs_dir",
            path=str(root),
        )
    return None


def _is_plain(name: str) -> bool:
    """Whether a name from a manifest is a folder of the run directory and nothing else."""
    return bool(name) and name not in (".", "..") and "/" not in name and not name.startswith(layout.EARLIER)


def _has_content(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _move(source: Path, target: Path, keep: Sequence[Path]) -> None:
    """Move a file or a folder; a folder with files to keep is emptied around them."""
    if source in keep:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink() or not any(path.is_relative_to(source) for path in keep):
        source.rename(target)
        return
    for path in sorted(source.iterdir()):
        _move(path, target / path.name, keep)


# ``tmp/stage1`` and ``tmp/stage2``, the locations of older releases: for one release they link to the last run.
#
# A link if nothing or our own link is there; a note next to the old runs if there is a directory.


LOGGER = logging.getLogger("llm_perf_opt.run")
NOTE = "MOVED.txt"
_STAGES = {"stage1": ("static_analysis", "torch_profiler"), "stage2": ("nsys", "ncu")}
"""Old directory → the stages whose results were there."""


def link_old_location(run_dir: Path, pipeline: Mapping[str, StageConfig]) -> None:
    """Link the old locations to a run in ``tmp/runs/``; runs in other directories have no old location."""
    runs = run_dir.parent
    if runs.name != "runs" or runs.parent.name != "tmp":
        return
    for name, stages in _STAGES.items():
        if not any(stage in pipeline and pipeline[stage].enable for stage in stages):
            continue
        old = runs.parent / name
        try:
            _link(old, run_dir) if old.is_symlink() or not old.exists() else _write_note(old, run_dir)
        except (OSError, ToolError) as error:  # a convenience: it must not fail the run
            LOGGER.debug("%s does not lead to %s: %s", old, run_dir, error)


def _link(old: Path, run_dir: Path) -> None:
    """Replace the link atomically: another run may do the same."""
    fresh = old.with_name(f".{old.name}.{run_dir.name}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(run_dir, old.parent), target_is_directory=True)
    fresh.replace(old)


def _write_note(old: Path, run_dir: Path) -> None:
    if old.is_dir():
        text = f"New runs are in {run_dir.parent}/<time>/, all stages together.\nThe last one: {run_dir}\n"
        atomic_write_text(old / NOTE, text)


# The directory that ``ingest`` writes to: one writer at a time, and never the directory of a run.


_VERB = "ingest"


@contextlib.contextmanager
def lock_output(out: Path) -> Iterator[None]:
    """Lock ``out`` while the block writes there; files of an earlier ``ingest`` are overwritten, a run directory is rejected.

    A directory that is made here and stays empty, because an input cannot be read, is removed again.
    """
    made = not is_there(out)
    with explain_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    try:
        with hold(out, elsewhere="--out DIR"):
            _refuse_run(out)
            yield
    finally:
        if made:
            with contextlib.suppress(OSError):  # not empty: it holds the result
                out.rmdir()


def _refuse_run(out: Path) -> None:
    """Reject a run directory: its summary and reports would be replaced while its other files stay."""
    if not is_there(out / layout.MANIFEST) and not _is_summary_of_run(out / layout.SUMMARY):
        return
    raise ConfigError(
        f"--out {out} contains a run, whose summary and reports would be overwritten",
        hint="give another directory: --out DIR",
        path=str(out),
    )


def _is_summary_of_run(path: Path) -> bool:
    """Whether a summary was written by something other than ``ingest``; without an origin it was not."""
    try:
        document: Any = json.loads(read_document(path))
        command = document["run"]["command"]
        return isinstance(command, list) and len(command) > 1 and command[1] != _VERB
    except (InputError, OSError, ValueError, RecursionError, LookupError, TypeError):
        return False
