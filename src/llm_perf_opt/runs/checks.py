"""Early checks of what a configuration refers to (model, checkpoint, device), also for ``--plan``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.errors import ConfigError, InputError, ToolError
from llm_perf_opt.core.ranks import this_rank
from llm_perf_opt.core.stage import Problem, stage_types
from llm_perf_opt.stages.base import Stage, StageContext, all_stages, enabled_stages
from llm_perf_opt.stages.program import ProgramStage
from llm_perf_opt.workloads.base import ModelAdapter
from llm_perf_opt.workloads.models.hub import hub_config, is_hub_id
from llm_perf_opt.workloads.models.model_types import AUTO, HF_ADAPTERS, check_dimensions
from llm_perf_opt.workloads.setup import check_model_type

_TRANSFORMERS_ADAPTERS = ("deepseek_ocr", "deepseek_ocr2", *HF_ADAPTERS)
"""Adapters whose checkpoints are those of transformers; another may lay out its files as it likes."""


def check_names(config: AppConfig, *, here: bool = True) -> None:
    """Resolve the names in the configuration (model adapter, device), so that a typo is found before any work.

    ``here``: whether it is for this machine; files and devices of another one are not checked.
    """
    from llm_perf_opt.hardware.catalogue import load_catalogue
    from llm_perf_opt.runs.sinks import check_sinks
    from llm_perf_opt.workloads.registry import load_adapter

    check_sinks(config.run.sinks)
    if config.workload_command.command is not None and ranks_of(config) > 1:
        raise ConfigError(
            "run.ranks is for the built-in workload, and pipeline.workload.command is your own program",
            hint="let the command start its ranks itself: pipeline.workload.command=[torchrun,…]",
            key="run.ranks",
        )
    enabled = [one for one in config.pipeline.values() if one.enable]
    needs_model = not enabled or any(one.needs_model for one in enabled)
    if config.workload_command.command is None and needs_model:
        if here or config.model.adapter != AUTO:
            adapter = load_adapter(config.model, config.infer)
            if here:
                _check_split(config, adapter)
        if here:
            _check_checkpoint(config)
            check_model_type(config.model)
    if config.hardware.device is not None or config.hardware.catalogue is not None:
        catalogue = load_catalogue(Path(config.hardware.catalogue) if config.hardware.catalogue else None)
        if config.hardware.device is not None:
            kind = catalogue.named(config.hardware.device).kind
            if here:
                _check_device_kind(config, kind)


def ranks_of(config: AppConfig) -> int:
    """Return how many ranks a run has: those of the launcher that started it, else ``run.ranks``."""
    rank = this_rank()
    if rank is None:
        return config.run.ranks
    if config.run.ranks not in (1, rank.size):
        raise ConfigError(
            f"run.ranks={config.run.ranks}, but this run was started as rank {rank.rank} of {rank.size}",
            hint="leave run.ranks out under torchrun",
            key="run.ranks",
        )
    return rank.size


def _check_split(config: AppConfig, adapter: ModelAdapter) -> None:
    """Reject what a run of several ranks cannot do."""
    ranks = ranks_of(config)
    if ranks == 1:
        return
    counted = "ncu" in config.pipeline and config.pipeline["ncu"].enable
    wrong = [
        (config.model.compile, "model.compile=true", "model.compile=false"),
        (config.model.cuda_graphs, "model.cuda_graphs=true", "model.cuda_graphs=false"),
        (
            config.model.quantise_weights is not None,
            "model.quantise_weights",
            "leave model.quantise_weights out",
        ),
        (
            counted,
            "pipeline.ncu.enable=true",
            "look at kernels with one rank: ncu runs a kernel several times, and the other ranks take part in a collective once",
        ),
    ]
    for is_so, what, fix in wrong:
        if is_so:
            raise ConfigError(f"{what} cannot be combined with {ranks} ranks", hint=fix, key="run.ranks")
    reason = adapter.why_not_split(ranks)
    if reason is not None:
        raise ConfigError(
            f"the model cannot be split over {ranks} ranks: {reason}",
            hint="run.ranks=1, another number of ranks, or a model with a tensor-parallel plan (Llama, Qwen3, Qwen3-MoE, …)",
            key="run.ranks",
        )


def _check_device_kind(config: AppConfig, kind: str) -> None:
    """Reject limits of another device for measured times; a static run may use any."""
    measured = [name for name, stage in config.pipeline.items() if stage.enable and name != "static_analysis"]
    if kind != "gpu" or not measured or config.resolved_device != "cpu" or config.workload_command.command:
        return
    raise ConfigError(
        f"hardware.device='{config.hardware.device}' is a GPU, but the run is measured on the CPU",
        hint="leave hardware.device out (the what-if table has every device), or switch off the stages that measure: "
        + " ".join(f"pipeline.{name}.enable=false" for name in measured),
        key="hardware.device",
    )


def _check_checkpoint(config: AppConfig) -> None:
    """Look for the checkpoint, locally or on the Hub, and at its dimensions."""
    if config.model.path is None:
        _check_named_document(config)
        return
    path, hint = (
        Path(config.model.path).expanduser(),
        "give the directory that contains config.json and the weights",
    )
    if not path.exists():
        if is_hub_id(config.model.path):
            if config.model.adapter in HF_ADAPTERS:
                document = hub_config(config.model.path, config.model.revision)
                check_dimensions(document, Path(config.model.path) / "config.json")
            return
        wrong = "does not exist"
    elif not path.is_dir():
        wrong = "is a file, not a checkpoint's directory"
    elif next(path.iterdir(), None) is None:
        wrong = "is an empty directory"
    elif not (path / "config.json").is_file() and config.model.adapter in _TRANSFORMERS_ADAPTERS:
        wrong = "has no config.json"
    else:
        if config.model.adapter in _TRANSFORMERS_ADAPTERS:
            _check_document(path / "config.json")
        return
    raise InputError(f"model.path={config.model.path} {wrong}", hint=hint, key="model.path")


def _check_named_document(config: AppConfig) -> None:
    """Check the dimensions of ``model.config_name``, if an adapter reads it."""
    from llm_perf_opt.workloads.models.model_types import named_config

    name = config.model.config_name
    if name is not None and config.model.adapter in HF_ADAPTERS:
        check_dimensions(named_config(name), Path(name))


def _check_document(file: Path) -> None:
    from llm_perf_opt.workloads.models.loading import read_json

    check_dimensions(read_json(file), file)


# The stages of a run, and what prevents them from running.


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
    """Check every stage for problems; a configuration error is raised here, before any work.

    ``here``: whether the stages will run on this machine; for another one the check is repeated there.
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
    """Return what prevents a stage from running; with the user's own program, stages of the built-in workload are excluded."""
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
    """Reject a run that measures nothing."""
    if (
        config.run.ranks > 1
        and {stage.name for stage in stages} == {"static_analysis"}
        and this_rank() is None
    ):
        raise ConfigError(
            f"run.ranks={config.run.ranks}, but no stage is enabled that runs the model",
            hint="omit run.ranks (the static analysis covers 2, 4 and 8 ranks), or "
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
