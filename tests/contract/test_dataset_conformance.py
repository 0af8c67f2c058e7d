"""The conformance suite that ships with the package, on every built-in data set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from llm_perf_opt.config.schema import DatasetConfig, GeneratedAudioConfig, GeneratedConfig
from llm_perf_opt.testing.datasets import DatasetConformance, FileDatasetConformance
from llm_perf_opt.testing.models import noisy_page
from llm_perf_opt.workloads.base import Dataset, Sample
from llm_perf_opt.workloads.datasets.audio import AudioDataset, made_up_clip
from llm_perf_opt.workloads.datasets.omnidocbench import OmniDocBench
from llm_perf_opt.workloads.datasets.prompts import PromptDataset
from llm_perf_opt.workloads.registry import DATASET_GROUP
from tests.unit.workloads.datasets.sounds import write_wave


class TestFolderOfPages(FileDatasetConformance):
    dataset_class = OmniDocBench

    def config(self, folder: Path) -> DatasetConfig:
        images = folder / "images"
        images.mkdir(exist_ok=True)
        for number in range(4):
            noisy_page(images / f"page_{number}.png", (80, 60), number)
        (images / "damaged.png").write_bytes(b"not an image")
        return DatasetConfig(adapter="omnidocbench", root=str(folder))


class TestFileList(TestFolderOfPages):
    def config(self, folder: Path) -> DatasetConfig:
        config = super().config(folder)
        listed = folder / "list.txt"
        listed.write_text("page_2.png\npage_0.png\npage_3.png\npage_0.png\n")
        config.subset_filelist = str(listed)
        return config

    def missing_config(self, folder: Path) -> DatasetConfig:
        config = super().config(folder)
        config.subset_filelist = str(folder / "not_there.txt")
        return config


class TestGeneratedPages(FileDatasetConformance):
    dataset_class = OmniDocBench

    def config(self, folder: Path) -> DatasetConfig:
        generated = GeneratedConfig(pages=3, max_side=128, cache_dir=str(folder / "cache"))
        return DatasetConfig(adapter="omnidocbench", generated=generated)


class TestFolderOfSounds(FileDatasetConformance):
    dataset_class = AudioDataset

    def config(self, folder: Path) -> DatasetConfig:
        for number in range(3):
            write_wave(folder / f"clip_{number}.wav", made_up_clip(number, 0.05))
        (folder / "damaged.wav").write_bytes(b"not a sound")
        return DatasetConfig(adapter="audio", root=str(folder))


class TestListOfSounds(TestFolderOfSounds):
    def config(self, folder: Path) -> DatasetConfig:
        config = super().config(folder)
        (folder / "list.txt").write_text("clip_2.wav\nclip_0.wav\nclip_1.wav\nclip_0.wav\n")
        config.subset_filelist = str(folder / "list.txt")
        return config

    def missing_config(self, folder: Path) -> DatasetConfig:
        config = super().config(folder)
        config.subset_filelist = str(folder / "not_there.txt")
        return config


class TestMadeUpSounds(DatasetConformance):
    dataset_class = AudioDataset

    def config(self, folder: Path) -> DatasetConfig:
        return DatasetConfig(adapter="audio", generated_audio=GeneratedAudioConfig(clips=3, seconds=0.1))


class TestInlinePrompts(DatasetConformance):
    dataset_class = PromptDataset

    def config(self, folder: Path) -> DatasetConfig:
        return DatasetConfig(adapter="prompts", prompts=["one", "two", "three", "two"])


class TestPromptsFile(FileDatasetConformance):
    dataset_class = PromptDataset

    def config(self, folder: Path) -> DatasetConfig:
        path = folder / "prompts.jsonl"
        lines = [{"prompt": "one", "id": "a"}, {"prompt": "two", "id": "a"}, {"prompt": "three"}]
        path.write_text("\n".join(json.dumps(line) for line in lines))
        return DatasetConfig(adapter="prompts", prompts_file=str(path))

    def missing_config(self, folder: Path) -> DatasetConfig:
        return DatasetConfig(adapter="prompts", prompts_file=str(folder / "not_there.txt"))


class TestSyntheticPrompts(TestInlinePrompts):
    def config(self, folder: Path) -> DatasetConfig:
        return DatasetConfig(adapter="prompts", synthetic_tokens=9, synthetic_count=3)


def test_every_built_in_data_set_is_under_test() -> None:
    ours = {
        point.load() for point in entry_points(group=DATASET_GROUP) if point.value.startswith("llm_perf_opt.")
    }
    tested = (TestFolderOfPages, TestInlinePrompts, TestFolderOfSounds)
    assert ours == {case.dataset_class for case in tested}


class _IgnoresSampling(Dataset):
    """The smallest data set there can be, and one that does not do what it is asked."""

    def samples(self) -> Iterator[Sample]:
        """Yield all, always."""
        return iter([Sample(f"prompt_{number}", "text") for number in range(3)])


@pytest.mark.parametrize(
    "test",
    [
        "test_the_number_of_samples_is_respected",
        "test_shuffling_follows_the_seed",
        "test_samples_have_ids_of_their_own",
    ],
)
def test_the_suite_finds_a_data_set_that_ignores_sampling(test: str, tmp_path: Path) -> None:
    case = type("Case", (TestInlinePrompts,), {"dataset_class": _IgnoresSampling})()
    with pytest.raises(AssertionError):
        getattr(case, test)(tmp_path)
