"""Make the pages of docs/gallery: a default run, a GPU capture taken elsewhere, a comparison.

    python scripts/make-gallery.py --captures DIR

``DIR`` holds the RTX 5090 captures of DeepSeek-OCR (``nsys/``, ``ncu/``, ``run/``). The pages are committed, so that the
site can be built anywhere; make them again when the pages' look changes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GALLERY = ROOT / "docs" / "gallery"


def run(*arguments: str) -> None:
    print("llm-perf-opt", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "llm_perf_opt", *arguments], check=True, cwd=ROOT)


def keep(page: Path, name: str, *folders: Path) -> None:
    """Copy a page, without the folders of the machine it was made on."""
    GALLERY.mkdir(parents=True, exist_ok=True)
    text = page.read_text(encoding="utf-8")
    for folder in (*folders, Path("/tmp")):  # where locks of devices lie
        text = text.replace(f"{folder}/", "")
    (GALLERY / name).write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--captures", type=Path, help="folder of the RTX 5090 captures; without it that page stays"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        run("run", f"artifacts.runs_dir={work / 'default'}")
        keep(work / "default" / "report.html", "default-run.html", work)
        run(
            "run", "model=llama3_70b", "pipeline.torch_profiler.enable=false",
            f"artifacts.runs_dir={work / 'static'}",
        )  # fmt: skip
        keep(work / "static" / "report.html", "llama3-70b-on-paper.html", work)
        sides = ("--run", "--", "model.cache=static")
        run("compare", "model=llama_tiny", "--together", "--rounds=40", f"--out={work / 'compare'}", *sides)
        keep(work / "compare" / "comparison.html", "comparison.html", work)
        if options.captures is not None:
            captures = options.captures
            wall = work / "wall.json"
            wall.write_text(json.dumps(MEASURED))
            run(
                "ingest", f"--nsys={captures / 'nsys' / 'all-stage.cuda_gpu_kern_sum.csv'}", f"--ncu={captures / 'ncu'}",
                f"--timings={wall}", "--device=RTX 5090", "--dtype=bfloat16", f"--out={work / 'gpu'}",
            )  # fmt: skip
            keep(work / "gpu" / "report.html", "rtx5090-deepseek-ocr.html", work, captures.resolve().parent)


MEASURED = {"samples": 20, "new_tokens": 64, "prefill_s": 0.0983, "decode_s": 0.7074, "model": "DeepSeek-OCR"}
"""Wall-clock of the captured run, without a tool attached."""

if __name__ == "__main__":
    main()
