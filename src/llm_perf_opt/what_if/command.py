"""``llm-perf-opt what-if``: expected times and floors of a counted model on chosen devices, from a finished run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.console.command_line import verb_parser, whole_number
from llm_perf_opt.what_if.query import Query, price_query

if TYPE_CHECKING:
    from llm_perf_opt.hardware.silicon import Silicon
    from llm_perf_opt.summary import Summary, WhatIf

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
    return answer(options.run, query, catalogue_file=options.catalogue, as_json=options.json)


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
    parser.add_argument(
        "--json", action="store_true", help="print rows and tables as what_if and silicon of summary.json"
    )
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(least: int, most: int) -> Callable[[str], list[int]]:
    number = whole_number(least, most)

    def numbers(text: str) -> list[int]:
        return [number(part) for part in text.split(",")]

    numbers.__name__ = "list of numbers"
    return numbers


def answer(run: Path, query: Query, *, catalogue_file: Path | None, as_json: bool) -> int:
    """Print the table of a query, or its rows as JSON."""
    from llm_perf_opt.hardware.catalogue import load_catalogue
    from llm_perf_opt.hardware.silicon import open_silicon
    from llm_perf_opt.summary.file import load_summary

    summary = load_summary(run)
    catalogue = load_catalogue(catalogue_file)
    silicon = open_silicon(catalogue)
    rows = price_query(summary, query, catalogue, silicon)
    if as_json:
        from llm_perf_opt.analysis.roofline.expected_times import silicon_use
        from llm_perf_opt.summary.codec import to_plain

        used = silicon_use(silicon, query.framework)
        print(json.dumps({"what_if": to_plain(rows), "silicon": to_plain(used)}, indent=2))
        return 0
    _print(summary, rows, silicon, query.framework)
    return 0


def _print(summary: Summary, rows: Sequence[WhatIf], silicon: Silicon | None, framework: str) -> None:
    from llm_perf_opt.analysis.roofline.expected_times import silicon_use
    from llm_perf_opt.reporting.detail_tables import priced_table
    from llm_perf_opt.reporting.markdown import render_table
    from llm_perf_opt.reporting.wording import describe_times, title_of

    used = silicon_use(silicon, framework)
    expects = any(row.tpot_expected_s is not None for row in rows)
    counted = summary.static is not None and summary.static.operators is not None
    launched = next((row for row in rows if row.eager_host_s is not None), None)
    print(f"{title_of(summary)}: {describe_times(used, expects=expects, counted=counted, row=launched)}\n")
    print(render_table(priced_table(rows)))
    for problem in used.problems:
        print(f"note: {problem}")
