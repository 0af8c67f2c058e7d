"""Wall-clock documents as facts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from llm_perf_opt.analysis.facts import Facts, merge_facts
from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import InputError


def timings_facts(path: Path) -> Facts:
    """Return times measured without a tool."""
    from llm_perf_opt.captures.timings import load_timings

    clock = load_timings(path)
    return Facts(sources={"timings": (path,)}, wall_clock=clock, notes=list(clock.notes))


def program_facts(path: Path) -> Facts:
    """Return the times of the user's own program, with a table of every run."""
    from llm_perf_opt.captures.timings import load_timings
    from llm_perf_opt.core import units
    from llm_perf_opt.summary import Section, SectionTable
    from llm_perf_opt.summary.codec import read_json

    clock = load_timings(path)
    took = clock.timings.program_s
    rows = [
        [str(number), units.seconds(run["wall_s"]), "ok" if run.get("ok", True) else _how_it_ended(run)]
        for number, run in enumerate(read_json(path)["runs"], 1)
    ]
    command = " ".join(clock.workload.program or [])
    paragraphs = [
        f"{command}: from its start to its end, no tool attached, start-up included; to about 0.05 s."
    ]
    if took is not None:
        fastest = min(run["wall_s"] for run in read_json(path)["runs"] if run.get("ok", True))
        paragraphs.append(
            f"Median {units.seconds(took.median)} of {took.n} runs, the fastest {units.seconds(fastest)}."
        )
    section = Section(
        stage=layout.PROGRAM,
        title="Wall-clock of the program",
        paragraphs=paragraphs,
        tables=[SectionTable(["run", "wall-clock", "ended"], rows)],
    )
    facts = Facts(sources={"timings": (path,)}, notes=list(clock.notes), sections=[section])
    facts.wall_clock = clock if took is not None else None
    return facts


def _how_it_ended(run: Mapping[str, Any]) -> str:
    code = run.get("exit_code")
    return f"exit code {code}" if run.get("ended") == "exit" else str(run.get("ended"))


# Read the parts of a stage's facts; an unreadable part does not affect the others.


LOGGER = logging.getLogger("llm_perf_opt.facts")


class Part(NamedTuple):
    """One source of a stage."""

    what: str
    """As a note names it: ``torch trace``; wall-clock documents are ``analysis.facts.TIMINGS``."""
    read: Callable[[], Facts]


def collect(stage: str, parts: Sequence[Part], *, strict: bool = False) -> Facts:
    """Return the facts of all parts; an unreadable one gives a note, or an error with ``strict`` (a file named by the user)."""
    found = []
    for part in parts:
        try:
            found.append(part.read())
        except InputError as error:
            if strict:
                raise
            LOGGER.warning("the %s could not be read: %s", part.what, error)
            note = f"The {part.what} could not be read: {error.message}"
            found.append(Facts(unreadable=[part.what], notes=[note]))
    return merge_facts(stage, found)
