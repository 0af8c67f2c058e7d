"""Pages per second of the image preprocessing, beside the model library's own processor, in one run.

    python benchmarks/preprocess.py [--pages 6]

DeepSeek-OCR-2 is compared on equal output (same views, checked); v1 has no torchvision-free processor in transformers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from llm_perf_opt.config.schema import ImageMode, InferConfig
from llm_perf_opt.workloads.datasets.images import load_image
from llm_perf_opt.workloads.models.page_views import ViewSpec, make_views, to_pixels, view_spec

SIZES = ((1654, 2339), (1240, 1754), (2000, 1500))


def write_pages(folder: Path, count: int) -> list[Path]:
    """Scan-like pages: light noise with dark lines."""
    paths = []
    for number in range(count):
        width, height = SIZES[number % len(SIZES)]
        page = np.random.default_rng(number).integers(235, 255, (height, width, 3), dtype=np.uint8)
        page[::24, 100:-100] = 20
        paths.append(folder / f"{number}.png")
        Image.fromarray(page).save(paths[-1], compress_level=1)
    return paths


def rate(run: Callable[[Path], Any], paths: list[Path]) -> float:
    """Pages per second, after one page of warm-up."""
    run(paths[0])
    started = time.perf_counter()
    for path in paths:
        run(path)
    return len(paths) / (time.perf_counter() - started)


def ours(spec: ViewSpec) -> Callable[[Path], Any]:
    def run(path: Path) -> Any:
        views = make_views(load_image(path), spec)
        pixels = to_pixels([views.global_view], "cpu", torch.float32)
        return pixels, to_pixels(views.tiles, "cpu", torch.float32) if views.tiles else None

    return run


def library(path: Path) -> Any:
    from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import (
        DeepseekOcr2ImageProcessorPil,
    )

    return DeepseekOcr2ImageProcessorPil()(Image.open(path), return_tensors="pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_pages(Path(folder), options.pages)
        print(f"reading alone       {rate(load_image, paths):6.2f} pages/s")
        for mode in (ImageMode.tiny, ImageMode.small, ImageMode.base, ImageMode.large, ImageMode.gundam):
            print(f"v1 {mode.value:16} {rate(ours(view_spec(InferConfig(mode=mode))), paths):6.2f} pages/s")
        spec = replace(view_spec(InferConfig()), tile_size=768, max_tiles=6, rounding="floor")
        mine, theirs = ours(spec)(paths[0]), library(paths[0])
        if not torch.allclose(mine[1], theirs["pixel_values_local"], atol=1e-6):
            raise SystemExit("the two give different tiles")
        ours_rate, library_rate = rate(ours(spec), paths), rate(library, paths)
        print(f"OCR-2 ours          {ours_rate:6.2f} pages/s")
        print(
            f"OCR-2 transformers  {library_rate:6.2f} pages/s   ours is {ours_rate / library_rate:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
