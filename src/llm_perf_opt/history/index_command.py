"""``llm-perf-opt index``: flatten the summaries below a directory into Parquet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.core.console.command_line import verb_parser
from llm_perf_opt.core.console.logs import Verbosity, console_logging
from llm_perf_opt.core.escape import one_line
from llm_perf_opt.core.files import hint_other_directory

_MOST_NAMED = 10


def main(arguments: Sequence[str]) -> int:
    """Index; return the exit code."""
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
