"""``llm-perf-opt what-if``: expected times and floors of a counted model on chosen devices, from a finished run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.console.command_line import share, verb_parser, whole_number
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.what_if.query import Query, find_devices, points_of, price_query, static_of
from llm_perf_opt.what_if.target import BATCH_SIZES, TENSOR_PARALLEL, Target, parse_time

if TYPE_CHECKING:
    from llm_perf_opt.hardware.catalogue import Catalogue
    from llm_perf_opt.hardware.silicon import Silicon
    from llm_perf_opt.summary import Summary
    from llm_perf_opt.what_if.page import Answer
    from llm_perf_opt.what_if.serving import Capacity, ServingQuery, ServingRow

HTML_NAME, JSON_NAME = "what_if.html", "what_if.json"

MOST_TOKENS = 100_000_000
MOST_RANKS = 1024
_MOST_SERVING_ROWS = 400
_MOST_RATE = 1e6
_CACHE_DTYPES = ("bfloat16", "float8")
NEW_TOKENS = 200
FRAMEWORKS = ("vllm", "sglang", "trtllm")
"""Whose kernels the tables time; the default first."""


def main(arguments: Sequence[str]) -> int:
    """Estimate a model on other devices; return the exit code."""
    options = _parser().parse_args(arguments)
    _check_serving_options(options)
    query = Query(
        options.device or [],
        options.dtype or [],
        options.batch or [],
        options.prompt or [],
        options.context or [],
        options.tensor_parallel or [],
        options.framework,
    )
    if options.serve:
        return _answer_serving(options.run, query, options)
    target = Target(options.ttft, options.tpot)
    output = Output(options.json, options.csv, options.out)
    return answer(options.run, query, catalogue_file=options.catalogue, target=target, output=output)


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser(
        "what-if",
        "Estimate a run's model (expected times and roofline floors) on other devices, data types, batch sizes, lengths and ranks.\n"
        "Separate list items with commas; every combination is estimated. Expected times need the extra 'silicon'.",
    )
    parser.add_argument("run", type=Path, help="run directory with a static analysis, or a summary.json")
    parser.add_argument(
        "--device",
        type=_names,
        metavar="NAMES",
        help="devices of the catalogue (default: all with measured tables)",
    )
    parser.add_argument(
        "--dtype", type=_names, metavar="TYPES", help="data types of the weights: bfloat16,float8,float4"
    )
    number = _numbers(1, MOST_TOKENS)
    parser.add_argument("--batch", type=number, metavar="N,N", help="sequences per step")
    parser.add_argument(
        "--prompt-tokens",
        "--prompt",
        dest="prompt",
        type=number,
        metavar="N,N",
        help="prompt tokens",
    )
    parser.add_argument(
        "--context", type=number, metavar="N,N", help="cached tokens at the decode step (default: the prompt)"
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
        help=f"preferred framework of the measured kernels: {', '.join(FRAMEWORKS)}",
    )
    parser.add_argument("--catalogue", type=Path, metavar="FILE", help="your own devices (docs/hardware.md)")
    _add_target_options(parser)
    _add_output_options(parser)
    _add_serving_options(parser)
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


def _add_serving_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "a server under load (--serve)",
        "Continuous batching is simulated over expected step times; without --device over the step times that RUN recorded.",
    )
    group.add_argument(
        "--serve", action="store_true", help="latency, throughput, memory and cost of a server"
    )
    group.add_argument(
        "--concurrency", type=_numbers(1, 65536), metavar="N,N", help="requests in flight, a row for each"
    )
    group.add_argument(
        "--requests",
        type=whole_number(1, 1_000_000),
        metavar="N",
        help="requests of each --concurrency, all sent as a benchmark does (default: the steady state)",
    )
    group.add_argument("--rate", type=_rates, metavar="R,R", help="requests per second, a row for each")
    group.add_argument(
        "--new-tokens", type=whole_number(1, MOST_TOKENS), metavar="N", help="tokens of an answer"
    )
    group.add_argument(
        "--max-num-batched-tokens",
        type=whole_number(1, MOST_TOKENS),
        metavar="N",
        help="token budget of a step (default: vLLM's for the device)",
    )
    group.add_argument(
        "--max-num-seqs",
        type=whole_number(1, 65536),
        metavar="N",
        help="running requests (default: vLLM's for the device)",
    )
    group.add_argument(
        "--gpu-memory-utilization", type=share, metavar="X", help="share of the memory used (default: 0.92)"
    )
    group.add_argument(
        "--kv-cache-dtype", metavar="TYPE", help="bfloat16 or float8 (default: as the weights)"
    )
    group.add_argument(
        "--slo", metavar="LIMITS", help="limits for goodput and capacity: ttft:500ms,tpot:50ms"
    )
    group.add_argument(
        "--target-rate", type=_rate, metavar="R", help="requests per second to size a deployment for"
    )
    group.add_argument(
        "--price", type=_rate, metavar="X", help="of one device for an hour: cost per million tokens"
    )


_SERVING_ONLY = (
    "concurrency",
    "requests",
    "rate",
    "new_tokens",
    "max_num_batched_tokens",
    "max_num_seqs",
    "gpu_memory_utilization",
    "kv_cache_dtype",
    "slo",
    "target_rate",
    "price",
)
_WITHOUT_SERVING = ("batch", "context")


def _check_serving_options(options: argparse.Namespace) -> None:
    wrong = _WITHOUT_SERVING if options.serve else _SERVING_ONLY
    given = [f"--{name.replace('_', '-')}" for name in wrong if getattr(options, name) is not None]
    if given and options.serve:
        raise ConfigError(
            f"{given[0]} has no meaning with --serve", hint="the load decides it: --concurrency or --rate"
        )
    if given:
        raise ConfigError(f"{given[0]} describes a server under load", hint="add --serve")
    if options.serve and (options.ttft is not None or options.tpot is not None):
        raise ConfigError(
            "--ttft and --tpot have no meaning with --serve", hint="give --slo ttft:1s,tpot:20ms"
        )
    if options.serve and (options.csv or options.out is not None):
        raise ConfigError("--csv and --out have no meaning with --serve", hint="give --json")
    if options.kv_cache_dtype is not None and options.kv_cache_dtype not in _CACHE_DTYPES:
        raise ConfigError(
            f"--kv-cache-dtype {options.kv_cache_dtype}: not a type of a KV cache",
            hint=f"one of: {', '.join(_CACHE_DTYPES)}",
        )


def _rate(text: str) -> float:
    value = float(text)
    if not 0 < value <= _MOST_RATE:
        raise argparse.ArgumentTypeError(f"must be more than 0 and at most {_MOST_RATE:g}")
    return value


_rate.__name__ = "number"


def _rates(text: str) -> list[float]:
    return [_rate(part) for part in text.split(",")]


_rates.__name__ = "list of numbers"


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
    """Output format and page."""

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
    """Print the answer to a query, as text, JSON or CSV, and write its page if requested."""
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
    rows = price_query(summary, _for_target(query, target, summary), catalogue, silicon)
    found = Answer(summary, rows, silicon_use(silicon, query.framework), target)
    if output.as_json:
        print(json.dumps(_document(found), indent=2))
    elif output.as_csv:
        print(what_if_csv(rows), end="")
    else:
        print(what_if_console(found, terminal_width() if sys.stdout.isatty() else CONSOLE_WIDTH))
    if output.out is not None:
        page = _write_page(found, output.out)
        if not (output.as_json or output.as_csv):
            print(f"report: {page}")
    return 0


def _for_target(query: Query, target: Target, summary: Summary) -> Query:
    """Add the batch sizes and numbers of devices needed for a target, unless they were given."""
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


def _write_page(found: Answer, out: Path) -> Path:
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


# A server under load.


def _answer_serving(run: Path, query: Query, options: argparse.Namespace) -> int:
    """Print the expected performance of a server, as a table or as JSON."""
    from dataclasses import asdict

    from llm_perf_opt.analysis.roofline.expected_times import silicon_use
    from llm_perf_opt.hardware.catalogue import load_catalogue
    from llm_perf_opt.hardware.silicon import open_silicon
    from llm_perf_opt.summary.codec import to_plain
    from llm_perf_opt.summary.file import load_summary
    from llm_perf_opt.what_if.recorded import read_run, serve_from_records
    from llm_perf_opt.what_if.step_times import EngineCosts

    summary = load_summary(run)
    records = read_run(run) if not query.devices else None
    document: dict[str, object] = {}
    if records is not None:
        rows, capacities, fit = serve_from_records(
            summary, run, records, _serving_queries(summary, query, options)[0]
        )
        document["step_fit"] = asdict(fit)
    else:
        catalogue = load_catalogue(options.catalogue)
        silicon = open_silicon(catalogue)
        rows, capacities = _serve_elsewhere(summary, query, options, catalogue, silicon)
        document["assumptions"] = asdict(EngineCosts())
        document["silicon"] = to_plain(silicon_use(silicon, query.framework))
    document = {
        "serving": [asdict(row) for row in rows],
        "capacity": [asdict(one) for one in capacities],
        **document,
    }
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        _print_serving(summary, rows, capacities)
    return 0


def _serve_elsewhere(
    summary: Summary,
    query: Query,
    options: argparse.Namespace,
    catalogue: Catalogue,
    silicon: Silicon | None,
) -> tuple[list[ServingRow], list[Capacity]]:
    from llm_perf_opt.analysis.roofline.expected_times import tables_of
    from llm_perf_opt.what_if.serving import serve_on

    static = static_of(summary)
    devices = find_devices(query.devices, catalogue, silicon)
    rows: list[ServingRow] = []
    capacities: list[Capacity] = []
    for serving in _serving_queries(summary, query, options):
        sized = replace(query, prompts=[serving.prompt_tokens], contexts=[])
        points = points_of(static, summary.workload.dtype, sized)
        loads = len(serving.concurrency) + len(serving.rates_per_s)
        if len(points) * len(devices) * loads > _MOST_SERVING_ROWS:
            raise ConfigError(
                f"{len(points) * len(devices) * loads} rows; at most {_MOST_SERVING_ROWS}",
                hint="name fewer devices (--device), loads, lengths or types",
            )
        found = serve_on(static, devices, points, serving, tables_of(silicon, query.framework))
        rows += found[0]
        capacities += found[1]
    return rows, capacities


def _serving_queries(summary: Summary, query: Query, options: argparse.Namespace) -> list[ServingQuery]:
    """Return one query per length of a prompt; lengths that are not given are those of the run's own load."""
    from llm_perf_opt.analysis.serving.latency import parse_slo
    from llm_perf_opt.what_if.serving import MEMORY_SHARE, ServingQuery

    points = summary.serving.load if summary.serving is not None else []
    sent = [
        (one.prompt_tokens, one.output_tokens) for one in points if one.prompt_tokens and one.output_tokens
    ]
    counted = summary.static.scaling.prompt_tokens if summary.static and summary.static.scaling else 512
    prompt, new = sent[0] if sent else (counted, NEW_TOKENS)
    rates = options.rate or []
    return [
        ServingQuery(
            length,
            options.new_tokens or max(round(new or 0), 1),
            options.concurrency or ([] if rates or options.target_rate else [1, 4, 16, 64]),
            rates,
            options.max_num_batched_tokens,
            options.max_num_seqs,
            options.gpu_memory_utilization or MEMORY_SHARE,
            options.kv_cache_dtype,
            options.price,
            parse_slo(options.slo) if options.slo else {},
            options.target_rate,
            options.requests,
        )
        for length in query.prompts or [max(round(prompt or 0), 1)]
    ]


def _print_serving(summary: Summary, rows: Sequence[ServingRow], capacities: Sequence[Capacity]) -> None:
    from llm_perf_opt.reporting.markdown import render_table
    from llm_perf_opt.reporting.wording import title_of
    from llm_perf_opt.what_if.tables import capacity_table, memory_table, serving_table

    source = rows[0].source if rows else "expected operator times"
    print(f"{title_of(summary)}: a server under load, simulated over {source}; expected (range)\n")
    if rows:
        print(render_table(serving_table(rows)))
    if any(row.memory is not None for row in rows):
        print(render_table(memory_table(rows)))
    if capacities:
        print(render_table(capacity_table(capacities)))
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        print(f"note: {note}")
