"""Selection and order of samples (``dataset.sampling.*``).

Every epoch goes through the data set once, in its own order: as listed, or shuffled with ``seed + epoch``
(epochs count from 0). ``num_samples_per_epoch`` takes the first so many *readable* samples of that order;
asking for more than there are gives all of them, once: an epoch never repeats a sample, ``num_epochs`` does.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.datasets.filelist import printable

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import SamplingConfig

LOGGER = logging.getLogger(__name__)


def check_sampling(config: SamplingConfig) -> None:
    """Reject invalid counts."""
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
    """Yield ``(epoch, index)``; samples that are not ``usable`` are skipped and not counted.

    Usability is checked lazily, so taking 3 of 1,651 pages opens 3 files, not all.
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
    """Give a sample of a later epoch a distinct id, so that predictions can be distinguished."""
    if epoch == 0:
        return sample
    return replace(sample, id=f"{sample.id}@epoch{epoch + 1}", extra={**sample.extra, "epoch": epoch})


# ``inputs.yaml``: the samples a run really used, with hashes, so that it can be repeated and compared.


def inputs_document(samples: Iterable[Sample], problems: Sequence[str] = ()) -> dict[str, Any]:
    """Return what ``inputs.yaml`` holds: plain values, one entry per sample in the order they run."""
    listed = list(samples)
    return {
        "count": len(listed),
        "distinct": len({sample.sha256 or sample.id for sample in listed}),
        "left_out": list(problems),
        "samples": [_entry(sample) for sample in listed],
    }


def write_inputs(path: Path, samples: Iterable[Sample], problems: Sequence[str] = ()) -> Path:
    """Write ``inputs.yaml``."""
    document = inputs_document(samples, problems)
    return atomic_write_text(path, yaml.safe_dump(document, allow_unicode=True, sort_keys=False, width=110))


def _entry(sample: Sample) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": sample.id,
        "path": printable(sample.path) if sample.path is not None else None,
        "sha256": sample.sha256,
        "prompt": sample.prompt,
        "synthetic_tokens": sample.synthetic_tokens,
        "has_reference": sample.reference is not None,
    }
    for key in ("width", "height", "epoch"):
        if key in sample.extra:
            entry[key] = sample.extra[key]
    return {key: value for key, value in entry.items() if value is not None}
