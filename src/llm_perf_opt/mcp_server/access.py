"""What a server may read and write: root directories, run directories below them, and the directory for output."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import ConfigError, InputError, nearest_key

_MOST_FOLDERS = 20_000
"""Directories that a search for runs looks into."""
_MOST_DEPTH = 6
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Access:
    """The directories of one server, all resolved."""

    roots: tuple[Path, ...]
    output_root: Path | None = None
    allow_run: bool = False

    @classmethod
    def of(cls, roots: Sequence[Path], output_root: Path | None = None, *, allow_run: bool = False) -> Access:
        """Resolve the directories; one that is not there is a :class:`ConfigError`. Output may be read, too."""
        readable = [_existing(root, "--root") for root in roots]
        output = None if output_root is None else _existing(output_root, "--output-root")
        if allow_run and output is None:
            raise ConfigError("--allow-run needs --output-root", hint="name a directory for new runs")
        if output is not None and not any(output.is_relative_to(root) for root in readable):
            readable.append(output)
        return cls(tuple(dict.fromkeys(readable)), output, allow_run)

    def path(self, text: str) -> Path:
        """Return an existing path below a root. Links are followed first, and nothing outside is looked at."""
        given = Path(text)
        candidates = [given] if given.is_absolute() else [root / given for root in self.roots]
        inside = [path for one in candidates if (path := self._inside(one)) is not None]
        if not inside:
            raise ConfigError(
                f"'{text}' is outside of the root directories of this server",
                hint=f"use a path below {' or '.join(map(str, self.roots))}; list_runs has the runs there",
            )
        for path in inside:
            if path.exists():
                return path
        names = [one.name for one in inside[0].parent.iterdir()] if inside[0].parent.is_dir() else []
        near = nearest_key(inside[0].name, names)
        raise InputError(
            f"'{text}' does not exist", hint=f"did you mean {near}?" if near else "list_runs has the runs"
        )

    def run(self, text: str) -> Path:
        """Return the ``summary.json`` of a run that is below a root."""
        path = self.path(text)
        return self.path(str(path / layout.SUMMARY)) if path.is_dir() else path

    def new_output(self, name: str) -> Path:
        """Return a directory for output that does not exist yet."""
        if self.output_root is None:
            raise ConfigError("this server writes nothing", hint="start it with --output-root DIR")
        if _NAME.fullmatch(name) is None:
            raise ConfigError(
                f"'{name}' cannot be the name of a directory", hint="letters, digits, dots, dashes"
            )
        path = self.output_root / name
        if os.path.lexists(path):
            raise ConfigError(f"{path} exists", hint="choose another name; nothing is overwritten")
        return path

    def summaries(self) -> list[Path]:
        """Return the ``summary.json`` files below the roots, the newest first."""
        found = {path: None for root in self.roots for path in _search(root)}
        return sorted(found, key=lambda path: (-path.stat().st_mtime_ns, str(path)))

    def _inside(self, path: Path) -> Path | None:
        try:
            real = path.resolve()
        except (OSError, RuntimeError, ValueError):  # a loop of links; a null character
            return None
        return real if any(real.is_relative_to(root) for root in self.roots) else None


def _existing(path: Path, option: str) -> Path:
    folder = path.expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(f"{option} {path} is not a directory", hint="create it first")
    return folder


def _search(root: Path) -> Iterator[Path]:
    """Yield summaries; directories of runs are not searched further, and links are not followed."""
    waiting, seen = [(root, 0)], 0
    while waiting and seen < _MOST_FOLDERS:
        folder, depth = waiting.pop()
        seen += 1
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        summary = next((one for one in entries if one.name == layout.SUMMARY), None)
        if summary is not None and summary.is_file(follow_symlinks=False):
            yield Path(summary.path)
            continue
        if depth < _MOST_DEPTH:
            waiting += [
                (Path(one.path), depth + 1)
                for one in entries
                if one.is_dir(follow_symlinks=False) and not one.name.startswith(".")
            ]
