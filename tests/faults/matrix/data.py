"""Data sets that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.matrix.case import QUICK, Case

_PAGES = (
    "infer.mode=tiny",
    "infer.max_new_tokens=2",
    "infer.warmup_rounds=0",
    "run.repeats=1",
    "hardware.probe=false",
)


def _pages(files: dict[str, bytes], *overrides: str) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        for name, content in files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        own = [part.replace("{folder}", str(folder)) for part in overrides]
        return ["run", *_PAGES, *own, f"artifacts.runs_dir={folder / 'run'}"]

    return build


def _prompts(content: bytes | None, *overrides: str) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        if content is not None:
            (folder / "prompts.txt").write_bytes(content)
        quick = [part for part in QUICK if "synthetic" not in part]
        own = [part.replace("{folder}", str(folder)) for part in overrides]
        return [
            "run",
            *quick,
            f"dataset.prompts_file={folder / 'prompts.txt'}",
            *own,
            f"artifacts.runs_dir={folder / 'run'}",
        ]

    return build


def _cases() -> Iterator[Case]:
    root = "dataset.root={folder}/pages"
    yield Case("data", "root absent", _pages({}, root), 3, ("dataset.root",), writes_nothing=True)
    yield Case(
        "data", "root is a file", _pages({"pages": b"x"}, root), 3, ("dataset.root",), writes_nothing=True
    )
    yield Case(
        "data", "root holds no page", _pages({"pages/a.txt": b"x"}, root), 3, ("images",), writes_nothing=True
    )
    yield Case(
        "data", "list absent", _pages({"pages/a.png": b"x"}, root, "dataset.subset_filelist={folder}/list"), 3, ("list",),
        writes_nothing=True,
    )  # fmt: skip
    yield Case(
        "data", "list empty", _pages({"pages/a.png": b"x", "list": b"\n"}, root, "dataset.subset_filelist={folder}/list"), 3,
        ("list",), writes_nothing=True,
    )  # fmt: skip
    yield Case(
        "data", "list names nothing there",
        _pages({"pages/a.png": b"x", "list": b"b.png\n"}, root, "dataset.subset_filelist={folder}/list"), 3, ("b.png",),
        writes_nothing=True,
    )  # fmt: skip
    yield Case(
        "data",
        "a pattern that leaves the root",
        _pages({"pages/a.png": b"x"}, root, "dataset.fallback_patterns=[../*]"),
        2,
        ("pattern",),
    )
    yield Case("data", "prompts absent", _prompts(None), 3, ("prompts.txt",), writes_nothing=True)
    yield Case("data", "prompts empty", _prompts(b""), 3, ("prompts.txt",), writes_nothing=True)
    yield Case("data", "prompts blank", _prompts(b"\n\n \n"), 3, ("prompts.txt",), writes_nothing=True)


CASES = tuple(_cases())
