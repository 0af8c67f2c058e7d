"""Which stages a run has, and what stands in their way."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.errors import ConfigError, InputError, ToolError
from llm_perf_opt.core.ranks import this_rank
from llm_perf_opt.core.stage import Problem, stage_types
from llm_perf_opt.stages.base import Stage, StageContext, all_stages, enabled_stages
from llm_perf_opt.stages.program import ProgramStage


def known_stages() -> dict[str, Stage]:
    """Return every stage a manifest can name, in pipeline order."""
    return {ProgramStage.name: ProgramStage(), **all_stages()}


def stages_of(config: AppConfig) -> list[Stage]:
    """Return the stages of a run in their order: those switched on, and before them the user's own program."""
    own = config.workload_command
    program: list[Stage] = [ProgramStage()] if own.command and own.repeats > 0 else []
    return [*program, *enabled_stages(config)]


def check_stages(
    stages: Sequence[Stage], context: StageContext, *, here: bool = True
) -> dict[str, list[Problem]]:
    """Ask every stage what would go wrong; a configuration error stops here, before any work.

    ``here``: whether the stages will run on this machine; what another one may have is asked again there.
    """
    _require_a_stage(stages, context.config)
    problems = {stage.name: _problems(stage, context, here=here) for stage in stages}
    for found in problems.values():
        for problem in found:
            if problem.severity == "error" and (here or not problem.of_machine):
                raise ConfigError(problem.message, hint=problem.fix, key=problem.key)
    return problems


def _problems(stage: Stage, context: StageContext, *, here: bool) -> list[Problem]:
    try:
        return problems_of(stage, context)
    except (InputError, ToolError):
        # Files and tools are those of a machine; what is wrong with the configuration itself is a ConfigError.
        if here:
            raise
        return []


def problems_of(stage: Stage, context: StageContext) -> list[Problem]:
    """Return what stands in a stage's way; with the user's own program, stages of the built-in workload stay out."""
    if context.config.workload_command.command and not stage.for_own_program:
        return [
            Problem(
                "skip",
                "it runs the built-in workload, and this run is about your own program (pipeline.workload.command)",
                f"nothing to do; pipeline.{stage.name}.enable=false leaves this line out",
            )
        ]
    return stage.check(context)


def _require_a_stage(stages: Sequence[Stage], config: AppConfig) -> None:
    """A run that measures nothing is a mistake, not a success."""
    if (
        config.run.ranks > 1
        and {stage.name for stage in stages} == {"static_analysis"}
        and this_rank() is None
    ):
        raise ConfigError(
            f"run.ranks={config.run.ranks}, but no stage is enabled that runs the model",
            hint="leave run.ranks out (the static analysis tells what 2, 4 and 8 ranks would hold), or "
            "pipeline.torch_profiler.enable=true",
            key="run.ranks",
        )
    if any(stage.for_own_program or not config.workload_command.command for stage in stages):
        return
    toggles = " or ".join(f"pipeline.{name}.enable=true" for name in stage_types())
    if config.workload_command.command:
        raise ConfigError(
            "no stage is enabled that works on your own program (pipeline.workload.command)",
            hint="pipeline.nsys.enable=true, pipeline.ncu.enable=true, or pipeline.workload.repeats=3 to time it",
            key="pipeline",
        )
    raise ConfigError(
        "no stage is enabled: there is nothing to do", hint=f"switch one on: {toggles}", key="pipeline"
    )
