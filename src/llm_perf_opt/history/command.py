"""``llm-perf-opt history``: trends of runs by configuration and machine. ``llm-perf-opt index``: their summaries as Parquet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.console.command_line import verb_parser
from llm_perf_opt.core.console.logs import Verbosity, console_logging
from llm_perf_opt.core.escape import one_line
from llm_perf_opt.core.files import atomic_write_text, hint_other_directory

if TYPE_CHECKING:
    from llm_perf_opt.history.data import History

HTML_NAME, JSON_NAME = "history.html", "history.json"
_MOST_NAMED = 10


def main(arguments: Sequence[str]) -> int:
    """Show the history; return the exit code."""
    parser = verb_parser(
        "history",
        "Trends of all runs below DIR, per configuration and machine, with step changes and what changed with them.\n"
        "An index in DIR (llm-perf-opt index) is updated first; without one, nothing is written into DIR.",
    )
    parser.add_argument(
        "directory",
        type=Path,
        nargs="?",
        default=Path(),
        metavar="DIR",
        help="directory that contains the runs (default: .)",
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="metric to follow: tpot, ttft, program, ttft_p99, goodput, … (repeatable)",
    )
    parser.add_argument("--model", metavar="NAME", help="only runs of this model")
    parser.add_argument(
        "--include-shared",
        action="store_true",
        help="include runs whose device other programs used too (their times may be too long)",
    )
    parser.add_argument("--json", action="store_true", help="print the history as JSON")
    parser.add_argument(
        "--html",
        action="store_true",
        help=f"write {HTML_NAME}, {JSON_NAME} and the index into DIR, or into --out",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory for the index and the page")
    parser.add_argument("--no-renew", action="store_true", help="use the existing index without updating it")
    parser.add_argument(
        "--sql",
        metavar="QUERY",
        help="run a query over the tables runs, metrics and findings (needs DuckDB)",
    )
    options = parser.parse_args(arguments)
    console_logging(Verbosity.quiet if options.json or options.sql else Verbosity.normal)
    from llm_perf_opt.history.index import reading_index

    out = options.out or (options.directory if options.html else None)
    with (
        hint_other_directory("another directory: --out DIR"),
        reading_index(options.directory, out, renew=not options.no_renew) as (folder, _, notes),
    ):
        if options.sql is not None:
            from llm_perf_opt.history.store import print_query

            return print_query(folder, options.sql, as_json=options.json)
        from llm_perf_opt.history.trends import make_history

        history = make_history(
            folder, options.metric, model=options.model, include_shared=options.include_shared
        )
        return _show(history, folder, notes, as_json=options.json, html=options.html)


def _show(history: History, folder: Path, notes: list[str], *, as_json: bool, html: bool) -> int:
    from llm_perf_opt.history.page import history_console
    from llm_perf_opt.reporting.console import terminal_width
    from llm_perf_opt.summary.codec import save_json, to_plain

    page = None
    if html:
        from llm_perf_opt.history.page import history_html

        page = atomic_write_text(folder / HTML_NAME, history_html(history))
        save_json(folder / JSON_NAME, history)
    if as_json:
        print(json.dumps(to_plain(history)))
        return 0
    print(history_console(history, width=terminal_width()))
    for note in notes:
        print(f"note: {one_line(note)}")
    if page is not None:
        print(f"report: {page}")
    return 0


def index_main(arguments: Sequence[str]) -> int:
    """Index the runs below a directory; return the exit code."""
    parser = verb_parser(
        "index",
        "Collect every summary.json below DIR into runs.parquet and metrics.parquet, and graded findings of improve.json\n"
        "into findings.parquet, for history, compare --baseline and SQL. Unchanged files are not read again; the index can\n"
        "be deleted at any time.",
    )
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="directory that contains the runs, at any depth"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="directory of the index (default: DIR itself)"
    )
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    options = parser.parse_args(arguments)
    console_logging(Verbosity.quiet if options.json else Verbosity.normal)
    from llm_perf_opt.history.index import renew_index
    from llm_perf_opt.summary.codec import to_plain

    with hint_other_directory("another directory: --out DIR"):
        done = renew_index(options.directory, options.out)
    if options.json:
        print(json.dumps(to_plain(done)))
        return 0
    print(
        f"{done.info.runs} runs, {done.info.metrics} values, {done.info.findings} graded findings: "
        f"{done.read} summaries read, {done.unchanged} unchanged, "
        f"{done.removed} gone, {len(done.info.left_out)} left out"
    )
    for note in done.notes:
        print(f"note: {one_line(note)}")
    for entry in done.info.left_out[:_MOST_NAMED]:
        print(one_line(f"left out: {entry.path}: {entry.reason}"))
    if len(done.info.left_out) > _MOST_NAMED:
        print(f"… and {len(done.info.left_out) - _MOST_NAMED} more, all in index.json")
    return 0
