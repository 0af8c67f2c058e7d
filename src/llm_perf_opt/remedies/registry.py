"""All remedies: those that ship, and those of installed packages."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.core.errors import ConfigError, LlmPerfError
from llm_perf_opt.core.secrets import mask_text
from llm_perf_opt.core.stage import entry_points
from llm_perf_opt.remedies.base import Remedy, Situation
from llm_perf_opt.remedies.built_in import BUILT_IN
from llm_perf_opt.remedies.data import holds_phase

LOGGER = logging.getLogger("llm_perf_opt.improve")
GROUP = "llm_perf_opt.remedies"


@dataclass(frozen=True, slots=True)
class Unusable:
    """A remedy of an installed package that cannot be used, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class RemedyCheck:
    """Applicability of a remedy to a run."""

    options: tuple[tuple[str, ...], ...]
    reason: str | None
    """Why there is nothing to try; ``None``: there are options."""
    failed: bool = False
    """Whether its package raised an error."""


def load_remedies() -> tuple[list[Remedy], list[Unusable]]:
    """Return the built-in remedies and those of installed packages; of the latter, also which cannot be used.

    A failure affects neither the report of a run nor the other remedies of a search.
    """
    found, unusable = list(BUILT_IN), list[Unusable]()
    for point in entry_points(group=GROUP):
        try:
            listed = _listed(point.load(), point.name)
        except LlmPerfError as error:
            unusable.append(Unusable(point.name, error.message))
            continue
        except Exception as error:
            # The boundary to packages of others: importing one may raise anything.
            LOGGER.debug("the remedy %s cannot be loaded", point.name, exc_info=True)
            reason = f"it cannot be loaded from {point.value}: {_join_reasons(error)}"
            unusable.append(Unusable(point.name, reason))
            continue
        for remedy in listed:
            if any(remedy.name == known.name for known in found):
                unusable.append(Unusable(point.name, f"another remedy is named '{remedy.name}' already"))
            else:
                found.append(remedy)
    return found, unusable


def check_remedy(remedy: Remedy, situation: Situation) -> RemedyCheck:
    """Check whether a remedy applies, and its options; a remedy that raises does not apply."""
    try:
        reason = _other_phase(remedy, situation) or remedy.why_not(situation)
        options = _options(remedy, situation) if reason is None else ()
    except Exception as error:
        # The boundary to packages of others: their functions may raise anything.
        LOGGER.debug("the remedy %s failed", remedy.name, exc_info=True)
        return RemedyCheck((), f"it failed: {_join_reasons(error)}", failed=True)
    if reason is None and remedy.advice is not None:
        return RemedyCheck((), f"advice, not tried here: {remedy.advice(situation)}")
    if reason is None and not options:
        reason = "nothing else to choose here"
    return RemedyCheck(options, reason)


def _other_phase(remedy: Remedy, situation: Situation) -> str | None:
    """Return why the remedy cannot change the metric: it would only take a share of the error."""
    if not remedy.phases or any(holds_phase(situation.metric, phase) for phase in remedy.phases):
        return None
    return f"--metric {situation.metric} does not contain {' or '.join(remedy.phases)}"


def _options(remedy: Remedy, situation: Situation) -> tuple[tuple[str, ...], ...]:
    options = remedy.options(situation)
    if isinstance(options, str) or any(isinstance(option, str) for option in options):
        raise TypeError("options must give a list of lists of overrides")
    return tuple(tuple(str(item) for item in option) for option in options)


def _join_reasons(error: Exception) -> str:
    return mask_text(f"{type(error).__name__}: {error}")


def _listed(loaded: Any, name: str) -> list[Remedy]:
    found = loaded if isinstance(loaded, Remedy | list | tuple) else loaded()
    remedies = [found] if isinstance(found, Remedy) else list(found) if isinstance(found, Iterable) else []
    if not remedies or not all(isinstance(each, Remedy) for each in remedies):
        raise ConfigError(
            f"the entry point '{name}' of {GROUP} gives no remedy",
            hint="it must be a Remedy, a list of them, or a function that returns either; see docs/improve.md",
        )
    return remedies
