"""Common parts of all commands: one parser style, one way to print an error, one set of exit codes."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from llm_perf_opt.core import units
from llm_perf_opt.core.console.logs import discard_output, safe_streams
from llm_perf_opt.core.console.signals import (
    Interrupted,
    interruption_first,
    raise_if_interrupted,
    stop_signals,
)
from llm_perf_opt.core.errors import ConfigError, LlmPerfError, ToolError, nearest_key
from llm_perf_opt.core.escape import visible
from llm_perf_opt.core.secrets import mask_arguments, mask_text, mask_tree
from llm_perf_opt.core.version import __version__

# Handling of unexpected errors: one sentence, details in a file, a separate exit code.


_DEBUG_VARIABLE = "LLM_PERF_OPT_DEBUG"
"""Environment variable: ``1`` shows tracebacks on the terminal too."""
_DEFECT_EXIT = 70
"""EX_SOFTWARE of sysexits.h; 1 would say that a stage failed or a gate found a regression."""


class Defect(LlmPerfError):
    """A bug in this program, not a user error."""

    code = "defect"
    exit_code = _DEFECT_EXIT


def defect(error: BaseException) -> Defect:
    """Keep the traceback in a file, and return the error that a user sees in its place."""
    details = mask_text("".join(traceback.format_exception(error)))
    if os.environ.get(_DEBUG_VARIABLE, "") not in ("", "0"):
        print(details, end="", file=sys.stderr)
    place = _written(details)
    kept = f"the details are in {place}" if place else f"set {_DEBUG_VARIABLE}=1 to see the details"
    found: dict[str, str] = {} if place is None else {"details": str(place)}
    return Defect(
        f"this should not have happened ({type(error).__name__}); {kept}",
        hint="report it with that file and the command to the project's issue tracker; "
        f"{_DEBUG_VARIABLE}=1 shows the traceback here",
        **found,
    )


def _written(details: str) -> Path | None:
    """Write the details to a new file readable only by its user; ``None`` if that fails."""
    head = f"llm-perf-opt {__version__}, Python {sys.version.split()[0]}\ncommand: {mask_arguments(sys.argv)}\n\n"
    try:
        descriptor, name = tempfile.mkstemp(prefix="llm-perf-opt-", suffix=".log")
        with open(descriptor, "wb") as stream:  # noqa: PTH123 - a descriptor, not a path
            stream.write((head + details).encode("utf-8", errors="backslashreplace"))
    except OSError:
        return None
    return Path(name)


_MOST_TIMEOUT_S = 30 * 86_400.0
_OUTPUT_REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
_CODES = {
    "0": "success",
    "2": "invalid command line or configuration; nothing was written",
    "3": "an input cannot be read or used",
    "4": "an external tool or the machine failed (disk, memory, permissions)",
    "70": "internal error; the message names a file with the details",
    "130": "interrupted (143: SIGTERM, 129: SIGHUP)",
}
"""Exit codes of every verb; 1 means something different in each verb that uses it."""


def exit_codes(one: str | None = None) -> str:
    """Return the table of exit codes of a verb; ``one``: what 1 means there, if it is used."""
    codes = _CODES | ({"1": one} if one else {})
    lines = (f"  {code:<4} {codes[code]}\n" for code in sorted(codes, key=int))
    return "exit codes:\n" + "".join(lines)


EXIT_CODES = exit_codes("a stage or a job failed, a gate found a regression, or a self-test failed")
"""The table of all verbs."""


class VerbParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with the nearest valid option."""

    def error(self, message: str) -> NoReturn:
        """Raise :class:`ConfigError` instead of printing the usage."""
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            first = unknown.split()[0]
            near = nearest_key(first.partition("=")[0], self._option_string_actions)
            message = (
                f"'{first}' is not an option" if first.startswith("-") else f"unexpected argument '{first}'"
            )
            if near is not None and first.startswith("-"):
                raise ConfigError(message, hint=f"did you mean {near}?")
        raise ConfigError(message.removeprefix("argument "), hint=f"see {self.prog} --help")


def verb_parser(verb: str, description: str, *, one: str | None = None) -> VerbParser:
    """Return a parser for ``llm-perf-opt VERB`` whose help ends with the exit codes; ``one``: what 1 means."""
    return VerbParser(
        prog=f"llm-perf-opt {verb}",
        description=description,
        epilog=exit_codes(one),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def time_limit(text: str) -> float:
    """Read a time limit in seconds, for ``type=`` of an option."""
    value = float(text)
    if not 0 < value <= _MOST_TIMEOUT_S:
        raise argparse.ArgumentTypeError(f"must be more than 0 and at most {_MOST_TIMEOUT_S:g} seconds")
    return value


def whole_number(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """Return a parser of integers between two limits, for ``type=`` of an option."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
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
    """Run a command; expected errors become a message and an exit code, never a traceback."""
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
            return _final_message(error, as_json)
        except KeyboardInterrupt as interruption:
            with contextlib.suppress(OSError):  # a closed terminal accepts no output
                print("interrupted", file=sys.stderr)
            return interruption.exit_code if isinstance(interruption, Interrupted) else 130
        except SystemExit as leaving:  # argparse, after --help or a mistake it has explained
            if leaving.code is None or isinstance(leaving.code, int):
                return leaving.code or 0
            raise
        except BrokenPipeError:
            # The reader of our output (head, less) has exited, which is not an error.
            discard_output()
            return 0
        except OSError as error:
            refused = error.filename is None and error.errno in _OUTPUT_REFUSED
            return _final_message(_machine_failed(error) or defect(error), as_json and not refused)
        except MemoryError:
            hint = "close other programs, or give a smaller capture"
            return _final_message(ToolError("there is not enough memory for this", hint=hint), as_json)
        except Exception as error:  # noqa: BLE001 - the last resort: nothing behind it would catch anything
            return _final_message(defect(error), as_json)


def _final_message(error: LlmPerfError, as_json: bool) -> int:
    """Print the error; if standard output fails (a full disk), on standard error."""
    try:
        code = print_error(error, as_json=as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        return error.exit_code
    except OSError as full:
        discard_output()
        print(visible(f"error: cannot write the output: {full.strerror}"), file=sys.stderr)
        return error.exit_code
    return code


def _machine_failed(error: OSError) -> ToolError | None:
    """Describe a system error and its place; ``None`` if unknown."""
    try:
        Path.cwd()
    except OSError:
        return ToolError("the working directory does not exist any more", hint="change to one that does")
    if error.filename is None and error.errno not in _OUTPUT_REFUSED:
        return None
    if error.filename is None:
        discard_output()
        return ToolError(f"cannot write the output: {error.strerror or error}", hint="write it elsewhere")
    name = os.fsdecode(error.filename) if isinstance(error.filename, bytes | str) else str(error.filename)
    return ToolError(
        f"{name}: {error.strerror or error}", hint="check the path, its permissions and the disk", path=name
    )


_TIME_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    """Parse ``90s``, ``10m``, ``2h``; a number without a unit is rejected as ambiguous."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|m|h)?", text.strip())
    if found is not None and found[2] is None:
        raise argparse.ArgumentTypeError(f"'{text}' has no unit: write {text}s, {text}m or {text}h")
    seconds = float(found[1]) * _TIME_UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= _MOST_TIMEOUT_S:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a duration: use 90s, 10m or 2h (at most {units.seconds(_MOST_TIMEOUT_S)})"
        )
    return seconds


def percentage(text: str) -> float:
    """Parse ``2%`` or ``0.02``."""
    value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError("must be at least 0% and below 100%")
    return value
