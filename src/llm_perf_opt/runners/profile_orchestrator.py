"""The one entry of a run: configuration in, run directory and reports out.

``llm-perf-opt run`` and ``python -m llm_perf_opt.runners.profile_orchestrator`` are the same. Hydra's own
switches (``--multirun``, ``--config-dir``, ``--cfg job``, ``--info``, completion) work as everywhere.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_perf_opt.config.hydra_bridge import switches
from llm_perf_opt.core.errors import ConfigError, LlmPerfError
from llm_perf_opt.core.logs import Verbosity, console_logging
from llm_perf_opt.core.nearest import nearest_key

LOGGER = logging.getLogger("llm_perf_opt.run")

_OURS = frozenset({"--plan", "--json", "--quiet", "-q", "--verbose", "-v"})
_KNOWN = _OURS | switches.KNOWN


@dataclass(slots=True)
class RunArguments:
    """The command line, sorted into ours and Hydra's."""

    overrides: list[str] = field(default_factory=list)
    hydra_flags: list[str] = field(default_factory=list)
    config_dir: Path | None = None
    config_name: str = "config"
    multirun: bool = False
    hydra_only: bool = False
    plan: bool = False
    json: bool = False
    verbosity: Verbosity = Verbosity.normal


def parse_arguments(argv: Sequence[str]) -> RunArguments:
    """Split ``argv`` without interpreting overrides."""
    parsed = RunArguments()
    items = iter(argv)
    for item in items:
        name, separator, inline = item.partition("=")
        if item == "--plan":
            parsed.plan = True
        elif item == "--json":
            parsed.json = True
        elif item in ("-q", "--quiet"):
            parsed.verbosity = Verbosity.quiet
        elif item in ("-v", "--verbose"):
            parsed.verbosity = Verbosity.verbose
        elif not item.startswith("-") or item == "-":
            parsed.overrides.append(item)
        else:
            _hydra_flag(parsed, name, inline if separator else None, items)
    return parsed


def _hydra_flag(parsed: RunArguments, name: str, inline: str | None, items: Any) -> None:
    if name not in _KNOWN:
        near = nearest_key(name, _KNOWN)
        raise ConfigError(
            f"'{name}' is not an option of run",
            hint=f"did you mean {near}?" if near else "see llm-perf-opt run --help",
        )
    parsed.hydra_only |= name in switches.PRINT_ONLY
    parsed.multirun |= name in switches.MULTIRUN
    parsed.hydra_flags.append(name if inline is None else f"{name}={inline}")
    if name not in switches.WITH_VALUE:
        return
    value = inline if inline is not None else next(items, None)
    if value is None:
        raise ConfigError(f"{name} needs a value")
    if inline is None:
        parsed.hydra_flags.append(value)
    if name in switches.CONFIG_DIR:
        parsed.config_dir = Path(value).expanduser().absolute()
    elif name in switches.CONFIG_NAME:
        parsed.config_name = value


def main(argv: Sequence[str] | None = None) -> int:
    """Run; return the exit code (see :mod:`llm_perf_opt.core.errors`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments
    try:
        parsed = parse_arguments(arguments)
        console_logging(parsed.verbosity)
        return _dispatch(parsed)
    except LlmPerfError as error:
        _print_error(error, as_json=as_json)
        return error.exit_code


def _print_error(error: LlmPerfError, *, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(error.to_dict()))
    else:
        print(f"error: {error}", file=sys.stderr)


def _dispatch(parsed: RunArguments) -> int:
    from llm_perf_opt.config.legacy import translate_overrides
    from llm_perf_opt.runs import app as hydra_app

    if parsed.hydra_only:
        return hydra_app.launch([*parsed.hydra_flags, *translate_overrides(parsed.overrides)])
    if parsed.multirun:
        jobs = hydra_app.check_sweep(
            parsed.overrides, config_dir=parsed.config_dir, config_name=parsed.config_name
        )
        if parsed.plan:
            return hydra_app.show_sweep_plan(jobs, parsed.overrides, as_json=parsed.json)
        reserved = hydra_app.reserve_sweep_directory(jobs, parsed.overrides)
        return _launch(parsed, reserved)
    prepared = hydra_app.prepare(
        parsed.overrides, config_dir=parsed.config_dir, config_name=parsed.config_name
    )
    if parsed.plan:
        return hydra_app.show_plan(prepared, as_json=parsed.json)
    reserved = hydra_app.reserve_run_directory(prepared, parsed.overrides)
    return _launch(parsed, reserved)


def _launch(parsed: RunArguments, reserved: Sequence[str]) -> int:
    from llm_perf_opt.config.legacy import translate_overrides
    from llm_perf_opt.runs import app as hydra_app

    return hydra_app.launch(
        [*parsed.hydra_flags, *translate_overrides(parsed.overrides), *reserved],
        hydra_app.RunOptions(
            overrides=tuple(parsed.overrides),
            switches=tuple(flag for flag in parsed.hydra_flags if flag not in switches.MULTIRUN),
            as_json=parsed.json,
            verbosity=parsed.verbosity,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
