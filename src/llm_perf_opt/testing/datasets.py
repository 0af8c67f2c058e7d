"""What every data set must do, as test classes to derive from: one for any data set, one for those that read files.

>>> class TestMyDataset(FileDatasetConformance):  # in a test file of your package    # doctest: +SKIP
...     dataset_class = MyDataset
...     def config(self, folder):
...         return DatasetConfig(root=str(make_three_files(folder)))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from llm_perf_opt.config.schema import DatasetConfig
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.files import sha256_of
from llm_perf_opt.workloads.base import Dataset, Sample


class DatasetConformance:
    """Tests of one data set. Set ``dataset_class`` and write ``config``."""

    dataset_class: ClassVar[type[Dataset]]

    def config(self, folder: Path) -> DatasetConfig:
        """Return ``dataset.*`` of at least three samples, all used once; files they need go into ``folder``.

        Called twice with the same folder it must describe the same samples.
        """
        raise NotImplementedError("say which samples the data set has")

    # --- helpers -----------------------------------------------------------------------------------------------

    def opened(self, folder: Path, **sampling: Any) -> Dataset:
        """Return the data set with other ``dataset.sampling.*`` keys."""
        config = self.config(folder)
        return self.dataset_class(replace(config, sampling=replace(config.sampling, **sampling)))

    def ids(self, folder: Path, **sampling: Any) -> list[str]:
        """Return the ids of the samples, in order."""
        return [sample.id for sample in self.opened(folder, **sampling).samples()]

    # --- tests -------------------------------------------------------------------------------------------------

    def test_the_class_has_all_it_must(self) -> None:
        """It derives from the base class and leaves nothing abstract."""
        assert issubclass(self.dataset_class, Dataset)
        missing = sorted(self.dataset_class.__abstractmethods__)
        assert not missing, f"the class lacks {', '.join(missing)}"

    def test_samples_have_ids_of_their_own(self, tmp_path: Path) -> None:
        """Predictions and timings are distinguished by them, over epochs too."""
        ids = self.ids(tmp_path)
        assert len(ids) >= 3, "config() must give at least three samples"
        assert all(ids)
        assert len(set(ids)) == len(ids)
        twice = self.ids(tmp_path, num_epochs=2)
        assert len(set(twice)) == len(twice) == 2 * len(ids)

    def test_samples_can_be_run(self, tmp_path: Path) -> None:
        """Each has a prompt, a file, a length or a description; a file exists and has the hash that is given."""
        for sample in self.opened(tmp_path).samples():
            assert isinstance(sample, Sample)
            given = (sample.prompt, sample.path, sample.synthetic_tokens, sample.extra or None)
            assert any(value is not None for value in given), sample.id
            if sample.path is not None:
                assert sample.path.is_absolute(), "captures run in another directory"
                assert sample.path.is_file()
                assert sample.sha256 in (None, sha256_of(sample.path))

    def test_the_order_is_the_same_every_time(self, tmp_path: Path) -> None:
        """Asked again, and opened again."""
        dataset = self.opened(tmp_path)
        first = list(dataset.samples())
        assert list(dataset.samples()) == first
        assert list(self.opened(tmp_path).samples()) == first

    def test_problems_are_sentences(self, tmp_path: Path) -> None:
        """A list of them, before and after the samples were read; reading twice reports nothing twice."""
        dataset = self.opened(tmp_path)
        _check_sentences(dataset.problems())
        list(dataset.samples())
        after = list(dataset.problems())
        _check_sentences(dataset.problems())
        list(dataset.samples())
        assert list(dataset.problems()) == after

    def test_the_number_of_samples_is_respected(self, tmp_path: Path) -> None:
        """The first so many of every epoch; more than there are gives all of them once."""
        ids = self.ids(tmp_path)
        assert self.ids(tmp_path, num_samples_per_epoch=2) == ids[:2]
        assert self.ids(tmp_path, num_samples_per_epoch=2, num_epochs=2)[:2] == ids[:2]
        assert len(self.ids(tmp_path, num_samples_per_epoch=2, num_epochs=2)) == 4
        assert self.ids(tmp_path, num_samples_per_epoch=len(ids) + 5) == ids

    def test_shuffling_follows_the_seed(self, tmp_path: Path) -> None:
        """The same seed gives the same order, and another seed sooner or later another."""
        ids = self.ids(tmp_path)
        orders = [tuple(self.ids(tmp_path, randomize=True, seed=seed)) for seed in range(8)]
        assert all(sorted(order) == sorted(ids) for order in orders)
        assert len(set(orders)) > 1
        assert tuple(self.ids(tmp_path, randomize=True, seed=3)) == orders[3]

    @pytest.mark.parametrize("sampling", [{"num_epochs": 0}, {"num_samples_per_epoch": 0}])
    def test_counts_that_cannot_be_meant_are_refused(self, sampling: dict[str, int], tmp_path: Path) -> None:
        """With the key at fault."""
        with pytest.raises(ConfigError) as caught:
            list(self.opened(tmp_path, **sampling).samples())
        assert str(caught.value.data.get("key", "")).startswith("dataset.sampling")


class FileDatasetConformance(DatasetConformance):
    """The same for a data set that reads files, and what it must do when they are not there."""

    def missing_config(self, folder: Path) -> DatasetConfig:
        """Return a configuration that names files which are not there."""
        return replace(self.config(folder), root=str(folder / "not_there"))

    def test_missing_files_are_an_error_with_a_fix(self, tmp_path: Path) -> None:
        """Said when the data set is opened or read, never a traceback."""
        config = self.missing_config(tmp_path)
        with pytest.raises((InputError, ConfigError)) as caught:
            list(self.dataset_class(config).samples())
        assert caught.value.hint


def _check_sentences(problems: Sequence[str]) -> None:
    assert isinstance(problems, Sequence)
    assert not isinstance(problems, str)
    assert all(isinstance(problem, str) and problem for problem in problems)
