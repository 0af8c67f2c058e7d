"""``llm-perf-opt compare``: two finished sides, or two configurations measured in turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.compare.data import Comparison, ExpectedChange
from llm_perf_opt.compare.gates import UNDECIDED, gate_exit_code, parse_gate
from llm_perf_opt.core.artifacts import reserve_directory
from llm_perf_opt.core.console.command_line import VerbParser, exit_codes, time_limit, whole_number
from llm_perf_opt.core.console.logs import Verbosity, console_logging
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.files import atomic_write_text, explain_os_errors, hint_other_directory

if TYPE_CHECKING:
    from llm_perf_opt.analysis.origin import Side
    from llm_perf_opt.compare.measure import Plan

_ROUNDS, _TOGETHER_ROUNDS = 8, 120
_MOST_ROUNDS, _MOST_RESAMPLES = 100_000, 1_000_000
JSON_NAME, MARKDOWN_NAME, HTML_NAME = "comparison.json", "comparison.md", "comparison.html"
_DESCRIPTION = """\
usage: llm-perf-opt compare A B [options]

Compare B with A, and gate regressions.

  llm-perf-opt compare A B [options]
      A and B: run directories, outputs of ingest, summary.json files, or folders with several runs of one
      configuration (paired in the order of their names).
  llm-perf-opt compare B --baseline latest|best|RUN [options]
      A comes from the index of the runs around B (llm-perf-opt index): the latest before it, the best, or one by its
      name; of the same configuration and machine.
  llm-perf-opt compare [COMMON key=value …] [options] --run [key=value … of A] -- [key=value … of B]
      run both configurations in turn (A B B A …) in separate processes, and compare them;
      with --together in one process, pass by pass (recommended on shared machines).
