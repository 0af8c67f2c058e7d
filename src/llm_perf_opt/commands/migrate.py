"""Flatten run directories of earlier releases: ``<run>/tmp/**/<run>/*`` becomes ``<run>/*``.

Early versions passed relative paths to tools that ran inside the run directory, so results ended up nested.
Nothing is ever overwritten: what already exists at the target stays, and the nested copy is reported and left.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.console.command_line import verb_parser
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import explain_os_errors

_DEEPEST = 4
"""How many levels below ``tmp/`` a nested copy was ever seen (``tmp/stage2/<run>``)."""


@dataclass(frozen=True, slots=True)
class Move:
    """One entry that belongs higher up; ``blocked`` when its target exists."""

    source: Path
    target: Path
    blocked: bool


def _nested_roots(run_dir: Path) -> list[Path]:
    """Find copies of the run directory's own name below its ``tmp/``."""
    scratch, name = run_dir / "tmp", glob.escape(run_dir.name)
    found: list[Path] = []
    for depth in range(_DEEPEST):
        pattern = "/".join(["*"] * depth + [name])
        found.extend(
            path for path in sorted(scratch.glob(pattern)) if path.is_dir() and not path.is_symlink()
        )
    return found


def plan_moves(run_dir: Path) -> list[Move]:
    """List what would move, files merged into existing directories one by one."""
    roots = _nested_roots(run_dir)
    if len(roots) == 1:
        return _merge(roots[0], run_dir)
    # Several copies may hold the same file: the first one moves, the others are kept where they are.
    moves: list[Move] = []
    taken: set[Path] = set()
    for nested in roots:
        for source, target in _files(nested, run_dir, roots):
            blocked = target in taken or _in_the_way(target) or any(p in taken for p in target.parents)
            moves.append(Move(source, target, blocked))
            if not blocked:
                taken.add(target)
    return moves


def _files(source: Path, target: Path, roots: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Walk a nested copy file by file; a copy inside a copy is a root of its own."""
    for entry in sorted(source.iterdir()):
        if entry in roots:
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _files(entry, target / entry.name, roots)
        else:
            yield entry, target / entry.name


def _in_the_way(target: Path) -> bool:
    if target.exists() or target.is_symlink():
        return True
    nearest = next(parent for parent in target.parents if parent.exists() or parent.is_symlink())
    return not nearest.is_dir()


def _merge(source: Path, target: Path) -> list[Move]:
    moves: list[Move] = []
    for entry in sorted(source.iterdir()):
        destination = target / entry.name
        if entry.is_dir() and not entry.is_symlink() and destination.is_dir():
            moves.extend(_merge(entry, destination))
        else:
            moves.append(Move(entry, destination, blocked=destination.exists() or destination.is_symlink()))
    return moves


def migrate(run_dir: Path, *, dry_run: bool = False) -> list[Move]:
    """Flatten one run directory; running it again does nothing."""
    run_dir = run_dir.resolve()
    if not run_dir.is_dir():
        raise InputError(
            f"{run_dir} is not a directory",
            hint="give a run directory, for example tmp/stage2/20251107-040000",
        )
    moves = plan_moves(run_dir)
    if not dry_run:
        with explain_os_errors(run_dir):
            for move in moves:
                if not move.blocked:
                    move.target.parent.mkdir(parents=True, exist_ok=True)
                    move.source.rename(move.target)
            for nested in _nested_roots(run_dir):
                _remove_empty(nested, stop=run_dir / "tmp")
    return moves


def _remove_empty(folder: Path, stop: Path) -> None:
    for child in sorted(folder.rglob("*"), reverse=True):
        if child.is_dir() and not any(child.iterdir()):
            child.rmdir()
    while folder != stop and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def main(arguments: Sequence[str]) -> int:
    """Command line of ``llm-perf-opt migrate`` and ``scripts/migrate-run-layout.py``."""
    parser = verb_parser("migrate", __doc__ or "", one="a file was left in place because its target exists")
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    parser.add_argument("--dry-run", action="store_true", help="only list what would move")
    options = parser.parse_args(arguments)
    blocked = 0
    for run in options.runs:
        moves = migrate(run, dry_run=options.dry_run)
        if not moves:
            print(f"{run}: nothing to do")
        for move in moves:
            blocked += move.blocked
            verb = "kept (target exists)" if move.blocked else "would move" if options.dry_run else "moved"
            print(f"{verb}: {move.source} -> {move.target}")
    return 1 if blocked else 0
