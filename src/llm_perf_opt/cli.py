"""``llm-perf-opt``: the command line. A verb is imported when it is used, so help is instant."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.core.command_line import EXIT_CODES, run_guarded
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.nearest import nearest_key
from llm_perf_opt.core.version import __version__


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: what help says of it, and the function that takes its arguments and returns an exit code."""

    summary: str
    module: str
    function: str = "main"

    def __call__(self, arguments: Sequence[str]) -> int:
        """Import the verb's module and run it."""
        module = importlib.import_module(f"llm_perf_opt.runs.{self.module}")
        return int(getattr(module, self.function)(arguments))


VERBS = {
    "run": Verb("profile a model: one configuration, one run directory, one report", "run_command"),
    "doctor": Verb("what this machine can do, and how to fix the rest", "doctor"),
    "report": Verb("render the reports of a finished run again", "report_command"),
    "ingest": Verb("analyse captures taken elsewhere", "ingest_command"),
    "compare": Verb("compare two runs; gate a regression in CI", "compare.command"),
    "migrate": Verb("flatten run directories of earlier releases", "migrate"),
    "ncu-profile": Verb(
        "profile chosen kernels of any program with Nsight Compute", "ncu_tools", "profile_main"
    ),
    "top-kernels": Verb(
        "list the top kernels of an nsys summary for ncu-profile", "top_kernels", "extract_main"
    ),
}


def usage() -> str:
    """Return the top-level help."""
    verbs = "\n".join(f"  {name:<12} {verb.summary}" for name, verb in VERBS.items())
    return (
        "usage: llm-perf-opt VERB [options]\n\n"
        "Where does LLM and VLM inference time go, how far is it from the hardware, what to change first.\n\n"
        f"verbs:\n{verbs}\n\n"
        "  --help, --version; 'llm-perf-opt VERB --help' for each verb\n\n" + EXIT_CODES
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Dispatch to a verb; expected errors become one message and an exit code."""
    return run_guarded(_dispatch, list(sys.argv[1:] if argv is None else argv))


def _dispatch(arguments: Sequence[str]) -> int:
    first = arguments[0] if arguments else None
    if first is None or first in ("-h", "--help", "help"):
        print(usage(), end="")
        return 2 if first is None else 0
    if first == "--version":
        print(f"llm-perf-opt {__version__}")
        return 0
    if first in ("-sc", "--shell-completion"):
        return _complete(arguments)
    if first not in VERBS:
        near = nearest_key(first, VERBS)
        raise ConfigError(
            f"unknown verb '{first}'", hint=f"did you mean '{near}'?" if near else "see llm-perf-opt --help"
        )
    return VERBS[first](arguments[1:])


def _complete(arguments: Sequence[str]) -> int:
    """Hydra's completion script calls the program without a verb: complete overrides of ``run``."""
    words = os.environ.get("COMP_LINE", "").split(" ")
    if len(words) > 2 and words[1] == "run":
        os.environ["COMP_LINE"] = " ".join([words[0], *words[2:]])
    return VERBS["run"](arguments)


if __name__ == "__main__":
    sys.exit(main())
