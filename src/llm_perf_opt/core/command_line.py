"""What every command of the package shares: one parser style, one way to print an error, one set of exit codes."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence

from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.core.secrets import mask_text, mask_tree
from llm_perf_opt.core.signals import Interrupted, raise_if_interrupted, stop_signals

EXIT_CODES = """\
exit codes:
  0    done (skipped stages included)
  1    a stage failed, or compare --gate found a regression
  2    the command line or the configuration is wrong; nothing was written
  3    an input cannot be used
  4    an external tool or the machine did not do what was needed
  130  interrupted (143: SIGTERM, 129: SIGHUP)
"""


def verb_parser(verb: str, description: str) -> argparse.ArgumentParser:
    """Return a parser for ``llm-perf-opt VERB`` whose help ends with the exit codes."""
    return argparse.ArgumentParser(
        prog=f"llm-perf-opt {verb}",
        description=description,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def print_error(error: LlmPerfError, *, as_json: bool = False) -> int:
    """Print an expected error, for people on standard error or for scripts on standard output; return its exit code."""
    if as_json:
        print(json.dumps(mask_tree(error.to_dict())))
    else:
        print(mask_text(f"error: {error}"), file=sys.stderr)
    return error.exit_code


def run_guarded(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command; what a user can cause or do becomes a message and an exit code, never a traceback."""
    try:
        with stop_signals():
            code = command(arguments)
            raise_if_interrupted()
            return code
    except LlmPerfError as error:
        return print_error(error, as_json="--json" in arguments)
    except KeyboardInterrupt as interruption:
        with contextlib.suppress(OSError):  # a closed terminal takes no more words
            print("interrupted", file=sys.stderr)
        return interruption.exit_code if isinstance(interruption, Interrupted) else 130
    except BrokenPipeError:
        # The reader of our output (head, less) left; that is its right.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
