"""Sounds: WAV files of a folder or a list, or made up at a given length."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.files import sha256_of
from llm_perf_opt.workloads.base import Dataset, Sample
from llm_perf_opt.workloads.datasets.filelist import find_filelist, printable, read_filelist
from llm_perf_opt.workloads.datasets.omnidocbench import glob_below, sample_ids
from llm_perf_opt.workloads.datasets.sampling import check_sampling, draw, in_epoch
from llm_perf_opt.workloads.datasets.waveforms import MADE_UP, read_wave

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import DatasetConfig, GeneratedAudioConfig

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
        """Count the sounds before sampling."""
        return len(self._samples)

    def problems(self) -> Sequence[str]:
        """Say what was left out so far and why."""
        return tuple(self._problems)

    def samples(self) -> Iterator[Sample]:
        """Yield the sounds, sampling applied; unreadable files are passed over, all unreadable is an error."""
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
        # The configured patterns are those of images unless somebody set others.
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
    return Sample(id=f"clip_{number:03d}", sha256=digest, extra={MADE_UP: described})
