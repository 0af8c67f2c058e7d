"""Images of any kind as upright RGB; a file that is none, or is damaged, is refused by name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.errors import InputError

if TYPE_CHECKING:
    from PIL import Image


def load_image(path: Path) -> Image.Image:
    """Read a page as upright RGB: first frame, EXIF rotation applied, 16-bit scaled, CMYK converted."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # Large scans are what document models are for; PIL still refuses beyond twice its limit.
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
