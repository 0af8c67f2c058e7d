"""The program profiled by Nsight: the built-in workload in a child process, or the user's own command.

The built-in workload runs the same engine on the same values as the stages in this process. Values come from
the checked configuration, not from the user's command line, so presets, configuration directories and
relative paths mean the same in the child, wherever it runs. Only what a capture needs is different: other
stages are off (a second profiler would fight over CUPTI), it runs in ``tmp/workload/``, and the decode length
may differ.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from llm_perf_opt.config.devices import is_rocm
from llm_perf_opt.config.hydra_bridge.values import leaves, override
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.config.workload_env import named_variables
from llm_perf_opt.core.secrets import MASK, mask_arguments, mask_tree
from llm_perf_opt.core.stage import Problem
from llm_perf_opt.process.environment import allowed_environment

WORKLOAD_MODULE = "llm_perf_opt.runs.workload"
CAPTURED_ENVIRONMENT = (
    "# The program got an allow-listed environment, because a capture stores it. A shell hands on all it has:\n"
    "# use env -i NAME=value … to leave secrets out."
)
_PRESETS_OFF = ("~model/deepseek_ocr/arch@model", "~model/deepseek_ocr/infer@infer")
"""Default presets would add their own keys to ``model.arch``: all values are given one by one instead."""
_FREE_FORM = ("model.arch.",)
"""Keys the schema does not list, so they are added rather than replaced."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A program to run under a tool."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    """What has to be set for the program to run; part of the command that is recorded."""
    named: Mapping[str, str] = field(default_factory=dict)
    """What the user wants it to get (``pipeline.workload.env``) in addition to the allow-listed environment."""
    built_in: bool = True
    """False: the user's own command, about whose ranges nothing is known."""

    @property
    def added_env(self) -> dict[str, str]:
        """Variables in addition to the allow-listed environment."""
        return {**self.named, **self.env}

    def base_env(self) -> dict[str, str]:
        """Return the environment to add ``env`` to: allow-listed, because captures store it."""
        return allowed_environment(self.named)


def workload(config: AppConfig, root: Path) -> Workload:
    """Return the program for captures of the run in ``root``."""
    command = config.workload_command.command
    named = named_variables(config.workload_command.env)
    if command:
        return Workload(argv=tuple(command), cwd=_original_directory(), named=named, built_in=False)
    # Not tmp_dir(), which creates it: a plan writes nothing.
    directory = root / "tmp" / "workload"
    argv = build_work_argv(
        WORKLOAD_MODULE,
        workload_overrides(config),
        hydra_run_dir=str(directory),
        chdir=True,
        run_mode=config.run.mode.value,
    )
    return Workload(argv=tuple(argv), cwd=directory, env=workload_environment(), named=named)


_COMMAND_COLUMNS = 96
"""Width of a wrapped command, without its indentation and the backslash."""
_INTERPRETERS = re.compile(r"(python|pypy)[\d.]*|sh|bash|dash|zsh|node|perl|ruby|env")


def _original_directory() -> Path:
    from llm_perf_opt.config.hydra_bridge.compose import original_directory  # reading a run needs no Hydra

    return original_directory()


def program_name(config: AppConfig) -> str:
    """Return the name of the user's program in reports: ``pipeline.workload.name``, else the name of its file."""
    own = config.workload_command
    if own.name:
        return own.name
    command = [part for part in own.command or () if part]
    if not command:
        return "program"
    first = Path(command[0]).name
    if not _INTERPRETERS.fullmatch(first):
        return first
    # python -m package.module, python script.py, bash script.sh: the interpreter is not informative.
    rest = [part for part in command[1:] if not part.startswith("-")]
    return Path(rest[0]).name if rest and "-c" not in command[1:2] else first


def program_problems(config: AppConfig) -> list[Problem]:
    """Check the user's program before any work."""
    command = config.workload_command.command
    if not command or shutil.which(command[0]) is not None or (_original_directory() / command[0]).exists():
        return []
    key = "pipeline.workload.command"
    message = f"{key} starts with '{command[0]}', which is not a program"
    return [Problem("error", message, "give the program's path, or a name on PATH", key, of_machine=True)]


def build_work_argv(
    module: str,
    overrides: Sequence[str],
    *,
    hydra_run_dir: str,
    chdir: bool = True,
    run_mode: str | None = None,
    python: str | None = None,
) -> list[str]:
    """Return ``python -m module overrides… hydra.run.dir=…``; the interpreter is this one by default."""
    argv = [python or sys.executable, "-m", module, *overrides]
    argv += [override("run.mode", run_mode)] if run_mode else []
    argv += [override("artifacts.runs_dir", hydra_run_dir), override("hydra.run.dir", hydra_run_dir)]
    return [*argv, f"hydra.job.chdir={'true' if chdir else 'false'}"]


