"""Sounds: what is read from files is what was written, what is made up follows its seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt.config.schema import DatasetConfig, GeneratedAudioConfig
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.datasets.audio import (
    AudioDataset,
    Clip,
    clip_of,
    made_up_clip,
    made_up_samples,
    read_wave,
    resampled,
)
from tests.text_facts import mentions
from tests.unit.workloads.datasets.sounds import write_wave


@pytest.mark.parametrize(("width", "off"), [(1, 1 / 100), (2, 1e-4), (3, 1e-6), (4, 1e-6)])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_file_is_read_as_it_was_written(width: int, off: float, channels: int, tmp_path: Path) -> None:
    clip = made_up_clip(3, 0.1)
    found = read_wave(write_wave(tmp_path / "one.wav", clip, width=width, channels=channels))
    assert found.rate_hz == clip.rate_hz
    assert len(found.values) == len(clip.values)
    np.testing.assert_allclose(found.values, clip.values, atol=off)


def test_a_clip_has_its_length_and_follows_its_seed() -> None:
    first, again, other = made_up_clip(0, 1.5), made_up_clip(0, 1.5), made_up_clip(1, 1.5)
    assert first.seconds == 1.5
    assert np.array_equal(first.values, again.values)
    assert not np.array_equal(first.values, other.values)
    assert 0.05 < np.abs(first.values).max() <= 1.0


def test_another_rate_keeps_the_sound() -> None:
    time = np.arange(8000) / 8000
    clip = Clip(np.sin(2 * np.pi * 50 * time).astype(np.float32), 8000)
    found = resampled(clip, 16_000)
    assert len(found) == 16_000
    np.testing.assert_allclose(found, np.sin(2 * np.pi * 50 * np.arange(16_000) / 16_000), atol=0.02)
    assert resampled(clip, 8000) is clip.values


@pytest.mark.parametrize("content", [b"", b"RIFF", b"not a sound at all"])
def test_a_file_that_is_none_is_an_input_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.wav"):
        read_wave(tmp_path / "bad.wav")


def test_a_file_without_sound_is_an_input_error(tmp_path: Path) -> None:
    write_wave(tmp_path / "empty.wav", Clip(np.zeros(0, np.float32), 16_000))
    with pytest.raises(InputError) as caught:
        read_wave(tmp_path / "empty.wav")
    assert caught.value.data["path"] == str(tmp_path / "empty.wav")


def test_unreadable_files_are_left_out_by_name(tmp_path: Path) -> None:
    write_wave(tmp_path / "good.wav", made_up_clip(0, 0.05))
    (tmp_path / "bad.wav").write_bytes(b"no")
    dataset = AudioDataset(DatasetConfig(adapter="audio", root=str(tmp_path)))
    assert [sample.id for sample in dataset.samples()] == ["good.wav"]
    assert [problem.startswith("bad.wav: ") for problem in dataset.problems()] == [True]


def test_all_unreadable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_bytes(b"no")
    with pytest.raises(InputError) as caught:
        list(AudioDataset(DatasetConfig(adapter="audio", root=str(tmp_path))).samples())
    assert mentions(caught.value.message, "1", "bad.wav") and mentions(caught.value.hint, "dataset.root")


def test_a_folder_without_sounds_is_refused_with_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        AudioDataset(DatasetConfig(adapter="audio", root=str(tmp_path)))
    assert caught.value.data["key"] == "dataset.fallback_patterns"
    assert mentions(caught.value.message, str(tmp_path), "*.wav", "audio/*.wav")


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (GeneratedAudioConfig(clips=0), "dataset.generated_audio.clips"),
        (GeneratedAudioConfig(seconds=0), "dataset.generated_audio.seconds"),
        (GeneratedAudioConfig(seconds=float("nan")), "dataset.generated_audio.seconds"),
    ],
)
def test_clips_that_cannot_be_meant_are_refused(config: GeneratedAudioConfig, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made_up_samples(config)
    assert caught.value.data["key"] == key


def test_a_sample_without_a_sound_is_an_input_error() -> None:
    with pytest.raises(InputError) as caught:
        clip_of(Sample("text", "hello"))
    assert mentions(caught.value.message, "text") and mentions(caught.value.hint, "dataset=audio")
