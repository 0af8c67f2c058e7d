"""Audio clips: WAV files of a folder or a list, or synthetic clips of a given length."""

from __future__ import annotations

import hashlib
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.files import sha256_of
from llm_perf_opt.workloads.base import Dataset, Sample
from llm_perf_opt.workloads.datasets.filelist import find_filelist, printable, read_filelist
from llm_perf_opt.workloads.datasets.omnidocbench import glob_below, sample_ids
from llm_perf_opt.workloads.datasets.sampling import check_sampling, draw, in_epoch

if TYPE_CHECKING:
    import numpy as np

    from llm_perf_opt.config.schema import DatasetConfig, GeneratedAudioConfig


# Audio as arrays: synthetic from a seed, or read from WAV files, with numpy and the standard library only.


_MADE_UP = "made_up_sound"
"""Key of ``Sample.extra`` under which a sound that is in no file is described."""
_RATE_HZ = 16_000
_TONES = 4
_SYLLABLE_S = 0.25
_NOISE = 0.02


@dataclass(frozen=True, slots=True)
class Clip:
    """One mono clip."""

    values: np.ndarray[Any, Any]
    """From -1 to 1."""
    rate_hz: int

    @property
    def seconds(self) -> float:
        """Duration."""
        return len(self.values) / self.rate_hz


def clip_of(sample: Sample) -> Clip:
    """Return the clip of a sample: from its file, or synthetic."""
    if sample.path is not None:
        return read_wave(sample.path)
    described = sample.extra.get(_MADE_UP)
    if described is None:
        raise InputError(
            f"sample {sample.id} has no sound", hint="this model needs a data set of sounds: dataset=audio"
        )
    return made_up_clip(int(described["seed"]), float(described["seconds"]))


def made_up_clip(seed: int, seconds: float) -> Clip:
    """Return tones that change with every syllable over a little noise; deterministic for a seed."""
    import numpy as np

    draw = np.random.default_rng(seed)
    time = np.arange(max(1, round(seconds * _RATE_HZ))) / _RATE_HZ
    syllable = (time / _SYLLABLE_S).astype(int)
    pitches = draw.uniform(90.0, 400.0, size=int(syllable[-1]) + 1)
    loudness = draw.uniform(0.1, 1.0, size=len(pitches))
    phase = 2 * np.pi * np.cumsum(pitches[syllable]) / _RATE_HZ
    voice = sum(np.sin(order * phase) / order for order in range(1, _TONES + 1))
    sound = 0.25 * loudness[syllable] * voice + _NOISE * draw.standard_normal(len(time))
    return Clip(np.clip(sound, -1.0, 1.0).astype(np.float32), _RATE_HZ)


