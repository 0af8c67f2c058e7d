"""Which samples of a data set are used, and in which order (``dataset.sampling.*``).

Every epoch goes through the data set once, in its own order: as listed, or shuffled with ``seed + epoch``
(epochs count from 0). ``num_samples_per_epoch`` takes the first so many *readable* samples of that order;
asking for more than there are gives all of them, once: an epoch never repeats a sample, ``num_epochs`` does.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from llm_perf_opt.core.errors import ConfigError

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import SamplingConfig
    from llm_perf_opt.workloads.base import Sample

LOGGER = logging.getLogger(__name__)


def check_sampling(config: SamplingConfig) -> None:
    """Refuse counts that cannot be meant."""
    if config.num_epochs < 1:
        raise ConfigError(
            f"dataset.sampling.num_epochs must be at least 1, got {config.num_epochs}",
            hint="set dataset.sampling.num_epochs=1",
            key="dataset.sampling.num_epochs",
        )
    if config.num_samples_per_epoch is not None and config.num_samples_per_epoch < 1:
        raise ConfigError(
            f"dataset.sampling.num_samples_per_epoch must be at least 1, got {config.num_samples_per_epoch}",
            hint="leave it out (null) to use all samples",
            key="dataset.sampling.num_samples_per_epoch",
        )


def epoch_order(size: int, config: SamplingConfig, epoch: int) -> list[int]:
    """Return the order in which one epoch (counted from 0) goes through ``size`` samples."""
    order = list(range(size))
    if config.randomize:
        random.Random(config.seed + epoch).shuffle(order)
    return order


def draw(
    size: int, config: SamplingConfig, usable: Callable[[int], bool] = lambda _: True
) -> Iterator[tuple[int, int]]:
    """Yield ``(epoch, index)``; samples that are not ``usable`` are passed over and do not count.

    Usability is asked only for samples that come up, so taking 3 of 1,651 pages opens 3 files, not all.
    """
    check_sampling(config)
    limit = config.num_samples_per_epoch
    if limit is not None and limit > size:
        LOGGER.info(
            "dataset.sampling.num_samples_per_epoch=%d, but there are only %d samples: all are used",
            limit,
            size,
        )
    for epoch in range(config.num_epochs):
        taken = 0
        for index in epoch_order(size, config, epoch):
            if limit is not None and taken >= limit:
                break
            if usable(index):
                taken += 1
                yield epoch, index


def in_epoch(sample: Sample, epoch: int) -> Sample:
    """Give a sample of a later epoch an id of its own, so that predictions can be told apart."""
    if epoch == 0:
        return sample
    return replace(sample, id=f"{sample.id}@epoch{epoch + 1}", extra={**sample.extra, "epoch": epoch})
