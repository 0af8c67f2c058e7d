"""The commit a run was started in, read from the files of the repository: git need not be there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

CI_VARIABLES = ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT", "BUILDKITE_COMMIT")
"""What CI systems call the commit they check out; asked where there is no repository."""
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MOST_BYTES = 16 << 20


def current_commit(directory: Path, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the commit of the repository around a directory, or the one CI names; ``None``: neither tells."""
    for folder in (directory, *directory.parents):
        marker = folder / ".git"
        try:
            if marker.exists():
                return _head(_git_directory(marker))
        except OSError:
            return None
    named = (environment.get(name, "").strip().lower() for name in CI_VARIABLES)
    return next((value for value in named if _COMMIT.fullmatch(value)), None)


def _git_directory(marker: Path) -> Path:
    """Return where the repository's files are; in a worktree and a submodule ``.git`` is a file that says so."""
    if marker.is_dir():
        return marker
    return marker.parent / _text(marker).removeprefix("gitdir:").strip()


def _head(git: Path) -> str | None:
    head = _text(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return head if _COMMIT.fullmatch(head) else None
    name = head.removeprefix("ref:").strip()
    common = git / _text(git / "commondir").strip() if (git / "commondir").is_file() else git
    for place in (git, common):
        if (place / name).is_file():
            found = _text(place / name).strip()
            return found if _COMMIT.fullmatch(found) else None
    packed = _text(common / "packed-refs") if (common / "packed-refs").is_file() else ""
    rows = (line.split(" ", 1) for line in packed.splitlines() if line[:1] not in ("#", "^") and " " in line)
    return next((commit for commit, ref in rows if ref == name and _COMMIT.fullmatch(commit)), None)


def _text(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(_MOST_BYTES).decode("utf-8", "replace")
