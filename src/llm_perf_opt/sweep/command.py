"""``llm-perf-opt sweep-report``: summarise a sweep from its job files, at any time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.core.console.command_line import verb_parser
from llm_perf_opt.core.console.logs import Verbosity, console_logging
from llm_perf_opt.core.files import hint_other_directory
from llm_perf_opt.summary.codec import to_plain
from llm_perf_opt.sweep.collect import exit_code, read_sweep, write_sweep


def main(arguments: Sequence[str]) -> int:
    """Read the jobs of a directory, write the documents; 1 where a job failed."""
    parser = verb_parser(
        "sweep-report",
        "Summarise a sweep from its job files, also while jobs are running: writes sweep.json, sweep.html and sweep.md\n"
        "into the directory of the sweep.",
        one="a job failed, was interrupted or was killed",
    )
    parser.add_argument("directory", type=Path, help="directory of a --multirun (hydra.sweep.dir)")
    parser.add_argument("--json", action="store_true", help="print sweep.json alone")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the path of the page only")
    options = parser.parse_args(arguments)
    console_logging(Verbosity.quiet if options.json or options.quiet else Verbosity.normal)
    directory = options.directory.expanduser().absolute()
    with hint_other_directory("a copy of the directory that can be written"):
        sweep = read_sweep(directory)
        page = write_sweep(sweep, directory)
    if options.json:
        print(json.dumps(to_plain(sweep)))
    elif options.quiet:
        print(page)
    else:
        from llm_perf_opt.sweep.page import sweep_console

        print(sweep_console(sweep, page).lstrip("\n"))
    return exit_code(sweep, finished=False)
