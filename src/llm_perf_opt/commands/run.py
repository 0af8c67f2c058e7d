"""``llm-perf-opt run``: the command line; what it does is in :mod:`llm_perf_opt.runs.app`.

Hydra's own switches (``--multirun``, ``--config-dir``, ``--cfg job``, ``--info``, completion) work as everywhere.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.config import keys
from llm_perf_opt.core.console.command_line import exit_codes
from llm_perf_opt.core.console.logs import Verbosity, console_logging
from llm_perf_opt.core.console.signals import defer_signals
from llm_perf_opt.core.errors import ConfigError, nearest_key
from llm_perf_opt.core.files import RUN_DIRECTORY, hint_other_directory, other_directory
from llm_perf_opt.core.ranks import this_rank
from llm_perf_opt.core.secrets import mask_layout, secret_texts
from llm_perf_opt.process.environment import restart_with

HELP = """\
usage: llm-perf-opt run [--plan] [--json] [-q | -v] [--resume[=DIR]] [hydra switches] [key=value …]

Profile a model end to end: static analysis, torch profiler, Nsight Systems, Nsight Compute.

  --plan                show what would run, with exact commands and files; write nothing
  --json                print the result (or the error) as JSON on standard output
  -q, --quiet           only warnings and the path of the report
  -v, --verbose         everything that goes to run.log
  key=value             any key of the configuration: pipeline.nsys.enable=true run.repeats=5
  --cfg job             show the composed configuration
  --config-dir DIR      add your own presets
  --multirun            one run per combination: model=llama_tiny,qwen_moe_tiny infer.batch_size=1,4
  --resume[=DIR]        resume a sweep: jobs that finished with the same configuration are kept
  --hydra-help          Hydra's own switches
  shell completion      eval "$(llm-perf-opt completion bash)"

"""
_OURS = frozenset({"--resume", "--plan", "--json", "--quiet", "-q", "--verbose", "-v"})
KNOWN = _OURS | keys.KNOWN


@dataclass(slots=True)
class RunArguments:
    """The command line, sorted into ours and Hydra's."""

    overrides: list[str] = field(default_factory=list)
    hydra_flags: list[str] = field(default_factory=list)
    config_dir: Path | None = None
    config_name: str = "config"
    multirun: bool = False
    hydra_only: bool = False
    """Hydra prints something and nothing is run."""
    composes_only: bool = False
    """What it prints is the configuration, which is checked first."""
    plan: bool = False
    json: bool = False
    resume: bool = False
    resume_dir: Path | None = None
    verbosity: Verbosity = Verbosity.normal
    given: tuple[str, ...] = field(default=(), compare=False)
    """The command line as it was given."""


def parse_arguments(argv: Sequence[str]) -> RunArguments:
    """Split ``argv`` without interpreting overrides."""
    parsed = RunArguments(given=tuple(argv))
    items = iter(argv)
    for item in items:
        name, separator, inline = item.partition("=")
        if item == "--":  # `pixi run TASK -- key=value` hands it on
            continue
        if item == "--plan":
            parsed.plan = True
        elif item == "--json":
            parsed.json = True
        elif name == "--resume":
            parsed.resume = True
            parsed.resume_dir = Path(inline).expanduser().absolute() if separator else None
        elif item in ("-q", "--quiet"):
            parsed.verbosity = Verbosity.quiet
        elif item in ("-v", "--verbose"):
            parsed.verbosity = Verbosity.verbose
        elif not item.startswith("-") or item == "-":
            parsed.overrides.append(item)
        else:
            _hydra_flag(parsed, name, inline if separator else None, items)
    return parsed


def _hydra_flag(parsed: RunArguments, name: str, inline: str | None, items: Iterator[str]) -> None:
    if name not in KNOWN:
        near = nearest_key(name, KNOWN)
        setting = _setting_of(name)
        if setting is not None:
            value = inline if inline is not None else next(items, None)
            raise ConfigError(
                f"'{name}' is not an option of run: settings are given as key=value",
                hint=f"did you mean {setting}={'VALUE' if value is None else value}?",
            )
        raise ConfigError(
            f"'{name}' is not an option of run",
            hint=f"did you mean {near}?" if near else "see llm-perf-opt run --help",
        )
    if name in keys.REFUSED:
        raise ConfigError(
            f"{name} is refused: it would execute the content of the given file",
            hint="run the command of the run's manifest.json again",
        )
    parsed.hydra_only |= name in keys.PRINT_ONLY
    parsed.composes_only |= name in keys.PRINT_CONFIG
    parsed.multirun |= name in keys.MULTIRUN
    parsed.hydra_flags.append(name if inline is None else f"{name}={inline}")
    if name not in keys.WITH_VALUE:
        return
    value = inline if inline is not None else next(items, None)
    if value is None:
        raise ConfigError(f"{name} needs a value")
    if inline is None:
        parsed.hydra_flags.append(value)
    if name in keys.CONFIG_DIR:
        parsed.config_dir = Path(value).expanduser().absolute()
    elif name in keys.CONFIG_NAME:
        parsed.config_name = value


