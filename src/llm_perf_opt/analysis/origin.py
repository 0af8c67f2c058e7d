"""Origin of the sides of a comparison: their runs, final states and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.summary import Summary


@dataclass(slots=True)
class SideInfo:
    """One side: a run, an ingested capture, or several runs of one configuration."""

    name: str
    """What the reports call it."""
    paths: list[str]
    """Directories it was read from."""
    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    samples: int | None = None
    runs: int = 1
    overrides: list[str] = field(default_factory=list)
    """Its own ``key=value`` settings: with ``--run`` those that were given for it, else those of its command line."""
    statuses: list[str] = field(default_factory=list)
    """How each of its runs ended: ``ok``, ``failed``, ``interrupted``."""


@dataclass(slots=True)
class Difference:
    """A difference between the two sides other than the measurements."""

    what: str
    a: str | None
    b: str | None


_WHERE = ("artifacts.runs_dir", "hydra.run.dir", "hydra.sweep.dir")
"""Settings that say where a run lies, not what it does."""


@dataclass(slots=True)
class Side:
    """Everything read about one side, one entry per run."""

    name: str
    paths: list[str]
    summaries: list[Summary]
    documents: list[Mapping[str, Any] | None] = field(default_factory=list)
    """Raw timings documents of the engine; ``None`` where a run has none."""
    overrides: list[str] | None = None
    """Settings ``compare --run`` gave it; ``None``: those of its first run's command line."""

    @property
    def first(self) -> Summary:
        """The run that represents the side where only one can be used."""
        return self.summaries[0]


def failed_sides(a: Side, b: Side) -> list[str]:
    """Return the sides with a failed or interrupted run: their numbers cover only part of the work."""
    notes = []
    for letter, side in (("A", a), ("B", b)):
        bad = [
            f"run {summary.run.id} ({summary.run.status})"
            for summary in side.summaries
            if summary.run.status != "ok"
        ]
        if bad:
            notes.append(f"{letter} did not finish: {', '.join(bad)}. No gate passes on it.")
    return notes


def overrides_of(side: Side) -> list[str]:
    """Return the settings of a side: those it was given, else those of its first run's command line."""
    if side.overrides is not None:
        return list(side.overrides)
    command = side.first.run.command
    # The arguments of ``ingest`` are files, not settings.
    if command[1:2] not in (["run"], ["compare"]):
        return []
    arguments = [
        word for word in command[2:] if not word.startswith("-") and ("=" in word or word.startswith("~"))
    ]
    return [word for word in arguments if _key(word) not in _WHERE]


def override_differences(a: SideInfo, b: SideInfo) -> list[Difference]:
    """Return the settings that only one side has, or that have different values."""
    left, right = _by_key(a.overrides), _by_key(b.overrides)
    return [
        Difference(f"setting {key}", left.get(key), right.get(key))
        for key in changed_keys(a.overrides, b.overrides)
    ]


def changed_keys(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """Return the keys of settings that only one side has, or that have different values."""
    left, right = _by_key(a), _by_key(b)
    return [key for key in dict.fromkeys((*left, *right)) if left.get(key) != right.get(key)]


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def _by_key(overrides: Sequence[str]) -> dict[str, str]:
    return {_key(word): word.partition("=")[2] if "=" in word else "(removed)" for word in overrides}
