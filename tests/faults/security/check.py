"""One thing that must not happen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.errors import LlmPerfError


@dataclass(frozen=True, slots=True)
class Check:
    """A security check; it holds when ``run`` raises nothing."""

    group: str
    name: str
    run: Callable[[Path], None]
    """Try it in an empty folder; :class:`AssertionError` when it happened."""
    slow: bool = False

    @property
    def id(self) -> str:
        """Name in tables."""
        return f"{self.group}: {self.name}"


@contextlib.contextmanager
def refused(*expected: str) -> Iterator[None]:
    """Assert that the block ends in an error of ours that says these words."""
    try:
        yield
    except LlmPerfError as error:
        missing = [word for word in expected if word not in str(error)]
        assert not missing, f"does not say {missing}: {error}"
        return
    raise AssertionError("was not refused")
