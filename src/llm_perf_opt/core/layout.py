"""Names of files and folders of a run directory: defined only here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import read_document

SUMMARY = "summary.json"
MANIFEST = "manifest.json"
HARDWARE = "hardware.json"
"""Limits of the device a run used, settled before the stages start."""
ENVIRONMENT = "env.json"
CONFIG = "config.yaml"
INPUTS = "inputs.yaml"
"""The samples that were really used."""
REPORT_HTML = "report.html"
REPORT_MD = "report.md"
STAKEHOLDER_MD = "stakeholder_summary.md"
KERNELS_MD = "kernels.md"
RUN_LOG = "run.log"
LOCK = "run.lock"
"""Says who writes in the run directory now; there only while a run does."""
ROOT_FILES = (
    ENVIRONMENT,
    CONFIG,
    INPUTS,
    HARDWARE,
    RUN_LOG,
    SUMMARY,
    REPORT_HTML,
    REPORT_MD,
    STAKEHOLDER_MD,
    KERNELS_MD,
    MANIFEST,
)
"""What a run writes at the root of its directory; the manifest last, because it says what the rest is."""
EARLIER = "earlier-"
"""Folders that hold what earlier runs left in the same directory begin with this."""
SWEEP_PLAN = "sweep_plan.json"
"""In the directory of a sweep: the jobs it has, written before the first of them starts."""
SWEEP_JSON = "sweep.json"
SWEEP_HTML = "sweep.html"
SWEEP_MD = "sweep.md"
OPERATORS_MD = "torch_profiler/operators.md"
SCRATCH = "tmp"
"""Nothing below it is needed once the run is over."""
WORKLOAD = "workload"
"""Scratch of the inner program of a vendor capture; not a stage."""
RANKS = "ranks"
"""Folder of a run of several ranks: below it one run directory for each, named by its number."""
PROGRAM = "program"
"""Folder of the user's own program: its wall-clock without a tool, and what it printed."""
TIMINGS = "timings.json"
TRACE = "trace.json.gz"
MEMORY_TRACE = "memory_trace.json.gz"
PROFILE = "profile.json"
"""What the torch profiler stage says of its pass, next to the trace."""
RELEASE = "memory_release.json"
"""The device's memory before the model was built, with it, and after it was given back."""
TELEMETRY = "telemetry.json"
"""What the device reported, sample by sample."""
STATIC = "static_compute.json"
STATIC_MD = "static_compute.md"
STATIC_AT_RUN_SHAPES = "static_run.json"
"""The same count at the shapes of the measured samples, where those were not the configured ones."""
PERFETTO = "timeline.perfetto.json.gz"


# Which files of a run directory its manifest names: other files are not read as part of the run.


def own_files(run_dir: Path, stage: str, paths: Iterable[Path]) -> list[Path]:
    """Return those of ``paths`` that exist and that the run wrote itself.

    Without a manifest entry (the output of ``ingest``, a run of an earlier release, a stage that was killed and could
    not record what it wrote), every file that exists counts.
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
        manifest: Any = json.loads(read_document(run_dir / MANIFEST))
    except (InputError, OSError, ValueError, RecursionError):
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