def _setting_of(option: str) -> str | None:
    """Return the configuration key or preset group that an unknown ``--option`` probably means."""
    from omegaconf import OmegaConf

    from llm_perf_opt.config.store import schema_node

    wanted = option.strip("-").replace("-", "_")
    if wanted in ("model", "dataset"):
        return wanted
    known = keys.leaf_keys(OmegaConf.to_container(schema_node(), resolve=False))  # type: ignore[arg-type]
    found = nearest_key(wanted, known)
    return found if found is not None and found.rsplit(".", 1)[-1].startswith(wanted[:3]) else None


def main(arguments: Sequence[str]) -> int:
    """Run; return the exit code (see :mod:`llm_perf_opt.core.errors`)."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(HELP + exit_codes("a stage failed, or the first tokens differ from generate()"), end="")
        return 0
    parsed = parse_arguments(arguments)
    console_logging(parsed.verbosity)
    with hint_other_directory(other_directory(RUN_DIRECTORY)):  # `serve` names its own option
        return _run(parsed)


def _run(parsed: RunArguments) -> int:
    from llm_perf_opt.config.hydra_bridge.refusals import refuse_calls, refuse_package
    from llm_perf_opt.config.legacy import current_overrides, translate_overrides
    from llm_perf_opt.runs import app  # late: --help needs neither Hydra nor the stages

    refuse_calls(parsed.overrides)  # also where Hydra only prints something
    for flag in parsed.hydra_flags:
        refuse_package(flag.rpartition("=")[2])
    secrets = _check_composition(parsed) if parsed.composes_only else {}
    if parsed.hydra_only:
        printed = io.StringIO()  # otherwise Hydra prints a traceback if the reader exits (`| head`)
        with contextlib.redirect_stdout(printed):
            shown = translate_overrides(current_overrides(parsed.overrides))
            code = app.launch([*parsed.hydra_flags, *shown])
        print(mask_layout(printed.getvalue(), secrets), end="")
        return code
    if parsed.multirun or parsed.resume:
        from llm_perf_opt.sweep.launch import SweepCommand, run_command

        if this_rank() is not None:
            raise ConfigError(
                "--multirun inside of torchrun: every rank would run the whole sweep",
                hint="llm-perf-opt run --multirun run.ranks=2 …, which starts the ranks of each job",
            )
        return run_command(
            SweepCommand(
                overrides=parsed.overrides,
                switches=_switches(parsed),
                config_dir=parsed.config_dir,
                config_name=parsed.config_name,
                plan=parsed.plan,
                as_json=parsed.json,
                verbosity=parsed.verbosity,
                resume=parsed.resume,
                resume_dir=parsed.resume_dir,
            )
        )
    job = app.prepare(parsed.overrides, config_dir=parsed.config_dir, config_name=parsed.config_name)
    if parsed.plan:
        return app.show_plan(job, as_json=parsed.json)
    restart_with(job.config.run.env, ["run", *parsed.given])
    rank = this_rank()
    if rank is not None:
        from llm_perf_opt.runs.rank_member import run_member

        return run_member(
            job,
            rank,
            parsed.hydra_flags,
            switches=_switches(parsed),
            verbosity=parsed.verbosity,
            as_json=parsed.json,
        )
    try:
        with defer_signals():  # a signal right after the directory was created must not leave it behind
            reserved = app.reserve_run_directory(job, parsed.overrides)
        return app.launch(
            [*parsed.hydra_flags, *translate_overrides(parsed.overrides), *reserved],
            app.RunOptions(
                overrides=tuple(parsed.overrides),
                switches=tuple(_switches(parsed)),
                as_json=parsed.json,
                verbosity=parsed.verbosity,
            ),
        )
    except KeyboardInterrupt:
        with defer_signals(), contextlib.suppress(OSError):  # not empty: then it holds a manifest
            job.run_dir.rmdir()
        raise


def _switches(parsed: RunArguments) -> list[str]:
    """Return Hydra's switches that a repeated command needs."""
    return [flag for flag in parsed.hydra_flags if flag not in keys.MULTIRUN]


def _check_composition(parsed: RunArguments) -> dict[str, str]:
    """Check the configuration that Hydra will print; return its secrets with their replacements."""
    from llm_perf_opt.config.hydra_bridge.compose import plain_tree
    from llm_perf_opt.config.hydra_bridge.launch import sweep_jobs
    from llm_perf_opt.runs import app

    # `--info defaults`: a word is its value.
    given = [word for word in parsed.overrides if "=" in word or word.startswith("~")]
    found = secret_texts(given)
    for one in sweep_jobs(given) if parsed.multirun else [given]:
        checked = app.check_configuration(one, config_dir=parsed.config_dir, config_name=parsed.config_name)
        found |= secret_texts(plain_tree(checked.raw))
    return found
