"""``llm-perf-opt improve --engine``: the command line of a search over the options of a server."""

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
from llm_perf_opt.remedies.data import EFFECTS, SERVING_METRICS, SearchSettings
from llm_perf_opt.stages.serve.options import add_load_options, serve_overrides, split_server_arguments

if TYPE_CHECKING:
    from llm_perf_opt.improve.improve import Done, Request

_DESCRIPTION = """\
usage: llm-perf-opt improve --engine NAME --model MODEL [RUN | key=value …] [options] [-- arguments of the server]

Try the options of a server under load: measure the gain of each with an interval, compare the answers, combine what
helps, and write the best command line. The last load point is the one that is improved. See docs/improve.md.

  llm-perf-opt improve --engine vllm --model MODEL --concurrency 32 --budget 2h
  llm-perf-opt improve --engine vllm --model MODEL --rate 4 --slo ttft:500ms,tpot:50ms --metric goodput -- --max-num-seqs 64
  llm-perf-opt improve --engine vllm --model MODEL --concurrency 8 --try '--max-num-batched-tokens=1024'
"""
_BUDGET_S = 3600.0


def main(arguments: Sequence[str]) -> int:
    """Search; return the exit code."""
    own, of_server = split_server_arguments(arguments)
    options = _parser().parse_intermixed_args(_joined_try(own))
    console_logging(Verbosity.quiet if options.json or options.quiet else Verbosity.normal)
    if options.list:
        return _list(options.engine or "vllm")
    overrides = [item for item in options.items if "=" in item or item.startswith("~")]
    runs = [item for item in options.items if item not in overrides]
    if len(runs) > 1:
        raise ConfigError(
            f"improve takes one run, not {len(runs)}", hint="llm-perf-opt improve --engine NAME [RUN]"
        )
    request = _request(
        options, [*serve_overrides(options), *of_server, *overrides], Path(runs[0]) if runs else None
    )
    with hint_other_directory("another directory: --out DIR"):
        return _run(request, options)


def _joined_try(arguments: Sequence[str]) -> list[str]:
    """Join ``--try`` and its value: it begins with dashes itself."""
    found: list[str] = []
    words = iter(arguments)
    for word in words:
        following = next(words, None) if word == "--try" else None
        found.append(word if following is None else f"{word}={following}")
    return found


def _request(options: argparse.Namespace, overrides: list[str], run: Path | None) -> Request:
    from llm_perf_opt.improve.improve import Request

    return Request(
        overrides=overrides,
        run=run,
        metric=options.metric or "total",
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
            allow=options.allow,
        ),
    )


def _run(request: Request, options: argparse.Namespace) -> int:
    from llm_perf_opt.improve.engine import describe_plan, engine_plan, improve_engine

    if options.plan:
        found = engine_plan(request)
        print(json.dumps(found, indent=2) if options.json else "\n".join(describe_plan(found)))
        return 0
    _show(improve_engine(request, interrupted=lambda done: _show(done, options)), options)
    return 0


def _show(done: Done, options: argparse.Namespace) -> None:
    if options.json:
        from llm_perf_opt.summary.codec import to_plain

        print(json.dumps(to_plain(done.result)))
        return
    from llm_perf_opt.improve.page import improve_console

    print(improve_console(done.result))
    print(f"report: {done.page}")
    if done.result.status != "complete":
        print(f"resume: {shlex.join(['llm-perf-opt', 'improve', '--resume', str(done.page.parent)])}")


def _list(engine: str) -> int:
    from llm_perf_opt.remedies.engine_options import engine_remedies
    from llm_perf_opt.stages.serve.config import EngineName

    for remedy in engine_remedies(EngineName(engine)):
        addressed = f"  addresses {', '.join(remedy.answers)}" if remedy.answers else ""
        print(f"{remedy.name:<22} {remedy.title} (changes in the output: {remedy.effect}){addressed}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = VerbParser(
        prog="llm-perf-opt improve --engine",
        description=_DESCRIPTION,
        epilog=exit_codes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument(
        "items", nargs="*", metavar="RUN | key=value", help="a finished run of `serve`, and the configuration"
    )
    parser.add_argument(
        "--metric",
        choices=SERVING_METRICS,
        help="metric to improve (goodput with --slo; else tokens_per_s of a closed loop, ttft_p90 of an open one)",
    )
    parser.add_argument(
        "--budget",
        type=duration,
        default=_BUDGET_S,
        metavar="TIME",
        help="most time of the whole search, baseline included: 30m, 2h (1h)",
    )
    parser.add_argument(
        "--plan", action="store_true", help="show what would be tried and how long it takes; start nothing"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="an option by its name, or a finding (repeatable)",
    )
    parser.add_argument(
        "--try",
        action="append",
        default=[],
        dest="own",
        metavar="'--option=value …'",
        help="your own options of the server (repeatable)",
    )
    parser.add_argument(
        "--allow",
        choices=EFFECTS,
        default="nothing",
        help="keep options that change answers by rounding, or that may make answers worse (nothing)",
    )
    parser.add_argument("--out", type=Path, help="directory of the result (tmp/improve/<time>)")
    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="resume a search with its original settings"
    )
    parser.add_argument("--list", action="store_true", help="list the options that are known")
    parser.add_argument("--json", action="store_true", help="print improve.json on standard output")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.add_argument(
        "--least-gain", type=percentage, default=0.02, metavar="N%", help="smallest gain that counts (2%%)"
    )
    parser.add_argument(
        "--error",
        type=share,
        default=0.05,
        help="family-wise probability of keeping a configuration without a gain (0.05)",
    )
    parser.add_argument(
        "--samples", type=whole_number(1, 10_000), default=4, help="responses that are compared (4)"
    )
    parser.add_argument(
        "--pairs",
        type=whole_number(6, 100_000),
        default=80,
        help="maximum number of pairs of load blocks per experiment (80)",
    )
    add_load_options(parser)
    return parser
