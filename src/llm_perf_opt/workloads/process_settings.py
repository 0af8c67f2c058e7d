"""Settings of the whole process: processors it may use, threads beside the operators' own."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from llm_perf_opt.core.errors import ConfigError

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import RunConfig

_KEY = "run.affinity"


def processors(text: str) -> set[int]:
    """Read a list of processors as Linux writes it: ``0-3,8``."""
    found: set[int] = set()
    for part in text.split(","):
        first, sign, last = part.strip().partition("-")
        if not first.isdigit() or (sign and not last.isdigit()):
            raise ConfigError(f"{_KEY}={text} is no list of processors", hint="write 0-3,8", key=_KEY)
        found.update(range(int(first), int(last or first) + 1))
    return found


def apply_process_settings(run: RunConfig) -> None:
    """Bind this process to ``run.affinity`` and set ``run.interop_threads``; before torch does its first work."""
    if run.affinity is not None:
        wanted = processors(run.affinity)
        try:
            os.sched_setaffinity(0, wanted)
        except (OSError, AttributeError, OverflowError) as error:
            raise ConfigError(
                f"{_KEY}={run.affinity}: this machine does not let a process use these processors",
                hint="see what it may use with `taskset -p $$`",
                key=_KEY,
            ) from error
    if run.interop_threads is not None:
        import torch

        # Torch takes the number once per process; the same one again is no change.
        if torch.get_num_interop_threads() != run.interop_threads:
            with contextlib.suppress(RuntimeError):
                torch.set_num_interop_threads(run.interop_threads)
            if torch.get_num_interop_threads() != run.interop_threads:
                raise ConfigError(
                    f"run.interop_threads={run.interop_threads} came too late: torch works with "
                    f"{torch.get_num_interop_threads()} already",
                    hint="set it for the whole run, not for a part of it",
                    key="run.interop_threads",
                )
