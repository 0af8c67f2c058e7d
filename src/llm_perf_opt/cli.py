"""``llm-perf-opt``: the command line. Each verb imports what it needs when it is used, so help is instant."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.core.version import __version__

EXIT_CODES = """\
exit codes:
  0    done (skipped stages included)
  1    a stage failed, or compare --gate found a regression
  2    the command line or the configuration is wrong; nothing was written
  3    an input cannot be used
  4    an external tool or the machine did not do what was needed
  130  interrupted
"""

RUN_HELP = """\
usage: llm-perf-opt run [--plan] [--json] [-q | -v] [hydra switches] [key=value …]

Profile a model end to end: static analysis, torch profiler, Nsight Systems, Nsight Compute.

  --plan                show what would run, with exact commands and files; write nothing
  --json                print the result (or the error) as JSON on standard output
  -q, --quiet           only warnings and the path of the report
  -v, --verbose         everything that goes to run.log
  key=value             any key of the configuration: pipeline.nsys.enable=true run.repeats=5
  --cfg job             show the composed configuration
  --config-dir DIR      add your own presets
  --multirun            one run per combination: model=llama_tiny,qwen_moe_tiny infer.batch_size=1,4
  --hydra-help          Hydra's own switches
  shell completion      eval "$(llm-perf-opt run -sc install=bash)"

"""


def _run(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in ("-h", "--help"):
        print(RUN_HELP + EXIT_CODES, end="")
        return 0
    from llm_perf_opt.runners.profile_orchestrator import main as run

    return run(arguments)


def _doctor(arguments: Sequence[str]) -> int:
    parser = _parser("doctor", "What this machine can do, which stages will run, and how to fix the rest.")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="configuration to check the stages with"
    )
    options = parser.parse_args(arguments)
    from llm_perf_opt.runs.doctor import diagnose, render

    report = diagnose(options.overrides)
    print(json.dumps(report, indent=2) if options.json else render(report))
    return 0


def _report(arguments: Sequence[str]) -> int:
    parser = _parser("report", "Render the reports of a finished run again, from its files alone.")
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument(
        "--reanalyse", action="store_true", help="also build summary.json again from the captures"
    )
    parser.add_argument(
        "--json", action="store_true", help="print summary.json instead of the console summary"
    )
    options = parser.parse_args(arguments)
    from llm_perf_opt.runs.finish import report_run

    return report_run(options.run, reanalyse=options.reanalyse, as_json=options.json)


def _ingest(arguments: Sequence[str]) -> int:
    parser = _parser(
        "ingest",
        "Analyse captures taken elsewhere: any mix of sources into one summary and the same reports.",
    )
    parser.add_argument("--trace", type=Path, help="torch profiler trace (Kineto JSON or .json.gz)")
    parser.add_argument(
        "--nsys", type=Path, help="nsys SQLite export, kernel-summary CSV, or .nsys-rep (needs nsys)"
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
    from llm_perf_opt.runs.ingest import ingest

    return ingest(options)


def _compare(arguments: Sequence[str]) -> int:
    from llm_perf_opt.runs.compare.command import main as compare

    return compare(arguments)


def _migrate(arguments: Sequence[str]) -> int:
    from llm_perf_opt.runs.migrate import main as migrate

    return migrate(arguments)


def _ncu_profile(arguments: Sequence[str]) -> int:
    from llm_perf_opt.runs.ncu_tools import profile_main

    return profile_main(list(arguments))


def _top_kernels(arguments: Sequence[str]) -> int:
    from llm_perf_opt.runs.ncu_tools import extract_main

    return extract_main(list(arguments))


VERBS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "run": (_run, "profile a model: one configuration, one run directory, one report"),
    "doctor": (_doctor, "what this machine can do, and how to fix the rest"),
    "report": (_report, "render the reports of a finished run again"),
    "ingest": (_ingest, "analyse captures taken elsewhere"),
    "compare": (_compare, "compare two runs; gate a regression in CI"),
    "migrate": (_migrate, "flatten run directories of earlier releases"),
    "ncu-profile": (_ncu_profile, "profile chosen kernels of any program with Nsight Compute"),
    "top-kernels": (_top_kernels, "list the top kernels of an nsys summary for ncu-profile"),
}


def _parser(verb: str, description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"llm-perf-opt {verb}",
        description=description,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def usage() -> str:
    """Return the top-level help."""
    verbs = "\n".join(f"  {name:<12} {text}" for name, (_, text) in VERBS.items())
    return (
        "usage: llm-perf-opt VERB [options]\n\n"
        "Where does LLM and VLM inference time go, how far is it from the hardware, what to change first.\n\n"
        f"verbs:\n{verbs}\n\n"
        "  --help, --version; 'llm-perf-opt VERB --help' for each verb\n\n" + EXIT_CODES
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Dispatch to a verb; expected errors become one message and an exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in ("-sc", "--shell-completion"):
        return _complete(arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"llm-perf-opt {__version__}")
        return 0
    if arguments[0] not in VERBS:
        import difflib

        near = difflib.get_close_matches(arguments[0], VERBS, n=1)
        print(
            f"error: unknown verb '{arguments[0]}'"
            + (f"\n  fix: did you mean '{near[0]}'?" if near else "\n  fix: see llm-perf-opt --help"),
            file=sys.stderr,
        )
        return 2
    return _guarded(VERBS[arguments[0]][0], arguments[1:])


def _guarded(verb: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    try:
        return verb(arguments)
    except LlmPerfError as error:
        if "--json" in arguments:
            print(json.dumps(error.to_dict()))
        else:
            print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output (head, less) left; that is its right.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _complete(arguments: Sequence[str]) -> int:
    """Hydra's completion script calls the program without a verb: complete overrides of ``run``."""
    words = os.environ.get("COMP_LINE", "").split(" ")
    if len(words) > 2 and words[1] == "run":
        os.environ["COMP_LINE"] = " ".join([words[0], *words[2:]])
    return _run(arguments)


if __name__ == "__main__":
    sys.exit(main())
