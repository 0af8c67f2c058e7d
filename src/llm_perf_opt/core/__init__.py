"""Errors, files, units, escaping, console, signals and the layout of a run directory. Imports nothing else of the package."""

import gc

_DEFAULT_THRESHOLDS = gc.get_threshold()
_START_THRESHOLDS = (50_000, 20, 20)


def collect_garbage_rarely() -> None:
    """Raise the thresholds of the garbage collector, for the start of a command.

    Importing and composing make a hundred thousand objects that stay: with the default thresholds a fifth of a short command
    is spent looking for cycles among them.
    """
    gc.set_threshold(*_START_THRESHOLDS)


def collect_garbage_as_usual() -> None:
    """Undo :func:`collect_garbage_rarely`: a measured program has the pauses that it has in a process of its own."""
    if gc.get_threshold() == _START_THRESHOLDS:
        gc.set_threshold(*_DEFAULT_THRESHOLDS)
        gc.unfreeze()
