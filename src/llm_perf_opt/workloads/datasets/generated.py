"""Generated pages on disk: made once per (seed, pages, size), shared by every later run.

Cached below ``dataset.generated.cache_dir``, else ``$LLM_PERF_OPT_CACHE``, else the user's cache directory.
A set is written beside its place and renamed into it, so that runs started together see all of it or nothing.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import PIL

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.workloads.datasets.annotations import JSON_NAME
from llm_perf_opt.workloads.datasets.filelist import IMAGES

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import GeneratedConfig

LOGGER = logging.getLogger(__name__)

GENERATOR_VERSION = 1
"""Raised whenever the same settings give other pages."""
MANIFEST = "manifest.json"
_SMALLEST_SIDE = 64


def user_cache_dir() -> Path:
    """Return the directory for files that may be made again: ``$LLM_PERF_OPT_CACHE`` or the XDG one."""
    own = os.environ.get("LLM_PERF_OPT_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification says relative values are to be ignored.
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path("~/.cache").expanduser()
    return base / "llm-perf-opt"


def ensure_pages(config: GeneratedConfig) -> Path:
    """Return the root of a data set of generated pages, making it if it is not there yet."""
    _check_config(config)
    try:
        base = (
            Path(config.cache_dir).expanduser().absolute() if config.cache_dir else user_cache_dir() / "pages"
        )
        return _cached_pages(base / _cache_key(config), config)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory to expand to
        reason = error.strerror if isinstance(error, OSError) else str(error)
        temporary = Path(tempfile.mkdtemp(prefix="llm-perf-opt-pages-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        LOGGER.warning("the page cache cannot be used (%s): pages are made anew in %s", reason, temporary)
        return _cached_pages(temporary / _cache_key(config), config)


def _check_config(config: GeneratedConfig) -> None:
    if config.pages < 1:
        raise ConfigError(
            f"dataset.generated.pages must be at least 1, got {config.pages}",
            hint="set dataset.generated.pages=3",
            key="dataset.generated.pages",
        )
    if config.max_side < _SMALLEST_SIDE:
        raise ConfigError(
            f"dataset.generated.max_side must be at least {_SMALLEST_SIDE} pixels, got {config.max_side}",
            hint="an A4 page at 150 dpi has 1754",
            key="dataset.generated.max_side",
        )


def _cache_key(config: GeneratedConfig) -> str:
    # Pillow is part of the key: another version may draw the same letters with other pixels.
    settings = (GENERATOR_VERSION, PIL.__version__, config.pages, config.seed, config.max_side)
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    return f"v{GENERATOR_VERSION}-{digest}"


def _cached_pages(folder: Path, config: GeneratedConfig) -> Path:
    if _is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write_pages(work, config)
        _move_into_place(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _write_pages(folder: Path, config: GeneratedConfig) -> None:
    # Imported here: drawing is needed once, reading the cache every time.
    from llm_perf_opt.workloads.datasets.page_layout import make_page

    (folder / IMAGES).mkdir()
    annotations, sizes = [], {}
    for index in range(config.pages):
        page = make_page(index, config.seed, config.max_side)
        path = folder / IMAGES / page.name
        page.image.save(path, format="PNG", compress_level=3)
        annotations.append(page.annotation)
        sizes[f"{IMAGES}/{page.name}"] = path.stat().st_size
    atomic_write_json(folder / JSON_NAME, annotations)
    sizes[JSON_NAME] = (folder / JSON_NAME).stat().st_size
    atomic_write_json(folder / MANIFEST, {"generator_version": GENERATOR_VERSION, "bytes": sizes})
    folder.chmod(0o755)


def _move_into_place(work: Path, folder: Path) -> None:
    for _ in range(3):
        try:
            work.rename(folder)
            return
        except OSError:
            # Another run was faster, or what is there is damaged (somebody tidied up): then it goes aside.
            if _is_complete(folder):
                return
            if not folder.exists():
                raise
            aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.damaged.", dir=folder.parent))
            folder.rename(aside / folder.name)
            shutil.rmtree(aside, ignore_errors=True)
    work.rename(folder)


def _is_complete(folder: Path) -> bool:
    """Whether every file of the set is there with its size."""
    try:
        sizes = json.loads((folder / MANIFEST).read_bytes())["bytes"]
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