def workload_overrides(config: AppConfig) -> list[str]:
    """Return the overrides that give the child the same model, inference, data set and run settings.

    The decode length is ``run.representative_max_new_tokens`` where set, else ``infer.max_new_tokens``.
    """
    tokens = config.run.representative_max_new_tokens or config.infer.max_new_tokens
    replaced = {
        "infer.max_new_tokens": tokens,
        "run.representative_max_new_tokens": tokens,
        "run.device": config.resolved_device,
    }
    lines = [*_PRESETS_OFF]
    for section in ("model", "infer", "dataset", "run"):
        for key, value in leaves(getattr(config, section), section):
            if key in ("run.mode", "model.arch"):
                continue  # the mode is an argument of build_work_argv; an empty arch adds nothing
            prefix = "++" if key.startswith(_FREE_FORM) else ""
            lines.append(prefix + override(key, replaced.get(key, value)))
    lines += [override(f"pipeline.{name}.enable", False) for name in config.pipeline]
    return [*lines, *_outputs(config)]


def workload_environment() -> dict[str, str]:
    """Return the variables that give the child the same import path: it starts in another directory.

    Entries of a relative ``PYTHONPATH``, or the directory ``python -m`` was started in, would be lost.
    """
    installed = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)]
    folders = (Path(entry).resolve() for entry in sys.path if entry and Path(entry).is_dir())
    own = [str(path) for path in folders if not any(path.is_relative_to(root) for root in installed)]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(own))} if own else {}


def replay_lines(
    argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Return shell lines that run a command again, wrapped between arguments where the line would be long.

    What looks like a secret is masked; a comment notes that it must be restored.
    """
    arguments, variables = mask_arguments(argv), mask_tree(dict(env or {}))
    assignments = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    text = _wrap_command([*assignments, *_with_values([shlex.quote(word) for word in arguments])])
    if arguments != [str(word) for word in argv] or variables != dict(env or {}):
        text += f"\n# {MASK} replaces a possible secret: restore it before running this again"
    return f"cd {shlex.quote(str(cwd))} &&\n{text}" if cwd else text


def _with_values(arguments: Sequence[str]) -> list[str]:
    """Join each option with the value that follows it, to keep both on one line."""
    joined: list[str] = []
    for word in arguments:
        last = joined[-1] if joined else ""
        is_option = last.startswith("-") and "=" not in last and " " not in last and last != "--"
        if is_option and not word.startswith("-"):
            joined[-1] = f"{last} {word}"
        else:
            joined.append(word)
    return joined


def _wrap_command(arguments: Sequence[str]) -> str:
    """Break a command between words into continued lines; a word with a line break is not split."""
    lines = [""]
    for word in arguments:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > _COMMAND_COLUMNS:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return " \\\n  ".join(lines)


def _outputs(config: AppConfig) -> Iterator[str]:
    """Keep predictions and galleries of a capture below the child's directory, whatever ``save_dir`` is."""
    output: Any = getattr(config.pipeline.get("torch_profiler"), "output", None)
    for name, folder in (("prediction", "pred"), ("visualization", "viz")):
        part = getattr(output, name, None)
        if part is not None:
            key = f"pipeline.torch_profiler.output.{name}"
            yield override(f"{key}.enable", bool(part.enable))
            yield override(f"{key}.save_dir", folder)


# Files written by a capture, detected by changes, not by the clock.
#
# The clock of a file server and that of this machine may differ by minutes, and either may be set while a capture runs.


FileState: TypeAlias = tuple[int, int, int, int, int]
"""Device, inode, size, times of change: a file that was written again differs in one of them."""


def _file_state(path: Path) -> FileState | None:
    """Return a state that identifies this version of a file; ``None``: it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def folder_state(folder: Path) -> dict[str, FileState]:
    """Return name → state of the files of a directory."""
    if not folder.is_dir():
        return {}
    states = ((path.name, _file_state(path)) for path in folder.iterdir())
    return {name: state for name, state in states if state is not None}


def is_fresh(path: Path, before: Mapping[str, FileState]) -> bool:
    """Return whether a file is not empty and did not exist before in this state."""
    state = _file_state(path)
    return state is not None and state[2] > 0 and state != before.get(path.name)


# Devices supported by a vendor's tool, and alternatives for the others.


_PRODUCTS = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}
_OWN_TOOLS = {
    "AMD GPUs": "rocprofv3 (ROCm) or rocprof-compute",
    "Intel GPUs": "unitrace or VTune",
    "Apple GPUs": "Instruments (Metal System Trace)",
}


def unsupported_device(tool: str, config: AppConfig) -> Problem | None:
    """Return why a tool of NVIDIA cannot profile the built-in workload on the run's device; ``None``: it can.

    A CPU is supported: nsys records the program's phases and calls.
    """
    device = config.resolved_device
    kind = device.partition(":")[0]
    if config.workload_command.command or kind == "cpu" or (kind == "cuda" and not is_rocm()):
        return None
    what = {"cuda": "AMD GPUs", "xpu": "Intel GPUs", "mps": "Apple GPUs"}.get(kind, f"{kind} devices")
    own = _OWN_TOOLS.get(what, "its vendor's profiler")
    return Problem(
        "skip",
        f"{_PRODUCTS[tool]} ({tool}) watches NVIDIA GPUs only, and this run is on {device}: it does not exist for {what}",
        f"kernels and their times are in the torch profiler's stage; for counters use {own}",
        "run.device",
    )
