"""Which settings of a run say what was measured, from its ``config.yaml``: not where it wrote, nor how long it took."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from llm_perf_opt.analysis.history.flatten import summary_settings
from llm_perf_opt.config.schema import SECTIONS, WorkloadCommandConfig
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.core.sizes import read_document
from llm_perf_opt.model.summary import Summary

MEASURED_SECTIONS = ("model", "infer", "dataset", "run")
NOT_MEASURED = {
    "run.repeats",
    "run.target_interval_ratio",
    "run.max_measure_s",
    "run.top_n_kernels",
    "run.exclusive",
    "run.sinks",
    "run.device",
    "run.ranks",
    "run.ranks_timeout_s",
    "dataset.generated.cache_dir",
    "infer.verify_tokens",
    "pipeline.workload.repeats",
    "pipeline.workload.timeout_s",
}
"""How often, how long, where: the same thing is measured whatever they are. The device and the number of ranks are in the
summary, settled: under ``torchrun`` the setting does not say how many there were."""


def settings_of_run(folder: Path, summary: Summary) -> dict[str, Any]:
    """Return the settings that are not the default; without a readable ``config.yaml``, what the summary says."""
    path = folder / layout.CONFIG
    try:
        text = read_document(path)
    except (OSError, InputError):
        found = None
    else:
        found = _from_yaml(_without_place(text))
    if found is not None:
        return dict(found)
    return {key: value for key, value in summary_settings(summary).items() if key not in NOT_MEASURED}


def _without_place(text: bytes) -> bytes:
    """Leave out where the run lies, so that runs of one configuration have one text, which is parsed once."""
    return b"\n".join(line for line in text.splitlines() if not line.startswith(b"  runs_dir:"))


@functools.lru_cache(maxsize=512)
def _from_yaml(text: bytes) -> Mapping[str, Any] | None:
    try:
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    pipeline = document.get("pipeline")
    tree = {name: document[name] for name in MEASURED_SECTIONS if name in document}
    if isinstance(pipeline, dict) and "workload" in pipeline:
        tree["pipeline"] = {"workload": pipeline["workload"]}
    defaults = _defaults()
    return {
        key: value
        for key, value in _leaves(tree)
        if key not in NOT_MEASURED
        and (key not in defaults or defaults[key] != value)
        and value not in ({}, None)
    }


@functools.cache
def _defaults() -> dict[str, Any]:
    """Return the defaults of this release: a key that a later release adds changes no older run's configuration."""
    tree: dict[str, Any] = {
        name: dataclasses.asdict(SECTIONS[name]()) for name in MEASURED_SECTIONS if name in SECTIONS
    }
    tree["pipeline"] = {"workload": dataclasses.asdict(WorkloadCommandConfig())}
    return {key: str(value) if isinstance(value, str) else value for key, value in _leaves(tree)}


def _leaves(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value
