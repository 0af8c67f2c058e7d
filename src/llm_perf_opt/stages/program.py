"""The user's own program without a tool: the reference wall-clock for all captures.

It is enabled whenever ``pipeline.workload.command`` is set (``pipeline.workload.repeats=0`` leaves it out), and runs before
the captures. Files, under ``<run>/program/``: ``timings.json`` and what each run printed.
"""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from llm_perf_opt.analysis.facts import TIMINGS, Facts
from llm_perf_opt.core import layout
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.core.layout import own_files
from llm_perf_opt.core.secrets import mask_arguments
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.stages.facts import Part, collect, program_facts
from llm_perf_opt.stages.workload import program_name, program_problems, replay_lines, workload

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig
    from llm_perf_opt.process.launch import ProcessResult

NAME = layout.PROGRAM
_SCHEMA = 1
_LAST_LINES = 3


class ProgramStage(Stage):
    """Time the program without a tool."""

    name: ClassVar[str] = NAME
    order: ClassVar[int] = 5
    title: ClassVar[str] = "the program without a tool"
    config_type: ClassVar[type[StageConfig]] = StageConfig
    for_own_program: ClassVar[bool] = True

    def check(self, context: StageContext) -> list[Problem]:
        """Check that the program exists."""
        return program_problems(context.config)

    def plan(self, context: StageContext) -> list[str]:
        """Return what is run, how often, and the output files."""
        program = workload(context.config, context.artifacts.root)
        times = context.config.workload_command.repeats
        return [
            f"run   {replay_lines(program.argv)}",
            f"note  {'once' if times == 1 else f'{times} times'}, without a profiler",
            f"write {context.artifacts.root / NAME / layout.TIMINGS}",
        ]

    def run(self, context: StageContext) -> StageResult:
        """Run the program ``repeats`` times; stop at the first failure."""
        own = context.config.workload_command
        runs: list[ProcessResult] = []
        folder = context.artifacts.out_dir(NAME)
        with context.progress.task("timing the program without a tool", total=own.repeats) as task:
            for number in range(1, own.repeats + 1):
                runs.append(_run_once(context, folder, number))
                task.advance(note=f"{runs[-1].seconds:.2f} s")
                if not runs[-1].ok:
                    break
        document = _document(context.config, context.artifacts.root, runs)
        result = StageResult("ok", artifacts=[atomic_write_json(folder / layout.TIMINGS, document)])
        result.exit_codes = {f"run-{number}": run.returncode for number, run in enumerate(runs, 1)}
        result.inputs = {"program": document["program"]}
        if not runs[-1].ok:
            result.status, result.reason = "failed", _describe_failure(context.config, runs)
            result.fix = (
                f"see {NAME}/run-{len(runs)}.stderr.log; by hand: {shlex.join(mask_arguments(runs[-1].argv))}"
            )
        return result

    def facts(self, run_dir: Path) -> Facts:
        """Read the times."""
        found = own_files(run_dir, NAME, [run_dir / NAME / layout.TIMINGS])
        return collect(NAME, [Part(TIMINGS, functools.partial(program_facts, path)) for path in found])


def _run_once(context: StageContext, folder: Path, number: int) -> ProcessResult:
    from llm_perf_opt.process.launch import run_process

    program = workload(context.config, context.artifacts.root)
    return run_process(
        program.argv,
        log_dir=folder,
        name=f"run-{number}",
        timeout_s=_time_limit(context.config)[1],
        cwd=program.cwd,
        env=program.env,
        base_env=program.base_env(),
    )


def _time_limit(config: AppConfig) -> tuple[str, float]:
    """Return the key and the value of the shortest limit: without a tool the program is not slower."""
    limits = {"pipeline.workload.timeout_s": config.workload_command.timeout_s}
    for name, stage in config.pipeline.items():
        limit = getattr(stage, "timeout_s", None)
        if stage.enable and isinstance(limit, int | float):
            limits[f"pipeline.{name}.timeout_s"] = float(limit)
    return min(limits.items(), key=lambda item: item[1])


def _document(config: AppConfig, root: Path, runs: list[ProcessResult]) -> dict[str, Any]:
    program = workload(config, root)
    return {
        "schema": _SCHEMA,
        "source": "program",
        "program": {
            "name": program_name(config),
            "argv": mask_arguments(program.argv),
            "cwd": str(program.cwd),
        },
        "runs": [
            {"wall_s": run.seconds, "ended": run.ended, "exit_code": run.returncode, "ok": run.ok}
            for run in runs
        ],
    }


def _describe_failure(config: AppConfig, runs: list[ProcessResult]) -> str:
    last = runs[-1]
    key, limit = _time_limit(config)
    how = {
        "timeout": f"took longer than {key}={limit:g}",
        "signal": f"was ended by signal {-(last.returncode or 0)}",
    }.get(last.ended, f"ended with exit code {last.returncode}")
    output = last.tail(_LAST_LINES)
    return f"{program_name(config)} {how} (run {len(runs)} without a tool){f': {output}' if output else ''}"
