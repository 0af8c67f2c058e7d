"""``llm-perf-opt improve``: the command line."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.console.command_line import (
    VerbParser,
    duration,
    exit_codes,
    percentage,
    share,
    whole_number,
)
from llm_perf_opt.core.console.logs import Verbosity, console_logging
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.files import hint_other_directory
from llm_perf_opt.remedies.data import EFFECTS, METRICS, SearchSettings

if TYPE_CHECKING:
    from llm_perf_opt.improve.improve import Done

_DESCRIPTION = """\
usage: llm-perf-opt improve [RUN | key=value …] [options]

Try the advice of a run: measure the gain of each remedy with an interval, compare the answers, and combine what
helps into a configuration.

  llm-perf-opt improve                          the default workload
  llm-perf-opt improve model=llama_tiny         another workload
  llm-perf-opt improve RUN                      a finished run: its configuration and its findings
  llm-perf-opt improve RUN --only growing-cache only remedies for one finding
  llm-perf-opt improve --engine vllm --help     the options of a server under load
"""


def main(arguments: Sequence[str]) -> int:
    """Search; return the exit code."""
    if any(item.partition("=")[0] == "--engine" for item in arguments):
        return _engine_main(arguments)
    options = parse_arguments(arguments)
    if options.resume is not None and _is_engine_search(options.resume):
        return _engine_main(arguments)
    console_logging(Verbosity.quiet if options.json or options.quiet else Verbosity.normal)
    with hint_other_directory("another directory: --out DIR"):
        return _run(options)


def _engine_main(arguments: Sequence[str]) -> int:
    from llm_perf_opt.improve.engine_command import main as engine_main

    return engine_main(arguments)


def _is_engine_search(folder: Path) -> bool:
    from llm_perf_opt.improve.engine import is_engine_search

    return is_engine_search(folder.expanduser())


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; overrides and options may be in any order."""
    options = _parser().parse_intermixed_args(list(arguments))
    options.overrides = [item for item in options.items if "=" in item or item.startswith("~")]
    runs = [item for item in options.items if item not in options.overrides]
    if len(runs) > 1:
        raise ConfigError(
            f"improve takes one run, not {len(runs)}", hint="llm-perf-opt improve RUN [key=value …]"
        )
    options.run = Path(runs[0]) if runs else None
    return options


def _run(options: argparse.Namespace) -> int:
    if options.list:
        return _list()
    from llm_perf_opt.improve.improve import Request, improve

    request = Request(
        overrides=options.overrides,
        run=options.run,
        metric=options.metric,
        budget_s=options.budget,
        out=options.out,
        resume=options.resume,
        settings=SearchSettings(
            only=options.only,
            own=options.own,
            least_gain_ratio=options.least_gain,
            family_error_ratio=options.error,
            most_samples=options.samples,
            most_blocks=options.pairs,
            processes=options.processes,
            seed=options.seed,
            search=options.search,
            allow=options.allow,
        ),
        trials=options.trials,
    )
    if options.plan:
        from llm_perf_opt.improve.show_plan import show_plan

        return show_plan(request, as_json=options.json)
    _show(improve(request, interrupted=lambda done: _show(done, options)), options)
    return 0


def _show(done: Done, options: argparse.Namespace) -> None:
    """Print the result; for an incomplete one, also how to resume."""
    if options.json:
        from llm_perf_opt.summary.codec import to_plain

        print(json.dumps(to_plain(done.result)))
        return
    from llm_perf_opt.improve.page import improve_console

    print(improve_console(done.result))
    print(f"report: {done.page}")
    if done.result.status != "complete":
        print(f"resume: {shlex.join(['llm-perf-opt', 'improve', '--resume', str(done.page.parent)])}")


def _list() -> int:
    from llm_perf_opt.remedies.registry import load_remedies

    remedies, unusable = load_remedies()
    for remedy in remedies:
        addressed = f"  addresses {', '.join(remedy.answers)}" if remedy.answers else ""
        print(f"{remedy.name:<22} {remedy.title} (changes in the output: {remedy.effect}){addressed}")
    for item in unusable:
        print(f"{item.name:<22} cannot be used: {item.reason}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = VerbParser(
        prog="llm-perf-opt improve",
        description=_DESCRIPTION,
        epilog=exit_codes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument(
        "items", nargs="*", metavar="RUN | key=value", help="a finished run, or the configuration"
    )
    parser.add_argument("--metric", choices=METRICS, default="total", help="metric to improve (total)")
    parser.add_argument(
        "--budget",
        type=duration,
        default=600.0,
        metavar="TIME",
        help="most time of the whole search, baseline included: 90s, 10m, 2h (10m)",
    )
    parser.add_argument(
        "--plan", action="store_true", help="show what would be tried and how long it takes; run nothing"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a remedy, or a finding (repeatable)"
    )
    parser.add_argument(
        "--try",
        action="append",
        default=[],
        dest="own",
        metavar="'key=value …'",
        help="your own remedy (repeatable)",
    )
    parser.add_argument(
        "--allow",
        choices=EFFECTS,
        default="nothing",
        help="keep and build on remedies that change tokens by rounding, or that may make answers worse (nothing)",
    )
    parser.add_argument(
        "--search",
        choices=("greedy", "optuna"),
        default="greedy",
        help="single remedies, then combinations (greedy), or combinations proposed by Optuna",
    )
    parser.add_argument(
        "--trials",
        type=whole_number(1, 100_000),
        default=20,
        help="maximum number of proposals of --search optuna (20)",
    )
    parser.add_argument("--out", type=Path, help="directory of the result (tmp/improve/<time>)")
    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="resume a search with its original settings"
    )
    parser.add_argument("--list", action="store_true", help="list the remedies")
    parser.add_argument("--json", action="store_true", help="print improve.json on standard output")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.add_argument(
        "--least-gain",
        type=percentage,
        default=0.02,
        metavar="N%",
        help="smallest gain that counts (2%%)",
    )
    parser.add_argument(
        "--error",
        type=share,
        default=0.05,
        help="family-wise probability of keeping a configuration without a gain (0.05)",
    )
    parser.add_argument(
        "--samples", type=whole_number(1, 10_000), default=4, help="number of samples to measure (4)"
    )
    parser.add_argument(
        "--pairs",
        type=whole_number(6, 100_000),
        default=80,
        help="maximum number of pairs of passes per experiment (80)",
    )
    parser.add_argument(
        "--processes",
        type=whole_number(1, 100),
        default=3,
        help="processes that a gain must hold in, each used for several pairs; twice as many if they differ (3)",
    )
    parser.add_argument("--seed", type=whole_number(0), default=20240229, help="seed of the order of passes")
    return parser
