"""``dataset.sampling.*`` exactly as documented in config/schema.py and workloads/datasets/sampling.py."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.config.schema import SamplingConfig
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.datasets.sampling import draw, epoch_order, in_epoch

sizes = st.integers(min_value=0, max_value=30)
configs = st.builds(
    SamplingConfig,
    num_epochs=st.integers(1, 4),
    num_samples_per_epoch=st.none() | st.integers(1, 40),
    randomize=st.booleans(),
    seed=st.integers(0, 10),
)


def test_the_default_is_every_sample_once_in_order() -> None:
    assert list(draw(4, SamplingConfig())) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_epochs_repeat_and_the_limit_takes_the_first_of_each() -> None:
    config = SamplingConfig(num_epochs=2, num_samples_per_epoch=2)
    assert list(draw(5, config)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_shuffling_uses_seed_plus_epoch() -> None:
    config = SamplingConfig(num_epochs=2, randomize=True, seed=7)
    expected = []
    for epoch in range(2):
        order = list(range(10))
        random.Random(7 + epoch).shuffle(order)
        expected += [(epoch, index) for index in order]
    assert list(draw(10, config)) == expected
    assert epoch_order(10, config, 0) != epoch_order(10, config, 1)
    # Epoch 1 of seed 7 is epoch 0 of seed 8: that is what "seed + epoch" means.
    assert epoch_order(10, config, 1) == epoch_order(10, SamplingConfig(randomize=True, seed=8), 0)


def test_more_than_there_are_means_all_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert [index for _, index in draw(3, SamplingConfig(num_samples_per_epoch=9))] == [0, 1, 2]
    assert "only 3 samples" in caplog.text


def test_unusable_samples_are_replaced_by_the_next_ones() -> None:
    config = SamplingConfig(num_samples_per_epoch=3)
    assert [index for _, index in draw(6, config, lambda index: index not in {0, 2})] == [1, 3, 4]


def test_samples_beyond_the_limit_are_never_looked_at() -> None:
    requested: list[int] = []
    list(draw(1000, SamplingConfig(num_samples_per_epoch=2), lambda index: requested.append(index) is None))
    assert requested == [0, 1]


@given(sizes, configs)
def test_an_epoch_never_repeats_a_sample_and_is_deterministic(size: int, config: SamplingConfig) -> None:
    drawn = list(draw(size, config))
    assert drawn == list(draw(size, config))
    wanted = size if config.num_samples_per_epoch is None else min(size, config.num_samples_per_epoch)
    for epoch in range(config.num_epochs):
        indices = [index for number, index in drawn if number == epoch]
        assert len(indices) == len(set(indices)) == wanted


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (SamplingConfig(num_epochs=0), "dataset.sampling.num_epochs"),
        (SamplingConfig(num_samples_per_epoch=0), "dataset.sampling.num_samples_per_epoch"),
        (SamplingConfig(num_samples_per_epoch=-1), "dataset.sampling.num_samples_per_epoch"),
    ],
)
def test_impossible_counts_are_refused_with_the_key(config: SamplingConfig, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        list(draw(3, config))
    assert caught.value.data["key"] == key


def test_later_epochs_have_ids_of_their_own() -> None:
    sample = Sample(id="a.png", extra={"width": 3})
    assert in_epoch(sample, 0) is sample
    assert in_epoch(sample, 1).id == "a.png@epoch2"
    assert in_epoch(sample, 1).extra == {"width": 3, "epoch": 1}
