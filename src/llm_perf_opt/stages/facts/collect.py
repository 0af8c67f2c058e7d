"""Read the parts of a stage's facts; one that cannot be read does not cost the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from llm_perf_opt.analysis.facts import Facts, merge_facts
from llm_perf_opt.core.errors import InputError

LOGGER = logging.getLogger("llm_perf_opt.facts")


class Part(NamedTuple):
    """One source of a stage."""

    what: str
    """In the words of a note: ``torch trace``."""
    read: Callable[[], Facts]


def collect(stage: str, parts: Sequence[Part], *, strict: bool = False) -> Facts:
    """Return the facts of all parts; an unreadable one is a note, or with ``strict`` (a user named it) an error."""
    found = []
    for part in parts:
        try:
            found.append(part.read())
        except InputError as error:
            if strict:
                raise
            LOGGER.warning("the %s could not be read: %s", part.what, error)
            found.append(Facts(notes=[f"The {part.what} could not be read: {error.message}"]))
    return merge_facts(stage, found)
