"""``llm-perf-opt serve``: the stage ``serve`` in the words of load tools; every option is a key of ``pipeline.serve``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.config.hydra_bridge.values import format_value
from llm_perf_opt.core.console.command_line import verb_parser
from llm_perf_opt.core.files import hint_other_directory
from llm_perf_opt.stages.serve.options import add_load_options, serve_overrides, split_server_arguments


def main(arguments: Sequence[str]) -> int:
    """Measure a server; return the exit code."""
    from llm_perf_opt.commands import run

    own, of_server = split_server_arguments(arguments)
    options, further = _parser().parse_known_args(own)
    overrides = [*serve_overrides(options), *of_server]
    if options.out is not None:
        overrides.append(f"artifacts.runs_dir={format_value(str(options.out.expanduser().absolute()))}")
    switches = [
        name
        for name, wanted in (("--plan", options.plan), ("--json", options.json), ("--quiet", options.quiet))
        if wanted
    ]
    with hint_other_directory("another directory: --out DIR"):
        return run.main([*switches, *overrides, *further])


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser(
        "serve",
        "Start a server, send load, stop it, and report where request time goes.\n"
        "Each option sets a key of pipeline.serve; other keys can be given as key=value, arguments of the server after --.\n"
        "See docs/serving-load.md.",
        one="a load point failed",
    )
    add_load_options(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: tmp/runs/TIME)")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="repeat the last load point under the engine's profiler: kernels of steps and requests (vLLM)",
    )
    parser.add_argument("--plan", action="store_true", help="show what would run; start nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="only warnings and the path of the report")
    return parser
