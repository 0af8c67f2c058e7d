"""``llm-perf-opt ingest``: the command line; what it does is in :mod:`llm_perf_opt.runs.commands.ingest`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.core.console.command_line import verb_parser
from llm_perf_opt.core.files import writing_elsewhere


def main(arguments: Sequence[str]) -> int:
    """Analyse captures; return the exit code."""
    parser = verb_parser(
        "ingest",
        "Analyse captures taken elsewhere: any mix of sources into one summary and the same reports.",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        action="append",
        help="torch profiler trace (Kineto JSON or .json.gz), or a folder of them; one per rank: give it several times",
    )
    parser.add_argument(
        "--nsys",
        type=Path,
        action="append",
        help="nsys SQLite export, kernel-summary CSV, .nsys-rep (needs nsys), or a run directory; one per rank: give it "
        "several times",
    )
    parser.add_argument(
        "--ncu", type=Path, help="ncu CSV, .ncu-rep (needs the ncu extra), or a folder of them"
    )
    parser.add_argument(
        "--timings",
        type=Path,
        help='wall-clock JSON: {"samples": 20, "new_tokens": 64, "prefill_s": 0.1, "decode_s": 0.7}',
    )
    parser.add_argument("--static", type=Path, help="static_compute.json of the same model")
    parser.add_argument(
        "--device", help="device name in the hardware catalogue, when the captures do not tell"
    )
    parser.add_argument("--dtype", help="data type of the peak, when the captures do not tell (bfloat16)")
    parser.add_argument("--catalogue", type=Path, help="YAML file with further devices")
    parser.add_argument("--out", type=Path, required=True, help="directory for summary.json and the reports")
    parser.add_argument("--json", action="store_true", help="print summary.json")
    options = parser.parse_args(arguments)
    from llm_perf_opt.runs.commands.ingest import ingest  # late: --help reads no capture

    with writing_elsewhere("another directory: --out DIR"):
        return ingest(options)
