"""Hand a job to Hydra, and tell what Hydra knows while the job runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode

from llm_perf_opt.config.hydra_bridge.compose import VERSION_BASE, RawConfig, register_schema
from llm_perf_opt.config.hydra_bridge.errors import explain
from llm_perf_opt.config.store import CONF_DIR


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What Hydra decided for the job it runs now."""

    original_directory: Path
    run_directory: Path
    sweep_overrides: tuple[str, ...] | None
    """Those of this one job of a sweep; ``None`` outside of sweeps."""
    sweep_directory: Path
    """The one that holds the jobs of a sweep."""


class _Carried(BaseException):
    """Carries an error past Hydra, which would print a traceback of its own and end with 1."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def run_job(job: Callable[[RawConfig], None], arguments: Sequence[str]) -> int | None:
    """Let Hydra read its command line, compose, and call ``job`` in its run directory, once for each of a sweep.

    Returns the code that Hydra itself ends with (after ``--cfg``, after an error), ``None`` where it does not.
    Whatever the job raises, this raises.
    """

    def carried(raw: RawConfig) -> None:
        try:
            job(raw)
        except Exception as error:
            raise _Carried(error) from error

    register_schema()
    previous = sys.argv
    sys.argv = ["llm-perf-opt", *arguments]  # hydra.main reads nothing else
    try:
        hydra.main(version_base=VERSION_BASE, config_path=str(CONF_DIR), config_name="config")(carried)()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else None
    except _Carried as failed:
        raise failed.error from failed.error.__cause__
    except HydraException as error:  # before it prints its own help, Hydra composes without a guard
        raise explain(error) from error
    finally:
        sys.argv = previous
    return None


def job_settings() -> JobSettings:
    """Return the settings of the job that runs now."""
    settings = HydraConfig.get()
    sweep = settings.mode is RunMode.MULTIRUN
    return JobSettings(
        original_directory=Path(settings.runtime.cwd),
        run_directory=Path(settings.runtime.output_dir),
        sweep_overrides=tuple(settings.overrides.task) if sweep else None,
        sweep_directory=Path(settings.runtime.cwd) / str(settings.sweep.dir),
    )
