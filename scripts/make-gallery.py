"""Make the pages of docs/gallery: a default run, a GPU capture taken elsewhere, a comparison, servers under load, two ranks, a search.

    python scripts/make-gallery.py --captures DIR --serving DIR [--only NAME …]

``--captures`` holds the RTX 5090 captures of DeepSeek-OCR (``nsys/``, ``ncu/``, ``run/``), ``--serving`` recorded servers
(``vllm-0.32-cpu/``, ``inference-perf/``). The pages are committed, so that the site can be built anywhere; make them again when the pages'
look changes.
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


def make_default(work: Path, _: argparse.Namespace) -> None:
    run("run", f"artifacts.runs_dir={work / 'default'}")
    keep(work / "default" / "report.html", "default-run.html", work)


def make_static(work: Path, _: argparse.Namespace) -> None:
    run(
        "run", "model=llama3_70b", "pipeline.torch_profiler.enable=false", f"artifacts.runs_dir={work / 'static'}"
    )  # fmt: skip
    keep(work / "static" / "report.html", "llama3-70b-static.html", work)


def make_comparison(work: Path, _: argparse.Namespace) -> None:
    sides = ("--run", "--", "model.cache=static")
    run("compare", "model=llama_tiny", "--together", "--rounds=40", f"--out={work / 'compare'}", *sides)
    keep(work / "compare" / "comparison.html", "comparison.html", work)


def make_gpu(work: Path, options: argparse.Namespace) -> None:
    captures = options.captures
    if captures is None:
        return
    wall = work / "wall.json"
    wall.write_text(json.dumps(MEASURED))
    run(
        "ingest", f"--nsys={captures / 'nsys' / 'all-stage.cuda_gpu_kern_sum.csv'}", f"--ncu={captures / 'ncu'}",
        f"--timings={wall}", "--device=RTX 5090", "--dtype=bfloat16", f"--out={work / 'gpu'}",
    )  # fmt: skip
    keep(work / "gpu" / "report.html", "rtx5090-deepseek-ocr.html", work, captures.resolve().parent)


def make_serving(work: Path, options: argparse.Namespace) -> None:
    """A server's requests with its steps, and the load curve of another one."""
    recorded = options.serving
    if recorded is None:
        return
    folder = recorded / "vllm-0.32-cpu"
    steps = f"--serving-steps={folder / 'steps.jsonl'}"
    run("ingest", f"--serving={folder / 'requests.json'}", steps, f"--out={work / 'serving'}")
    keep(work / "serving" / "report.html", "serving-vllm.html", work, recorded.resolve())
    run("ingest", f"--serving={recorded / 'inference-perf' / 'vllm+batch_size'}", f"--out={work / 'curve'}")
    keep(work / "curve" / "report.html", "serving-load-curve.html", work, recorded.resolve())


def make_ranks(work: Path, _: argparse.Namespace) -> None:
    run("run", "model=llama_tiny", "run.ranks=2", f"artifacts.runs_dir={work / 'ranks'}")
    keep(work / "ranks" / "report.html", "two-ranks.html", work)


def make_improve(work: Path, _: argparse.Namespace) -> None:
    run("improve", "model=llama_tiny", "--budget=120s", f"--out={work / 'search'}")
    keep(work / "search" / "improve.html", "improve.html", work)


PAGES = {
    "default": make_default,
    "static": make_static,
    "comparison": make_comparison,
    "gpu": make_gpu,
    "serving": make_serving,
    "ranks": make_ranks,
    "improve": make_improve,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--captures", type=Path, help="folder of the RTX 5090 captures; without it that page stays"
    )
    parser.add_argument(
        "--serving", type=Path, help="folder of recorded servers; without it those pages stay"
    )
    parser.add_argument("--only", nargs="*", choices=PAGES, default=list(PAGES), help="pages to make")
    options = parser.parse_args()
    for name in options.only:
        with tempfile.TemporaryDirectory() as scratch:
            PAGES[name](Path(scratch), options)


MEASURED = {"samples": 20, "new_tokens": 64, "prefill_s": 0.0983, "decode_s": 0.7074, "model": "DeepSeek-OCR"}
"""Wall-clock of the captured run, without a tool attached."""

if __name__ == "__main__":
    main()
