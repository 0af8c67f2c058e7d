"""Stop requests: Ctrl-C, SIGTERM (schedulers, containers), SIGHUP (a closed terminal), SIGUSR2 (a scheduler that
wants the machine back, or whose time limit is near).

All become one exception, so that a run always ends the same way: programs stopped, manifest and report
written. An exception that a signal raises may be swallowed on its way: in a destructor, in a callback of a library, in
a bare ``except:``. So a signal is remembered until it is acknowledged (:func:`acknowledge_interruption`),
and raised again until then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import termios
import threading
from collections.abc import Iterator
from types import FrameType

_AGAIN_S = 3.0
"""A signal that nobody settled by then was lost, and is raised again."""
_NAMES = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP",
    signal.SIGUSR2: "SIGUSR2",
}
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class Interrupted(KeyboardInterrupt):
    """This process was asked to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(_NAMES.get(signal.Signals(number), signal.Signals(number).name))
        self.number = number

    @property
    def exit_code(self) -> int:
        """The conventional exit code of this signal."""
        return 128 + self.number


class _State:
    def __init__(self) -> None:
        self.unsettled: int | None = None
        """The signal that was raised and that nobody has dealt with yet."""
        self.last: int | None = None
        self.holding: set[int] = set()
        self.held: int | None = None
        self.timer: threading.Timer | None = None


_STATE = _State()


@contextlib.contextmanager
def stop_signals(*, take_over: bool = False) -> Iterator[None]:
    """Turn signals that ask to stop into :class:`Interrupted`, for as long as the block runs.

    Signals that are ignored (``nohup``, a job in the background) or have another handler are unchanged; with
    ``take_over`` the second kind is ours too: a job inside somebody's worker process, which would end it without a
    word. Without effect outside of the main thread, where Python takes no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _NAMES}
    # ``None``: a handler that was not set from Python, and could not be restored.
    ours = (_on_signal, signal.SIG_IGN, None)
    changed = [
        number
        for number, handler in before.items()
        if handler in _DEFAULTS or (take_over and handler not in ours)
    ]
    if not changed:  # already handled; the outer block restores them
        yield
        return
    for number in changed:
        signal.signal(number, _on_signal)
    try:
        yield
    finally:
        acknowledge_interruption()
        for number in changed:
            signal.signal(number, before[number])
        _STATE.last = _STATE.held = None


@contextlib.contextmanager
def defer_signals(*numbers: signal.Signals) -> Iterator[None]:
    """Defer signals (default: all) until the end of the block, for short work that must not be interrupted."""
    outer = set(_STATE.holding)
    _STATE.holding |= set(numbers or _NAMES)
    try:
        yield
    finally:
        _STATE.holding = outer
        number = _STATE.held
        if number is not None and number not in outer:
            _STATE.held = None
            _raise(number)


def raise_if_interrupted() -> None:
    """Raise a signal again that was swallowed; called before work continues."""
    if _STATE.unsettled is not None and threading.current_thread() is threading.main_thread():
        raise Interrupted(_STATE.unsettled)


@contextlib.contextmanager
def interruption_first() -> Iterator[None]:
    """Raise the signal instead of an error that replaced it.

    Python does so itself: what is raised while a class is made arrives as a ``RuntimeError``.
    """
    try:
        yield
    except Exception:
        # Any error may be the one that replaced the signal; without a signal it is raised unchanged.
        raise_if_interrupted()
        raise


def acknowledge_interruption() -> None:
    """Acknowledge the signal: it arrived where the work is ended."""
    _STATE.unsettled = None
    if _STATE.timer is not None:
        _STATE.timer.cancel()
        _STATE.timer = None


def interrupted_exit_code() -> int | None:
    """Return the exit code of the last signal that asked to stop; ``None``: there was none."""
    return None if _STATE.last is None else 128 + _STATE.last


def _leave_closed_terminal() -> None:
    """Redirect output of a closed terminal to the null device: each write would fail and lose the report."""
    for descriptor in (1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:  # others: no terminal at all
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def _ignore_lost_signals(lost: sys.UnraisableHookArgs) -> None:
    """An exception in a destructor is printed and dropped; a signal that ended there is raised again anyway."""
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)


def _on_signal(number: int, _frame: FrameType | None) -> None:
    if sys.unraisablehook is sys.__unraisablehook__:  # other handlers are kept
        sys.unraisablehook = _ignore_lost_signals
    if number == signal.SIGHUP:
        _leave_closed_terminal()
    if number in _STATE.holding:
        _STATE.held = number
        return
    _raise(number)


def _raise(number: int) -> None:
    _STATE.unsettled = _STATE.last = number
    if _STATE.timer is not None:
        _STATE.timer.cancel()
    _STATE.timer = threading.Timer(_AGAIN_S, _raise_again, (number,))
    _STATE.timer.daemon = True
    _STATE.timer.start()
    raise Interrupted(number)


def _raise_again(number: int) -> None:
    main = threading.main_thread().ident
    if _STATE.unsettled == number and main is not None:
        signal.pthread_kill(main, number)  # a real one, which also ends a wait
