"""Measure two configurations in turn, each run in its own process.

Order A B B A A B B A …: slow changes of the machine (clocks, temperature, other users) affect both sides
equally. A separate process for every run, because memory layout and allocator state also differ from start to start.
"""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llm_perf_opt.config.hydra_bridge.values import override
from llm_perf_opt.core import layout
from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.core.files import atomic_write_json, explain_os_errors
from llm_perf_opt.core.secrets import mask_arguments
from llm_perf_opt.core.units import timestamp
from llm_perf_opt.process.environment import prepare_process
from llm_perf_opt.process.launch import run_process

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig
    from llm_perf_opt.workloads.base import Sample
    from llm_perf_opt.workloads.engine.results import WorkloadResult
    from llm_perf_opt.workloads.measure import EngineRun

LOGGER = logging.getLogger("llm_perf_opt.compare")
TIMINGS_ONLY = (
    "pipeline.static_analysis.enable=false",
    "pipeline.torch_profiler.enable=false",
    "pipeline.direct_inference.enable=true",
    "run.repeats=3",
    "pipeline.direct_inference.repeats=${run.repeats}",
    "pipeline.direct_inference.output.prediction.enable=false",
    "hardware.probe=false",
)
"""What a run of ``compare --run`` does unless an override says otherwise: nothing but timing."""
_RUN_DIRECTORY_KEYS = ("artifacts.runs_dir", "hydra.run.dir")
Letter = Literal["a", "b"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Both configurations and how often each is run."""

    common: Sequence[str]
    a: Sequence[str]
    b: Sequence[str]
    rounds: int
    timeout_s: float

    def overrides(self, side: Letter) -> list[str]:
        """Return the overrides of one side; the user's settings override defaults."""
        own = [*self.common, *(self.a if side == "a" else self.b)]
        keys = {item.partition("=")[0].lstrip("+~") for item in own}
        return [*(item for item in TIMINGS_ONLY if item.partition("=")[0] not in keys), *own]


def order(rounds: int) -> list[tuple[int, Letter]]:
    """Return (round, side) in the order of running: A B, then B A, then A B …"""
    turns: list[tuple[int, Letter]] = []
    for number in range(rounds):
        sides: tuple[Letter, Letter] = ("a", "b") if number % 2 == 0 else ("b", "a")
        turns.extend((number, side) for side in sides)
    return turns


def run_both(plan: Plan, out: Path) -> tuple[str, str]:
    """Run every round; return the folders of A's and B's runs. Both configurations are checked first."""
    out = out.expanduser().absolute()
    for side in ("a", "b"):
        if (out / side).exists():
            raise ConfigError(f"{out / side} exists already", hint="give another --out")
        check_overrides(plan.overrides(side))
    turns = order(plan.rounds)
    for count, (number, side) in enumerate(turns, 1):
        LOGGER.info("run %d of %d: %s, round %d", count, len(turns), side.upper(), number + 1)
        _run_once(plan, side, out / side / f"{number + 1:03d}", out / "logs")
    return str(out / "a"), str(out / "b")


def check_overrides(overrides: Sequence[str]) -> AppConfig:
    """Compose and check a side's configuration before anything runs; raises :class:`ConfigError`."""
    from llm_perf_opt.config.legacy import explicit_keys
    from llm_perf_opt.runs.app import prepare

    clash = explicit_keys(overrides).intersection(_RUN_DIRECTORY_KEYS)
    if clash:
        raise ConfigError(
            f"compare --run chooses {sorted(clash)[0]} itself",
            hint="choose a directory with --out",
            key=sorted(clash)[0],
        )
    return prepare(list(overrides), config_dir=None, config_name="config").config


def command(plan: Plan, side: Letter, run_dir: Path) -> list[str]:
    """Return the command line of one run."""
    return [
        sys.executable,
        "-m",
        "llm_perf_opt",
        "run",
        "-q",
        *plan.overrides(side),
        override("artifacts.runs_dir", str(run_dir)),
    ]


def _run_once(plan: Plan, side: Letter, run_dir: Path, logs: Path) -> None:
    result = run_process(
        command(plan, side, run_dir), log_dir=logs, name=f"{side}-{run_dir.name}", timeout_s=plan.timeout_s
    )
    if result.ok and (run_dir / "summary.json").is_file():
        return
    reason = "took longer than --timeout" if result.ended == "timeout" else f"ended with {result.returncode}"
    raise ToolError(
        f"the run of {side.upper()} in {run_dir} {reason}: {result.tail(3)}",
        hint=f"see {run_dir / 'run.log'} and {logs}",
        path=str(run_dir),
    )


# Measure two configurations pass by pass in one process, the closest possible pairing.
#
# Where other programs share the machine, the time of the same pass moves by tens of percent within seconds. Turns of
# single passes (A B B A …) see nearly the same machine state, so more noise cancels than between whole runs.
# The price: both models are in memory, and process-wide settings cannot differ.


_INTERLEAVED = "interleaved"
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
    started, began = timestamp(), time.monotonic()
    try:
        warm = {side: _warm_up(configs[side]) for side in sides}
        turns = order(plan.rounds)
        for count, (_, side) in enumerate(turns, 1):
            if count % max(1, len(turns) // 10) == 0:
                LOGGER.info("pass %d of %d", count, len(turns))
            warm[side].run_pass()
    except torch.OutOfMemoryError as error:
        raise ToolError(
            f"both models do not fit in the device's memory: {error}", hint="compare them without --together"
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
        batch.repeats.clear()  # measured before the other side was loaded
    run.result.measuring = None  # the number of rounds is fixed by the plan
    return _WarmSide(run, groups)


def write_side(
    result: WorkloadResult, folder: Path, command: Sequence[str], shared: str, when: tuple[str, float]
) -> None:
    """Write one side as a run; ``shared`` is the same for sides measured in turns, ``when`` the start and the seconds of both."""
    from llm_perf_opt.analysis.summarise import Subject
    from llm_perf_opt.runs.assemble import DeviceChoice, assemble, shown_sources
    from llm_perf_opt.stages.facts import timings_facts
    from llm_perf_opt.summary import RunInfo
    from llm_perf_opt.summary.file import save_summary

    path = folder / "direct_inference" / layout.TIMINGS
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_json(path, {**result.to_dict(), _INTERLEAVED: shared})
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
