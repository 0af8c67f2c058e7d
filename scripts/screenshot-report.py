#!/usr/bin/env python3
"""Take the picture of a report for the README: `scripts/screenshot-report.py RUN_DIR [--out docs/images/report.png]`.

Needs playwright (the `dev` extra), Pillow and a Chromium (`--browser PATH`, else the one on the PATH).
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 300_000
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="directory of a finished run (or its report.html)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "report.png")
    parser.add_argument("--browser", default=shutil.which("chromium") or shutil.which("google-chrome"))
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=1500)
    parser.add_argument("--dark", action="store_true")
    return parser.parse_args()


def photograph(options: argparse.Namespace, page_file: Path) -> bytes:
    """Return the first screen of the report as PNG."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=options.browser, args=FLAGS)
        page = browser.new_page(
            viewport={"width": options.width, "height": options.height},
            color_scheme="dark" if options.dark else "light",
        )
        page.goto(page_file.resolve().as_uri())
        picture = page.screenshot()
        browser.close()
    return picture


def main() -> int:
    options = arguments()
    page_file = options.run / "report.html" if options.run.is_dir() else options.run
    if not page_file.is_file():
        print(
            f"{page_file} does not exist: render it with `llm-perf-opt report {options.run}`", file=sys.stderr
        )
        return 2
    from PIL import Image

    # Few colours are enough for text and charts, and the file becomes a third of its size.
    picture = Image.open(io.BytesIO(photograph(options, page_file))).convert("RGB").quantize(128)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    picture.save(options.out, optimize=True)
    size = options.out.stat().st_size
    print(f"{options.out}: {size} bytes")
    return 0 if size < MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
