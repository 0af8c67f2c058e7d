"""Measurements kept from run to run: the best of each machine, with when it was made and how disturbed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from llm_perf_opt.core.errors import InputError, ToolError
from llm_perf_opt.core.files import atomic_write_json, is_own_file
from llm_perf_opt.hardware.contention.device_load import read_device_loads
from llm_perf_opt.hardware.detect import DetectedCpu
from llm_perf_opt.hardware.drivers import driver_versions
from llm_perf_opt.hardware.probe.measured import ProbeResult
from llm_perf_opt.model.codec import decode_file

PROBE_VERSION = 5
"""Raised when the measurement changes, so that old cache entries are not used."""


_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def cache_directory() -> Path:
    """Return where measurements are kept (``XDG_CACHE_HOME`` is honoured)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llm-perf-opt" / "probe"


def cache_key(
    device: str,
    name: str,
    cpu: DetectedCpu,
    threads: int | None,
    dtypes: Sequence[str],
    conditions: Sequence[str] = (),
) -> str:
    """Return a name that changes with everything a measurement depends on; ``conditions``: driver, power limits."""
    facts = [PROBE_VERSION, device, name, cpu.name, cpu.cores, torch_version(), threads, list(dtypes)]
    # torch takes its threads from these where a run does not say; a launcher of several ranks sets them.
    facts += [
        [name, os.environ[name]] for name in _THREAD_VARIABLES if threads is None and name in os.environ
    ]
    facts += [list(conditions)] if conditions else []
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def device_conditions() -> list[str]:
    """Return what a GPU's rates depend on beside the GPU: versions of drivers and the power limits in force."""
    versions = [f"{name} {number}" for name, number in sorted(driver_versions().items())]
    return [*versions, *read_device_loads().power_limits()]


def torch_version() -> str | None:
    """Return the installed torch's version without importing it (an import takes a second)."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def read_kept(path: Path) -> ProbeResult | None:
    """Return a kept measurement; one that is damaged, or that somebody else can write, is measured again."""
    if not is_own_file(path):
        return None
    try:
        return decode_file(path, ProbeResult)
    except InputError:
        return None


def keep(path: Path, result: ProbeResult) -> None:
    """Write a measurement down for the next run."""
    try:
        atomic_write_json(path, asdict(result))
    except (ToolError, OSError) as error:
        # A cache that cannot be written costs seconds next time, not the result.
        result.notes.append(f"the measurement could not be kept: {error}")


def distrust_measurements(folder: Path | None = None) -> None:
    """Have kept measurements made again: a run that beat its ceiling proves them too low. The best still counts."""
    for path in (folder if folder is not None else cache_directory()).glob("*.json"):
        kept = read_kept(path)
        if kept is None:
            path.unlink(missing_ok=True)
        elif kept.settled:
            kept.settled, kept.tries = False, 1
            keep(path, kept)