def read_wave(path: Path) -> Clip:
    """Read an uncompressed WAV file; several channels are averaged."""
    import numpy as np

    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            raw = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise InputError(
            f"cannot read {path} as sound: {error}",
            hint="give WAV files of whole numbers (PCM), for example by `ffmpeg -i IN -ar 16000 -ac 1 OUT.wav`",
            path=str(path),
        ) from error
    if width == 3:  # numpy has no numbers of three bytes: they become the upper ones of four
        parts = np.frombuffer(raw[: len(raw) // 3 * 3], np.uint8).reshape(-1, 3)
        whole = np.pad(parts, ((0, 0), (1, 0))).copy().view("<i4").ravel()
        width = 4
    else:
        kind: np.dtype[Any] = np.dtype({1: "u1", 2: "<i2", 4: "<i4"}[width])
        whole = np.frombuffer(raw[: len(raw) // width * width], kind)
    values = whole.astype(np.float32)
    values = values / 128.0 - 1.0 if width == 1 else values / float(2 ** (8 * width - 1))
    frames = len(values) // channels
    if frames == 0:
        raise InputError(f"{path} holds no sound", hint="leave it out", path=str(path))
    return Clip(values[: frames * channels].reshape(frames, channels).mean(axis=1), rate)


def resampled(clip: Clip, rate_hz: int) -> np.ndarray[Any, Any]:
    """Return a clip's values at another rate, by linear interpolation."""
    import numpy as np

    if clip.rate_hz == rate_hz:
        return clip.values
    wanted = np.arange(max(1, round(clip.seconds * rate_hz))) / rate_hz
    found: np.ndarray[Any, Any] = np.interp(wanted, np.arange(len(clip.values)) / clip.rate_hz, clip.values)
    return found.astype(np.float32)


_PATTERNS = ("*.wav", "audio/*.wav")
_MOST_SECONDS = 3600.0


class AudioDataset(Dataset):
    """``dataset.adapter=audio``: ``dataset.root`` or ``dataset.subset_filelist`` with WAV files, else made-up clips."""

    opens_quickly = True

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        check_sampling(config.sampling)
        self._problems: list[str] = []
        self._checked: dict[int, bool] = {}
        self._samples = self._find_samples()

    def __len__(self) -> int:
        """Count the clips before sampling."""
        return len(self._samples)

    def problems(self) -> Sequence[str]:
        """Return what was left out so far and why."""
        return tuple(self._problems)

    def samples(self) -> Iterator[Sample]:
        """Yield the clips, sampling applied; unreadable files are skipped, none readable is an error."""
        empty = True
        for epoch, index in draw(len(self._samples), self.config.sampling, self._usable):
            empty = False
            yield in_epoch(self._samples[index], epoch)
        if empty:
            raise InputError(
                f"none of the {len(self._samples)} sounds can be read: {'; '.join(self._problems[:3])}",
                hint="check dataset.root and dataset.subset_filelist",
            )

    def _find_samples(self) -> list[Sample]:
        config = self.config
        root = Path(config.root).expanduser().absolute() if config.root is not None else None
        if root is not None and not root.is_dir():
            what = "is not a directory" if root.exists() else "does not exist"
            raise InputError(
                f"dataset.root {what}: {printable(root)}",
                hint="give a folder of WAV files; leave it out for made-up clips",
                key="dataset.root",
            )
        if config.subset_filelist is not None:
            listed, remarks = read_filelist(find_filelist(config.subset_filelist, root), root)
            self._problems.extend(remarks)
            paths = [entry.path for entry in listed]
        elif root is not None:
            paths = self._found_below(root)
        else:
            return made_up_samples(config.generated_audio)
        names = sample_ids(paths, root)
        return [
            Sample(id=name, path=path, sha256=sha256_of(path))
            for name, path in zip(names, paths, strict=True)
        ]

    def _found_below(self, root: Path) -> list[Path]:
        # The default patterns are for images, so they apply only if the user changed them.
        patterns = [*(one for one in self.config.fallback_patterns if one.endswith(".wav")), *_PATTERNS]
        for pattern in patterns:
            if found := glob_below(root, pattern):
                return found
        raise InputError(
            f"no WAV files below {printable(root)}; tried {', '.join(dict.fromkeys(patterns))}",
            hint="set dataset.fallback_patterns='[\"clips/*.wav\"]' or dataset.subset_filelist",
            key="dataset.fallback_patterns",
        )

    def _usable(self, index: int) -> bool:
        if index not in self._checked:
            self._checked[index] = self._can_be_read(self._samples[index])
        return self._checked[index]

    def _can_be_read(self, sample: Sample) -> bool:
        if sample.path is None:
            return True
        try:
            read_wave(sample.path)
        except InputError as error:
            self._problems.append(f"{sample.id}: left out, {error.message}")
            return False
        return True


def made_up_samples(config: GeneratedAudioConfig) -> list[Sample]:
    """Return clips described by seed and length; nothing is written."""
    key = "dataset.generated_audio"
    if config.clips < 1:
        raise ConfigError(
            f"{key}.clips must be at least 1, got {config.clips}", hint="set it to 2", key=f"{key}.clips"
        )
    if not 0 < config.seconds <= _MOST_SECONDS:
        raise ConfigError(
            f"{key}.seconds must be above 0 and at most {_MOST_SECONDS:.0f}, got {config.seconds}",
            hint="whisper reads 30 s at a time",
            key=f"{key}.seconds",
        )
    return [_made_up(config.seed + number, config.seconds, number) for number in range(config.clips)]


def _made_up(seed: int, seconds: float, number: int) -> Sample:
    described = {"seed": seed, "seconds": seconds}
    digest = hashlib.sha256(f"sound:{seed}:{seconds!r}".encode()).hexdigest()
    return Sample(id=f"clip_{number:03d}", sha256=digest, extra={_MADE_UP: described})
