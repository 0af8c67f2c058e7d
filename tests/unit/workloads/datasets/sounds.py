"""WAV files for tests."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from llm_perf_opt.workloads.datasets.audio import Clip


def write_wave(path: Path, clip: Clip, *, width: int = 2, channels: int = 1) -> Path:
    """Write a clip as whole numbers of ``width`` bytes, the same in every channel."""
    scaled = np.repeat(np.clip(clip.values, -1, 1 - 1e-6), channels).astype(np.float64)
    if width == 1:
        raw = np.round(scaled * 127 + 128).astype("u1").tobytes()
    elif width == 3:
        whole = np.round(scaled * (2**23 - 1)).astype("<i4")
        raw = whole.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    else:
        raw = np.round(scaled * (2 ** (8 * width - 1) - 1)).astype(f"<i{width}").tobytes()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(clip.rate_hz)
        file.writeframes(raw)
    return path
