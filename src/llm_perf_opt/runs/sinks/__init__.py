"""Sinks: external systems that finished runs are also sent to. The files remain authoritative."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from llm_perf_opt.core.errors import ConfigError, nearest_key
from llm_perf_opt.core.secrets import mask_text
from llm_perf_opt.core.stage import PluginError, entry_points, load_entry_point
from llm_perf_opt.summary import Summary

SINK_GROUP = "llm_perf_opt.sinks"


class Sink(ABC):
    """A tracker, a data base, a queue. Derive from it and register the class as an entry point of ``llm_perf_opt.sinks``.

    Importing its module must be cheap: libraries are imported in ``check`` or ``write``.
    """

    name: ClassVar[str]
    """The name of its entry point, and in ``run.sinks``."""

    def check(self) -> str | None:
        """Return, before anything runs, what prevents writing and how to fix it; ``None``: nothing."""
        return None

    @abstractmethod
    def write(self, summary: Summary, run_dir: Path) -> None:
        """Send one finished run; neither the summary nor a file of the run may be changed.

        It may raise any exception: the run keeps its result and records the failure.
        """


# Find the sinks that ``run.sinks`` names, and send a finished run to them.


LOGGER = logging.getLogger("llm_perf_opt.run")
KEY = "run.sinks"


def load_sink(name: str) -> Sink:
    """Return a sink by the name of its entry point; :class:`ConfigError` has the reason if there is none."""
    known = {point.name: point for point in entry_points(group=SINK_GROUP)}
    if name not in known:
        near = nearest_key(name, known)
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError(
            f"{KEY}: '{name}' is not registered",
            hint=f"{hint}known: {', '.join(sorted(known)) or 'none'}",
            key=KEY,
        )
    try:
        kind = load_entry_point(known[name])
    except PluginError as error:
        raise ConfigError(
            f"{KEY}: '{name}' ({known[name].value}): {error}",
            hint="is the package that provides it complete?",
            key=KEY,
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Sink)) or getattr(kind, "name", None) != name:
        raise ConfigError(
            f"{KEY}: the entry point '{name}' does not load a Sink of that name",
            hint=f"write `class …(Sink)` with name = '{name}', imported from {Sink.__module__}; see docs/history.md",
            key=KEY,
        )
    return kind()


def check_sinks(names: Sequence[str]) -> None:
    """Reject, before any work, a sink that does not exist or cannot write."""
    for name in names:
        problem = load_sink(name).check()
        if problem is not None:
            raise ConfigError(
                f"{KEY}: {name} cannot be written to: {problem}", hint=f"or leave it out of {KEY}", key=KEY
            )


def send_to_sinks(names: Sequence[str], summary: Summary, run_dir: Path) -> list[str]:
    """Send a run to every sink; return a note for each that failed. A failure does not affect the run's result."""
    notes = []
    for name in names:
        try:
            load_sink(name).write(summary, run_dir)
        except Exception as error:
            # The isolation boundary: whatever a tracker's library raises, the run is complete and its files exist.
            LOGGER.debug("sink %s failed", name, exc_info=True)
            notes.append(mask_text(f"The run was not sent to {name}: {type(error).__name__}: {error}"))
            LOGGER.warning("%s", notes[-1])
        else:
            LOGGER.info("sent to %s", name)
    return notes
