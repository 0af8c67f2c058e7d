"""``tmp/stage1`` and ``tmp/stage2``, where earlier releases put runs: for one release they lead to the last run.

A link where there is nothing, or a link of ours; a note beside the old runs where there is a directory.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.core.stage import StageConfig

LOGGER = logging.getLogger("llm_perf_opt.run")

NOTE = "MOVED.txt"

_STAGES = {"stage1": ("static_analysis", "torch_profiler"), "stage2": ("nsys", "ncu")}
"""Old directory → the stages whose results were there."""


def lead_to(run_dir: Path, pipeline: Mapping[str, StageConfig]) -> None:
    """Let the old places lead to a run in ``tmp/runs/``; a run that was sent elsewhere has no old place."""
    runs = run_dir.parent
    if runs.name != "runs" or runs.parent.name != "tmp":
        return
    for name, stages in _STAGES.items():
        if not any(stage in pipeline and pipeline[stage].enable for stage in stages):
            continue
        old = runs.parent / name
        try:
            _link(old, run_dir) if old.is_symlink() or not old.exists() else _write_note(old, run_dir)
        except (OSError, ToolError) as error:  # a convenience: no run fails for it
            LOGGER.debug("%s does not lead to %s: %s", old, run_dir, error)


def _link(old: Path, run_dir: Path) -> None:
    """Replace the link in one step: another run may do the same now."""
    fresh = old.with_name(f".{old.name}.{run_dir.name}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(run_dir, old.parent), target_is_directory=True)
    fresh.replace(old)


def _write_note(old: Path, run_dir: Path) -> None:
    if old.is_dir():
        text = f"New runs are in {run_dir.parent}/<time>/, all stages together.\nThe last one: {run_dir}\n"
        atomic_write_text(old / NOTE, text)
