"""``llm-perf-opt report``: the command line; what it does is in :mod:`llm_perf_opt.runs.finish`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.core.console.command_line import verb_parser
from llm_perf_opt.core.files import hint_other_directory


def main(arguments: Sequence[str]) -> int:
    """Render again; return the exit code."""
    parser = verb_parser("report", "Render the reports of a finished run again, from its files alone.")
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument(
        "--reanalyse", action="store_true", help="also build summary.json again from the captures"
    )
    parser.add_argument(
        "--json", action="store_true", help="print summary.json instead of the console summary"
    )
    options = parser.parse_args(arguments)
    from llm_perf_opt.runs.finish import report_run  # late: --help reads no report

    with hint_other_directory("a copy of the run directory that you may write: reports go next to the run"):
        return report_run(options.run, reanalyse=options.reanalyse, as_json=options.json)
