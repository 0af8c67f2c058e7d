"""The jobs of a ``--multirun``, as Hydra's own sweeper will make them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from llm_perf_opt.config.hydra_bridge.errors import explain
from llm_perf_opt.config.legacy import translate_overrides


def sweep_jobs(overrides: Sequence[str]) -> Iterator[list[str]]:
    """Yield the overrides of each job; raises :class:`ConfigError` before the first where they cannot be parsed."""
    try:
        parsed = OverridesParser.create().parse_overrides(translate_overrides(overrides))
    except HydraException as error:
        raise explain(error) from error
    jobs = itertools.chain.from_iterable(BasicSweeper.split_arguments(parsed, None))
    return (list(job) for job in jobs)
