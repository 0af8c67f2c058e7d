"""A run directory that holds an earlier run: what is the earlier run's is moved aside, never read, never mixed in.

Ours are the documents at the root (:data:`layout.ROOT_FILES`), the folders of stages, their scratch, and what the
earlier manifest lists besides. They go to ``<run>/earlier-<start of that run>/``, which is then a run directory of its own. What
somebody else put at the root stays where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.files import explain_os_errors
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.core.run_directory.artifacts import reserve_directory
from llm_perf_opt.core.stage import stage_types
from llm_perf_opt.runs.records.manifest import Manifest, read_manifest

_UNFINISHED = ("running", "failed")
_SOME_TIME = "undated"


@dataclass(slots=True)
class Earlier:
    """What an earlier run left in a directory."""

    root: Path
    manifest: Manifest | None
    """``None``: there is none that can be read (the output of ``ingest``, or a damaged file)."""
    moved_to: Path | None = None
    continued: list[Path] = field(default_factory=list)

    def unfinished(self, stage: str) -> bool:
        """Whether a stage of that run began and did not come to its end."""
        record = self.manifest.stages.get(stage) if self.manifest is not None else None
        return record is not None and record.status in _UNFINISHED

    def set_aside(self, continued: Collection[Path] = ()) -> None:
        """Move everything of that run to a folder of its own, except files this run goes on with."""
        self.continued = sorted(path for path in continued if path.is_file())
        target = reserve_directory(self.root / f"{layout.EARLIER}{self._when()}")
        for path in self._items():
            with explain_os_errors(path):
                _move(path, target / path.relative_to(self.root), self.continued)
        self.moved_to = target

    def note(self) -> str:
        """Say what was done, for the log and the report."""
        model = self.manifest.facts.get("model") if self.manifest is not None else None
        status = f", status {self.manifest.status}" if self.manifest is not None else ""
        what = f"an earlier run ({model or 'model not known'}{status})"
        where = self.moved_to.name if self.moved_to is not None else "another folder"
        text = f"This directory held {what}: its files were moved to {where}/, and none of them is in this report"
        if self.continued:
            names = ", ".join(str(path.relative_to(self.root)) for path in self.continued)
            text += f", except what it had finished of {names}, which this run goes on with"
        return f"{text}."

    def _when(self) -> str:
        """Return the start of that run as directory names have it."""
        began: datetime | None = None
        if self.manifest is not None:
            with contextlib.suppress(ValueError):
                began = datetime.fromisoformat(self.manifest.started)
        if began is None:
            path = next(self.root / name for name in _MARKS if (self.root / name).exists())
            with contextlib.suppress(ValueError, OverflowError, OSError):  # a year that no calendar has
                began = datetime.fromtimestamp(path.stat().st_mtime)
        return began.strftime("%Y%m%d-%H%M%S") if began is not None else _SOME_TIME

    def _items(self) -> list[Path]:
        """Return what is that run's, the manifest last: until then an interrupted move is recognised."""
        named = self.manifest.stages if self.manifest is not None else {}
        known = (layout.PROGRAM, layout.RANKS, *stage_types(), *named)
        folders = [name for name in dict.fromkeys(known) if _is_plain(name)]
        items = [self.root / name for name in folders]
        # Not the whole of tmp/: where a run directory is also somebody's working directory, other runs lie there.
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
    """Look for an earlier run; a stage's folder that no run wrote is refused, because it would be taken for ours.

    ``stages``: those of this run, besides the registered ones.
    """
    if any((root / name).exists() for name in _MARKS):
        manifest = None
        with contextlib.suppress(InputError):
            manifest = read_manifest(root)
        return Earlier(root, manifest)
    known = dict.fromkeys((*stages, layout.RANKS, *stage_types()))
    strange = [name for name in known if _holds_anything(root / name)]
    if strange:
        raise ConfigError(
            f"{root} holds {', '.join(f'{name}/' for name in strange)}, which no run listed as its own",
            hint="choose another directory (artifacts.runs_dir=DIR), or move these folders away",
            key="artifacts.runs_dir",
            path=str(root),
        )
    return None


def _is_plain(name: str) -> bool:
    """Whether a name from a manifest is a folder of the run directory and nothing else."""
    return bool(name) and name not in (".", "..") and "/" not in name and not name.startswith(layout.EARLIER)


def _holds_anything(folder: Path) -> bool:
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
