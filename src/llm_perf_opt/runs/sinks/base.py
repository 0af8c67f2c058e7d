"""What a sink is: something outside that finished runs are also sent to. Files stay the truth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from llm_perf_opt.model.summary import Summary

SINK_GROUP = "llm_perf_opt.sinks"


class Sink(ABC):
    """A tracker, a data base, a queue. Derive from it and register the class as an entry point of ``llm_perf_opt.sinks``.

    Importing its module must be cheap: libraries are imported in ``check`` or ``write``.
    """

    name: ClassVar[str]
    """The name of its entry point, and in ``run.sinks``."""

    def check(self) -> str | None:
        """Say, before anything runs, what is missing to write at all and how to fix it; ``None``: nothing."""
        return None

    @abstractmethod
    def write(self, summary: Summary, run_dir: Path) -> None:
        """Send one finished run; neither the summary nor a file of the run may be changed.

        It may raise what it likes: the run keeps its result and notes the failure.
        """
