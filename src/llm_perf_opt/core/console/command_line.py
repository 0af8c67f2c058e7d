"""What every command of the package shares: one parser style, one way to print an error, one set of exit codes."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from llm_perf_opt.core.console.last_resort import defect
from llm_perf_opt.core.console.signals import (
    Interrupted,
    interruption_first,
    raise_if_interrupted,
    stop_signals,
)
from llm_perf_opt.core.console.terminal import give_up_output, safe_streams
from llm_perf_opt.core.errors import LlmPerfError, ToolError
from llm_perf_opt.core.escape import visible
from llm_perf_opt.core.secrets import mask_text, mask_tree

_MOST_TIMEOUT_S = 30 * 86_400.0
_OUTPUT_REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
EXIT_CODES = """\
exit codes:
  0    done (skipped stages included)
  1    a stage failed, or compare --gate found a regression
  2    the command line or the configuration is wrong; nothing was written
  3    an input cannot be used
  4    an external tool or the machine did not do what was needed
  70   a defect of this program; the message names a file with the details
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


def time_limit(text: str) -> float:
    """Read a time limit in seconds, for ``type=`` of an option."""
    value = float(text)
    if not 0 < value <= _MOST_TIMEOUT_S:
        raise argparse.ArgumentTypeError(f"must be more than 0 and at most {_MOST_TIMEOUT_S:g} seconds")
    return value


def whole_number(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """Return what reads a whole number between two limits, for ``type=`` of an option."""

    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be at least {least} and at most {most}")
        return value

    return number


def share(text: str) -> float:
    """Read a share above 0 and up to 1, for ``type=`` of an option."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1")
    return value


def print_error(error: LlmPerfError, *, as_json: bool = False) -> int:
    """Print an expected error, for people on standard error or for scripts on standard output; return its exit code."""
    if as_json:
        print(json.dumps(mask_tree(error.to_dict()), default=str))
    else:
        print(visible(mask_text(f"error: {error}")), file=sys.stderr)
    return error.exit_code


def run_guarded(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command; what a user can cause or do becomes a message and an exit code, never a traceback."""
    as_json = "--json" in arguments
    with safe_streams():
        try:
            with stop_signals():
                try:
                    with interruption_first():
                        code = command(arguments)
                finally:
                    sys.stdout.flush()  # what cannot be written is noticed here, and not when Python ends
                raise_if_interrupted()
                return code
        except LlmPerfError as error:
            return _last_words(error, as_json)
        except KeyboardInterrupt as interruption:
            with contextlib.suppress(OSError):  # a closed terminal takes no more words
                print("interrupted", file=sys.stderr)
            return interruption.exit_code if isinstance(interruption, Interrupted) else 130
        except SystemExit as leaving:  # argparse, after --help or a mistake it has explained
            if leaving.code is None or isinstance(leaving.code, int):
                return leaving.code or 0
            raise
        except BrokenPipeError:
            # The reader of our output (head, less) left; that is its right.
            give_up_output()
            return 0
        except OSError as error:
            refused = error.filename is None and error.errno in _OUTPUT_REFUSED
            return _last_words(_machine_failed(error) or defect(error), as_json and not refused)
        except MemoryError:
            hint = "close other programs, or give a smaller capture"
            return _last_words(ToolError("there is not enough memory for this", hint=hint), as_json)
        except Exception as error:  # noqa: BLE001 - the last resort: nothing behind it would catch anything
            return _last_words(defect(error), as_json)


def _last_words(error: LlmPerfError, as_json: bool) -> int:
    """Print the error; where standard output takes nothing (a full disk), on standard error."""
    try:
        code = print_error(error, as_json=as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        give_up_output()
        return error.exit_code
    except OSError as full:
        give_up_output()
        print(visible(f"error: cannot write the output: {full.strerror}"), file=sys.stderr)
        return error.exit_code
    return code


def _machine_failed(error: OSError) -> ToolError | None:
    """Say what the system refused, and where; ``None`` when it does not tell."""
    try:
        Path.cwd()
    except OSError:
        return ToolError("the working directory does not exist any more", hint="change to one that does")
    if error.filename is None and error.errno not in _OUTPUT_REFUSED:
        return None
    if error.filename is None:
        give_up_output()
        return ToolError(f"cannot write the output: {error.strerror or error}", hint="write it elsewhere")
    name = os.fsdecode(error.filename) if isinstance(error.filename, bytes | str) else str(error.filename)
    return ToolError(
        f"{name}: {error.strerror or error}", hint="check the path, its permissions and the disk", path=name
    )
