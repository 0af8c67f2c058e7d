"""Measure two configurations in turn, each run in a process of its own.

Order A B B A A B B A …: whatever changes slowly on the machine (clocks, temperature, other users) meets both sides
alike. A process of its own for every run, because memory layout and allocator state also differ from start to start.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llm_perf_opt.config.hydra_bridge.values import override
from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.process.launch import run_process

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig

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
        """Return the overrides of one side; defaults give way to what the user set."""
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
            hint="say where with --out",
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
