"""Write a built case to a folder, with the arguments that ingest it."""

from __future__ import annotations

import json
from pathlib import Path

from .kineto_file import write_kineto
from .labels import Built, Case
from .nsys_file import write_nsys


def write_case(case: Case, built: Built, folder: Path) -> list[Path]:
    """Write the captures of a case; return their paths in the order of the ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    if built.timings is not None:
        (folder / "timings.json").write_text(json.dumps(built.timings))
    if case.format == "nsys":
        if case.one_file:
            return [write_nsys(folder / "capture.sqlite", built.ranks)]
        return [write_nsys(folder / f"rank{one.rank}.sqlite", [one]) for one in built.ranks]
    return [write_kineto(folder / f"rank{one.rank}_trace{case.suffix}", one) for one in built.ranks]


def ingest_arguments(case: Case, files: list[Path], out: Path) -> list[str]:
    """Arguments of ``llm-perf-opt ingest`` for a case: the option once per file."""
    option = "--nsys" if case.format == "nsys" else "--trace"
    arguments = [part for path in files for part in (option, str(path))]
    if case.unprofiled_ratio is not None:
        arguments += ["--timings", str(files[0].parent / "timings.json")]
    return [*arguments, "--out", str(out)]
