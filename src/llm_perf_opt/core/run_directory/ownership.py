"""Which files of a run directory its manifest names: nothing else that lies there is read as the run's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llm_perf_opt.core.run_directory import layout


def own_files(run_dir: Path, stage: str, paths: Iterable[Path]) -> list[Path]:
    """Return those of ``paths`` that exist and that the run wrote itself.

    Where no manifest tells (the output of ``ingest``, a run of an earlier release, a stage that was killed and could
    not say what it wrote in the directory it found empty), every file that exists counts.
    """
    listed = _listed(run_dir, stage)
    there = [path for path in paths if path.is_file()]
    if listed is None:
        return there
    return [
        path for path in there if path.is_relative_to(run_dir) and str(path.relative_to(run_dir)) in listed
    ]


def _listed(run_dir: Path, stage: str) -> frozenset[str] | None:
    try:
        manifest: Any = json.loads((run_dir / layout.MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    stages = manifest.get("stages") if isinstance(manifest, dict) else None
    record = stages.get(stage) if isinstance(stages, dict) else None
    if not isinstance(files, list) or not files or not isinstance(record, dict):
        return None
    if record.get("status") == "running":
        return None
    artifacts = record.get("artifacts")
    return frozenset(str(name) for name in (*files, *(artifacts if isinstance(artifacts, list) else ())))
