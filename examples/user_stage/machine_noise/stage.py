"""Time the same small piece of work many times: on a quiet machine every repetition takes as long as the others.

It shows what a stage needs: one class, its configuration beside it, and ``facts``, by which what it measured
reaches ``summary.json`` and the reports without any change there.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.core import units
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.stages.facts import Part, collect
from llm_perf_opt.summary import Finding, Section, SectionTable
from llm_perf_opt.summary.statistics import describe

NAME = "machine_noise"
RESULT = "repetitions.json"


@dataclass
class MachineNoiseConfig(StageConfig):
    """``pipeline.machine_noise.*``"""

    samples: int = 300
    """How often the piece of work is timed."""
    work: int = 20_000
    """Its length, in additions."""
    limit_ratio: float = 1.5
    """Slow repetitions (p95) above this multiple of the median are worth a finding."""


class MachineNoiseStage(Stage):
    """Measure how much equal work varies."""

    name: ClassVar[str] = NAME
    order: ClassVar[int] = 5
    title: ClassVar[str] = "machine noise"
    config_type: ClassVar[type[StageConfig]] = MachineNoiseConfig

    def check(self, context: StageContext) -> list[Problem]:
        """Refuse numbers that cannot be meant."""
        config = context.stage_config(NAME, MachineNoiseConfig)
        least = {"samples": 2, "work": 1}
        return [
            Problem(
                "error",
                f"pipeline.{NAME}.{key}={value} is out of range",
                f"use at least {least[key]}",
                f"pipeline.{NAME}.{key}",
            )
            for key, value in (("samples", config.samples), ("work", config.work))
            if value < least[key]
        ]

    def plan(self, context: StageContext) -> list[str]:
        """Say what would be done."""
        config = context.stage_config(NAME, MachineNoiseConfig)
        return [
            f"time {config.work} additions, {config.samples} times",
            f"write {context.artifacts.root / NAME / RESULT}",
        ]

    def run(self, context: StageContext) -> StageResult:
        """Time the work; keep every repetition."""
        config = context.stage_config(NAME, MachineNoiseConfig)
        with context.progress.task("timing the same work again and again"):
            seconds = [_timed(config.work) for _ in range(config.samples)]
        document = {"limit_ratio": config.limit_ratio, "repetition_s": seconds}
        path = atomic_write_json(context.artifacts.out_dir(NAME) / RESULT, document)
        return StageResult("ok", artifacts=[path])

    def facts(self, run_dir: Path) -> Facts:
        """Say what the repetitions mean: a metric, a section of the report, and perhaps a finding."""
        path = run_dir / NAME / RESULT
        return collect(NAME, [Part("repetitions", lambda: _facts(path))] if path.is_file() else [])


def _timed(work: int) -> float:
    started = time.perf_counter()
    sum(range(work))
    return time.perf_counter() - started


def _facts(path: Path) -> Facts:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        limit, values = float(document["limit_ratio"]), [float(value) for value in document["repetition_s"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged: {error}", hint="run the stage again") from error
    stat = describe(values)
    if stat is None or stat.median <= 0:
        return Facts()
    ratio = stat.p95 / stat.median
    table = SectionTable(
        ["repetition", "time", "of the median"],
        [
            [name, units.seconds(value), f"{value / stat.median:.2f}"]
            for name, value in (("fast (p5)", stat.p5), ("median", stat.median), ("slow (p95)", stat.p95))
        ],
    )
    words = f"The same work was timed {stat.n} times; a slow repetition takes {ratio:.2f} times the median."
    noisy = Finding(
        id="machine-noise",
        title="The machine does not run equal work in equal time",
        phase=None,
        evidence=[f"{path.name}: p95 is {ratio:.2f} times the median of {stat.n} repetitions"],
        gain_upper_s=None,
        arithmetic=f"{units.seconds(stat.p95)} ÷ {units.seconds(stat.median)} = {ratio:.2f}, limit {limit:.2f}",
        advice="end other programs, or fix the processor's clock, before comparing runs",
        confidence="medium",
    )
    return Facts(
        sources={NAME: (path,)},
        metrics={"machine_noise_p95_over_median_ratio": ratio},
        sections=[Section(NAME, "How steady this machine is", [words], [table])],
        findings=[noisy] if ratio > limit else [],
    )
