"""Which of several processes this one is, where a launcher (``torchrun``) started several for one program."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from llm_perf_opt.core.errors import ConfigError

ROOT_VARIABLE = "LLM_PERF_OPT_RANKS_ROOT"
"""Set for ranks that ``run.ranks`` started: the run's directory, which their parent holds and reports."""
GROUP_VARIABLE = "LLM_PERF_OPT_RANKS_GROUP"
"""Set for programs that every rank starts alongside itself (a capture): the name of the group they make among themselves."""
_MARK = re.compile(r"llm_perf_opt: rank (\d{1,6}) of (\d{1,6})")
_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a group."""

    rank: int
    size: int
    """Processes of the group."""
    local_rank: int
    """Its number on its machine."""

    @property
    def mark(self) -> str:
        """The mark that identifies a rank in a capture of several processes."""
        return f"llm_perf_opt: rank {self.rank} of {self.size}"


def this_rank(environment: Mapping[str, str] | None = None) -> Rank | None:
    """Return which rank this process is; ``None``: it was started alone."""
    found = os.environ if environment is None else environment
    if not found.get("WORLD_SIZE"):
        return None
    size = _number(found, "WORLD_SIZE")
    if size <= 1:
        return None
    if not found.get("RANK"):
        raise ConfigError(
            f"WORLD_SIZE={size} is set for several processes, but RANK is not set",
            hint="start with torchrun, or unset WORLD_SIZE",
        )
    rank = _number(found, "RANK")
    if rank >= size:
        raise ConfigError(f"RANK={rank} is not below WORLD_SIZE={size}", hint="start with torchrun")
    return Rank(rank, size, _number(found, "LOCAL_RANK") if found.get("LOCAL_RANK") else rank)


def ranks_here(environment: Mapping[str, str] | None = None) -> int:
    """Return how many ranks this machine has; if the launcher does not set it, all of the group."""
    found = os.environ if environment is None else environment
    variable = next((name for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE") if found.get(name)), None)
    return 1 if variable is None else max(1, _number(found, variable))


def rank_in_mark(text: str) -> tuple[int, int] | None:
    """Return rank and number of ranks of a mark (:attr:`Rank.mark`); ``None``: not a mark."""
    found = _MARK.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]):
        return None
    return int(found[1]), int(found[2])


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit() and int(text) <= _MOST):
        raise ConfigError(f"{name}={text} is not a rank number", hint="start with torchrun, or unset it")
    return int(text)
