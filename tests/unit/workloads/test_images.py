"""Images as upright RGB: every odd file is handled, or refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.workloads.datasets.images import load_image


def image(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(1).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def save(tmp_path: Path, picture: Image.Image, name: str, **options: object) -> Path:
    path = tmp_path / name
    picture.save(path, **options)  # type: ignore[arg-type]
    return path


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # stored on its side
    path = save(tmp_path, image(60, 40), "side.jpg", exif=exif)
    assert load_image(path).size == (40, 60)


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (20, 10), color) for color in ((255, 0, 0), (0, 255, 0))]
    path = save(tmp_path, frames[0], "two.gif", save_all=True, append_images=frames[1:])
    loaded = load_image(path)
    assert loaded.mode == "RGB"
    assert loaded.getpixel((3, 3)) == (255, 0, 0)


def test_cmyk_is_converted(tmp_path: Path) -> None:
    path = save(tmp_path, Image.new("CMYK", (20, 10), (0, 255, 255, 0)), "cmyk.jpg")
    red, green, blue = load_image(path).getpixel((5, 5))
    assert red > 200
    assert max(green, blue) < 60


@pytest.mark.parametrize("name", ["deep.png", "deep.tif"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path, name: str) -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    path = save(tmp_path, Image.fromarray(ramp), name)
    loaded = np.asarray(load_image(path))[..., 0]
    assert np.array_equal(loaded.ravel(), np.arange(256))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I", "F"])
def test_other_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    level = 255 if mode == "1" else 200
    path = save(tmp_path, Image.new("L", (8, 8), level).convert(mode), "x.tif")
    loaded = load_image(path)
    assert loaded.mode == "RGB"
    assert loaded.getpixel((1, 1)) == (level,) * 3


def test_decompression_bomb_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, Image.new("1", (20_000, 20_000)), "bomb.png")
    with pytest.raises(InputError, match="too large"):
        load_image(path)


def damaged(kind: str, tmp_path: Path) -> Path:
    path = tmp_path / "bad.png"
    good = save(tmp_path, image(64, 64), "good.png").read_bytes()
    if kind == "cut":
        path.write_bytes(good[: len(good) // 2])
    elif kind == "no pixels":  # a header that claims 0 x 64
        path.write_bytes(good[:16] + b"\0\0\0\0" + good[20:])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("hello")
    elif kind == "directory":
        path.mkdir()
    return path


@pytest.mark.parametrize("kind", ["cut", "no pixels", "empty", "text", "directory", "absent"])
def test_unusable_files_are_named(kind: str, tmp_path: Path) -> None:
    path = damaged(kind, tmp_path)
    with pytest.raises(InputError) as caught:
        load_image(path)
    assert str(path) in caught.value.message
