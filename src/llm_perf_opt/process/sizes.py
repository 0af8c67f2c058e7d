"""How much a program may leave on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """Most bytes that the given files and directory trees may hold together."""

    paths: tuple[Path, ...]
    max_bytes: int

    def also(self, *paths: Path | None) -> SizeLimit:
        """Return the same limit for further files."""
        return SizeLimit((*self.paths, *(path for path in paths if path is not None)), self.max_bytes)

    def is_exceeded(self) -> bool:
        """Tell whether there is more than allowed now."""
        return total_bytes(self.paths) > self.max_bytes


def total_bytes(paths: Sequence[Path]) -> int:
    """Sum of sizes of files and trees; each file once. Files that vanish meanwhile count nothing."""
    sizes: dict[tuple[int, int], int] = {}
    for root in paths:
        for path in (root, *root.rglob("*")) if root.is_dir() else (root,):
            with contextlib.suppress(OSError):
                status = path.lstat()
                sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())
