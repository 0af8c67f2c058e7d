"""OmniDocBench, any folder of page images, or generated pages: an image each and its text, if known."""

from __future__ import annotations

import functools
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.files import sha256_of
from llm_perf_opt.workloads.base import Dataset, Sample
from llm_perf_opt.workloads.datasets.annotations import Annotations, find_annotations
from llm_perf_opt.workloads.datasets.filelist import IMAGES, find_filelist, printable, read_filelist
from llm_perf_opt.workloads.datasets.generated_pages import ensure_pages
from llm_perf_opt.workloads.datasets.images import check_image
from llm_perf_opt.workloads.datasets.sampling import check_sampling, draw, in_epoch

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import DatasetConfig

LOGGER = logging.getLogger(__name__)
_NAMED_IN_ERROR = 5


class OmniDocBench(Dataset):
    """``dataset.adapter=omnidocbench``. The constructor finds the files; images are opened when sampled."""

    opens_quickly = True

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        check_sampling(config.sampling)
        self._problems: list[str] = []
        self._root = self._find_root()
        self._paths = self._find_images()
        self._ids = sample_ids(self._paths, self._root)
        self._samples: dict[int, Sample | None] = {}

    @property
    def root(self) -> Path | None:
        """Data set directory in use; ``None`` for a file list of absolute paths."""
        return self._root

    def __len__(self) -> int:
        """Count the images found, before sampling and before any was opened."""
        return len(self._paths)

    def problems(self) -> Sequence[str]:
        """Return what was left out so far and why; complete once ``samples`` is exhausted."""
        return tuple(self._problems)

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the run; unreadable images are skipped, none readable is an error."""
        empty = True
        for epoch, index in draw(len(self._paths), self.config.sampling, self._usable):
            sample = self._samples[index]
            if sample is not None:
                empty = False
                yield in_epoch(sample, epoch)
        if empty:
            shown = "\n  ".join(self._problems[:_NAMED_IN_ERROR])
            raise InputError(
                f"none of the {len(self._paths)} images can be read:\n  {shown}",
                hint="check dataset.root and dataset.subset_filelist; are the files Git LFS pointers?",
                key="dataset.root",
            )

    def _find_root(self) -> Path | None:
        config = self.config
        if config.root is None:
            return ensure_pages(config.generated).absolute() if config.subset_filelist is None else None
        root = Path(config.root).expanduser().absolute()
        if not root.is_dir():
            what = "is not a directory" if root.exists() else "does not exist"
            raise InputError(
                f"dataset.root {what}: {printable(root)}",
                hint="give the folder with images/ and OmniDocBench.json; leave it out for generated pages",
                key="dataset.root",
            )
        return root

    def _find_images(self) -> list[Path]:
        config, root = self.config, self._root
        if config.subset_filelist is not None:
            listed, remarks = read_filelist(find_filelist(config.subset_filelist, root), root)
            self._problems.extend(remarks)
            return [entry.path for entry in listed]
        if root is None:  # unreachable: without a list there are generated pages
            raise InputError("there is no data set", hint="set dataset.root or dataset.subset_filelist")
        for pattern in config.fallback_patterns:
            found = glob_below(root, pattern)
            if found:
                return found
        raise InputError(
            f"no images below {printable(root)}; tried {', '.join(config.fallback_patterns) or 'no pattern'}",
            hint="set dataset.fallback_patterns='[\"pages/*.png\"]' or dataset.subset_filelist",
            key="dataset.fallback_patterns",
        )

    @functools.cached_property
    def _annotations(self) -> Annotations | None:
        """References, read when the first image is: the file has 80 MB, and finding the images does not need it."""
        path = find_annotations(self._root) if self._root is not None else None
        if path is None:
            return None
        try:
            annotations = Annotations.load(path)
        except (OSError, ValueError, RecursionError) as error:
            self._problem(f"{path.name} cannot be read ({error}): predictions are not scored")
            return None
        if annotations.unusable:
            self._problem(f"{path.name}: {annotations.unusable} pages without an image_path, not used")
        return annotations

    def _usable(self, index: int) -> bool:
        """Open image ``index`` once; cache the sample, or report why there is none."""
        if index not in self._samples:
            self._samples[index] = self._open(index)
        return self._samples[index] is not None

    def _open(self, index: int) -> Sample | None:
        path, name = self._paths[index], self._ids[index]
        facts = check_image(path)
        if isinstance(facts, str):
            self._problem(f"{name}: left out, {facts}")
            return None
        if facts.frames > 1:
            LOGGER.info("%s has %d frames; the first is used", name, facts.frames)
        reference = self._annotations.reference(path.name) if self._annotations is not None else None
        size = {"width": facts.width, "height": facts.height}
        return Sample(id=name, path=path, reference=reference, sha256=sha256_of(path), extra=size)

    def _problem(self, text: str) -> None:
        LOGGER.warning("data set: %s", text)
        self._problems.append(text)


def glob_below(root: Path, pattern: str) -> list[Path]:
    """Return the files below ``root`` that match, in a deterministic order."""
    if Path(pattern).is_absolute() or os.pardir in Path(pattern).parts:
        raise ConfigError(
            f"dataset.fallback_patterns must stay below dataset.root: {pattern}",
            hint="give a pattern such as images/*.png",
            key="dataset.fallback_patterns",
        )
    try:
        found = [path for path in root.glob(pattern) if path.is_file()]
    except ValueError as error:
        raise ConfigError(
            f"dataset.fallback_patterns has a pattern that cannot be used: {pattern!r} ({error})",
            hint="give a pattern such as images/*.png",
            key="dataset.fallback_patterns",
        ) from error
    # Byte order: independent of locale and directory order.
    return sorted(found, key=os.fsencode)


def sample_ids(paths: Sequence[Path], root: Path | None) -> list[str]:
    """Return the shortest unique name of each image: bare name, path below the root, then with a number."""
    names = [printable(path.name) for path in paths]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    ids: list[str] = []
    used: dict[str, int] = {}
    for path, name in zip(paths, names, strict=True):
        if name in repeated:
            inside = root is not None and path.is_relative_to(root)
            name = printable(path.relative_to(root)) if inside and root is not None else printable(path)
            name = name.removeprefix(f"{IMAGES}/")
        used[name] = used.get(name, 0) + 1
        ids.append(name if used[name] == 1 else f"{name}#{used[name]}")
    return ids