"""
_FAILED = "a gate found a regression (with --strict: did not pass), or a side failed or was interrupted"


def main(arguments: Sequence[str]) -> int:
    """Compare; return the exit code."""
    options = parse_arguments(arguments)
    console_logging(Verbosity.quiet if options.json or options.quiet else Verbosity.normal)
    with hint_other_directory("another directory: --out DIR"):
        return _compare(options)


def _compare(options: argparse.Namespace) -> int:
    gates = [parse_gate(text) for text in options.gate]
    _check_out(options.out)
    baseline_note, plan = None, None
    if options.run:
        from llm_perf_opt.compare.measure import Plan

        rounds = options.rounds or (_TOGETHER_ROUNDS if options.together else _ROUNDS)
        plan = Plan(options.common, options.overrides_a, options.overrides_b, rounds, options.timeout)
        reserved = None
        if options.out is None:
            reserved = reserve_directory(Path("tmp") / "compare" / datetime.now().strftime("%Y%m%d-%H%M%S"))
            options.out = reserved
        try:
            paths = _measure(plan, options.out, together=options.together)
        finally:
            with contextlib.suppress(OSError):  # it is not empty, or gone
                if reserved is not None:
                    reserved.rmdir()
        names = ("A", "B")
    elif options.baseline is not None:
        from llm_perf_opt.history.baseline import find_baseline

        baseline, baseline_note = find_baseline(Path(options.items[0]), options)
        paths = (str(baseline), options.items[0])
        names = _names(*paths)
    else:
        paths = (options.items[0], options.items[1])
        names = _names(*paths)

    from llm_perf_opt.compare.compare import compare, default_method
    from llm_perf_opt.compare.sides import load_side

    a, b = (load_side(Path(path), name) for path, name in zip(paths, names, strict=True))
    if options.run:
        a.overrides, b.overrides = list(options.overrides_a), list(options.overrides_b)
    method = default_method(options.seed, options.confidence, options.resamples)
    result = compare(a, b, gates, method)
    result.expected = predicted_change(a, b, result, plan)
    result.common_overrides = list(options.common) if options.run else []
    if baseline_note is not None:
        result.notes.insert(0, baseline_note)
    files = write_comparison(result, options.out) if options.out is not None else []
    _write_for_ci(result, options)
    _print(result, files, as_json=options.json, quiet=options.quiet)
    failed = any(status != "ok" for info in (result.a, result.b) for status in info.statuses)
    return 1 if failed else gate_exit_code(result.gates, strict=options.strict)


def predicted_change(a: Side, b: Side, result: Comparison, plan: Plan | None = None) -> ExpectedChange | None:
    """Return the change predicted from measured operators, if the sides differ in what the tables cover.

    ``plan``: what ``--run`` measured; its sides are counted here, where something may be predicted of them.
    """
    from llm_perf_opt.analysis.roofline.expected_times import Target, tables_of
    from llm_perf_opt.compare.expected import expected_change, needs_expected_times
    from llm_perf_opt.hardware.catalogue import load_catalogue
    from llm_perf_opt.hardware.silicon import AUTO, open_silicon

    catalogue = load_catalogue()
    used = a.first.silicon
    silicon = open_silicon(catalogue, used.framework if used is not None and used.framework else AUTO)
    limits = {
        one.name: Target(one.name, one.peaks, one.bandwidth_bytes_per_s, one.link_bytes_per_s)
        for one in catalogue.devices
    }
    tables, common = tables_of(silicon), plan.common if plan is not None else ()
    if plan is not None and tables is not None and needs_expected_times(a, b, tables, common):
        from llm_perf_opt.compare.expected import count_sides

        count_sides(plan, a, b)
    return expected_change(a, b, result.metrics, tables, limits, common)


def _measure(plan: Plan, out: Path, *, together: bool) -> tuple[str, str]:
    if together:
        from llm_perf_opt.compare.measure import run_together

        return run_together(plan, out)
    from llm_perf_opt.compare.measure import run_both

    return run_both(plan, out)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; options may be anywhere, also after ``--run``."""
    before, after = list(arguments), None
    if "--run" in before:
        place = before.index("--run")
        before, after = before[:place], before[place + 1 :]
    parser = _parser()
    options = parser.parse_intermixed_args(before)
    if after is None:
        wanted = 1 if options.baseline is not None else 2
        if options.baseline is not None and len(options.items) != 1:
            raise ConfigError(
                f"compare --baseline needs one side, B, not {len(options.items)}",
                hint="llm-perf-opt compare RUN --baseline latest",
            )
        if len(options.items) != wanted:
            raise ConfigError(
                f"compare needs two sides, not {len(options.items)}",
                hint="llm-perf-opt compare RUN_A RUN_B, or compare --run key=value -- key=value",
            )
        options.run = False
        return options
    if options.baseline is not None:
        raise ConfigError(
            "--baseline is for a finished run, not for --run",
            hint="give the run: compare RUN --baseline latest",
        )
    if "--" not in after:
        raise ConfigError(
            "compare --run needs '--' between the overrides of A and those of B",
            hint="llm-perf-opt compare model=llama_tiny --run model.dtype=float32 -- model.dtype=bfloat16",
        )
    place = after.index("--")
    common = options.items
    del options.items  # argparse warns about values it did not set itself
    options = parser.parse_intermixed_args(after[:place], namespace=options)
    overrides_a = options.items
    del options.items
    options = parser.parse_intermixed_args(after[place + 1 :], namespace=options)
    options.run, options.common = True, common
    options.overrides_a, options.overrides_b = overrides_a, options.items
    for item in (*common, *overrides_a, *options.overrides_b):
        if "=" not in item and not item.startswith("~"):
            raise ConfigError(f"'{item}' is not an override", hint="with --run, give key=value")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = VerbParser(
        prog="llm-perf-opt compare",
        description=_DESCRIPTION,
        epilog=exit_codes(_FAILED),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument(
        "items", nargs="*", metavar="A B", help="the two sides; with --run: overrides of both"
    )
    parser.add_argument(
        "--gate",
        action="append",
        default=[],
        metavar="METRIC:+N%",
        help="fail when the metric is significantly worse than that: tpot:+3%%, tokens_per_s:-3%% (repeatable)",
    )
    parser.add_argument(
        "--baseline",
        metavar="latest|best|RUN",
        help="take A from the index: the latest run before B, the best, or one by name",
    )
    parser.add_argument(
        "--index",
        type=Path,
        metavar="DIR",
        help="with --baseline: directory of the index (that of the runs around B)",
    )
    parser.add_argument(
        "--by", default="tpot", metavar="METRIC", help="with --baseline best: the metric (tpot)"
    )
    parser.add_argument(
        "--any-configuration", action="store_true", help="with --baseline: A may have another configuration"
    )
    parser.add_argument(
        "--any-machine", action="store_true", help="with --baseline: A may be of another machine"
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the gates as JUnit XML")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="write a short Markdown text, for a comment on a pull request",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="also fail if a gate is undecided, lacks data or is not comparable",
    )
    parser.add_argument(
        "--out", type=Path, help=f"directory for {JSON_NAME}, {MARKDOWN_NAME} and {HTML_NAME}"
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="print only the conclusion, gates and the path of the report",
    )
    parser.add_argument("--together", action="store_true", help="with --run: both models in one process")
    parser.add_argument(
        "--rounds",
        type=whole_number(1, _MOST_ROUNDS),
        help=f"with --run: runs of each side ({_ROUNDS}); with --together: passes ({_TOGETHER_ROUNDS})",
    )
    parser.add_argument(
        "--timeout",
        type=time_limit,
        default=3600.0,
        metavar="S",
        help="with --run: time limit of one run in seconds",
    )
    parser.add_argument("--seed", type=whole_number(0), default=20240229, help="seed of the bootstrap")
    parser.add_argument(
        "--confidence", type=_share, default=0.95, help="confidence level of the intervals (0.95)"
    )
    parser.add_argument(
        "--resamples",
        type=whole_number(200, _MOST_RESAMPLES),
        default=2000,
        help="resamples of the bootstrap (2000)",
    )
    return parser


def _share(text: str) -> float:
    value = float(text)
    if not 0.5 <= value < 1:
        raise argparse.ArgumentTypeError("must be from 0.5 up to, but not, 1")
    return value


def _check_out(out: Path | None) -> None:
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(
            f"--out {out} is not a directory", hint="give a directory; it is created when absent"
        )


def _names(a: str, b: str) -> tuple[str, str]:
    """Shortest names that distinguish the sides."""
    first, second = Path(a).absolute(), Path(b).absolute()
    short = (first.name, second.name)
    return (
        short
        if short[0] != short[1]
        else (str(a), str(b))
        if a != b
        else (f"{short[0]} (A)", f"{short[1]} (B)")
    )


def write_comparison(result: Comparison, out: Path) -> list[Path]:
    """Write JSON, Markdown and HTML; return the page to open first."""
    from llm_perf_opt.compare.page import comparison_html, comparison_markdown
    from llm_perf_opt.runs.lock import hold
    from llm_perf_opt.summary.codec import save_json

    out = out.expanduser().absolute()
    with explain_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with hold(out, elsewhere="--out DIR"):  # the three files belong together
        return [
            atomic_write_text(out / HTML_NAME, comparison_html(result)),
            atomic_write_text(out / MARKDOWN_NAME, comparison_markdown(result)),
            save_json(out / JSON_NAME, result),
        ]


def _write_for_ci(result: Comparison, options: argparse.Namespace) -> None:
    from llm_perf_opt.compare.page import comparison_comment, comparison_junit

    if options.junit is not None:
        atomic_write_text(options.junit.expanduser(), comparison_junit(result, strict=options.strict))
    if options.markdown is not None:
        atomic_write_text(options.markdown.expanduser(), comparison_comment(result))


def _print(result: Comparison, files: list[Path], *, as_json: bool, quiet: bool) -> None:
    from llm_perf_opt.compare.page import comparison_console
    from llm_perf_opt.reporting.console import terminal_width
    from llm_perf_opt.summary.codec import to_plain

    if as_json:
        print(json.dumps(to_plain(result)))
    elif quiet:
        print(result.sentence)
        for gate in result.gates:
            print(f"gate {gate.metric}: {gate.status}: {gate.reason}")
    else:
        print(comparison_console(result, width=terminal_width()))
    if files and not as_json:
        print(f"report: {files[0]}")
    for info in (result.a, result.b):
        if bad := [status for status in info.statuses if status != "ok"]:
            print(
                f"warning: {info.name}: {len(bad)} of {info.runs} runs {' and '.join(sorted({*bad}))}",
                file=sys.stderr,
            )
    for gate in result.gates:
        if gate.status in UNDECIDED:
            print(f"warning: gate {gate.metric} could not be decided: {gate.reason}", file=sys.stderr)
