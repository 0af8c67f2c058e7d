"""Measure two configurations pass by pass in one process: the finest pairing there is.

Where other programs share the machine, the time of the same pass moves by tens of percent within seconds. Turns of
single passes (A B B A …) meet nearly the same machine, so far more of its noise cancels than between whole runs.
The price: both models are in memory, and process-wide settings cannot differ.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.clock import now_text
from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.core.files import atomic_write_json, explain_os_errors
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.core.secrets import mask_arguments
from llm_perf_opt.process.runtime_env import prepare_process
from llm_perf_opt.runs.compare.launch import (
    Letter,
    Plan,
    check_overrides,
    order,
)

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig
    from llm_perf_opt.workloads.base import Sample
    from llm_perf_opt.workloads.engine.results import WorkloadResult
    from llm_perf_opt.workloads.measure import EngineRun

LOGGER = logging.getLogger("llm_perf_opt.compare")
INTERLEAVED = "interleaved"
"""Key of a timings document: documents with the same value were measured in turns, repeat by repeat."""


@dataclass(slots=True)
class _WarmSide:
    """One side, its model loaded and warmed up."""

    run: EngineRun
    groups: list[list[Sample]]

    def run_pass(self) -> None:
        """Run every batch once."""
        for batch, group in zip(self.run.result.batches, self.groups, strict=True):
            _, done = self.run.engine.run_sample(group)
            batch.repeats.append(done.timings)


def run_together(plan: Plan, out: Path) -> tuple[str, str]:
    """Take turns, write each side's timings and summary below ``out``; return their folders."""
    prepare_process()
    import torch

    out = out.expanduser().absolute()
    sides: tuple[Letter, Letter] = ("a", "b")
    configs = {side: _config(plan, side, out) for side in sides}
    if configs["a"].run.threads != configs["b"].run.threads:
        raise ConfigError(
            "run.threads belongs to the process and cannot differ with --together",
            hint="compare them without --together",
            key="run.threads",
        )
    started, began = now_text(), time.monotonic()
    try:
        warm = {side: _warm_up(configs[side]) for side in sides}
        turns = order(plan.rounds)
        for count, (_, side) in enumerate(turns, 1):
            if count % max(1, len(turns) // 10) == 0:
                LOGGER.info("pass %d of %d", count, len(turns))
            warm[side].run_pass()
    except torch.OutOfMemoryError as error:
        raise ToolError(
            f"the device's memory does not hold both models: {error}", hint="compare them without --together"
        ) from error
    shared = uuid.uuid4().hex
    when = (started, time.monotonic() - began)
    for side, measured in warm.items():
        command = ["llm-perf-opt", "compare", "--together", *plan.overrides(side)]
        write_side(measured.run.result, out / side, command, shared, when)
    return str(out / "a"), str(out / "b")


def _config(plan: Plan, side: Letter, out: Path) -> AppConfig:
    if (out / side).exists():
        raise ConfigError(f"{out / side} exists already", hint="give another --out")
    return check_overrides(plan.overrides(side))


def _warm_up(config: AppConfig) -> _WarmSide:
    from llm_perf_opt.workloads.measure import run_engine
    from llm_perf_opt.workloads.registry import load_dataset
    from llm_perf_opt.workloads.setup import workload_config

    workload = workload_config(config, repeats=1)
    samples = list(load_dataset(workload.dataset).samples())
    run = run_engine(workload, samples, progress=LogProgress())
    by_id = {sample.id: sample for sample in samples}
    groups = [[by_id[name] for name in batch.ids] for batch in run.result.batches]
    for batch in run.result.batches:
        batch.repeats.clear()  # measured before the other side was there
    run.result.measuring = None  # the rounds decide
    return _WarmSide(run, groups)


def write_side(
    result: WorkloadResult, folder: Path, command: Sequence[str], shared: str, when: tuple[str, float]
) -> None:
    """Write one side as a run; ``shared`` is the same for sides measured in turns, ``when`` the start and the seconds of both."""
    from llm_perf_opt.analysis.summarise import Subject
    from llm_perf_opt.model.summary import RunInfo
    from llm_perf_opt.model.summary_file import save_summary
    from llm_perf_opt.runs.assemble import DeviceChoice, assemble, shown_sources
    from llm_perf_opt.stages.facts.timings import timings_facts

    path = folder / "direct_inference" / layout.TIMINGS
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_json(path, {**result.to_dict(), INTERLEAVED: shared})
    run = RunInfo(
        id=folder.name,
        status="ok",
        started=when[0],
        seconds=when[1],
        command=mask_arguments(list(command)),
    )
    facts = [timings_facts(path)]
    subject = Subject(run=run, sources=shown_sources(facts, folder))
    save_summary(assemble(subject, facts, DeviceChoice()).summary, folder)
