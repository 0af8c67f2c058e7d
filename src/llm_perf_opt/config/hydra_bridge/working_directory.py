"""Where the user started the program."""

from __future__ import annotations

from pathlib import Path


def original_directory() -> Path:
    """Return where the user started: Hydra may have changed into the run directory since."""
    from hydra.core.hydra_config import HydraConfig  # late: stages are imported to read runs, without Hydra

    if HydraConfig.initialized():
        return Path(HydraConfig.get().runtime.cwd)
    return Path.cwd()
