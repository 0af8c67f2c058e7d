"""``manifest.json``: record of a run, updated while it runs so that it is valid after an interruption."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from llm_perf_opt.core import layout
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.core.limits import Amount, SummedSeconds
from llm_perf_opt.core.secrets import mask_tree
from llm_perf_opt.core.stage import StageResult
from llm_perf_opt.core.units import timestamp
from llm_perf_opt.core.version import __version__
from llm_perf_opt.summary.codec import decode_file, from_plain, to_plain

_ManifestStatus = Literal["running", "ok", "failed", "interrupted"]


@dataclass(slots=True)
class StageRecord:
    """One stage in the manifest."""

    status: Literal["pending", "running", "ok", "skipped", "failed", "degraded"]
    reason: str | None = None
    fix: str | None = None
    seconds: SummedSeconds | None = None
    exit_codes: dict[str, int | None] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Heartbeat:
    """Which process writes a run, and the time of its last heartbeat."""

    host: str
    pid: int
    machine: str
    """Boot and process namespace of the host: where they are the reader's, the process can be asked for."""
    process_started: int | None
    """Start of the process in the kernel's ticks, so that another with the same number is not taken for it."""
    interval_s: float
    """How often it says so."""
    at: str
    """The last time, by the clock of its host (ISO 8601)."""


@dataclass(slots=True)
class SweepMark:
    """Of which sweep a run is a job."""

    id: str
    directory: str
    """The job's own, below that of the sweep."""


@dataclass(slots=True)
class DeviceLease:
    """Whether a run had its device exclusively."""

    device: str
    """What was held: ``GPU-…``, ``cpu 0-1``."""
    exclusive: bool
    """Whether it was held; no other run of this tool measures on it then."""
    waited_s: SummedSeconds | None = None
    began: str | None = None
    ended: str | None = None
    others_ratio: float | None = None
    """Share of the processor's time that other processes used meanwhile; on GPUs, of the looks at which others were
    there. ``None``: it could not be seen."""
    shared: str | None = None
    """Why the device was not this run's alone; ``None``: it was."""
    directory: str | None = None
    """Where the locks lie: runs with locks elsewhere do not wait for this one. ``None``: it holds none."""


@dataclass(slots=True)
class RankRecord:
    """Outcome of one rank of a multi-rank run; the rest is in its own directory."""

    rank: int
    directory: str
    """Relative to the run's."""
    status: _ManifestStatus | Literal["died", "missing"]
    """Its own, or ``died``: it ended without a word; ``missing``: it never began."""
    reason: str | None = None


@dataclass(slots=True)
class Manifest:
    """The run as a whole."""

    run_id: str
    started: str
    command: list[str]
    status: _ManifestStatus = "running"
    seconds: SummedSeconds | None = None
    stages: dict[str, StageRecord] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """What reports need of the configuration: model, device, dtype, hardware choice."""
    files: list[str] = field(default_factory=list)
    """What the run wrote besides the stages' own artifacts: documents at the root, pages and tables made afterwards."""
    reason: str | None = None
    """Why it failed before its first stage; failed stages have their own."""
    config_hash: str | None = None
    """Of the resolved configuration: equal where two runs are asked to do the same."""
    version: str | None = None
    """Of this tool."""
    heartbeat: Heartbeat | None = None
    sweep: SweepMark | None = None
    lease: DeviceLease | None = None
    ranks: list[RankRecord] = field(default_factory=list)
    """Of a run of several ranks: each of them. What was measured is in their directories."""


@dataclass(slots=True)
class ManifestFacts:
    """The facts of a manifest that readers use, with their types."""

    model: str | None = None
    device: str | None = None
    batch_size: Amount | None = None
    hardware_device: str | None = None
    hardware_catalogue: str | None = None
    hardware_silicon: str | None = None
    program: list[str] | None = None


def known_facts(manifest: Manifest) -> ManifestFacts:
    """Return the facts; :class:`InputError` names one of another type."""
    return from_plain(ManifestFacts, manifest.facts, f"{layout.MANIFEST}: facts")


def new_manifest(artifacts: Artifacts, command: list[str]) -> Manifest:
    """Start a manifest for a run that begins now."""
    return Manifest(
        run_id=artifacts.root.name,
        started=timestamp(),
        command=command,
        version=__version__,
    )


def record(artifacts: Artifacts, stage: str, result: StageResult) -> StageRecord:
    """Turn a stage's result into its manifest entry; every file in the stage's directory is listed, logs included."""
    return StageRecord(
        status=result.status,
        reason=result.reason,
        fix=result.fix,
        seconds=result.seconds,
        exit_codes=dict(result.exit_codes),
        artifacts=sorted(
            {artifacts.relative(path) for path in (*result.artifacts, *artifacts.files_below(stage))}
        ),
    )


def list_files(artifacts: Artifacts, manifest: Manifest, pages: Iterable[Path] = ()) -> None:
    """Add to the manifest the files at the root of a run, and pages and tables made from it."""
    root = [artifacts.root / name for name in layout.ROOT_FILES]
    # The manifest lists itself, also before it is written for the first time.
    there = [path for path in root if path.is_file() or path.name == layout.MANIFEST]
    manifest.files = sorted({*manifest.files, *(artifacts.relative(path) for path in (*there, *pages))})


_LOCK = threading.RLock()
_BEATING: dict[Path, dict[str, Any]] = {}
"""Manifests whose heartbeat goes on (:mod:`llm_perf_opt.runs.heartbeat`), as they were last written."""


def write_manifest(artifacts: Artifacts, manifest: Manifest) -> Path:
    """Write ``manifest.json``; what looks like a secret in commands and messages is masked."""
    path = artifacts.path(layout.MANIFEST)
    with _LOCK:
        if manifest.heartbeat is not None:
            manifest.heartbeat.at = timestamp()
        plain = mask_tree(to_plain(manifest))
        if path in _BEATING:
            _BEATING[path] = plain
        return atomic_write_json(path, plain)


def keep_beating(path: Path) -> None:
    """Register a manifest at its next write, so that :func:`beat` can renew it."""
    with _LOCK:
        _BEATING[path] = {}


def stop_beating(path: Path) -> None:
    """Unregister the manifest; its file is unchanged."""
    with _LOCK:
        _BEATING.pop(path, None)


def beat(path: Path) -> None:
    """Renew the time of a manifest's heartbeat, until the run is reported.

    Thread-safe; never interleaved with another write.
    """
    with _LOCK:
        plain = _BEATING.get(path)
        unfinished = plain and (plain.get("status") == "running" or not is_reported(path.parent))
        if plain and unfinished and plain.get("heartbeat"):
            plain["heartbeat"]["at"] = timestamp()
            atomic_write_json(path, plain)


def is_reported(run_dir: Path) -> bool:
    """Whether a run has its summary: stages may have succeeded before the run was killed."""
    return (run_dir / layout.SUMMARY).is_file()


def read_manifest(run_dir: Path) -> Manifest:
    """Read ``manifest.json`` of a run directory."""
    path = run_dir / layout.MANIFEST
    hint = "give the directory printed at the end of a run"
    if not path.exists():
        raise InputError(f"{run_dir} is not a run directory: it has no {layout.MANIFEST}", hint=hint)
    return decode_file(path, Manifest, hint=hint)
