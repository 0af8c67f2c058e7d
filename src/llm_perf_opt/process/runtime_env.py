"""Environment of a measuring process, set before torch is imported. What the user has set stays."""

from __future__ import annotations

import os

DEFAULTS = {
    # Idle CPU threads sleep instead of spinning. With the default, one other busy program on the machine slows
    # small operators down tenfold (a spinning thread keeps the one it waits for off the core).
    "OMP_WAIT_POLICY": "PASSIVE",
    # The torch profiler's own log lines would run through the progress display.
    "KINETO_LOG_LEVEL": "99",
}


def prepare_process() -> None:
    """Set what is not set yet; without effect once torch is loaded."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
