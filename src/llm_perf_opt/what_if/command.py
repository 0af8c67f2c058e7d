"""``llm-perf-opt what-if``: expected times and floors of a counted model on chosen devices, from a finished run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.console.command_line import verb_parser, whole_number
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.what_if.query import Query, price_query
from llm_perf_opt.what_if.target import BATCH_SIZES, TENSOR_PARALLEL, Target, parse_time

if TYPE_CHECKING:
    from llm_perf_opt.summary import Summary
    from llm_perf_opt.what_if.page import Answer

HTML_NAME, JSON_NAME = "what_if.html", "what_if.json"

MOST_TOKENS = 100_000_000
MOST_RANKS = 1024
FRAMEWORKS = ("vllm", "sglang", "trtllm")
"""Whose kernels the tables time; the default first."""


def main(arguments: Sequence[str]) -> int:
    """Price a model elsewhere; return the exit code."""
    options = _parser().parse_args(arguments)
    query = Query(
        options.device or [],
        options.dtype or [],
        options.batch or [],
        options.prompt or [],
        options.context or [],
        options.tensor_parallel or [],
        options.framework,
    )
    target = Target(options.ttft, options.tpot)
    output = Output(options.json, options.csv, options.out)
    return answer(options.run, query, catalogue_file=options.catalogue, target=target, output=output)


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser(
        "what-if",
        "Expected times and floors of a run's model on other devices, data types, batch sizes, lengths and numbers of devices.\n"
        "Lists are given with commas; every combination is priced. Expected times need the extra 'silicon'.",
    )
    parser.add_argument("run", type=Path, help="run directory with a static analysis, or a summary.json")
    parser.add_argument(
        "--device", type=_names, metavar="NAMES", help="of the catalogue (default: all with measured tables)"
    )
    parser.add_argument(
        "--dtype", type=_names, metavar="TYPES", help="of the weights: bfloat16,float8,float4"
    )
    number = _numbers(1, MOST_TOKENS)
    parser.add_argument("--batch", type=number, metavar="N,N", help="sequences per step")
    parser.add_argument("--prompt", type=number, metavar="N,N", help="positions of the prompt")
    parser.add_argument(
        "--context", type=number, metavar="N,N", help="cached positions of the step (default: as the prompt)"
    )
    parser.add_argument(
        "--tensor-parallel",
        type=_numbers(1, MOST_RANKS),
        metavar="N,N",
        help="devices that share every layer",
    )
    parser.add_argument(
        "--framework",
        default=FRAMEWORKS[0],
        choices=FRAMEWORKS,
        metavar="NAME",
        help=f"whose kernels are taken first: {', '.join(FRAMEWORKS)}",
    )
    parser.add_argument("--catalogue", type=Path, metavar="FILE", help="your own devices (docs/hardware.md)")
    _add_target_options(parser)
    _add_output_options(parser)
    return parser


def _add_target_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ttft",
        type=parse_time,
        metavar="TIME",
        help="target: longest time to first token (1s, 500ms); lists which devices, ranks and batch sizes meet it",
    )
    parser.add_argument(
        "--tpot", type=parse_time, metavar="TIME", help="target: longest time per output token (20ms)"
    )


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="print rows and tables as what_if and silicon of summary.json"
    )
    form.add_argument("--csv", action="store_true", help="print all columns as CSV, times in seconds")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"write {HTML_NAME} and {JSON_NAME} there")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(least: int, most: int) -> Callable[[str], list[int]]:
    number = whole_number(least, most)

    def numbers(text: str) -> list[int]:
        return [number(part) for part in text.split(",")]

    numbers.__name__ = "list of numbers"
    return numbers


@dataclass(frozen=True, slots=True)
class Output:
    """What is printed, and where the page goes."""

    as_json: bool = False
    as_csv: bool = False
    out: Path | None = None


def answer(
    run: Path,
    query: Query,
    *,
    catalogue_file: Path | None,
    target: Target | None = None,
    output: Output | None = None,
) -> int:
    """Print the answer to a query, as text, JSON or CSV, and write its page where one is asked for."""
    from llm_perf_opt.analysis.roofline.expected_times import silicon_use
    from llm_perf_opt.hardware.catalogue import load_catalogue
    from llm_perf_opt.hardware.silicon import open_silicon
    from llm_perf_opt.reporting.console import terminal_width
    from llm_perf_opt.summary.file import load_summary
    from llm_perf_opt.what_if.page import CONSOLE_WIDTH, Answer, what_if_console, what_if_csv

    target, output = target or Target(), output or Output()
    summary = load_summary(run)
    catalogue = load_catalogue(catalogue_file)
    silicon = open_silicon(catalogue)
    rows = price_query(summary, for_target(query, target, summary), catalogue, silicon)
    found = Answer(summary, rows, silicon_use(silicon, query.framework), target)
    if output.as_json:
        print(json.dumps(_document(found), indent=2))
    elif output.as_csv:
        print(what_if_csv(rows), end="")
    else:
        print(what_if_console(found, terminal_width() if sys.stdout.isatty() else CONSOLE_WIDTH))
    if output.out is not None:
        page = write_page(found, output.out)
        if not (output.as_json or output.as_csv):
            print(f"report: {page}")
    return 0


def for_target(query: Query, target: Target, summary: Summary) -> Query:
    """Add the batch sizes and numbers of devices that a question for a target asks for, unless they were given."""
    if not target or summary.static is None:
        return query
    scales = summary.static.scaling is not None
    splits = any(one.shares for one in summary.static.splits)
    return replace(
        query,
        batch_sizes=query.batch_sizes or (BATCH_SIZES if scales else ()),
        tensor_parallel=query.tensor_parallel or (TENSOR_PARALLEL if splits else ()),
    )


def _document(found: Answer) -> dict[str, Any]:
    """Return the answer as JSON: rows and tables as in ``summary.json``, and what meets the target."""
    from llm_perf_opt.summary.codec import to_plain

    document = {"what_if": to_plain(found.rows), "silicon": to_plain(found.used)}
    if found.target:
        met = [
            {
                "device": each.device,
                "tensor_parallel": each.tensor_parallel,
                "dtype": each.dtype,
                "batch_sizes": each.batch_sizes,
                "certainty": each.certainty,
            }
            for each in found.met
        ]
        document |= {"target": to_plain(found.target), "met": met, "needed": to_plain(found.needed)}
    return document


def write_page(found: Answer, out: Path) -> Path:
    """Write the page and its data; return the page."""
    from llm_perf_opt.core.files import atomic_write_json, atomic_write_text, explain_os_errors
    from llm_perf_opt.what_if.page import what_if_html

    out = out.expanduser().absolute()
    if out.exists() and not out.is_dir():
        raise ConfigError(
            f"--out {out} is not a directory", hint="give a directory; it is created when absent"
        )
    with explain_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    atomic_write_json(out / JSON_NAME, _document(found))
    return atomic_write_text(out / HTML_NAME, what_if_html(found))
