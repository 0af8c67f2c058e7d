"""Which part of a run a capture is of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CaptureConfiguration:
    """What the files beside a capture say of how it was taken."""

    label: str | None
    """The range it was limited to; ``None``: the whole program."""
    passes: int | None
    """How often that range is in the capture; ``None``: not known."""
    source: str
    """File that says so."""


@dataclass(frozen=True, slots=True)
class CapturedRange:
    """The range a table of kernels is of."""

    name: str
    """As the capture names it: ``decode``, ``sam``."""
    phase: str | None
    """``None``: the whole program, all phases together."""
    component: str | None
    """Part of the phase it is limited to (``sam`` of vision); ``None``: the whole phase."""
    passes: int | None
    """How many passes over it the capture holds; ``None``: not known."""
    source: str
    """In the words of a note: ``the file's name``, ``cmd.txt``."""
