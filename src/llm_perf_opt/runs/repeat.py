"""What of a run's command line makes its workload, so that it can be run again."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.runs.remedies.base import key_of

_RUN = ["llm-perf-opt", "run"]
_OWN_KEYS = ("artifacts.runs_dir", "hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")
"""Where a run went is its own affair."""


def is_run(command: Sequence[str]) -> bool:
    """Return whether a command line is one of ``llm-perf-opt run``."""
    return list(command[:2]) == _RUN


def own_presets(command: Sequence[str]) -> str | None:
    """Return the option that names presets of the user's own, which a command line does not hold; ``None``: there is none."""
    return next((word for word in command[2:] if word.startswith("--config")), None)


def run_overrides(command: Sequence[str]) -> list[str]:
    """Return the overrides of a run, without those that say where it is written."""
    given = [word for word in command[2:] if not word.startswith("-")]
    return [word for word in given if key_of(word) not in _OWN_KEYS]
