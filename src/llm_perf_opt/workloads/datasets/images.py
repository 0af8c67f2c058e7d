"""Validation of image files from headers and checksums; decoded only if necessary."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import ExifTags, Image, UnidentifiedImageError

from llm_perf_opt.core.errors import InputError

_JPEG_END = b"\xff\xd9"
_JPEG_TAIL_BYTES = 4096
_SIDEWAYS = {5, 6, 7, 8}
"""EXIF orientations that exchange width and height."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Header information, with EXIF orientation applied."""

    width: int
    height: int
    frames: int


def check_image(path: Path) -> ImageFacts | str:
    """Return the facts of a readable image, or the reason why it is not one."""
    try:
        with warnings.catch_warnings():
            # Pillow warns from 89 megapixels on, but pages of 100 exist. It rejects twice that, and so do we.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return _inspect(path)
    except Image.DecompressionBombError:
        return "more pixels than Pillow opens safely"
    except UnidentifiedImageError:
        return "empty file" if path.stat().st_size == 0 else "not an image, or a damaged header"
    except OSError as error:
        return error.strerror or str(error)
    except (SyntaxError, ValueError, EOFError, OverflowError) as error:
        # Exceptions of Pillow on damaged files besides OSError.
        return f"damaged: {error}"


def _inspect(path: Path) -> ImageFacts | str:
    with Image.open(path) as image:
        width, height = image.size
        kind = image.format
        frames = int(getattr(image, "n_frames", 1))
        # Reading EXIF makes Pillow decode a PNG, so it is read only if the header announces it.
        tagged = "exif" in image.info
        if tagged and image.getexif().get(ExifTags.Base.Orientation) in _SIDEWAYS:
            width, height = height, width
        if width < 1 or height < 1:
            return f"zero size ({width}x{height})"
        if kind == "PNG" and not tagged:
            image.verify()
        elif kind != "JPEG" or not _ends_like_jpeg(path):
            image.load()
    return ImageFacts(width, height, frames)


def _ends_like_jpeg(path: Path) -> bool:
    """Whether the end marker is present: a truncated download lacks it."""
    with path.open("rb") as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - _JPEG_TAIL_BYTES))
        return _JPEG_END in stream.read()


# Images of any kind as upright RGB; an invalid or damaged file is an error that names it.


def load_image(path: Path) -> Image.Image:
    """Read a page as upright RGB: first frame, EXIF rotation applied, 16-bit scaled, CMYK converted."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # Large scans are expected for document models; PIL still rejects images beyond twice its limit.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                image.seek(0)
                upright = ImageOps.exif_transpose(image)
                rgb = _to_rgb(upright)
                rgb.load()
    except UnidentifiedImageError as error:
        raise InputError(
            f"not an image PIL can read: {path}",
            hint="convert it to PNG or JPEG, or leave it out",
            path=str(path),
        ) from error
    except Image.DecompressionBombError as error:
        raise InputError(
            f"image too large: {path}: {error}", hint="scale it down first", path=str(path)
        ) from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        # PIL reports damaged files with any of these, by format.
        raise InputError(
            f"cannot read image {path}: {error}",
            hint="the file is missing, damaged or cut off",
            path=str(path),
        ) from error
    if rgb.width < 1 or rgb.height < 1:
        raise InputError(f"image has no pixels: {path} ({rgb.width}x{rgb.height})", path=str(path))
    return rgb


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB. PIL would clip deeper grey levels to white, so they are scaled first."""
    import numpy as np
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image).astype(np.float64)
        top = float(values.max(initial=0.0))
        if image.mode == "F" and top <= 1.0:
            scale = 255.0
        elif top <= 255.0 and not image.mode.startswith("I;16"):
            scale = 1.0
        else:
            scale = 255.0 / 65535.0
        eight_bit = np.clip(np.rint(values * scale), 0, 255).astype(np.uint8)
        return Image.fromarray(eight_bit).convert("RGB")
    return image.convert("RGB")
