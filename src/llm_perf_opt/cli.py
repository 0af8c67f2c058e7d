"""``llm-perf-opt``: the command line. A verb is imported when it is used, so help is instant."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from llm_perf_opt.commands import VERBS, Verb
from llm_perf_opt.core.console.command_line import EXIT_CODES, run_guarded
from llm_perf_opt.core.errors import ConfigError, nearest_key
from llm_perf_opt.core.version import __version__

_HYDRA_COMPLETION = {"-sc", "--shell-completion"}
"""Hydra's own switch, with and without the verb ``run``."""


def usage() -> str:
    """Return the top-level help."""
    verbs = "\n".join(f"  {name:<16} {verb.summary}" for name, verb in VERBS.items())
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
    if {*arguments[:2]} & _HYDRA_COMPLETION:
        return Verb("", "commands.completion", "hydra_request")(arguments)
    if first not in VERBS:
        near = nearest_key(first, VERBS)
        raise ConfigError(
            f"unknown verb '{first}'", hint=f"did you mean '{near}'?" if near else "see llm-perf-opt --help"
        )
    return VERBS[first](arguments[1:])


if __name__ == "__main__":
    sys.exit(main())
