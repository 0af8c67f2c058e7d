"""Sounds as arrays: made up from a seed, or read from WAV files; nothing but numpy and the standard library."""

from __future__ import annotations

import wave
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.workloads.base import Sample

if TYPE_CHECKING:
    import numpy as np

MADE_UP = "made_up_sound"
"""Key of ``Sample.extra`` under which a sound that is in no file is described."""
_RATE_HZ = 16_000
_TONES = 4
_SYLLABLE_S = 0.25
_NOISE = 0.02


@dataclass(frozen=True, slots=True)
class Clip:
    """One sound, one channel."""

    values: np.ndarray[Any, Any]
    """From -1 to 1."""
    rate_hz: int

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return len(self.values) / self.rate_hz


def clip_of(sample: Sample) -> Clip:
    """Return the sound of a sample: of its file, or as described."""
    if sample.path is not None:
        return read_wave(sample.path)
    described = sample.extra.get(MADE_UP)
    if described is None:
        raise InputError(
            f"sample {sample.id} has no sound", hint="this model needs a data set of sounds: dataset=audio"
        )
    return made_up_clip(int(described["seed"]), float(described["seconds"]))


def made_up_clip(seed: int, seconds: float) -> Clip:
    """Return tones that change with every syllable over a little noise; the same seed gives the same sound."""
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
    """Return a clip's values at another rate, by straight lines between them."""
    import numpy as np

    if clip.rate_hz == rate_hz:
        return clip.values
    wanted = np.arange(max(1, round(clip.seconds * rate_hz))) / rate_hz
    found: np.ndarray[Any, Any] = np.interp(wanted, np.arange(len(clip.values)) / clip.rate_hz, clip.values)
    return found.astype(np.float32)
